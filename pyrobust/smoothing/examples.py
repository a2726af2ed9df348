"""What the examples of a smoother have to be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError
from pyrobust.runner import Runner

from .checks import image_indices


def checked_examples(
    x: Tensor, indices: Sequence[int] | Tensor | None, runner: Runner, channels: int | None
) -> tuple[Tensor, list[int]]:
    """Examples on the runner's device, in the precision of their noise, and their image indices.

    Args:
        x: [B, ...], float, finite; float64 only where the noise's precision holds the values.
        indices: one for each; default 0 … B - 1.
        runner: of the model.
        channels: how many a normalisation has; None without one.

    Returns:
        [B, ...], float64 for a float64 model and float32 for any other; the indices.

    Raises:
        InputError: not finite, without a batch dimension, values lost in that precision, indices of another length.
        InputTypeError: integer images.

    >>> checked_examples(torch.zeros(2, 3), [7, 5], Runner(torch.nn.Identity()), None)[1]
    [7, 5]
    """
    if not isinstance(x, Tensor):
        raise InputTypeError(f"x: expected a tensor, got {type(x).__name__}")
    if not x.dtype.is_floating_point:
        raise InputTypeError(f"x: expected a float tensor, got {x.dtype}; for 8-bit images: x.float() / 255")
    if x.dim() < 2:
        raise InputError(f"x: expected a batch [B, ...] of examples of at least 1 dimension, got {tuple(x.shape)}")
    if x[:1].numel() == 0 and len(x):
        raise InputError(f"x: expected examples of at least one element, got {tuple(x.shape)}")
    if runner.memory_format == torch.channels_last and x.dim() != 4:
        raise InputError(f"x: expected [B, C, H, W] for channels_last, got {tuple(x.shape)}")
    if channels is not None and (x.dim() < 3 or x.shape[1] != channels):
        raise InputError(f"x: expected {channels} channels, the length of normalize's mean, got {tuple(x.shape)}")
    index = image_indices(indices, len(x))
    x = x.detach().to(runner.device_for(x))
    if not bool(torch.isfinite(x).all()):
        raise InputError("x: expected finite values, got NaN or inf")
    images = x.to(noise_dtype(runner))
    if x.dtype.itemsize > images.dtype.itemsize and not bool((images.to(x.dtype) == x).all()):
        raise InputError(
            f"x: expected values that {images.dtype} holds exactly, for the model runs in {runner.dtype}; "
            "pass x.float(), which the certificates are then about, or use a float64 model"
        )
    return images, index


def noise_dtype(runner: Runner) -> torch.dtype:
    """The precision that noise is drawn and added in."""
    return torch.float64 if runner.dtype == torch.float64 else torch.float32
