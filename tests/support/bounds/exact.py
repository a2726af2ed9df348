"""Values of modules in exact arithmetic: integers over one divisor, intervals where a root or e^z occurs.

Written from the torch.nn modules, independently of pyrobust's graphs.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from typing import Any

import flint
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from support.bounds import nets as bound_nets

Whole = npt.NDArray[np.object_]

_BITS = 200  # of roots and of e^z


@dataclasses.dataclass(frozen=True)
class Exact:
    """Numbers [P, ...] between lower/divisor and upper/divisor, as Python integers; exact where upper equals lower."""

    lower: Whole
    upper: Whole
    divisor: int

    @classmethod
    def rational(cls, n: Whole, divisor: int) -> Exact:
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
            return Exact.rational(self.lower * other.lower, divisor)
        corners = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        return Exact(functools.reduce(np.minimum, corners), functools.reduce(np.maximum, corners), divisor)

    def times(self, weight: Tensor) -> Exact:
        """Return z·Wᵀ for z [P, N] and W [M, N]."""
        w = exact_of(weight)
        if self.is_known:
            return Exact.rational(self.lower @ w.lower.T, self.divisor * w.divisor)
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


def exact_of(tensor: Tensor) -> Exact:
    """Convert floats to exact numbers."""
    return Exact.rational(*whole(tensor.detach().double().numpy()))


def evaluate(module: nn.Module, z: Exact) -> Exact:
    """Evaluate the module at inputs [P, ...]."""
    return _RULES[type(module)](module, z)


def _entries(m: nn.Module, z: Exact) -> tuple[npt.NDArray[np.int64], Tensor, tuple[int, ...]]:
    """Return the indices and entries [M, K] that are not 0 in the rows of an affine module's matrix, and its shape.

    An entry is the value at a unit input, which is one weight, or one quotient 1/n.
    """
    plain = copy.deepcopy(m).double()
    for name, parameter in plain.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    shape = z.lower.shape[1:]
    images = plain(torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape))
    rows = images.flatten(1).T
    index = (rows != 0).int().argsort(1, descending=True)[:, : max(1, int((rows != 0).sum(1).max()))]
    return index.numpy(), rows.gather(1, index), tuple(images.shape[1:])


def _sums(z: Exact, index: npt.NDArray[np.int64], weight: Exact, shape: tuple[int, ...]) -> Exact:
    """Return the sums over k of weight [M, K] times the elements with these indices, in a shape of M elements."""
    inputs = z.map(lambda n: n.reshape(len(n), -1)[:, index])
    return (inputs * weight).map(lambda n: n.sum(2).reshape(len(n), *shape))


def _affine(m: nn.Module, z: Exact) -> Exact:
    index, weight, shape = _entries(m, z)
    bias = copy.deepcopy(m).double()(torch.zeros(1, *z.lower.shape[1:], dtype=torch.float64))
    return _sums(z, index, exact_of(weight), shape) + exact_of(bias)


def _average_pool(m: nn.AvgPool2d | nn.AdaptiveAvgPool2d, z: Exact) -> Exact:
    index, weight, shape = _entries(m, z)
    counts = (1 / weight).round().where(weight != 0, 1).long().numpy()
    common = int(np.lcm.reduce(counts.flatten()))
    whole_weight = np.where(weight != 0, common // counts, 0).astype(object)
    return _sums(z, index, Exact.rational(whole_weight, common), shape)


def joined(parts: list[Exact], axis: int) -> Exact:
    """Concatenate the parts."""
    divisor = math.lcm(*(value.divisor for value in parts))
    parts = [value.over(divisor) for value in parts]
    lower = np.concatenate([value.lower for value in parts], axis)
    if all(value.is_known for value in parts):
        return Exact.rational(lower, divisor)
    return Exact(lower, np.concatenate([value.upper for value in parts], axis), divisor)


def _leaky_relu(m: nn.LeakyReLU | nn.ReLU, z: Exact) -> Exact:
    p, q = (m.negative_slope if isinstance(m, nn.LeakyReLU) else 0.0).as_integer_ratio()
    return _kinked(np.array(p, dtype=object), q, z)


def _clamp(m: nn.Hardtanh, z: Exact) -> Exact:
    low, high = (exact_of(torch.tensor([limit], dtype=torch.float64)) for limit in (m.min_val, m.max_val))
    divisor = math.lcm(z.divisor, low.divisor, high.divisor)
    a, b = (limit.over(divisor).lower[0] for limit in (low, high))
    return z.over(divisor).map(lambda n: np.minimum(np.maximum(n, a), b))


_GRID = 1500


def _grid_ends(value: flint.arb) -> tuple[int, int]:
    """Round a ball outward to multiples of 2^-_GRID."""
    ends = []
    for bound, up in ((value.lower(), 0), (value.upper(), 1)):
        man, exp = bound.man_exp()
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
    lower, upper = (np.array([pair[i] for pair in ends], dtype=object).reshape(z.lower.shape) for i in (0, 1))
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
    slope = exact_of(m.weight)
    return _kinked(slope.lower.reshape(-1, *[1] * (z.lower.ndim - 2)), slope.divisor, z)


def _kinked(n: Whole, d: int, z: Exact) -> Exact:
    """Z above 0, z·n/d below: slopes of any size and sign, one for all channels or one for each."""
    first, second = (np.where(bound >= 0, bound * d, bound * n) for bound in (z.lower, z.upper))
    if z.is_known:
        return Exact.rational(first, z.divisor * d)
    corner = np.where((z.lower < 0) & (z.upper > 0), 0, first)
    ends = [first, second, corner]
    return Exact(functools.reduce(np.minimum, ends), functools.reduce(np.maximum, ends), z.divisor * d)


def _softsign(_: nn.Softsign, z: Exact) -> Exact:
    """Map n/d to n / (d + |n|) on a grid of 2^-1500: floor below, ceiling above."""

    def floor(n: Whole) -> Whole:
        return np.array([(int(k) << _GRID) // (z.divisor + abs(int(k))) for k in n.flat], dtype=object).reshape(n.shape)

    return Exact(floor(z.lower), floor(z.upper) + 1, 1 << _GRID)


def _batch_norm(m: nn.BatchNorm1d | nn.BatchNorm2d, z: Exact) -> Exact:
    shape = (1, -1) + (1,) * (z.lower.ndim - 2)
    variance = exact_of(m.running_var) + exact_of(torch.tensor([m.eps], dtype=torch.float64))
    roots = [_inverse_root(int(n), variance.divisor) for n in variance.lower]
    scale = joined([Exact(np.array([n], dtype=object), np.array([n + 1], dtype=object), d) for n, d in roots], 0)
    scale = scale.map(lambda n: n.reshape(shape))
    out = (z + -exact_of(m.running_mean.view(shape))) * scale
    return out * exact_of(m.weight.view(shape)) + exact_of(m.bias.view(shape)) if m.affine else out


def _inverse_root(p: int, q: int) -> tuple[int, int]:
    """Return n and 2^k with n ≤ 2^k·√(q/p) < n + 1."""
    k = max(0, _BITS + (p.bit_length() - q.bit_length()))
    return math.isqrt((q << 2 * k) // p), 1 << k


def _normalize(m: bound_nets.Normalize, z: Exact) -> Exact:
    std = exact_of(m.std[None])
    common = math.lcm(*(int(n) for n in std.lower.flat))
    inverse = Exact.rational(common // std.lower * std.divisor, common)
    return (z + -exact_of(m.mean[None])) * inverse


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
    nn.Sequential: lambda m, z: functools.reduce(lambda value, module: evaluate(module, value), m, z),
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Flatten), _affine),
    **dict.fromkeys((bound_nets.Concat, bound_nets.Moved, bound_nets.TimesMatrix), _affine),
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
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _average_pool,
    nn.MaxPool2d: _max_pool,
    bound_nets.Normalize: _normalize,
    bound_nets.Residual: _residual,
    bound_nets.Affine: lambda m, z: z * exact_of(m.scale[None]) + exact_of(m.shift[None]),
}
