"""Correctly rounded arithmetic that PyTorch lacks: fused multiply-add and square root."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a·b + c, rounded once: to float32 if all three are float32, to float64 if b is float32 and a, c float64.

    The product of two float32 numbers is exact in float64. For a float32 result, the sum is rounded to odd in float64.
    Rounding this sum to float32 then gives the same number as rounding the exact value. The float64 version follows
    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE
    Transactions on Computers, 2008. This version is correct unless the exact product a·b has bits smaller than the
    smallest positive float64, or the product or a sum overflows.

    >>> one = torch.tensor(1.0)
    >>> ulp = torch.tensor(2.0**-12)
    >>> fma(one + ulp, one - ulp, -one).item() == -(2.0**-24)  # two roundings would give 0
    True
    """
    if a.dtype == torch.float32:
        total, error = _two_sum(a.double() * b.double(), c.double())
        return _round_to_odd(total, error).float()
    product, product_error = _two_product(a, b.double())
    low, low_error = _two_sum(c, product_error)
    high, high_error = _two_sum(product, low)
    tail = _round_to_odd(*_two_sum(low_error, high_error))
    return torch.where(torch.isfinite(high), high + tail, product + c)  # an infinity's error terms are NaN


def horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Evaluate the polynomial Σ coefficients[i]·xⁱ in float32, by Horner's method with fma."""
    result = constant(coefficients[-1], x).expand_as(x)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, constant(coefficient, x))
    return result


def constant(value: float, like: Tensor) -> Tensor:
    """Return a number as a tensor of the dtype and device of ``like``, rounded once."""
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of a float32 tensor, rounded once.

    The root is computed in float64 and then rounded to float32. The second rounding could go wrong only for a root very
    close to the midpoint of two float32 numbers, and no square root of a float32 number is that close (Figueroa, "When
    is double rounding innocuous?", 1995). The result is therefore the same, whichever library computes the float64
    root.
    """
    return torch.sqrt(x.double()).float()


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum and its exact error (Knuth, TAOCP 2, 4.2.2)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded product and its exact error; b has at most 26 significant bits.

    By the method of Veltkamp and Dekker, a is split into two parts so that each part times b is exact.
    """
    high = (a.view(torch.int64) & -(1 << 27)).view(torch.float64)
    product = a * b
    return product, (high * b - product) + (a - high) * b


def _round_to_odd(total: Tensor, error: Tensor) -> Tensor:
    """Round total + error to odd: return the sum if it is a float, else the neighbouring float whose last bit is set.

    A later rounding to fewer bits can then tell on which side of a midpoint the exact sum lies.
    """
    even = total.view(torch.int64) & 1 == 0
    inexact = error.abs() > 0  # not "!= 0": the error of an infinity is NaN, and an infinity stays as it is
    toward_error = torch.nextafter(total, torch.copysign(torch.full_like(error, math.inf), error))
    return torch.where(even & inexact, toward_error, total)
