"""What the arguments of a smoother have to be."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import count, image_indices, non_negatives
from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import MAX_TRIALS

logger = logging.getLogger(__name__)

Channels: TypeAlias = Tensor | Sequence[float]


def samples(name: str, value: SupportsIndex) -> int:
    """A number of samples that the confidence bounds, and so the noise contract's sample indices, reach."""
    return count(name, value, MAX_TRIALS)


def noise_indices(indices: Sequence[int] | Tensor | None, examples: int) -> list[int]:
    """Return the image index of each example; log a warning where examples share one, and so their noise."""
    index = image_indices(indices, examples)
    if len(set(index)) != len(index):
        logger.warning("indices: some examples share an index, and so their noise")
    return index


def channels(normalize: tuple[Channels, Channels], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(mean, std) as tensors [C] of one length."""
    try:
        mean, std = (torch.as_tensor(values, dtype=dtype, device=device).flatten() for values in normalize)
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError(f"normalize: expected (mean, std), each a number a channel, got {normalize!r}") from None
    if len(mean) != len(std):
        raise InputError(f"normalize: expected mean and std of one length, got {len(mean)}, {len(std)}")
    if not bool(torch.isfinite(mean).all() and torch.isfinite(std).all() and (std > 0).all()):
        raise InputError("normalize: expected finite numbers and a positive std")
    return mean, std


def one_example(x: Tensor) -> Tensor:
    """The batch of one example."""
    if not isinstance(x, Tensor):
        raise InputTypeError(f"x: expected a tensor, got {type(x).__name__}")
    if x.dim() < 1:
        raise InputError("x: expected an example of at least 1 dimension, got a scalar")
    return x.unsqueeze(0)


def certified_radii(method: str, radii: Sequence[float] | None) -> tuple[float, ...]:
    """The radii of interest of a method that exists."""
    if method not in ("fixed", "sequential"):
        raise InputError(f'method: expected "fixed" or "sequential", got {method!r}')
    # Not `radii or ()`: an array has no truth.
    return () if radii is None else tuple(non_negatives("radii", radii, infinite=True))
