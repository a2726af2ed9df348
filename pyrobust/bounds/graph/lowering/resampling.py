"""Lowering rules of linear and cubic interpolation: every output is a fixed weighted sum of a few elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant, Enclosure
from pyrobust.bounds.graph.lowering.layout import moved
from pyrobust.bounds.graph.lowering.registry import Lowering, lowers
from pyrobust.bounds.graph.nodes import Conv2d, Node, Sum

aten = torch.ops.aten

#: Roundings that another kernel may add to a coefficient.
_ROUNDINGS = 4


class _Axis(NamedTuple):
    """Interpolation along one axis: output i is Σ_k c[i, k]·input[element[i, k]], for coefficients c in [lower, upper].

    The deployed operator is torch's kernel. If rounding moves a position across an element, the kernel may have a tiny
    coefficient where the exact coefficient is 0.
    """

    element: Tensor  # [outputs, K]
    lower: Tensor  # [outputs, K], float64
    upper: Tensor


def _axis(lowering: Lowering, n: int, outputs: int, scale: Fraction | None, deployed: Tensor, cubic: bool) -> _Axis:
    """Return coefficients that enclose both the exact ones and those of torch's kernel, ``deployed`` [outputs, n].

    ``scale`` is the distance between the centers of two adjacent outputs, in input elements; None for aligned corners.
    """
    rows = []
    for i in range(outputs):
        if scale is None:
            position = Fraction(i * (n - 1), outputs - 1) if outputs > 1 else Fraction(0)
        else:
            position = (i + Fraction(1, 2)) * scale - Fraction(1, 2)
            position = position if cubic else max(position, Fraction(0))
        exact = dict.fromkeys(deployed[i].nonzero().flatten().tolist(), Fraction(0))
        for at, coefficient in _cubic(position) if cubic else _linear(position, n):
            at = min(max(at, 0), n - 1)
            exact[at] = exact.get(at, Fraction(0)) + coefficient
        floats = deployed[i].tolist()
        rows.append([(at, *_between(exact[at], floats[at], lowering.input_dtype)) for at in sorted(exact)])
    width = max(map(len, rows))
    padded = [row + [(0, 0.0, 0.0)] * (width - len(row)) for row in rows]
    index, lower, upper = (
        torch.tensor([[entry[k] for entry in row] for row in padded], dtype=torch.float64) for k in range(3)
    )
    return _Axis(index.long(), lower, upper)


def _linear(position: Fraction, n: int) -> list[tuple[int, Fraction]]:
    """Return the two elements beside a position, with their coefficients in linear interpolation."""
    first = min(math.floor(position), n - 1)
    share = min(position - first, Fraction(1))
    return [(first, 1 - share), (first + 1, share)]


def _cubic(position: Fraction) -> list[tuple[int, Fraction]]:
    """Return the coefficients of cubic convolution with a = −3/4 (Keys, 1981)."""
    first, a = math.floor(position), Fraction(-3, 4)
    t = position - first

    def near(x: Fraction) -> Fraction:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Fraction) -> Fraction:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [(first - 1, far(1 + t)), (first, near(t)), (first + 1, near(1 - t)), (first + 2, far(2 - t))]


def _between(exact: Fraction, deployed: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return floats (lower, upper) that enclose both numbers; if these are equal, with few bits, lower = upper."""
    if Fraction(deployed) == exact and exact.denominator <= 1 << 8:
        return deployed, deployed  # nothing is rounded on the way, either
    slack = _ROUNDINGS * torch.finfo(dtype).eps * abs(deployed)
    nearest = float(exact)
    around = [math.nextafter(nearest, -math.inf), math.nextafter(nearest, math.inf)] if exact else [0.0]
    ends = [*around, deployed - slack, deployed + slack]
    return min(ends), max(ends)


def _resampled(
    lowering: Lowering, z: Node, factors: Sequence[float] | None, align_corners: bool, *, cubic: bool = False
) -> Node:
    """Compute a separable interpolation."""
    out, axes = lowering.out_shape(), []
    for i, (n, outputs) in enumerate(zip(z.shape[1:], out[1:], strict=True)):
        unit = torch.eye(n, dtype=lowering.input_dtype, device=lowering.device).view(1, n, n)
        size, factor = ([outputs], None) if factors is None else (None, [factors[i]])
        if cubic:
            size, factor = (size and [*size, 1]), (factor and [*factor, 1.0])
            deployed = aten.upsample_bicubic2d.vec(unit.unsqueeze(3), size, align_corners, factor)[0, ..., 0].T
        else:
            deployed = aten.upsample_linear1d.vec(unit, size, align_corners, factor)[0].T
        spacing = Fraction(n, outputs) if factors is None else 1 / Fraction(factors[i])
        axes.append(_axis(lowering, n, outputs, None if align_corners else spacing, deployed.cpu(), cubic))
    return _weighted(lowering, z, axes)


def _weighted(lowering: Lowering, z: Node, axes: Sequence[_Axis]) -> Node:
    """Compute weighted sums of each channel's elements; a weight is a product of one coefficient per axis."""
    index = torch.zeros(1, 1, dtype=torch.int64)
    lower = upper = torch.ones(1, 1, dtype=torch.float64)
    for n, axis in zip(z.shape[1:], axes, strict=True):
        index = _outer(index * n, axis.element, torch.add)
        corners = [_outer(a, b, torch.mul) for a, b in itertools.product((lower, upper), (axis.lower, axis.upper))]
        low, high = torch.stack(corners).amin(0), torch.stack(corners).amax(0)
        exact = low == high  # products of numbers with few bits
        infinity = torch.tensor(torch.inf, dtype=torch.float64)
        lower = low.where(exact, torch.nextafter(low, -infinity))
        upper = high.where(exact, torch.nextafter(high, infinity))
    count, width = index.shape
    channels = z.shape[0]

    def pick(t: Tensor) -> Tensor:
        return t.flatten(2)[..., index.flatten()].mT.reshape(len(t), count * width, 1, channels)

    def sums(lower: Tensor, upper: Tensor) -> Node:
        enclosure = Enclosure(lower.view(count, width, 1, 1), upper.view(count, width, 1, 1))
        middle = (enclosure.lower / 2 + enclosure.upper / 2).to(lowering.input_dtype)
        return Conv2d(
            name=lowering.name,
            shape=(count, 1, channels),
            inputs=(gathered,),
            weight=Constant(lambda: middle, lambda: enclosure),
            bias=None,
            stride=(1, 1),
            padding=(0, 0),
            dilation=(1, 1),
            groups=count,
        )

    gathered = moved(lowering, z, pick)
    # engines know only one relative error for all weights, so weights that may be 0 are kept apart
    stray = (lower <= 0) & (upper >= 0)
    result = sums(lower.where(~stray, 0.0), upper.where(~stray, 0.0))
    if bool((lower < upper)[stray].any()):
        inputs = (result, sums(lower.where(stray, 0.0), upper.where(stray, 0.0)))
        result = Sum(name=lowering.name, shape=result.shape, inputs=inputs, signs=(1, 1))
    out = lowering.out_shape()
    return moved(lowering, result, lambda t: t.flatten(1, 2).mT.reshape(len(t), *out))


def _outer(a: Tensor, b: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine every element of ``a`` [P, K] with every element of ``b`` [Q, L], to a tensor [P·Q, K·L]."""
    return combine(a[:, None, :, None], b[None, :, None, :]).reshape(len(a) * len(b), -1)


@lowers(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec)
def linear_interpolation(
    lowering: Lowering, z: Node, size: Any, align_corners: bool, factors: Sequence[float] | None = None
) -> Node:
    """Compute linear interpolation along each axis."""
    return _resampled(lowering, z, factors, align_corners)


@lowers(aten.upsample_bicubic2d.vec)
def cubic_interpolation(
    lowering: Lowering, z: Node, size: Any, align_corners: bool, factors: Sequence[float] | None = None
) -> Node:
    """Compute cubic convolution along each axis."""
    return _resampled(lowering, z, factors, align_corners, cubic=True)
