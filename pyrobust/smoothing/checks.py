"""What the arguments of a smoother have to be."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import number, numbers
from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import MAX_TRIALS

logger = logging.getLogger(__name__)

Channels: TypeAlias = Tensor | Sequence[float]

_WORDS = 1 << 32


def integer(name: str, value: SupportsIndex) -> int:
    """The value as an int; a float or a bool is an error."""
    if isinstance(value, bool):
        raise InputTypeError(f"{name}: expected an integer, got {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise InputTypeError(f"{name}: expected an integer, got {value!r}") from None


def count(name: str, value: SupportsIndex) -> int:
    """An integer of at least 1."""
    number = integer(name, value)
    if number < 1:
        raise InputError(f"{name}: expected at least 1, got {number}")
    return number


def samples(name: str, value: SupportsIndex) -> int:
    """A number of samples that the confidence bounds, and so the noise contract's sample indices, reach."""
    number = count(name, value)
    if number > MAX_TRIALS:
        raise InputError(f"{name}: expected at most {MAX_TRIALS}, got {number}")
    return number


def probability(name: str, value: float) -> float:
    """A number in (0, 1)."""
    found = number(name, value)
    if not 0 < found < 1:
        raise InputError(f"{name}: expected a number in (0, 1), got {value}")
    return found


def image_indices(indices: Sequence[int] | Tensor | None, examples: int) -> list[int]:
    """An image index of the noise contract for each example; by default its position."""
    if indices is None:
        return list(range(examples))
    try:
        values = list(indices.tolist() if isinstance(indices, Tensor) else indices)
    except TypeError:
        raise InputTypeError(f"indices: expected a sequence of integers, got {indices!r}") from None
    index = [integer("indices", i) for i in values]
    if len(index) != examples:
        raise InputError(f"indices: expected one for each of the {examples} examples, got {len(index)}")
    for i in index:
        if not 0 <= i < _WORDS:
            raise InputError(f"indices: expected 0 to 2**32 - 1, the noise contract's range, got {i}")
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
    values = () if radii is None else tuple(numbers("radii", radii))
    for radius in values:
        if not radius >= 0:
            raise InputError(f"radii: expected numbers of at least 0, got {radius}")
    return values
