"""Attacks on a grid of levels, the values that an image file can hold; balls are measured in levels, too.

With a step h, a value of level k is the float nearest to k·h, as an image loader computes it. An attack's iterates stay
arbitrary floats; ``Levels.snap`` turns them into the points that the model sees and the attack returns. The ball is
defined on integers: with Δk the difference of the levels, max |Δk| ≤ ε/h (linf), Σ Δk² ≤ (ε/h)² (l2), Σ |Δk| ≤ ε/h
(l1).
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Rational
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import AttackNormName, finite
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import read_grid, simplest_fraction

#: A grid as callers may write it: a fraction, "1/255", a float read as the simplest fraction, "auto" or None.
GridLike: TypeAlias = Fraction | str | float | None

# Float32 distinguishes this many levels, with room for rounding errors of the scaled values; computations are in
# float32 up to the second number.
_MOST_LEVELS, _FLOAT32_LEVELS = 1 << 20, 1 << 12
# Steps of the search for the scale at which a rounded perturbation spends its budget, and the share that suffices.
_SEARCH_STEPS, _SPENT = 3, 0.998
# Sums of whole numbers below this are exact in float32 even after a square root and a square.
_FLOAT32_SIZES = 1 << 21
# Rounding is corrected where it loses more than this share of ‖·‖ᵖ.
_LOST = 0.05


def grid_argument(grid: GridLike) -> Fraction | str | None:
    """Read the argument ``grid`` of attacks: the step as a fraction, "auto" or None.

    >>> grid_argument("1/255"), grid_argument(1 / 255), grid_argument("auto")
    (Fraction(1, 255), Fraction(1, 255), 'auto')
    """
    if isinstance(grid, float | np.floating):
        return read_grid(simplest_fraction(finite("grid", grid)))
    if grid is not None and not isinstance(grid, str | Rational):
        raise InputTypeError("grid", 'a fraction such as "1/255", a number, "auto" or None', repr(grid))
    return read_grid(grid)


def budgets(norm: AttackNormName, epsilon: Tensor, step: Fraction) -> Tensor:
    """Return the balls' radii in integers, int64 [N]: ⌊ε/h⌋ (linf, l1), ⌊(ε/h)²⌋ (l2), ⌊ε⌋ changed coordinates (l0).

    Each ε is read as the simplest fraction that rounds to the given number.

    >>> budgets("linf", torch.tensor([8 / 255]).double(), Fraction(1, 255))
    tensor([8])
    """
    radii: dict[float, int] = {}
    for value in set(epsilon.tolist()):
        radius = simplest_fraction(value) if norm == "l0" else simplest_fraction(value) / step
        radii[value] = min(math.floor(radius**2 if norm == "l2" else radius), 1 << 62)
    return torch.tensor([radii[value] for value in epsilon.tolist()], dtype=torch.int64, device="cpu")


class Levels:
    """The levels of a grid inside a clip range.

    Args:
        step: spacing h of the levels.
        lower: lower end of the clip range.
        upper: upper end of the clip range.
        dtype: the dtype that the loader rounds to, float32 or float64.

    Raises:
        InputError: fewer than 2 levels in the clip range, a level k beyond ±2**20, or one for which k times the step's
            numerator is beyond float32's exact integers.

    >>> Levels(Fraction(1, 255), 0.0, 1.0).images(torch.tensor([[0.1, 0.5]])).mul(255)
    tensor([[ 26., 128.]])
    """

    def __init__(self, step: Fraction, lower: float, upper: float, dtype: torch.dtype = torch.float32) -> None:
        self.step, self.dtype = step, dtype
        self.low, self.high = math.ceil(simplest_fraction(lower) / step), math.floor(simplest_fraction(upper) / step)
        largest = max(abs(self.low), abs(self.high))
        if self.low >= self.high or largest > _MOST_LEVELS or largest * step.numerator >= 1 << 24:
            raise InputError(
                "grid", f"a step with 2 to {_MOST_LEVELS} levels in the clip range, {lower} to {upper}", step
            )
        # The float of the last level may lie outside the clip range.
        while self.low <= self.high and self._number(self.low) < lower:
            self.low += 1
        while self.low <= self.high and self._number(self.high) > upper:
            self.high -= 1
        if self.low >= self.high:
            raise InputError(
                "grid",
                problem=f"expected two levels whose floats are in the clip range, {lower} to {upper}; got {step}",
            )
        single = dtype == torch.float32 and largest <= _FLOAT32_LEVELS
        self._work = torch.float32 if single else torch.float64
        self._scale = float(1 / step)
        # Scaled values this close to an integer count as levels; it exceeds the rounding errors of value and scale.
        self._tolerance = max(largest, 1) * (2.0**-22 if dtype == torch.float32 else 2.0**-50)

    def _number(self, level: int) -> float:
        return float(self.values(torch.tensor([float(level)], dtype=torch.float64), torch.zeros(1, dtype=self.dtype)))

    def of(self, x: Tensor) -> Tensor:
        """Return the nearest level of each value, as whole numbers in float32 or float64."""
        return x.to(self._work).mul(self._scale).round_().clamp_(self.low, self.high)

    def values(self, levels: Tensor, like: Tensor) -> Tensor:
        """Return the floats k·h that image loaders compute for levels k, in ``like``'s dtype; may overwrite ``levels``.

        The numerator and the denominator of k·h are exact in the loader's dtype, so the division is the only rounding.
        """
        levels = levels.to(self.dtype)
        if self.step.numerator != 1:
            levels = levels.mul_(self.step.numerator)
        # Divide by a tensor on the device: for a Python number, GPUs multiply by the rounded reciprocal.
        return levels.div_(levels.new_full((), self.step.denominator)).to(like.dtype)

    def images(self, x: Tensor) -> Tensor:
        """Return the nearest images on the grid."""
        return self.values(self.of(x), x)

    def radius(self, norm: AttackNormName, epsilon: Tensor, budget: Tensor, coordinates: int) -> Tensor:
        """Return radii [N] of the balls for float iterates: the radii of the integer balls plus a margin for rounding.

        In linf, the radius without the margin is ⌊ε/h⌋·h, so that every point of the float ball rounds to a point of
        the integer ball.
        """
        if norm == "l0":
            return budget.double()
        radius = budget.double() * float(self.step) if norm == "linf" else epsilon
        slack = self._tolerance * float(self.step) / 8
        return radius + slack * {"linf": 1.0, "l2": math.sqrt(coordinates), "l1": coordinates}[norm]

    def snap(
        self, norm: AttackNormName, x_adv: Tensor, x: Tensor | None, budget: Tensor, *, final: bool = False
    ) -> Tensor:
        """Return the grid point that represents each iterate; a grid point in the ball represents itself.

        In l2 and l1, rounding an iterate on the sphere to the nearest grid point often takes it out of the ball or
        removes small perturbations. In these cases the perturbation is scaled (l2), or all its coordinates are shifted
        by one amount toward or away from zero (l1), before it is rounded. The scale or shift is chosen so that the
        rounded perturbation is nearly as long as its original length and the integer ball allow, but not longer. A
        slightly larger scale or a slight further shift away from zero might round up several coordinates at once and
        take the point out of the ball. In that case, as many of these coordinates as fit into the ball are rounded up,
        in the order of their indices. In l2, unless coordinates were rounded up in this order, no other perturbation
        with the same sum of squared levels has a larger inner product with the perturbation before rounding.

        Args:
            norm: the norm of the ball.
            x_adv: [B, ...], finite.
            x: [B, ...], the clean images, on the grid; None to round without a ball.
            budget: [B], int64, see ``budgets``.
            final: put every point into the ball, even if its iterate is outside.

        Returns:
            [B, ...], like x_adv.
        """
        if x is None or (norm in ("linf", "l0") and not final):
            return self.values(self.of(x_adv), x_adv)
        clean = self.of(x)
        if norm == "linf":
            reach = budget.to(clean).view(-1, *[1] * (x.dim() - 1))
            return self.values(self.of(x_adv).clamp_(clean - reach, clean + reach), x_adv)
        scaled = x_adv.to(self._work).mul(self._scale).clamp_(self.low, self.high).sub_(clean).flatten(1)
        if norm == "l0":
            fitted = _largest(scaled.round_(), budget)
        else:
            fitted = self._fit(scaled, budget, 2 if norm == "l2" else 1, final)
        return self.values(fitted.view(x.shape).add_(clean).clamp_(self.low, self.high), x_adv)

    def _fit(self, scaled: Tensor, budget: Tensor, power: int, final: bool) -> Tensor:
        """Round perturbations [B, D] to whole numbers inside their balls."""
        delta, limit = scaled.round(), budget.double()
        single = scaled.dtype == torch.float32 and not scaled.is_cuda and bool((budget < _FLOAT32_SIZES).all())
        accuracy = torch.float32 if single else torch.float64
        size, length = _size(delta, power, accuracy), _size(scaled, power, accuracy)
        slack = self._tolerance * scaled.shape[1] ** (1 / power)
        # The exact radius may exceed the integer limit by up to one.
        inside = length ** (1 / power) <= (limit + 1) ** (1 / power) + slack
        wanted = torch.minimum((length + slack).floor_(), limit)
        spent = size > limit + 0.5
        # For points on the grid the two sizes differ only by rounding errors.
        lost = (size < (1 - _LOST) * wanted - 2 * slack) & inside
        fit = (spent & (inside | final)) | lost
        if scaled.is_cuda:
            spent_all = _spend(scaled, delta.clone(), length, size, wanted=wanted, power=power, accuracy=accuracy)
            return torch.where(fit.unsqueeze(1), spent_all, delta)
        rows = fit.nonzero()[:, 0]
        if len(rows) == len(fit):
            return _spend(scaled, delta, length, size, wanted=wanted, power=power, accuracy=accuracy)
        if len(rows):
            delta[rows] = _spend(
                scaled[rows], delta[rows], length[rows], size[rows], wanted=wanted[rows], power=power, accuracy=accuracy
            )
        return delta

    def distances(self, x_adv: Tensor, x: Tensor, norm: AttackNormName) -> Tensor:
        """Return exact distances between images on the grid, rounded up to float64, [N] on the CPU."""
        delta = (self.of(x_adv.double()) - self.of(x.double())).abs().flatten(1).cpu().numpy().astype(np.int64)
        if norm == "l0":
            return torch.from_numpy((delta != 0).sum(1).astype(np.float64))
        sums = {"linf": delta.max(1), "l2": (delta**2).sum(1), "l1": delta.sum(1)}[norm]
        return torch.tensor([level_distance(int(total), self.step, norm) for total in sums], dtype=torch.float64)

    def sizes(self, x_adv: Tensor, x: Tensor, norm: AttackNormName) -> Tensor:
        """Return max |Δk|, Σ Δk², Σ |Δk| or #{Δk ≠ 0}, which ``budgets`` limits, as int64 [N] on the CPU."""
        delta = (self.of(x_adv.double()) - self.of(x.double())).abs().flatten(1).cpu().long()
        if norm == "linf":
            return delta.amax(1)
        return {"l2": delta * delta, "l1": delta, "l0": (delta != 0).long()}[norm].sum(1)


def level_distance(total: int, step: Fraction, norm: AttackNormName) -> float:
    """Return h·max |Δk|, h·√(Σ Δk²) or h·Σ |Δk| as a float, rounded up; ``total`` is the maximum or the sum.

    >>> level_distance(8, Fraction(1, 255), "linf"), level_distance(4, Fraction(1, 4), "l2")
    (0.03137254901960785, 0.5)
    """
    exact = total * (step * step if norm == "l2" else step)
    guess = math.sqrt(exact) if norm == "l2" else float(exact)
    power = 2 if norm == "l2" else 1
    while guess > 0 and Fraction(math.nextafter(guess, 0.0)) ** power >= exact:
        guess = math.nextafter(guess, 0.0)
    while Fraction(guess) ** power < exact:
        guess = math.nextafter(guess, math.inf)
    return guess


def _size(v: Tensor, power: int, accuracy: torch.dtype) -> Tensor:
    """Return each row's sum of |v|^power, float64; for whole v, sums near the budget have errors far below 1/2."""
    norm: Tensor = torch.linalg.vector_norm(v, power, dim=1, dtype=accuracy).double()  # in one pass
    return norm.square() if power == 2 else norm


def _spend(
    scaled: Tensor, delta: Tensor, length: Tensor, size: Tensor, wanted: Tensor, power: int, accuracy: torch.dtype
) -> Tensor:
    """Round ``scaled`` to whole numbers [B, D] with a sum of |·|^power just below or at ``wanted`` [B]; signs are kept.

    ``wanted`` is whole. ``delta`` holds the nearest whole numbers, and is overwritten. ``size`` [B] is the sum of
    |·|^power over ``delta``, and ``length`` [B] is this sum over ``scaled``.
    """
    values = scaled if power == 2 else scaled.abs()
    low, high = _bracket(values, length, wanted, power)
    # The size is nearly linear in the square of the scale (l2) or in the shift (l1): parameter and slope of delta.
    parameter = torch.full_like(wanted, 1.0 if power == 2 else 0.0)
    slope = length if power == 2 else torch.linalg.vector_norm(delta, 0, dim=1).double()
    done = torch.zeros_like(wanted, dtype=torch.bool)
    result = delta  # reused: new memory costs more than a pass
    for _ in range(_SEARCH_STEPS):
        fits = size < wanted + 0.5
        low, high = torch.where(fits, parameter.maximum(low), low), torch.where(fits, high, parameter.minimum(high))
        # Newton's step toward the middle of the accepted range, kept away from the ends of the bracket.
        target = parameter + (wanted * (1 + _SPENT) / 2 - size) / slope.clamp(min=1e-30)
        margin = 0.01 * (high - low)
        target = torch.where(done, parameter, target.clamp(low + margin, high - margin))
        reached = _size(_rounded(values, target, power, result), power, accuracy)
        secant = (reached - size) / (target - parameter)
        slope = torch.where((secant > slope / 4) & (secant < slope * 4), secant, slope)
        parameter, size = target, reached
        done = (size < wanted + 0.5) & (size >= _SPENT * wanted)
        if not scaled.is_cuda and bool(done.all()):
            break
    else:
        # Raise coordinates in order from the lower to the upper end of the bracket, as far as the budget allows.
        rows = (~done).nonzero()[:, 0]
        values, low, high, parameter, size, wanted = (v[rows] for v in (values, low, high, parameter, size, wanted))
        fits = size < wanted + 0.5
        low, high = torch.where(fits, parameter.maximum(low), low), torch.where(fits, high, parameter.minimum(high))
        below, above = (_rounded(values, limit, power, torch.empty_like(values)) for limit in (low, high))
        cost = (above.square() - below.square() if power == 2 else above - below).cumsum(1, dtype=torch.float64)
        raised = cost < (wanted + 0.5 - _size(below, power, accuracy)).unsqueeze(1)
        result[rows] = torch.where(raised, above, below)
    return result if power == 2 else result.copysign_(scaled)


def _bracket(values: Tensor, length: Tensor, wanted: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Return two squared scales (l2) or shifts (l1), [B] each, with rounded sizes <= and >= ``wanted``."""
    if power == 2:  # ‖round(s·u)‖ differs from s·‖u‖ by at most √D/2
        root, target, reach = length.sqrt().clamp_(min=1e-30), wanted.sqrt(), math.sqrt(values.shape[1]) / 2
        return ((target - reach).clamp_(min=0) / root).square_(), ((target + reach + 1) / root).square_()
    # the size of round(u − t)₊ is at most that of u for t = 1/2, and at least that of u for t = −1/2
    low = torch.where(length < wanted + 0.5, -0.5, -values.amax(1).double() - 1)
    return low, torch.full_like(wanted, 0.5)


def _rounded(values: Tensor, parameter: Tensor, power: int, out: Tensor) -> Tensor:
    """Write to ``out`` round(√q·u) for squared scales q [B] (l2), or (round(u + t))₊ for shifts t [B] ≤ 1/2 (l1)."""
    if power == 2:
        return torch.mul(values, parameter.sqrt().to(values.dtype).unsqueeze(1), out=out).round_()
    return torch.add(values, parameter.to(values.dtype).unsqueeze(1), out=out).round_().clamp_(min=0)


def _largest(delta: Tensor, budget: Tensor) -> Tensor:
    """Keep only the ``budget`` [B] largest coordinates of each row (in a tie, the first); set the others to 0."""
    order = delta.abs().argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(delta.shape[1], device=delta.device).expand_as(order)
    )
    return delta.masked_fill(rank >= budget.unsqueeze(1), 0)
