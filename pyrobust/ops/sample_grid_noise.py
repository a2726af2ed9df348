"""Noisy copies of images, rounded to a grid, for smoothing with certificates that hold in floating point."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from pyrobust.checks import kind
from pyrobust.errors import InputError, InputTypeError

from . import native
from .grid_table import GridNoise, check_held, grid_noise
from .noise_arguments import (
    channels,
    check_dtype,
    check_key,
    check_keys,
    check_out,
    check_runs,
    check_sigma,
    empty_batch,
)

#: Number of this noise family among the domains of the noise contract; the extra words of an ambiguous draw use the
#: next two numbers.
FAMILY = 3

_OP = "sample_grid_noise"


def sample_grid_noise(
    k: Tensor,
    runs: Sequence[tuple[int, int, int, int]],
    *,
    sigma: float,
    step: Fraction,
    stage: str = "estimate",
    seed: int = 0,
    keys: Sequence[int] | None = None,
    normalize: tuple[Tensor | Sequence[float], Tensor | Sequence[float]] | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Pack copies of images, with noise rounded to multiples of ``step``, into one batch in one pass over its memory.

    Row n of the batch (sample s of image i) is step·(k[i] + J), where J = round(sigma·Z / step) and Z is standard
    normal. This is x + sigma·Z rounded to the grid, for x = step·k[i]. The integers k[i] and J are added first; a
    single division then turns their sum into the float nearest to step·(k[i] + J). Then ``(· - mean[c]) / std[c]`` is
    applied if ``normalize`` is given, and the result is rounded to ``dtype``. Every number in the batch is therefore a
    function of the integer k[i] + J and the channel alone. So a model learns no more about k from a noisy image than
    from x + sigma·Z rounded to the grid, and the proof of randomized smoothing, which assumes real numbers, holds for
    the computed batch. J is a pure function of (key, stage, i, s, element), where the key is the seed by default. It
    does not depend on the split into calls, the thread count or the SIMD level (docs/decisions/noise-contract.md). The
    total variation distance between the distribution of J as drawn and the exact one is at most ``grid_noise(sigma,
    step).delta``.

    An element whose noise is beyond ``grid_noise(sigma, step).reach``, about seven standard deviations, is a tail. Its
    magnitude is not drawn, so its sample must count against the claim to be proved.

    Args:
        k: images [M, ...], int32, such that x = step·k.
        runs: tuples (row, image, first, count). Each tuple stands for samples first … first + count - 1 of the image
            ``k[row]``; ``image`` is the index that selects this image's noise (see the noise contract). Image and
            sample indices are in [0, 2**32).
        sigma: standard deviation of the noise before rounding, positive, at most 2**13 steps.
        step: an exact fraction; 1/255 for bytes divided by 255. Numerator and denominator are below 2**24.
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        keys: one Philox key in [0, 2**64) for each run, used instead of the seed, for example a key derived from an
            image's values. Default: the seed.
        normalize: (mean, std), each of length C = k.shape[1]; std positive (checked on the CPU only).
        dtype: dtype of the batch: float32, float64, bfloat16 or float16.
        memory_format: torch.contiguous_format, or torch.channels_last for images [C, H, W].
        out: a batch [N, ...] to write to, contiguous or channels_last; it decides dtype and memory format.

    Returns:
        A tuple of two tensors: the batch [N, ...] (``out`` if given), where N is the sum of the counts, and a bool
        tensor [N], True for each row that has a tail.

    Raises:
        InputError: a value out of range, mismatched shapes, or an integer whose product with the step's numerator may
            not be exact because it is above 2**24 (float64: above 2**53). Noise that is too large by itself,
            whatever k is, is refused on every device; the sum of k and noise is checked on the CPU only.
        InputTypeError: an unsupported dtype, a k that is not int32, a step that is not a Fraction, or a number, runs or
            normalize of a wrong type.

    >>> k = torch.randint(256, (2, 3, 4, 4), dtype=torch.int32)
    >>> batch, tail = sample_grid_noise(k, [(0, 0, 0, 5), (1, 1, 0, 3)], sigma=0.25, step=Fraction(1, 255))
    >>> batch.shape, tail.any().item()
    (torch.Size([8, 3, 4, 4]), False)
    >>> integers = (batch.double() * 255).round().float()
    >>> torch.equal(integers / 255, batch)  # each is the float nearest to an integer over 255
    True
    """
    if not isinstance(k, Tensor) or k.dtype != torch.int32:
        raise InputTypeError(f"{_OP}: k", "int32", kind(k), "x = step·k")
    if k.dim() < 1:
        raise InputError(f"{_OP}: k", "[M, ...]", "a scalar")
    noise = _table(check_sigma(_OP, sigma), step)
    stage_number, seed_bits = check_key(_OP, stage, seed)
    total = check_runs(_OP, runs, k.shape[0])
    key_bits = check_keys(_OP, keys, len(runs))

    if out is None:
        check_dtype(_OP, dtype)
        out = empty_batch(_OP, "k", k, total, dtype, memory_format)
    else:
        check_out(_OP, "k", out, k, total)
        check_dtype(_OP, out.dtype)
    real = torch.float64 if out.dtype == torch.float64 else torch.float32
    check_held(f"{_OP}: step", noise, real)
    mean, std = (None, None) if normalize is None else channels(_OP, "k", normalize, k, real)
    tail = torch.zeros(total, dtype=torch.bool, device=k.device)
    flat = [number for run in runs for number in run]
    draw_grid_noise(
        out,
        tail,
        k.contiguous(),
        flat,
        stage=stage_number,
        seed=seed_bits,
        keys=key_bits,
        mean=mean,
        std=std,
        noise=noise,
    )
    return out, tail


def draw_grid_noise(
    out: Tensor,
    tail: Tensor,
    k: Tensor,
    runs: list[int],
    stage: int,
    seed: int,
    keys: list[int],
    mean: Tensor | None,
    std: Tensor | None,
    noise: GridNoise,
) -> None:
    """Write noisy copies to ``out`` and mark tails in ``tail``; only the native op checks the arguments.

    The runs form one flat list; seed and keys are signed 64-bit integers.

    >>> out, tail = torch.empty(2, 3), torch.zeros(2, dtype=torch.bool)
    >>> k = torch.zeros(1, 3, dtype=torch.int32)
    >>> draw_grid_noise(out, tail, k, [0, 0, 0, 2], 1, 0, [], None, None, grid_noise(0.5, Fraction(1, 255)))
    >>> torch.equal(out, sample_grid_noise(k, [(0, 0, 0, 2)], sigma=0.5, step=Fraction(1, 255))[0])
    True
    """
    guide, thresholds = native.read_here(*_on_device(noise, k.device))
    p, q = noise.step.as_integer_ratio()
    domain = stage << 8 | FAMILY
    native.call(
        torch.ops.pyrobust.sample_grid_noise, out, tail, k, runs, seed, domain, guide, thresholds, p, q, mean, std, keys
    )


def _table(sigma: float, step: Fraction) -> GridNoise:
    try:
        return grid_noise(sigma, step)
    except (InputError, InputTypeError) as error:
        error.function = _OP
        raise


@functools.lru_cache(maxsize=64)
def _on_device(noise: GridNoise, device: torch.device) -> tuple[Tensor, Tensor]:
    return noise.guide.to(device), noise.words.to(device)


native.fake("sample_grid_noise")
