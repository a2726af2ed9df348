"""Gaussian noise on a grid, computed in Python integers from the definition of its distribution."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction

import torch
from torch import Tensor

from .noise import STAGES
from .philox import MASK, philox4x32

_FAMILY = 3
_REACH = 7
_DIGITS = 90


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
    """Pack noisy copies of images on a grid into a batch: reference of ``pyrobust.ops.sample_grid_noise``, bit for bit.

    For step = p/q, the copies are v = (k + J)·p / q, rounded once, where J is the noise that ``grid_integers`` returns.
    If ``normalize`` is given, channel c is then normalized to (v - mean[c]) / std[c]. The copies are computed in
    float64 for a float64 result and in float32 otherwise, then rounded to the dtype of the result.

    Args:
        k: [M, ...], int32.
        runs: tuples (row, image, first, count). Each tuple stands for samples first … first + count - 1 of the image
            ``k[row]``; ``image`` is this image's index in the noise contract.
        sigma: standard deviation of the noise before it is rounded to the grid, positive. The exact value of this float
            is used.
        step: spacing of the grid.
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        keys: Philox key of each run, used in place of the seed.
        normalize: (mean, std), each of length C = k.shape[1].
        dtype: dtype of the result: float32, float64, bfloat16 or float16.
        memory_format: torch.contiguous_format, or torch.channels_last for a result of four dimensions.
        out: a batch [N, ...] to write to; it decides dtype and memory format.

    Returns:
        The batch [N, ...], where N is the sum of the counts, and a bool tensor [N] that is True for rows in which some
        value of J lies in a tail of its distribution.

    >>> k = torch.zeros(1, 3, dtype=torch.int32)
    >>> sample_grid_noise(k, [(0, 7, 0, 2)], sigma=0.5, step=Fraction(1, 16))[0] * 16
    tensor([[-10.,  14., -14.],
            [-20.,  -9., -10.]])
    """
    total = sum(count for _, _, _, count in runs)
    if out is None:
        out = torch.empty((total, *k.shape[1:]), dtype=dtype, device=k.device, memory_format=memory_format)
    tail = torch.zeros(total, dtype=torch.bool, device=k.device)
    real = torch.float64 if out.dtype == torch.float64 else torch.float32
    reach = len(thresholds(sigma, step)) // 2 - 1
    start = 0
    for run, (row, image, first, count) in enumerate(runs):
        key = seed if keys is None else keys[run]
        drawn = grid_integers(
            image, first, count, k[row].numel(), sigma=sigma, step=step, stage=stage, seed=key, device=k.device
        )
        tail[start : start + count] = (drawn.abs() > reach).any(1)
        sums = k[row].long() + drawn.reshape(count, *k.shape[1:])
        y = (sums * step.numerator).to(real) / step.denominator
        if normalize is not None:
            mean, std = (
                torch.as_tensor(values, dtype=real, device=k.device).reshape(-1, *[1] * (k.dim() - 2))
                for values in normalize
            )
            y = (y - mean) / std
        out[start : start + count] = y.to(out.dtype)
        start += count
    return out, tail


def grid_integers(
    image: int,
    first: int,
    count: int,
    elements: int,
    *,
    sigma: float,
    step: Fraction,
    stage: str = "estimate",
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the Gaussian noise J of the noise contract, in grid steps, each drawn by inversion from 96 random bits.

    Args:
        image: index of the image in the noise contract, in [0, 2**32).
        first: first sample index; first + count is at most 2**32.
        count: number of samples.
        elements: number of elements of the image; the elements are in contiguous (C, H, W) order.
        sigma: standard deviation of the noise before it is rounded to the grid.
        step: spacing of the grid.
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        device: device of the result.

    Returns:
        [count, elements], int64. J lies in -reach … reach, except in the tails, where J is ± (reach + 1). Here reach is
        the smallest integer with (reach + ½)·step/sigma ≥ 7.

    >>> grid_integers(7, 0, 1, 3, sigma=0.5, step=Fraction(1, 16))
    tensor([[-10,  14, -14]])
    """
    leading, middle, last = (
        _words(image, first, count, elements, STAGES[stage] * 256 + _FAMILY + more, seed) for more in range(3)
    )
    cuts = thresholds(sigma, step)
    drawn = [
        bisect_right(cuts, a << 64 | b << 32 | c) - len(cuts) // 2
        for a, b, c in zip(leading, middle, last, strict=True)
    ]
    return torch.tensor(drawn, dtype=torch.int64, device=device).reshape(count, elements)


@functools.lru_cache(maxsize=32)
def thresholds(sigma: float, step: Fraction) -> tuple[int, ...]:
    """Return the thresholds from which J is drawn: its distribution function in units of 2⁻⁹⁶, as integers.

    To draw J, 96 random bits are compared with these values. They are 2⁹⁶·Φ((j + ½)·step/sigma) for j = -reach - 1 …
    reach, rounded down below 2⁹⁵ and up above it. Here reach is the smallest integer with (reach + ½)·step/sigma ≥ 7. A
    draw below the first threshold is in the lower tail; a draw of at least the last threshold is in the upper tail.

    >>> cuts = thresholds(0.5, Fraction(1, 1))
    >>> [round(cut / 2**96, 4) for cut in cuts]
    [0.0, 0.0, 0.0013, 0.1587, 0.8413, 0.9987, 1.0, 1.0]
    """
    unit = step / Fraction(sigma)
    reach = 0
    while (reach + Fraction(1, 2)) * unit < _REACH:
        reach += 1
    lower = [_lower_tail((j + Fraction(1, 2)) * unit) for j in range(reach, -1, -1)]
    return (*lower, *((1 << 96) - cut for cut in reversed(lower)))


def _lower_tail(z: Fraction) -> int:
    """Compute ⌊2⁹⁶·Φ(-z)⌋ for z > 0, from Φ(z) - ½ = φ(z)·(z + z³/3 + z⁵/(3·5) + …) with ninety digits."""
    if z > 15:
        return 0  # Φ(-15) is 2⁻¹⁶⁸
    with localcontext(Context(prec=_DIGITS)):
        d = Decimal(z.numerator) / Decimal(z.denominator)
        total, term, j = d, d, 1
        while term > total.scaleb(-_DIGITS):
            j += 2
            term = term * d * d / j
            total += term
        upper = (-d * d / 2).exp() / (2 * _pi()).sqrt() * total
        return int(((Decimal("0.5") - upper) * (1 << 96)).to_integral_value(ROUND_FLOOR))


@functools.cache
def _pi() -> Decimal:
    """Compute π by Euler's series 2·Σ k!/(2k + 1)!!; each term is at most half the term before."""
    with localcontext(Context(prec=_DIGITS + 10)):
        total, term, k = Decimal(0), Decimal(2), 0
        while term > Decimal(1).scaleb(-_DIGITS - 5):
            total += term
            k += 1
            term = term * k / (2 * k + 1)
        return total


def _words(image: int, first: int, count: int, elements: int, domain: int, seed: int) -> list[int]:
    """Return, for element e of each sample, Philox word e mod 4 at the counter (⌊e / 4⌋, sample, image, domain)."""
    blocks = -(-elements // 4)
    block = torch.arange(blocks).expand(count, blocks)
    sample = torch.arange(first, first + count)[:, None].expand(count, blocks)
    counter = torch.stack([block, sample, torch.full_like(block, image), torch.full_like(block, domain)], dim=-1)
    words = philox4x32(torch.tensor([seed & MASK, seed >> 32]), counter)
    return words.reshape(count, 4 * blocks)[:, :elements].flatten().tolist()
