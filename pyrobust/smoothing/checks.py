"""Checks of the arguments of a smoother, and of its examples."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, SupportsIndex, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import (
    choice,
    count,
    exact_cast,
    finite_values,
    flag,
    image_indices,
    non_negatives,
    numbers,
    shape_text,
    shown,
)
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import to_grid
from pyrobust.runner import Runner
from pyrobust.stats import MAX_TRIALS

from .image_noise import ImageNoise, noise_by_values

logger = logging.getLogger(__name__)

#: How certification samples.
SEQUENTIAL: Final = "sequential"
METHODS = ("fixed", SEQUENTIAL)
Channels: TypeAlias = Tensor | Sequence[float]


def samples(name: str, value: SupportsIndex) -> int:
    """Return the value as an int, after checking that the confidence bounds support this number of samples."""
    return count(name, value, MAX_TRIALS)


def noise_indices(indices: Sequence[int] | Tensor, examples: int) -> list[int]:
    """Return the image index of each example; log a warning if examples share an index."""
    index = image_indices(indices, examples)
    if len(set(index)) != len(index):
        logger.warning("indices: some examples share an index and therefore their noise; pass distinct indices")
    return index


def channels(normalize: tuple[Channels, Channels], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (mean, std) as tensors [C] of the same length."""
    try:
        mean, std = (torch.as_tensor(values, dtype=dtype, device=device).flatten() for values in normalize)
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError("normalize", "(mean, std) with one number per channel each", repr(normalize)) from None
    if len(mean) != len(std):
        raise InputError("normalize", "mean and std of the same length", f"{len(mean)} and {len(std)}")
    if not bool(torch.isfinite(mean).all() and torch.isfinite(std).all() and (std > 0).all()):
        raise InputError(
            "normalize", "finite numbers and a positive std", f"mean {mean.tolist()} and std {std.tolist()}"
        )
    return mean, std


def one_example(x: Tensor) -> Tensor:
    """Add a batch dimension to one example."""
    if x.dim() < 1:
        raise InputError("x", "an example of at least 1 dimension", "a scalar")
    return x.unsqueeze(0)


def certified_radii(method: str, radii: Sequence[float] | None) -> tuple[float, ...]:
    """Return the radii of interest as numbers, after checking the method."""
    choice("method", method, METHODS)
    # Not `radii or ()`, because the truth value of an array is undefined.
    return () if radii is None else tuple(non_negatives("radii", radii, infinite=True))


def check_sampling(method: str, *, radii: object = None, hybrid: object = None, two_class: object = False) -> None:
    """Raise InputError if arguments of sequential sampling are given with another method; two_class must be a bool.

    >>> check_sampling("fixed", hybrid=0.5)
    Traceback (most recent call last):
    pyrobust.errors.InputError: hybrid: expected none with method "fixed", got 0.5; use method "sequential"
    """
    choice("method", method, METHODS)
    options = {"radii": radii, "hybrid": hybrid, "two_class": flag("two_class", two_class) or None}
    for name, value in options.items():
        if value is not None and method != SEQUENTIAL:
            raise InputError(name, 'none with method "fixed"', shown(value), 'use method "sequential"')


def radii_to_decide(radii: Sequence[float] | None) -> list[float]:
    """Return the radii of a sequential certification as numbers; there must be at least one."""
    values = [] if radii is None else numbers("radii", radii)
    if not values:
        raise InputError("radii", "at least one radius for the sequential method to decide, such as 0.25", "none")
    return values


def checked_examples(
    x: Tensor,
    indices: Sequence[int] | Tensor | None,
    runner: Runner,
    channels: int | None,
    grid: Fraction | None = None,
    seed: int = 0,
) -> tuple[Tensor, ImageNoise]:
    """Validate examples; return the examples and the keys of their noise.

    The examples are returned in the dtype of the noise, on the runner's device. On a grid, they are returned as int32
    multiples of the grid's step. ``channels`` is the number of channels of the normalisation, or None without a
    normalisation. If no indices are given, the noise is keyed by seed, grid, shape and values.

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
            finite_values("x", x)  # gives a better message, since NaN and infinities are on no grid
            raise
        return levels, noise or noise_by_values(seed, levels, grid)
    finite_values("x", x)
    images = exact_cast("x", x, runner.input_dtype)
    return images, noise or noise_by_values(seed, images, None)
