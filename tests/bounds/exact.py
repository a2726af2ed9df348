"""Values of modules in exact arithmetic: integers over one divisor, intervals where a root or e^z occurs.

Written from the definitions of the torch.nn modules, independently of pyrobust's graphs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import bound_nets
import flint
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Whole = npt.NDArray[np.object_]

_BITS = 200  # of roots and of e^z


@dataclasses.dataclass(frozen=True)
class Exact:
    """Numbers [P, ...] between lower/divisor and upper/divisor, as Python integers; exact where upper equals lower."""

    lower: Whole
    upper: Whole
    divisor: int

    @classmethod
    def known(cls, n: Whole, divisor: int) -> Exact:
        return cls(n, n, divisor)

    @property
    def is_known(self) -> bool:
        return self.upper is self.lower

    def map(self, f: Any) -> Exact:
        """Apply a function that rearranges elements, or a monotone function of integers."""
        lower = f(self.lower)
        return Exact(lower, lower if self.is_known else f(self.upper), self.divisor)

    def over(self, divisor: int) -> Exact:
        """Return the same numbers over a multiple of the divisor."""
        factor = divisor // self.divisor
        return self if factor == 1 else dataclasses.replace(self.map(lambda n: n * factor), divisor=divisor)

    def __add__(self, other: Exact) -> Exact:
        divisor = math.lcm(self.divisor, other.divisor)
        a, b = self.over(divisor), other.over(divisor)
        lower = a.lower + b.lower
        return Exact(lower, lower if a.is_known and b.is_known else a.upper + b.upper, divisor)

    def __neg__(self) -> Exact:
        lower = -self.upper
        return Exact(lower, lower if self.is_known else -self.lower, self.divisor)

    def __mul__(self, other: Exact) -> Exact:
        divisor = self.divisor * other.divisor
        if self.is_known and other.is_known:
            return Exact.known(self.lower * other.lower, divisor)
        corners = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        return Exact(functools.reduce(np.minimum, corners), functools.reduce(np.maximum, corners), divisor)

    def times(self, weight: Tensor) -> Exact:
        """Return z·Wᵀ for z [P, N] and W [M, N]."""
        w = known(weight)
        if self.is_known:
            return Exact.known(self.lower @ w.lower.T, self.divisor * w.divisor)
        plus, minus = np.maximum(w.lower, 0).T, np.minimum(w.lower, 0).T
        return Exact(
            self.lower @ plus + self.upper @ minus, self.upper @ plus + self.lower @ minus, self.divisor * w.divisor
        )


def whole(values: npt.NDArray[np.float64]) -> tuple[Whole, int]:
    """Convert floats to n / divisor."""
    mantissa, exponent = np.frexp(values)
    n = (mantissa * 2.0**53).astype(np.int64).astype(object)
    shift = exponent.astype(np.int64) - 53
    least = int(shift[values != 0].min()) if (values != 0).any() else 0
    shift = np.where(values != 0, shift - least, 0)
    n = n * (2 ** shift.astype(object))
    return (n * 2**least, 1) if least > 0 else (n, 2**-least)


def known(tensor: Tensor) -> Exact:
    """Convert floats to exact numbers."""
    return Exact.known(*whole(tensor.detach().double().numpy()))


def evaluate(module: nn.Module, z: Exact) -> Exact:
    """Evaluate the module at inputs [P, ...]."""
    return _RULES[type(module)](module, z)


def _linear(m: nn.Linear, z: Exact) -> Exact:
    out = z.times(m.weight)
    return out if m.bias is None else out + known(m.bias[None])


def _convolution(m: nn.Conv1d | nn.Conv2d, z: Exact) -> Exact:
    flat = isinstance(m, nn.Conv1d)
    weight = m.weight[:, :, None] if flat else m.weight
    if flat:
        z = z.map(lambda n: n[:, :, None])
    stride, padding, dilation = (
        ((first, *of) if flat else of) for of, first in ((m.stride, 1), (m.padding, 0), (m.dilation, 1))
    )
    z = z.map(lambda n: padded(n, *padding))
    size = [(z.lower.shape[2 + i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    outputs, inputs = m.out_channels // m.groups, m.in_channels // m.groups

    def patch(n: Whole, group: int, y: int, x: int) -> Whole:  # [P, inputs · kh · kw]
        rows = slice(y * stride[0], y * stride[0] + dilation[0] * (weight.shape[2] - 1) + 1, dilation[0])
        columns = slice(x * stride[1], x * stride[1] + dilation[1] * (weight.shape[3] - 1) + 1, dilation[1])
        return n[:, group * inputs : (group + 1) * inputs, rows, columns].reshape(len(n), -1)

    places = []
    for y in range(size[0]):
        for x in range(size[1]):
            groups = []
            for g in range(m.groups):
                patches = z.map(lambda n, g=g, y=y, x=x: patch(n, g, y, x))
                groups.append(patches.times(weight[g * outputs : (g + 1) * outputs].flatten(1)))
            places.append(joined(groups, 1))
    out = joined(places, 1).map(lambda n: n.reshape(len(n), *size, m.out_channels).transpose(0, 3, 1, 2))
    if m.bias is not None:
        out = out + known(m.bias.view(1, -1, 1, 1))
    return out.map(lambda n: n[:, :, 0]) if flat else out


def padded(n: Whole, y: int, x: int) -> Whole:
    """Pad [P, C, H, W] with zeros; np.pad would mix numpy zeros with Python integers."""
    out = np.full((*n.shape[:2], n.shape[2] + 2 * y, n.shape[3] + 2 * x), 0, dtype=object)
    out[:, :, y : y + n.shape[2], x : x + n.shape[3]] = n
    return out


def joined(parts: list[Exact], axis: int) -> Exact:
    """Concatenate the parts."""
    divisor = math.lcm(*(part.divisor for part in parts))
    parts = [part.over(divisor) for part in parts]
    lower = np.concatenate([part.lower for part in parts], axis)
    if all(part.is_known for part in parts):
        return Exact.known(lower, divisor)
    return Exact(lower, np.concatenate([part.upper for part in parts], axis), divisor)


def _leaky_relu(m: nn.LeakyReLU | nn.ReLU, z: Exact) -> Exact:
    p, q = (m.negative_slope if isinstance(m, nn.LeakyReLU) else 0.0).as_integer_ratio()
    return _kinked(np.array(p, dtype=object), q, z)


def _clamp(m: nn.Hardtanh, z: Exact) -> Exact:
    low, high = (known(torch.tensor([end], dtype=torch.float64)) for end in (m.min_val, m.max_val))
    divisor = math.lcm(z.divisor, low.divisor, high.divisor)
    a, b = (end.over(divisor).lower[0] for end in (low, high))
    return z.over(divisor).map(lambda n: np.minimum(np.maximum(n, a), b))


_GRID = 1500


def _grid_ends(value: flint.arb) -> tuple[int, int]:
    """Round a ball outward to multiples of 2^-_GRID."""
    ends = []
    for end, up in ((value.lower(), 0), (value.upper(), 1)):
        man, exp = end.man_exp()
        shift = int(exp) + _GRID
        ends.append(int(man) << shift if shift >= 0 else (int(man) >> -shift) + up)
    return ends[0], ends[1]


def _smooth(f: Any, low: int, high: int | None, z: Exact) -> Exact:
    """Evaluate, in ball arithmetic, a function within 2^-1000 of low below -2000, and of high (None: of z) above 2000.

    Enclosures of an inner interval are those of its ball: wide ones are loose, as balls do not see that a function is
    monotone.
    """

    def enclosure(n: int, m: int) -> tuple[int, int]:
        if max(abs(n), abs(m)) > 2000 * z.divisor and (n < 0) == (m < 0):
            limit, tail = low if n < 0 else high, 1 << (_GRID - 1000)
            if limit is None:
                return (n << _GRID) // z.divisor - tail, (m << _GRID) // z.divisor + 1 + tail
            return (limit << _GRID) - tail, (limit << _GRID) + tail
        ball = flint.arb(flint.fmpq(n, z.divisor))
        return _grid_ends(f(ball if n == m else ball.union(flint.arb(flint.fmpq(m, z.divisor)))))

    flint.ctx.prec = _BITS + _GRID
    ends = [enclosure(int(n), int(m)) for n, m in zip(z.lower.flat, z.upper.flat, strict=True)]
    lower, upper = (np.array([end[i] for end in ends], dtype=object).reshape(z.lower.shape) for i in (0, 1))
    return Exact(lower, upper, 1 << _GRID)


def _elu(m: nn.ELU, z: Exact) -> Exact:
    if m.alpha != 1:
        raise ValueError("alpha: expected 1")
    return _smooth(lambda a: a if a > 0 else a.expm1() if a < 0 else a.union(a.expm1()), -1, None, z)


def _softplus(m: nn.Softplus, z: Exact) -> Exact:
    """Up to the threshold; the pieces beyond it are those of torch."""
    if m.beta != 1:
        raise ValueError("beta: expected 1")

    def value(a: flint.arb) -> flint.arb:
        below = a.exp().log1p()
        return a if a > m.threshold else below if a <= m.threshold else below.union(a)

    return _smooth(value, 0, None, z)


def _prelu(m: nn.PReLU, z: Exact) -> Exact:
    slope = known(m.weight)
    return _kinked(slope.lower.reshape(-1, *[1] * (z.lower.ndim - 2)), slope.divisor, z)


def _kinked(n: Whole, d: int, z: Exact) -> Exact:
    """Z above 0, z·n/d below: slopes of any size and sign, one for all channels or one for each."""
    first, second = (np.where(end >= 0, end * d, end * n) for end in (z.lower, z.upper))
    if z.is_known:
        return Exact.known(first, z.divisor * d)
    corner = np.where((z.lower < 0) & (z.upper > 0), 0, first)
    ends = [first, second, corner]
    return Exact(functools.reduce(np.minimum, ends), functools.reduce(np.maximum, ends), z.divisor * d)


def _transposed(m: nn.ConvTranspose2d, z: Exact) -> Exact:
    """Add each input's multiple of the kernel where it belongs."""
    height, width = z.lower.shape[2:]
    kernel, groups = m.weight.shape[2:], m.groups
    inputs, outputs = m.in_channels // groups, m.out_channels // groups
    size = [
        (n - 1) * m.stride[i] + m.dilation[i] * (kernel[i] - 1) + m.output_padding[i] + 1
        for i, n in enumerate((height, width))
    ]
    total: Exact | None = None
    for y, x in np.ndindex(height, width):
        for a, b in np.ndindex(*kernel):
            place = (y * m.stride[0] + a * m.dilation[0], x * m.stride[1] + b * m.dilation[1])
            parts = [
                z.map(lambda n, g=g, y=y, x=x: n[:, g * inputs : (g + 1) * inputs, y, x]).times(
                    m.weight[g * inputs : (g + 1) * inputs, :, a, b].T
                )
                for g in range(groups)
            ]

            def spread(n: Whole, place: tuple[int, int] = place) -> Whole:
                out = np.full((len(n), groups * outputs, *size), 0, dtype=object)
                out[:, :, place[0], place[1]] = n
                return out

            part = joined(parts, 1).map(spread)
            total = part if total is None else total + part
    assert total is not None
    cut = tuple(slice(p, n - p) for p, n in zip(m.padding, size, strict=True))
    out = total.map(lambda n: n[(slice(None), slice(None), *cut)])
    return out if m.bias is None else out + known(m.bias.view(1, -1, 1, 1))


def _softsign(_: nn.Softsign, z: Exact) -> Exact:
    """Map n/d to n / (d + |n|) on a grid of 2^-1500: floor below, ceiling above."""

    def floor(n: Whole) -> Whole:
        return np.array([(int(k) << _GRID) // (z.divisor + abs(int(k))) for k in n.flat], dtype=object).reshape(n.shape)

    return Exact(floor(z.lower), floor(z.upper) + 1, 1 << _GRID)


def _batch_norm(m: nn.BatchNorm1d | nn.BatchNorm2d, z: Exact) -> Exact:
    shape = (1, -1) + (1,) * (z.lower.ndim - 2)
    variance = known(m.running_var) + known(torch.tensor([m.eps], dtype=torch.float64))
    roots = [_inverse_root(int(n), variance.divisor) for n in variance.lower]
    scale = joined([Exact(np.array([n], dtype=object), np.array([n + 1], dtype=object), d) for n, d in roots], 0)
    scale = scale.map(lambda n: n.reshape(shape))
    out = (z + -known(m.running_mean.view(shape))) * scale
    return out * known(m.weight.view(shape)) + known(m.bias.view(shape)) if m.affine else out


def _inverse_root(p: int, q: int) -> tuple[int, int]:
    """Return n and 2^k with n ≤ 2^k·√(q/p) < n + 1."""
    k = max(0, _BITS + (p.bit_length() - q.bit_length()))
    return math.isqrt((q << 2 * k) // p), 1 << k


def _normalize(m: bound_nets.Normalize, z: Exact) -> Exact:
    std = known(m.std[None])
    common = math.lcm(*(int(n) for n in std.lower.flat))
    inverse = Exact.known(common // std.lower * std.divisor, common)
    return (z + -known(m.mean[None])) * inverse


def _averages(z: Exact, windows: list[list[tuple[slice, slice]]], divisors: list[list[int]]) -> Exact:
    common = math.lcm(*(d for row in divisors for d in row))

    def mean(n: Whole) -> Whole:
        rows = [
            np.stack([n[:, :, a, b].sum((2, 3)) * (common // d) for (a, b), d in zip(w, ds, strict=True)], 2)
            for w, ds in zip(windows, divisors, strict=True)
        ]
        return np.stack(rows, 2)

    return dataclasses.replace(z.map(mean), divisor=z.divisor * common)


def _average_pool(m: nn.AvgPool2d, z: Exact) -> Exact:
    kernel, step, border = m.kernel_size, m.stride, m.padding
    z = z.map(lambda n: padded(n, border, border))
    inside = np.pad(np.ones([s - 2 * border for s in z.lower.shape[2:]], dtype=int), border)
    counts = [(s - kernel) // step + 1 for s in z.lower.shape[2:]]
    cut = [[slice(i * step, i * step + kernel) for i in range(count)] for count in counts]
    windows = [[(a, b) for b in cut[1]] for a in cut[0]]
    divisors = [[kernel**2 if m.count_include_pad else int(inside[a, b].sum()) for a, b in row] for row in windows]
    return _averages(z, windows, divisors)


def _adaptive_pool(m: nn.AdaptiveAvgPool2d, z: Exact) -> Exact:
    axes = [
        [slice(i * n // s, -(-(i + 1) * n // s)) for i in range(s)]
        for n, s in zip(z.lower.shape[2:], m.output_size, strict=True)
    ]
    windows = [[(a, b) for b in axes[1]] for a in axes[0]]
    return _averages(z, windows, [[(a.stop - a.start) * (b.stop - b.start) for a, b in row] for row in windows])


def _max_pool(m: nn.MaxPool2d, z: Exact) -> Exact:
    kernel, step, border = m.kernel_size, m.stride, m.padding
    height, width = z.lower.shape[2:]

    def cut(i: int, size: int) -> slice:
        return slice(max(0, i * step - border), min(size, i * step - border + kernel))

    def largest(n: Whole) -> Whole:
        rows, columns = ((s + 2 * border - kernel) // step + 1 for s in (height, width))
        return np.stack(
            [
                np.stack([n[:, :, cut(y, height), cut(x, width)].max((2, 3)) for x in range(columns)], 2)
                for y in range(rows)
            ],
            2,
        )

    return z.map(largest)


def _residual(m: bound_nets.Residual, z: Exact) -> Exact:
    body = evaluate(m.body, z)
    return z + body if m.sign > 0 else z + -body


_RULES: dict[type[nn.Module], Any] = {
    nn.Sequential: lambda m, z: functools.reduce(lambda value, part: evaluate(part, value), m, z),
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: _leaky_relu,
    nn.LeakyReLU: _leaky_relu,
    nn.Hardtanh: _clamp,
    nn.Sigmoid: lambda _, z: _smooth(lambda a: 1 / (1 + (-a).exp()), 0, 1, z),
    nn.Tanh: lambda _, z: _smooth(lambda a: a.tanh(), -1, 1, z),
    nn.Softsign: _softsign,
    nn.GELU: lambda _, z: _smooth(lambda a: a * (-a / flint.arb(2).sqrt()).erfc() / 2, 0, None, z),
    nn.SiLU: lambda _, z: _smooth(lambda a: a / (1 + (-a).exp()), 0, None, z),
    nn.ELU: _elu,
    nn.Softplus: _softplus,
    nn.PReLU: _prelu,
    nn.ConvTranspose2d: _transposed,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.MaxPool2d: _max_pool,
    nn.Flatten: lambda m, z: z.map(lambda n: n.reshape(len(n), -1)),
    bound_nets.Normalize: _normalize,
    bound_nets.Residual: _residual,
    bound_nets.Affine: lambda m, z: z * known(m.scale[None]) + known(m.shift[None]),
    bound_nets.Concat: lambda m, z: joined([evaluate(part, z) for part in m.parts], 1),
    bound_nets.Slice: lambda m, z: z.map(lambda n: n[:, m.start : m.stop]),
    bound_nets.Permute: lambda m, z: z.map(lambda n: n.transpose(0, *(d + 1 for d in m.dims))),
    bound_nets.TimesMatrix: lambda m, z: z.times(m.matrix.T),
}
