"""Rows that are hard to project, inputs of steps, and checks of the results in exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pyrobust import ops, reference

REALS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZES = [1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 129, 1000]
LARGE = 67_500  # an image of 150 x 150 pixels


def smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def fit(v: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the dtype, clamped to its finite range."""
    top = torch.finfo(dtype).max
    return v.clamp(-top, top).to(dtype)


# --- rows: (draw, rows, size, dtype) -> v [rows, size] float64 to be rounded, radius [rows] float64


def _normal(draw, rows, size, dtype):
    v = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    return v, v.abs().sum(1) * torch.rand(rows, generator=draw, dtype=torch.float64) * 1.2


def _ties(draw, rows, size, dtype):
    v = torch.randint(-2, 3, (rows, size), generator=draw).double()
    return v, torch.randint(1, 2 * size + 2, (rows,), generator=draw).double() / 2


def _zeros(draw, rows, size, dtype):
    v = torch.zeros(rows, size, dtype=torch.float64)
    v[::2] = -0.0
    return v, torch.linspace(0, 2, rows, dtype=torch.float64)


def _denormals(draw, rows, size, dtype):
    v = torch.randint(-9, 10, (rows, size), generator=draw).double() * smallest(dtype)
    return v, torch.randint(0, 9 * size, (rows,), generator=draw).double() * smallest(dtype)


def _spike(draw, rows, size, dtype):
    v = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    column = torch.randint(size, (rows, 1), generator=draw)
    v = v.scatter(1, column, torch.tensor([[1e30], [-1e30]]).repeat(rows, 1)[:rows].double())
    return v, 10.0 ** torch.linspace(-6, 4, rows, dtype=torch.float64)


def _no_radius(draw, rows, size, dtype):
    return torch.randn(rows, size, generator=draw, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)


def _tiny(draw, rows, size, dtype):
    v = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    v[::3] *= 1e-30
    radius = torch.full((rows,), 1e-30, dtype=torch.float64)
    radius[1::3] = 1e-300
    return v, radius


def _sphere(draw, rows, size, dtype):
    """Draw rows exactly on the sphere: multiples of 2**-8, whose sum is a multiple of 2**-8 too."""
    v = torch.randint(-16, 17, (rows, size), generator=draw).double() / 256
    return v, v.abs().sum(1)


def _by_less_than_a_rounding(draw, rows, size, dtype):
    """Draw rows inside or outside by at most 2**-60, which a float64 sum cannot resolve."""
    v = torch.zeros(rows, size, dtype=torch.float64)
    v[:, 0] = 1.0
    v[1::2, 0] = -1.0
    excess = max(2.0**-60, smallest(dtype))
    for row in range(rows):
        v[row, 1 : 2 + row % max(1, size - 1)] = excess if row % 4 < 2 else -excess
    radius = torch.ones(rows, dtype=torch.float64)
    radius[::3] = 1.0 + 2.0**-52
    radius[1::6] = 1.0 - 2.0**-53
    return v, radius


def _sums_that_round(draw, rows, size, dtype):
    """Use the rounded sum of the row as its radius, so that only the sum's rounding error decides."""
    v = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    v = v * 2.0 ** torch.randint(-30, 10, (rows, size), generator=draw)
    return v, fit(v, dtype).double().abs().sum(1)


def _geometric(draw, rows, size, dtype):
    v = 2.0 ** -torch.arange(size).double().clamp(max=1070)
    v = v[torch.randperm(size, generator=draw)] * (1 - 2 * torch.randint(2, (rows, size), generator=draw))
    return v, 2.0 ** -torch.randint(-2, 40, (rows,), generator=draw).double()


def _every_magnitude(draw, rows, size, dtype):
    """Draw exponents evenly from the whole range of the dtype, or from 60 above that of the radius."""
    info = torch.finfo(dtype)
    low, high = math.floor(math.log2(info.smallest_normal)), math.floor(math.log2(info.max))
    exponent = low + (high - low) * torch.rand(rows, size, generator=draw, dtype=torch.float64)
    exponent[1::2] = 60 * torch.rand(rows // 2, size, generator=draw, dtype=torch.float64)
    sign = 1.0 - 2 * torch.randint(2, (rows, size), generator=draw)
    return sign * 2.0**exponent, 0.5 + 2 * torch.rand(rows, generator=draw, dtype=torch.float64)


def _signed_zeros(draw, rows, size, dtype):
    v = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    zero = torch.rand(rows, size, generator=draw) < 0.5
    v = torch.where(zero, torch.copysign(torch.zeros(()).double(), v), v)
    return v, v.abs().sum(1) * torch.where(torch.arange(rows) % 2 == 0, 2.0, 0.4)


MAKERS: tuple[Any, ...] = (
    *(_normal, _ties, _zeros, _denormals, _spike, _no_radius, _tiny, _sphere, _by_less_than_a_rounding),
    *(_sums_that_round, _geometric, _every_magnitude, _signed_zeros),
)
KINDS = {maker.__name__[1:].replace("_", " "): maker for maker in MAKERS}
# Kinds for the tests over all SIMD levels and thread counts.
SOME_KINDS = ("normal", "ties", "denormals", "spike", "tiny", "by less than a rounding", "sums that round", "geometric")
SOME_SIZES = [1, 3, 8, 9, 17, 33, 65, 129, 1000]


@functools.lru_cache(maxsize=2048)
def rows_of(kind: str, rows: int, size: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return v [rows, size] and radius [rows], float64."""
    draw = torch.Generator().manual_seed(1000 * seed + size)
    v, radius = KINDS[kind](draw, rows, size, dtype)
    return fit(v, dtype), radius


@functools.lru_cache(maxsize=512)
def examples(shape: tuple[int, ...], dtype: torch.dtype, lower: float, upper: float, seed: int = 0) -> Tensor:
    """Draw x in [lower, upper], a third of it at the ends or within a few steps of them."""
    draw = torch.Generator().manual_seed(seed)
    x = lower + (upper - lower) * torch.rand(shape, generator=draw, dtype=torch.float64)
    ends = torch.tensor([lower, upper], dtype=torch.float64)[torch.randint(2, shape, generator=draw)]
    near = ends + torch.randint(-2, 3, shape, generator=draw) * torch.finfo(dtype).eps * ends.abs()
    at_end = torch.rand(shape, generator=draw) < 1 / 3
    x = torch.where(at_end, near, x).to(dtype)
    return x.clamp(
        *(torch.tensor(inward(bound, dtype, side), dtype=dtype) for bound, side in ((lower, -1), (upper, 1)))
    )


def inward(bound: float, dtype: torch.dtype, side: int) -> float:
    """Return the dtype's largest number not above the bound for side 1, the smallest not below it for side -1."""
    value = torch.tensor(bound, dtype=torch.float64).to(dtype)
    while value.double().item() * side > bound * side:
        value = value.nextafter(torch.tensor(-side * math.inf, dtype=dtype))
    return value.item()


# --- exact comparisons, row by row; each returns a bool [rows]


def l1_holds(z: Tensor, radius: Tensor) -> Tensor:
    """Return whether Σ |z| ≤ radius in exact arithmetic."""
    a = z.double().abs()
    total = a.sum(1)
    error = (a.shape[1] + 2) * 2.0**-52 * total
    holds = total < radius - error - 2.0**-52 * radius
    for row in (~holds & (total <= radius + error + 2.0**-52 * radius) | total.isinf()).nonzero()[:, 0].tolist():
        holds[row] = _sum_at_most(a[row], radius[row].item())
    return holds


def _sum_at_most(a: Tensor, radius: float) -> bool:
    try:
        return math.fsum([*a.tolist(), -radius]) <= 0  # fsum rounds once, which keeps the sign
    except OverflowError:
        return sum(map(Fraction, a.tolist())) <= Fraction(radius)


def l2_holds(z: Tensor, radius: Tensor) -> Tensor:
    """Return whether Σ z² ≤ radius² in exact arithmetic."""
    a = z.double().abs()
    # Scale by a power of two to keep squares in range.
    scale = 2.0 ** -a.amax(1).maximum(radius).clamp(min=2.0**-1000).log2().floor()
    a, r = a * scale[:, None], radius * scale
    total, square = a.square().sum(1), r.square()
    error = (a.shape[1] + 8) * 2.0**-52 * (total + square) + 2.0**-900
    holds = total < square - error
    for row in (~holds & (total <= square + error)).nonzero()[:, 0].tolist():
        holds[row] = _squares_at_most(z[row].double(), radius[row].item(), a[row], r[row])
    return holds


def _squares_at_most(z: Tensor, radius: float, scaled: Tensor, scaled_radius: Tensor) -> bool:
    if ((z == 0) | (scaled > 2.0**-400)).all() and scaled_radius > 2.0**-400:
        high, low = square(scaled)
        radius_high, radius_low = square(scaled_radius)
        return math.fsum([*high.tolist(), *low.tolist(), -radius_high.item(), -radius_low.item()]) <= 0
    return sum(Fraction(value) ** 2 for value in z.tolist()) <= Fraction(radius) ** 2


def square(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return a² as an unevaluated sum of two float64 numbers (Dekker, 1971)."""
    high = (a.contiguous().view(torch.int64) & -(1 << 27)).view(torch.float64)
    low = a - high
    product = a * a
    return product, ((high * high - product) + 2 * high * low) + low * low


def simplex_holds(z: Tensor, radius: Tensor) -> Tensor:
    """Return whether z ≥ 0, Σ z ≤ radius and, in float32 and float64, Σ z ≥ radius·(1 - 2⁻²⁰) minus underflow."""
    holds = (z >= 0).all(1) & l1_holds(z, radius)
    if z.dtype in (torch.float32, torch.float64):
        least = radius * (1 - 2.0**-20) * (1 - 2.0**-40) - z.shape[1] * smallest(z.dtype)
        holds &= z.double().sum(1) >= least
    return holds


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum a + b and its rounding error."""
    total = a + b
    b_virtual = total - a
    return total, (a - (total - b_virtual)) + (b - b_virtual)


def box_holds(x: Tensor, z: Tensor, lower: float, upper: float) -> Tensor:
    """Return whether lower ≤ x + z ≤ upper, without rounding the sum."""
    total, error = two_sum(x.double(), z.double())
    above = (total > upper) | ((total == upper) & (error > 0))
    below = (total < lower) | ((total == lower) & (error < 0))
    return ~(above | below).flatten(1).any(1)


def moved_at_most(x_adv: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """Return elementwise whether |x_adv - x| ≤ |z|, unrounded, and x_adv - x has the sign of z or is zero."""
    total, error = two_sum(x_adv.double(), -x.double())
    size = z.double().abs()
    too_far = (total.abs() > size) | ((total.abs() == size) & (total * error > 0))
    return ~too_far & (total * z.double().sign() >= 0)


def shrinks(z: Tensor, v: Tensor) -> Tensor:
    """Return whether every |zᵢ| ≤ |vᵢ|, and zᵢ has the sign of vᵢ or is zero."""
    return ((z.abs() <= v.abs()) & ((z == 0) | (z.sign() == v.sign()))).all(1)


def tolerance(radius: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return the allowed distance of a row from the oracle."""
    relative = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}.get(dtype, 1e-6)
    # Near the smallest float16 numbers, rounding a sum down costs half a step per element, up to one for one element.
    steps = (size + 2) / 2 if dtype == torch.float16 else size
    return relative * radius + steps * smallest(dtype)


# --- one call signature for the five projections

BALLS = ("project_l1_ball", "project_l2_ball", "project_linf_ball")
PLAIN = ("project_simplex", *BALLS)
OPS = (*PLAIN, "project_l1_ball_box")


def call(op: str, v: Tensor, radius: float | Tensor, module: Any = ops) -> Tensor:
    """Call the op; pass the box projection an x with room on both sides."""
    if op == "project_l1_ball_box":
        return module.project_l1_ball_box(v, torch.full_like(v, 0.5), radius, -0.25, 1.0)
    return getattr(module, op)(v, radius)


def into(op: str, v: Tensor, out: Any) -> Tensor:
    """Call the op like ``call``, with a radius of 0.5 and a result to write to."""
    if op == "project_l1_ball_box":
        return ops.project_l1_ball_box(v, torch.full_like(v, 0.5), 0.5, -0.25, 1.0, out=out)
    z: Tensor = getattr(ops, op)(v, 0.5, out=out)
    return z


def raw(op: str, v: Tensor, radius: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    function = getattr(torch.ops.pyrobust, op).default
    if op == "project_l1_ball_box":
        return function, (v, torch.full_like(v, 0.5, requires_grad=v.requires_grad), radius, -0.25, 1.0)
    return function, (v, radius)


def normal_values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)


# --- the guarantees of the five projections, on any device

ROWS = 12
# The usual box; a box whose ends are not float32 numbers; a small box; a point.
BOXES = [(0.0, 1.0), (-0.1, 0.3), (0.0, 1e-3), (0.5, 0.5)]
ORDER = {"project_l2_ball": 2.0, "project_linf_ball": math.inf}
Arguments = tuple[Any, ...]  # (v, radius), or (delta, x, radius, lower, upper) of the box


def arguments(
    op: str, kind: str, size: int, dtype: torch.dtype, rows: int = ROWS, box: tuple[float, float] = BOXES[0]
) -> Arguments:
    """Return what the op takes, with the l1 radii scaled to its norm."""
    v, radius = rows_of(kind, rows, size, dtype)
    if op == "project_l1_ball_box":
        return v, examples((rows, size), dtype, *box, seed=size), radius, *box
    if op in ORDER and kind in ("sphere", "sums that round"):
        radius = torch.linalg.vector_norm(v.double(), ORDER[op], dim=1)
    elif op in ORDER and kind in ("normal", "signed zeros"):
        radius = radius / (math.sqrt(size) if op == "project_l2_ball" else size)
    return v, radius


def run(op: str, case: Arguments, module: Any = ops) -> Tensor:
    z: Tensor = getattr(module, op)(*case)
    return z


def wide(case: Arguments) -> Arguments:
    return tuple(value.double() if isinstance(value, Tensor) else value for value in case)


def faults(
    op: str, case: Arguments, z: Tensor, want: Tensor | None = None, lost_steps: float = 0.0
) -> dict[str, Tensor]:
    """Return for each guarantee of the op the rows of z that break it: bool [rows]; want is the expected result."""
    v, radius = case[0], case[2 if op == "project_l1_ball_box" else 1]
    if want is None:
        want = nearest_inside(v, radius) if op == "project_linf_ball" else run(op, wide(case), reference)
    off = z.double() - want.double()
    bound = tolerance(radius, v.shape[1], v.dtype) + lost_steps * smallest(v.dtype)
    far = off.abs().sum(1) > bound
    if op == "project_simplex":
        return {"far": far, "off the simplex": ~simplex_holds(z, radius)}
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[v.element_size()]
    changed = (z.view(integer) != v.view(integer)).any(1)
    if op == "project_l2_ball":
        far = (off / bound[:, None]).square().sum(1) > 1 + 1e-9  # unscaled, the squares may underflow
        inside, holds = l2_holds(v, radius), l2_holds(z, radius)
    elif op == "project_linf_ball":
        far = (off != 0).any(1)
        inside, holds = ((a.double().abs() <= radius[:, None]).all(1) for a in (v, z))
    else:
        inside, holds = l1_holds(v, radius), l1_holds(z, radius)
    flags = {"far": far, "outside": ~holds, "grown": ~shrinks(z, v)}
    if op == "project_l2_ball" and v.dtype in (torch.float32, torch.float64):
        length = (z.double() / radius[:, None]).square().sum(1).sqrt()
        flags["short"] = ~inside & (length < 1 - 2.0**-21 - v.shape[1] * smallest(v.dtype) / radius)
    if op == "project_l1_ball_box":
        _, x, _, *box = case
        flags["outside the box"] = ~box_holds(x, z, *box)
        inside, changed = inside & box_holds(x, v, *box), (z != v).any(1)
    return flags | {"changed inside": inside & changed, "unchanged outside": ~inside & ~changed}


def nearest_inside(v: Tensor, radius: Tensor) -> Tensor:
    """Clip to the largest number of the dtype that is not above the radius."""
    bound = torch.tensor([inward(value, v.dtype, 1) for value in radius.tolist()], dtype=v.dtype)[:, None]
    return v.maximum(-bound).minimum(bound)


def check(op: str, case: Arguments, z: Tensor, want: Tensor | None = None, lost_steps: float = 0.0) -> None:
    assert z.dtype == case[0].dtype
    assert z.shape == case[0].shape
    flags = faults(op, case, z, want, lost_steps)
    broken = {name: rows.nonzero()[:, 0].tolist() for name, rows in flags.items() if rows.any()}
    assert not broken, (op, z.dtype, tuple(z.shape), case[3:])


def check_on(device: torch.device, op: str, case: Arguments, want: Tensor | None = None) -> None:
    """Run on a GPU, where in float16 the threads of a row do not pass rounding losses on to each other."""
    z = run(op, tuple(value.to(device) if isinstance(value, Tensor) else value for value in case)).cpu()
    check(op, case, z, want, lost_steps=z.shape[1] if z.dtype == torch.float16 else 0)


# --- attack steps

STEP_SIZES = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000)


def inputs(rows: int, size: int, dtype: torch.dtype, box: tuple[float, float] = (0.0, 1.0), seed: int = 0):
    """Return (x_adv, gradient, x), with gradients of all magnitudes, zeros, ties and occasional NaN."""
    draw = torch.Generator().manual_seed(seed)
    x = examples((rows, size), dtype, *box, seed=seed)
    by = torch.randn(rows, size, generator=draw, dtype=torch.float64) * 0.05 * (box[1] - box[0])
    x_adv = (x.double() + by).clamp(*box).to(dtype)
    x_adv = torch.where((x_adv.double() < box[0]) | (x_adv.double() > box[1]), x, x_adv)
    scale = 2.0 ** torch.randint(-12, 3, (rows, 1), generator=draw).double()
    gradient = (torch.randn(rows, size, generator=draw, dtype=torch.float64) * scale).to(dtype)
    kind = torch.randint(10, (rows, size), generator=draw)
    gradient = torch.where(kind == 0, 0, torch.where(kind == 1, scale.to(dtype), gradient))
    return x_adv, gradient, x


def near(x_adv: Tensor, x: Tensor, epsilon: Tensor) -> bool:
    """Return whether |x_adv - x| ≤ epsilon[B] everywhere, unrounded."""
    side = torch.where(x_adv < x, -1, 1)
    return bool(moved_at_most(x_adv.double(), x.double(), epsilon.double().view(-1, 1) * side).all())


def per_row(rows: int, low: float, high: float, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(rows, generator=draw, dtype=torch.float64)
