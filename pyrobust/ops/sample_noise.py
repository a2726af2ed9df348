"""Noisy copies of images, the batch of randomized smoothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError

from . import native

#: What the noise is drawn for; part of the counter, so that no two stages share a draw.
STAGES: dict[str, int] = {"select": 0, "estimate": 1, "predict": 2, "attack": 3, "train": 4}
#: The noise distributions, all scaled to a per-coordinate standard deviation of sigma.
FAMILIES: dict[str, int] = {"gaussian": 0, "uniform": 1, "laplace": 2}

_WORDS = 1 << 32
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def sample_noise(
    x: Tensor,
    runs: Sequence[tuple[int, int, int, int]],
    *,
    sigma: float,
    noise: str = "gaussian",
    stage: str = "estimate",
    seed: int = 0,
    normalize: tuple[Tensor | Sequence[float], Tensor | Sequence[float]] | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> Tensor:
    """Packs noisy copies of several images into one batch, written once.

    Row n of the result, sample s of image i, is ``x[i] + sigma·z(seed, stage, noise, i, s)``, then
    ``(· - mean[c]) / std[c]`` where ``normalize`` is given, then rounded to ``dtype``. z has unit variance and is a
    pure function of its arguments: the same bits for every split into calls, thread count and SIMD level
    (docs/decisions/noise-contract.md). Philox4x32-10 (Salmon et al., 2011); Gaussian by Box and Muller (1958).

    Args:
        x: images [M, ...], float. A float64 result is computed from x in float64, any other from x in float32.
        runs: (row, image, first, count) each: samples first … first + count - 1 of the image ``x[row]``, whose index
            in the noise contract is ``image``. image and sample indices are in [0, 2**32).
        sigma: standard deviation of every coordinate, positive: a uniform of half-width √3·sigma, a Laplace of scale
            sigma/√2.
        noise: "gaussian", "uniform" or "laplace".
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        normalize: (mean, std), each of length C = x.shape[1]; std positive (checked on the CPU, where looking is free).
        dtype: of the result: float32, float64, bfloat16 or float16; default x's.
        memory_format: torch.contiguous_format, or torch.channels_last for images [C, H, W].
        out: a batch [N, ...] to write to, contiguous or channels_last; it decides dtype and memory format.

    Returns:
        [N, ...] with N the sum of the counts; ``out`` where given. It has no gradient.

    Raises:
        InputError: a value out of range, shapes that do not agree, or an x that requires a gradient.
        InputTypeError: a dtype that is not one of the above, or a number of another type.

    >>> x = torch.zeros(2, 3, 4, 4)
    >>> batch = sample_noise(x, [(0, 0, 0, 5), (1, 1, 0, 3)], sigma=0.25)
    >>> batch.shape
    torch.Size([8, 3, 4, 4])
    >>> torch.equal(batch[2:5], sample_noise(x, [(0, 0, 2, 3)], sigma=0.25))  # samples 2, 3, 4 again
    True
    """
    if not isinstance(x, Tensor) or x.dtype not in _DTYPES:
        raise InputTypeError(f"sample_noise: x: expected a float tensor, got {_kind(x)}; convert with x.float()")
    if x.dim() < 1:
        raise InputError("sample_noise: x: expected [M, ...], got a scalar")
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError("sample_noise: x: expected no gradient, for the op has none; call it under torch.no_grad()")
    if not hasattr(sigma, "__float__"):
        raise InputTypeError(f"sample_noise: sigma: expected a number, got {sigma!r}")
    sigma = float(sigma)
    if not (math.isfinite(sigma) and sigma > 0):
        raise InputError(f"sample_noise: sigma: expected a positive number, got {sigma}")
    if not isinstance(noise, str) or noise not in FAMILIES:
        raise InputError(f"sample_noise: noise: expected one of {', '.join(FAMILIES)}, got {noise!r}")
    if not isinstance(stage, str) or stage not in STAGES:
        raise InputError(f"sample_noise: stage: expected one of {', '.join(STAGES)}, got {stage!r}")
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InputTypeError(f"sample_noise: seed: expected an integer, got {seed!r}")
    seed = operator.index(seed)
    if not 0 <= seed < 1 << 64:
        raise InputError(f"sample_noise: seed: expected 0 to 2**64 - 1, got {seed}")
    total = _check_runs(runs, x.shape[0])

    if out is None:
        out = _empty_batch(x, total, dtype or x.dtype, memory_format)
    else:
        _check_out(out, x, total)
    if out.dtype not in _DTYPES:
        raise InputTypeError(f"sample_noise: dtype: expected float32, float64, bfloat16 or float16, got {out.dtype}")
    real = torch.float64 if out.dtype == torch.float64 else torch.float32
    if real == torch.float32 and not sigma < 3e38 / 8:
        raise InputError(f"sample_noise: sigma: expected a number that float32 noise can hold, got {sigma}")
    mean, std = (None, None) if normalize is None else _channels(normalize, x, real)
    native.call(
        torch.ops.pyrobust.sample_noise,
        out,
        x.to(real).contiguous(),
        [number for run in runs for number in run],
        seed if seed < 1 << 63 else seed - (1 << 64),  # the same 64 bits, as the schema's signed integer
        sigma,
        STAGES[stage] << 8 | FAMILIES[noise],
        mean,
        std,
    )
    return out


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def _check_runs(runs: Sequence[tuple[int, int, int, int]], rows: int) -> int:
    if not isinstance(runs, Sequence):
        raise InputTypeError(f"sample_noise: runs: expected a sequence of (row, image, first, count), got {runs!r}")
    total = 0
    for run in runs:
        if not isinstance(run, Sequence) or len(run) != 4:
            raise InputError(f"sample_noise: runs: expected (row, image, first, count), got {run!r}")
        if not all(hasattr(number, "__index__") for number in run):
            raise InputTypeError(f"sample_noise: runs: expected integers (row, image, first, count), got {run}")
        row, image, first, count = run
        if not 0 <= row < rows:
            raise InputError(f"sample_noise: runs: row: expected 0 to {rows - 1}, got {row}")
        if not 0 <= image < _WORDS:
            raise InputError(f"sample_noise: runs: image: expected an index in [0, 2**32), got {image}")
        if count < 0 or first < 0 or first + count > _WORDS:
            raise InputError(
                f"sample_noise: runs: first, count: expected sample indices in [0, 2**32), got {first}, {count}"
            )
        total += count
    return total


def _empty_batch(x: Tensor, total: int, dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise InputError(
            f"sample_noise: memory_format: expected torch.contiguous_format or torch.channels_last, got {memory_format}"
        )
    if memory_format == torch.channels_last and x.dim() != 4:
        raise InputError(
            f"sample_noise: memory_format: expected x of 4 dimensions for channels_last, got {tuple(x.shape)}"
        )
    return torch.empty((total, *x.shape[1:]), dtype=dtype, device=x.device, memory_format=memory_format)


def _check_out(out: Tensor, x: Tensor, total: int) -> None:
    expected = (total, *x.shape[1:])
    if out.shape != expected:
        raise InputError(f"sample_noise: out: expected shape {expected}, got {tuple(out.shape)}")
    if out.device != x.device:
        raise InputError(f"sample_noise: out: expected x's device, {x.device}, got {out.device}")
    if not (out.is_contiguous() or (out.dim() == 4 and out.is_contiguous(memory_format=torch.channels_last))):
        raise InputError(
            f"sample_noise: out: expected a contiguous or channels_last tensor, got strides {out.stride()}"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise InputError("sample_noise: out: expected no gradient, for the op has none; call it under torch.no_grad()")


def _channels(
    normalize: tuple[Tensor | Sequence[float], Tensor | Sequence[float]], x: Tensor, real: torch.dtype
) -> tuple[Tensor, Tensor]:
    if x.dim() < 2:
        raise InputError(f"sample_noise: normalize: expected x of [M, C, ...], got {tuple(x.shape)}")
    if not isinstance(normalize, Sequence) or len(normalize) != 2:
        raise InputError(f"sample_noise: normalize: expected (mean, std), got {normalize!r}")
    try:
        mean, std = (torch.as_tensor(values, dtype=real, device=x.device).contiguous() for values in normalize)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"sample_noise: normalize: expected numbers, got {normalize!r}: {error}") from None
    for name, values in (("mean", mean), ("std", std)):
        if values.shape != (x.shape[1],):
            raise InputError(
                f"sample_noise: normalize: expected a {name} of length {x.shape[1]}, the channels of x, "
                f"got {tuple(values.shape)}"
            )
    return mean, std


def _fake(
    out: Tensor,
    x: Tensor,
    runs: list[int],
    seed: int,
    sigma: float,
    domain: int,
    mean: Tensor | None,
    std: Tensor | None,
) -> None:
    return None


torch.library.register_fake("pyrobust::sample_noise", _fake)
