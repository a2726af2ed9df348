"""Argument checks shared by the ops that draw noise; error messages begin with the name of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobust.checks import WORDS, choice, integer, positive, shown
from pyrobust.errors import InputError, InputTypeError

#: Purposes for which noise is drawn; part of the counter, so no two stages share a draw.
STAGES: dict[str, int] = {"select": 0, "estimate": 1, "predict": 2, "attack": 3, "train": 4}
#: Dtypes of a noisy batch.
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_sigma(op: str, sigma: float) -> float:
    """Return sigma as a float; refuse values other than positive numbers."""
    return positive(f"{op}: sigma", sigma)


def check_key(op: str, stage: str, seed: int) -> tuple[int, int]:
    """Return the number of the stage, and the 64 bits of the seed as a signed integer."""
    choice(f"{op}: stage", stage, tuple(STAGES))
    return STAGES[stage], _signed(integer(f"{op}: seed", seed, 0, (1 << 64) - 1))


def check_keys(op: str, keys: Sequence[int] | None, runs: int) -> list[int]:
    """Return the 64 bits of each run's key as a signed integer; an empty list if ``keys`` is None."""
    if keys is None:
        return []
    if not isinstance(keys, Sequence) or len(keys) != runs:
        raise InputError(f"{op}: keys", f"a sequence of one key for each of the {runs} runs", shown(keys))
    return [_signed(integer(f"{op}: keys", key, 0, (1 << 64) - 1)) for key in keys]


def _signed(word: int) -> int:
    return word if word < 1 << 63 else word - (1 << 64)


def check_dtype(op: str, dtype: torch.dtype) -> None:
    """Refuse a dtype outside DTYPES."""
    if dtype not in DTYPES:
        raise InputTypeError(f"{op}: dtype", "float32, float64, bfloat16 or float16", shown(dtype))


def check_runs(op: str, runs: Sequence[tuple[int, int, int, int]], rows: int) -> int:
    """Check the runs; return their total number of samples."""
    if not isinstance(runs, Sequence):
        raise InputTypeError(f"{op}: runs", "a sequence of (row, image, first, count)", repr(runs))
    total = 0
    for run in runs:
        if not isinstance(run, Sequence) or len(run) != 4:
            raise InputError(f"{op}: runs", "(row, image, first, count)", repr(run))
        if not all(type(number) is int or _is_index(number) for number in run):
            raise InputTypeError(f"{op}: runs", "integers (row, image, first, count)", shown(run))
        row, image, first, count = run
        if not 0 <= row < rows:
            raise InputError(f"{op}: runs", f"0 to {rows - 1}", row, where="row")
        if not 0 <= image < WORDS:
            raise InputError(f"{op}: runs", "an index in [0, 2**32)", image, where="image")
        if count < 0 or first < 0 or first + count > WORDS:
            raise InputError(f"{op}: runs", "sample indices in [0, 2**32)", f"{first}, {count}", where="first, count")
        total += count
    return total


def _is_index(value: object) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__")


def empty_batch(
    op: str, name: str, x: Tensor, total: int, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """Allocate a batch for `total` noisy copies of the images x; `name` is the op's name for x."""
    check_dtype(op, dtype)
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise InputError(f"{op}: memory_format", "torch.contiguous_format or torch.channels_last", memory_format)
    if memory_format == torch.channels_last and x.dim() != 4:
        raise InputError(f"{op}: memory_format", f"{name} of 4 dimensions for channels_last", tuple(x.shape))
    return torch.empty((total, *x.shape[1:]), dtype=dtype, device=x.device, memory_format=memory_format)


def check_out(op: str, name: str, out: Tensor, x: Tensor, total: int) -> None:
    """Refuse a batch that cannot hold `total` noisy copies of the images x; `name` is the op's name for x."""
    expected = (total, *x.shape[1:])
    if out.shape != expected:
        raise InputError(f"{op}: out", f"shape {expected}", tuple(out.shape))
    if out.device != x.device:
        raise InputError(f"{op}: out", f"{name}'s device, {x.device}", out.device)
    if not (out.is_contiguous() or (out.dim() == 4 and out.is_contiguous(memory_format=torch.channels_last))):
        raise InputError(f"{op}: out", "a contiguous or channels_last tensor", f"strides {out.stride()}")
    if out.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{op}: out", "no gradient, since the op has none", hint="call it under torch.no_grad()")


def channels(
    op: str,
    name: str,
    normalize: tuple[Tensor | Sequence[float], Tensor | Sequence[float]],
    x: Tensor,
    real: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return ``normalize``'s mean and std for the channels of x in dtype ``real``; `name` is the op's name for x."""
    if x.dim() < 2:
        raise InputError(f"{op}: normalize", f"{name} of [M, C, ...]", tuple(x.shape))
    if not isinstance(normalize, Sequence) or len(normalize) != 2:
        raise InputError(f"{op}: normalize", "(mean, std)", repr(normalize))
    try:
        mean, std = (torch.as_tensor(values, dtype=real, device=x.device).contiguous() for values in normalize)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{op}: normalize", "numbers", f"{normalize!r}: {error}") from None
    for statistic, values in (("mean", mean), ("std", std)):
        if values.shape != (x.shape[1],):
            raise InputError(
                f"{op}: normalize", f"a {statistic} of length {x.shape[1]}, the channels of {name}", tuple(values.shape)
            )
    return mean, std
