"""Validation of the examples passed to a smoother."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from pyrobust.checks import exact_cast, finite_values, shape_text
from pyrobust.errors import InputError
from pyrobust.grid import to_grid
from pyrobust.runner import Runner

from .checks import noise_indices
from .image_noise import ImageNoise, noise_by_values


def checked_examples(
    x: Tensor,
    indices: Sequence[int] | Tensor | None,
    runner: Runner,
    channels: int | None,
    grid: Fraction | None = None,
    seed: int = 0,
) -> tuple[Tensor, ImageNoise]:
    """Validate examples; return them on the runner's device, in the dtype of their noise, with the keys of this noise.

    On a grid, the examples are returned as int32 multiples of its step. ``channels`` is the number of channels of the
    normalisation, None without one. Without indices the noise is keyed by seed, grid, shape and values.

    >>> checked_examples(torch.tensor([[0.0, 0.5]]), [7], Runner(lambda x: x), None, Fraction(1, 16))
    (tensor([[0, 8]], dtype=torch.int32), ImageNoise(words=[7], keys=None))
    """
    if x.dim() < 2:
        raise InputError("x", "a batch [B, ...] of examples of at least 1 dimension", shape_text(x.shape))
    if x[:1].numel() == 0 and len(x):
        raise InputError("x", "examples of at least one element", shape_text(x.shape))
    if runner.memory_format == torch.channels_last and x.dim() != 4:
        raise InputError("x", "[B, C, H, W] for channels_last", shape_text(x.shape))
    if channels is not None and x.shape[1] != channels:
        raise InputError("x", f"{channels} channels, the length of normalize's mean", shape_text(x.shape))
    noise = None if indices is None else ImageNoise(noise_indices(indices, len(x)))
    x = x.detach().to(runner.device_for(x))
    if grid is not None:
        try:
            levels = to_grid(x, grid)
        except InputError:
            finite_values("x", x)  # the better message: NaN and infinities are on no grid
            raise
        return levels, noise or noise_by_values(seed, levels, grid)
    finite_values("x", x)
    images = exact_cast("x", x, runner.input_dtype)
    return images, noise or noise_by_values(seed, images, None)
