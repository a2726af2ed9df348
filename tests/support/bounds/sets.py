"""Random input sets and their extreme points, in exact arithmetic."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.bounds.input_set import InputSet, ball, box, of_examples
from support.bounds.exact import Exact, Whole, evaluate, exact_of

KINDS = ("linf", "l2", "l1", "box")
Clip = tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Sets:
    """B input sets: balls around x within the clip range, or boxes from x to x_upper."""

    kind: str
    x: Tensor
    x_upper: Tensor
    epsilon: Tensor
    clip: Clip

    def of_engine(self) -> InputSet:
        shape = tuple(self.x.shape[1:])
        if self.kind == "box":
            return box(self.x, self.x_upper, shape)
        return ball(self.x, of_examples(self.epsilon, shape), self.kind, self.clip, shape)


def random_sets(kind: str, count: int, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Sets:
    """Draw sets with centers of any size and radii from 0 to the center's size; some sides of boxes have width 0."""
    x = rng.standard_normal((count, *shape)) * 10.0 ** rng.choice([-3, 0, 0, 0, 2], size=(count, *[1] * len(shape)))
    clip = None
    if kind != "box" and rng.random() < 0.5:
        clip = (float(rng.choice([0.0, -0.1])), 1.0)
        x = np.clip(np.abs(x), 0, 1)
    size = np.abs(x).reshape(count, -1).max(1) if math.prod(shape) else np.ones(count)
    epsilon = size * 10.0 ** rng.uniform(-9, 0, size=count) * (rng.random(count) > 0.1)
    center = torch.from_numpy(x).to(dtype)
    width = rng.random(x.shape) * epsilon.reshape(count, *[1] * len(shape)) * (rng.random(x.shape) > 0.2)
    upper = torch.maximum(center, torch.from_numpy(x + width).to(dtype))
    return Sets(kind, center, upper, torch.from_numpy(epsilon), clip)


def gradients(net: nn.Module, sets: Sets, rows: Tensor) -> Tensor:
    """Return gradients of the specification rows [B, S, K] at each center: float64 [S, B, n]."""
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    wide = {name: value.double() if value.is_floating_point() else value for name, value in state.items()}
    x = sets.x.double()
    if sets.kind == "box":
        x = x / 2 + sets.x_upper.double() / 2
    x.requires_grad_(True)
    values = (rows @ torch.func.functional_call(net, wide, x)[:, :, None]).squeeze(2)
    gradient = [torch.autograd.grad(values[:, s].sum(), x, retain_graph=True)[0] for s in range(rows.shape[1])]
    return torch.stack(gradient).flatten(2).nan_to_num(0, 1, -1)


def directions(kind: str, slope: np.ndarray, rng: np.random.Generator) -> Exact:
    """Return the point of the unit ball or box that maximizes slope [P, n]; within 2^-90 for l2."""
    sign = np.where(slope == 0, rng.choice([-1.0, 1.0], size=slope.shape), np.sign(slope))
    if kind == "linf":
        return exact_of(torch.from_numpy(sign))
    if kind == "box":
        return exact_of(torch.from_numpy((sign + 1) / 2))
    if kind == "l1":
        corner = np.zeros_like(sign)
        largest_slope = np.abs(slope).argmax(1)[:, None]
        np.put_along_axis(corner, largest_slope, np.take_along_axis(sign, largest_slope, 1), 1)
        return exact_of(torch.from_numpy(corner))
    largest = np.abs(slope).max(1, keepdims=True)
    unit = np.where(largest > 0, slope / np.where(largest > 0, largest, 1), sign)
    return _shrunk(exact_of(torch.from_numpy(unit)), lambda n: math.isqrt(int((n * n).sum())) + 1)


def within(kind: str, count: int, n: int, rng: np.random.Generator) -> Exact:
    """Draw random points of the unit ball or box."""
    if kind == "box":
        return exact_of(torch.from_numpy(rng.random((count, n))))
    unit = exact_of(torch.from_numpy(rng.uniform(-1, 1, (count, n))))
    if kind == "linf":
        return unit
    if kind == "l1":
        return _shrunk(unit, lambda n: int(np.abs(n).sum()) + 1)
    return _shrunk(unit, lambda n: math.isqrt(int((n * n).sum())) + 1)


def _shrunk(unit: Exact, length: object) -> Exact:
    """Divide each row by an upper bound of its length, in multiples of 2^-200."""
    shares = np.array([[(unit.divisor << 200) // max(1, length(row))] for row in unit.lower], dtype=object)
    return Exact.rational(unit.lower * shares, unit.divisor << 200)


def points(sets: Sets, direction: Exact, repeats: int) -> Exact:
    """Return the points [repeats · B, ...] of the sets along directions [repeats · B, n]."""
    begin = exact_of(sets.x.flatten(1))
    span = exact_of(sets.x_upper.flatten(1)) + -begin if sets.kind == "box" else exact_of(sets.epsilon[:, None])

    def repeated(vectors: Exact) -> Exact:
        return vectors.map(lambda n: np.concatenate([n] * repeats))

    result = repeated(begin) + repeated(span) * direction
    if sets.clip is not None:
        ends = exact_of(torch.tensor(sets.clip, dtype=torch.float64))
        divisor = math.lcm(result.divisor, ends.divisor)
        low, high = ends.over(divisor).lower
        result = result.over(divisor).map(lambda n: np.minimum(np.maximum(n, low), high))
    return result.map(lambda n: n.reshape(len(n), *sets.x.shape[1:]))


def extreme_points(net: nn.Module, sets: Sets, rows: Tensor, rng: np.random.Generator) -> Exact:
    """Return points [P · B, ...] that are extreme for the specification rows, and random ones."""
    slopes = gradients(net, sets, rows).numpy()
    both = np.concatenate([slopes, -slopes]).reshape(-1, slopes.shape[2])
    count, n = len(sets.x), slopes.shape[2]
    chosen = [directions(sets.kind, both, rng), within(sets.kind, count, n, rng)]
    repeats = 2 * len(slopes) + 1
    divisor = math.lcm(*(direction.divisor for direction in chosen))
    every = Exact.rational(np.concatenate([direction.over(divisor).lower for direction in chosen]), divisor)
    return points(sets, every, repeats)


def values_at(x: Exact, net: nn.Module, rows: Tensor) -> Exact:
    """Return exact values of the specification rows [B, S, K] at points [P · B, ...]: [P, B, S]."""
    values = evaluate(net, x).map(lambda v: v.reshape(-1, len(rows), 1, rows.shape[2]))
    return (values * exact_of(rows[None])).map(lambda v: v.sum(3))


def extreme_values(net: nn.Module, sets: Sets, rows: Tensor, rng: np.random.Generator) -> Exact:
    """Return exact values of the specification rows at extreme and random points: [P, B, S]."""
    return values_at(extreme_points(net, sets, rows, rng), net, rows)


def violated(values: Exact, lower: Tensor, upper: Tensor) -> int:
    """Count the bounds [B, S] that some value [P, B, S] certainly violates."""
    below = values + -exact_of(lower.nan_to_num(0, 0, 0)[None])
    above = values + -exact_of(upper.nan_to_num(0, 0, 0)[None])
    low: Whole = (below.upper < 0).any(0) & lower.isfinite().numpy()
    high: Whole = (above.lower > 0).any(0) & upper.isfinite().numpy()
    nothing = (lower.isnan() | (lower == torch.inf) | upper.isnan() | (upper == -torch.inf)).numpy()
    return int(low.sum()) + int(high.sum()) + int(nothing.sum())
