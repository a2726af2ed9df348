"""Upper bounds of spectral norms by Gram iteration, rounding errors included."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor

# Exceeds the rounding error of several operations on positive numbers.
_UP = 1 + 2.0**-49
_UNIT = 2.0**-53
# The largest error of a result below the smallest normal number, whether flushed to zero or not.
_TINY = 2.0**-1022
_MOST_STEPS = 18
# Powers of two are normal numbers up to 2^±1000 and a little beyond.
_MOST_SHIFT = 1000


@dataclasses.dataclass
class Bracket:
    """Bounds of the largest spectral norm of several matrices.

    Attributes:
        upper: an upper bound; inf if the norm cannot be bounded.
        lower: an approximate lower bound, computed in floating point from the product of a matrix and a vector.
    """

    upper: float
    lower: float


def spectral_norms(batches: Iterable[Tensor], tolerance: float = 3e-4, floor: float = 0.0) -> Bracket:
    """Bound the largest spectral norm ‖A‖₂ of all matrices A of all batches.

    Let G₀ = A and Gₜ₊₁ = GₜᵀGₜ. Then ‖A‖₂ = ‖Gₜ‖₂^(2⁻ᵗ) ≤ ‖Gₜ‖_F^(2⁻ᵗ), and the right-hand side decreases to ‖A‖₂ as t
    grows (Delattre, Barthélemy, Araujo and Allauzen, 2023). Let Ĝ be the computed GₜᵀGₜ, with n terms in each sum. Its
    rounding error E satisfies |E| ≤ γₙ·|Gₜ|ᵀ|Gₜ|, in any order of summation, with γₙ = n·u/(1 − n·u) for rounding unit
    u (Higham, 2002, section 3.5). Also, ‖|Gₜ|ᵀ|Gₜ|‖₂ ≤ ‖Gₜ‖_F². Therefore ‖Gₜ‖₂² ≤ ‖Ĝ‖₂ + γₙ·‖Gₜ‖_F²; this inequality
    is applied from the last step back to the first. The matrices of each step are scaled by powers of two, which is
    exact.

    Args:
        batches: each [B, m, n], float64.
        tolerance: the iteration stops at upper ≤ (1 + tolerance)·lower, or after a fixed number of steps.
        floor: estimated lower bound of the result; matrices with smaller norms take no further steps.

    Returns:
        Bracket; its upper bound is proved, whatever ``floor`` is.

    >>> bracket = spectral_norms([torch.tensor([[[3.0, 0.0], [4.0, 5.0]]], dtype=torch.float64)])
    >>> bracket.lower <= 45**0.5 * 1.000001 and 45**0.5 <= bracket.upper <= 45**0.5 * 1.001
    True
    """
    bracket = Bracket(0.0, floor)
    for matrices in batches:
        if matrices.numel():
            _extend(bracket, matrices, tolerance)
    return bracket


def _extend(bracket: Bracket, matrices: Tensor, tolerance: float) -> None:
    """Widen a bracket of the largest operator norm so far, in place, to hold for further matrices as well."""
    largest = matrices.abs().amax((1, 2))
    if not bool(largest.isfinite().all()):
        bracket.upper = torch.inf
        return
    matrices, largest = matrices[largest > 0], largest[largest > 0]
    if not len(matrices):
        return
    if matrices.shape[1] < matrices.shape[2]:
        matrices = matrices.mT
    width = matrices.shape[2]
    shift = _exponent(largest)
    g = _scaled(matrices, -shift)
    shifts, errors = [shift], [torch.zeros_like(largest)]
    upper = torch.full_like(largest, torch.inf)
    for step in range(_MOST_STEPS + 1):
        size = g.flatten(1).square().sum(1).sqrt() * (1 + (g[0].numel() + 8) * _UNIT) * _UP + g[0].numel() * _TINY
        upper = torch.minimum(upper, _back(size, shifts, errors))
        vector = torch.take_along_dim(g, g.square().sum(1).argmax(1)[:, None, None], 2)  # the longest column
        length = (g.mT @ vector).square().sum((1, 2)).sqrt() / vector.square().sum((1, 2)).sqrt()
        lower = _back(length, shifts, [torch.zeros_like(error) for error in errors])
        bracket.lower = max(bracket.lower, float(lower.nan_to_num(0.0).amax()))
        best = bracket.lower * (1 + tolerance)
        unsettled = upper > best
        if step == _MOST_STEPS or not bool(unsettled.any()):
            break
        bracket.upper = max(bracket.upper, float(upper[~unsettled].amax()) if bool((~unsettled).any()) else 0.0)
        g, upper, size = g[unsettled], upper[unsettled], size[unsettled]
        gram = g.mT @ g
        error = ((g.shape[1] + 4) * 2 * _UNIT * size.square() + g.shape[1] * width * _TINY) * _UP
        shift = _exponent(gram.abs().amax((1, 2)))
        shifts, errors = (
            [each[unsettled] for each in shifts] + [shift],
            [each[unsettled] for each in errors] + [error],
        )
        g = _scaled(gram, -shift)
    bracket.upper = max(bracket.upper, float(upper.amax()))


def _back(norm: Tensor, shifts: list[Tensor], errors: list[Tensor]) -> Tensor:
    """Compute the norm of the first matrix from the norm of the last, scaled Gram matrix."""
    for shift, error in zip(reversed(shifts[1:]), reversed(errors[1:]), strict=True):
        norm = ((_scaled(norm, shift) + error) * _UP).sqrt() * _UP
    # Relative errors are large if the last product is below the smallest normal number.
    bound = torch.nextafter(_scaled(norm, shifts[0]) * _UP, torch.tensor(torch.inf, dtype=torch.float64))
    return torch.where(norm > 0, bound, 0.0)


def _exponent(largest: Tensor) -> Tensor:
    """Return exponents k for which 2^k is near ``largest``."""
    return torch.frexp(largest).exponent.clamp(-_MOST_SHIFT, _MOST_SHIFT)


def _scaled(values: Tensor, exponent: Tensor) -> Tensor:
    """Multiply values by 2^exponent."""
    power = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)
    return values * power.view(-1, *(1,) * (values.dim() - 1))
