"""Noisy copies of images: the batches of randomized smoothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobust.checks import kind
from pyrobust.errors import InputError, InputTypeError

from . import native
from .noise_arguments import (
    DTYPES,
    channels,
    check_dtype,
    check_key,
    check_keys,
    check_out,
    check_runs,
    check_sigma,
    empty_batch,
)

#: Noise distributions, each with per-coordinate standard deviation sigma.
FAMILIES: dict[str, int] = {"gaussian": 0, "uniform": 1, "laplace": 2}

_OP = "sample_noise"


def sample_noise(
    x: Tensor,
    runs: Sequence[tuple[int, int, int, int]],
    *,
    sigma: float,
    noise: str = "gaussian",
    stage: str = "estimate",
    seed: int = 0,
    keys: Sequence[int] | None = None,
    normalize: tuple[Tensor | Sequence[float], Tensor | Sequence[float]] | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> Tensor:
    """Pack noisy copies of several images into one batch, in one pass over its memory.

    Row n of the result (sample s of image i) is ``x[i] + sigma·z(key, stage, noise, i, s)``, where the key is the seed
    by default. Then ``(· - mean[c]) / std[c]`` is applied if ``normalize`` is given, and the result is rounded to
    ``dtype``. z has unit variance and is a pure function of its arguments: its bits do not depend on the split into
    calls, the thread count or the SIMD level (docs/decisions/noise-contract.md). Random words come from Philox4x32-10
    (Salmon et al., 2011), Gaussian variates from the method of Box and Muller (1958).

    Args:
        x: images [M, ...], float. A float64 result is computed from x in float64; a result of any other dtype is
            computed from x in float32.
        runs: tuples (row, image, first, count). Each tuple stands for ``count`` samples of the image ``x[row]``, from
            sample number ``first`` on; ``image`` is the index that selects this image's noise (see the noise contract).
            Image and sample indices are in [0, 2**32).
        sigma: standard deviation of every coordinate, positive; uniform noise has half-width √3·sigma, and Laplace
            noise has scale sigma/√2.
        noise: "gaussian", "uniform" or "laplace".
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        keys: one Philox key in [0, 2**64) for each run, used instead of the seed, for example a key derived from an
            image's values. Default: the seed.
        normalize: (mean, std), each of length C = x.shape[1]; std positive (checked on the CPU only).
        dtype: dtype of the result: float32, float64, bfloat16 or float16; default: the dtype of x.
        memory_format: torch.contiguous_format, or torch.channels_last for images [C, H, W].
        out: a batch [N, ...] to write to, contiguous or channels_last; it decides dtype and memory format.

    Returns:
        The batch [N, ...], where N is the sum of the counts; it is ``out`` if that is given. The op has no gradient.

    Raises:
        InputError: a value out of range, mismatched shapes, or an x that requires a gradient.
        InputTypeError: an unsupported dtype, or an x, a number, runs or normalize of a wrong type.

    >>> x = torch.zeros(2, 3, 4, 4)
    >>> batch = sample_noise(x, [(0, 0, 0, 5), (1, 1, 0, 3)], sigma=0.25)
    >>> batch.shape
    torch.Size([8, 3, 4, 4])
    >>> torch.equal(batch[2:5], sample_noise(x, [(0, 0, 2, 3)], sigma=0.25))  # samples 2, 3, 4 again
    True
    """
    if not isinstance(x, Tensor) or x.dtype not in DTYPES:
        raise InputTypeError("sample_noise: x", "a float tensor", kind(x), "convert with x.float()")
    if x.dim() < 1:
        raise InputError("sample_noise: x", "[M, ...]", "a scalar")
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError("sample_noise: x", "no gradient, since the op has none", hint="call it under torch.no_grad()")
    sigma = check_sigma(_OP, sigma)
    if not isinstance(noise, str) or noise not in FAMILIES:
        raise InputError("sample_noise: noise", f"one of {', '.join(FAMILIES)}", repr(noise))
    stage_number, seed_bits = check_key(_OP, stage, seed)
    total = check_runs(_OP, runs, x.shape[0])
    key_bits = check_keys(_OP, keys, len(runs))

    if out is None:
        out = empty_batch(_OP, "x", x, total, dtype or x.dtype, memory_format)
    else:
        check_out(_OP, "x", out, x, total)
    check_dtype(_OP, out.dtype)
    real = torch.float64 if out.dtype == torch.float64 else torch.float32
    if real == torch.float32 and not sigma < 3e38 / 8:
        raise InputError("sample_noise: sigma", "a number that float32 noise can hold", sigma)
    mean, std = (None, None) if normalize is None else channels(_OP, "x", normalize, x, real)
    flat = [number for run in runs for number in run]
    draw_noise(
        out,
        x.to(real).contiguous(),
        flat,
        stage_number,
        seed=seed_bits,
        keys=key_bits,
        mean=mean,
        std=std,
        sigma=sigma,
        noise=noise,
    )
    return out


def draw_noise(
    out: Tensor,
    x: Tensor,
    runs: list[int],
    stage: int,
    seed: int,
    keys: list[int],
    mean: Tensor | None,
    std: Tensor | None,
    sigma: float,
    noise: str,
) -> None:
    """Write noisy copies to ``out``; only the native op checks the arguments.

    The runs form one flat list; seed and keys are signed 64-bit integers.

    >>> out = torch.empty(2, 3)
    >>> draw_noise(out, torch.zeros(1, 3), [0, 0, 0, 2], 1, 0, [], None, None, 0.5, "gaussian")
    >>> torch.equal(out, sample_noise(torch.zeros(1, 3), [(0, 0, 0, 2)], sigma=0.5))
    True
    """
    domain = stage << 8 | FAMILIES[noise]
    native.call(torch.ops.pyrobust.sample_noise, out, x, runs, seed, sigma, domain, mean, std, keys)


native.fake("sample_noise")
