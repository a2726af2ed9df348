"""Linear relaxations of curves: functions that at most two known points divide into convex and concave pieces.

The upper relaxation has the slope of the concave envelope at the middle of the range. This slope minimises the area
between the line and the function. The line is a chord, a tangent at the middle, or a tangent through an end of the
range. Any slope s is sound, however it was found, because the intercept bounds the maximum of f(z) − s·z over the
range. On a convex piece this maximum is at an end; on a concave piece the tangent at any point t bounds it: f(z) − s·z
≤ f(t) − s·t + (f'(t) − s)·(z − t). The lower relaxation is minus the upper relaxation of −f.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.bounds.graph.activations.table import (
    ActivationRow,
    Defined,
    Differentiable,
    LinearRelaxation,
    RelaxationRule,
)
from pyrobust.bounds.graph.nodes import Activation

#: Relative error of values and slopes in float64: the error of torch's functions, at most a few units in the last place
#: each, and of a few operations on their results. Numbers that may be flushed to zero are below ``TINY``.
ERROR = 2.0**-46
TINY = 1e-300
#: Relative error of a few sums and products.
ROUNDED = 2.0**-50

#: Halvings of the bracket of a point of contact; an inexact point costs tightness only.
_HALVINGS = 60


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """A function f of one variable, with three pieces (one or two may be empty), alternately convex and concave.

    Bounds of the function are rounded outward. They allow for an error of 128 float64 roundings in each value and
    slope, see ``value_floor`` and ``slope_floor``.

    Attributes:
        value: z → f(z) in differentiable torch operations.
        slope: (z, i) → f'(z) on piece i; at the ends of the piece, the one-sided derivative from inside.
        breaks: where the second piece begins and ends.
        middle_convex: whether the second piece is convex.
        stationary: minima and maxima of f.
        limits: f(−∞) and f(∞).
        image: two numbers that all values lie between.
        domain: the smallest and the largest z at which f has a value; no bounds are known on ranges that reach beyond.
        value_floor: the bounds allow for an error of ERROR·(|f(z)| + value_floor) in f(z).
        slope_floor: the bounds allow for an error of ERROR·(|f'(z)| + slope_floor) in f'(z).

    ERROR is 2⁻⁴⁶. If a formula's values have a larger error, for example because two large numbers nearly cancel, the
    bounds may be wrong: use another formula.

    >>> square = Curve(value=torch.square, slope=lambda z, piece: 2 * z, breaks=(-math.inf, math.inf),
    ...                middle_convex=True, stationary=(0.0,), limits=(math.inf, math.inf), image=(0.0, math.inf))
    >>> curve_interval(square, torch.tensor([-1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64))
    (tensor([0.], dtype=torch.float64), tensor([4.0000], dtype=torch.float64))
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, int], Tensor]
    breaks: tuple[float, float]
    middle_convex: bool
    stationary: tuple[float, ...] = ()
    limits: tuple[float, float] = (-math.inf, math.inf)
    image: tuple[float, float] = (-math.inf, math.inf)
    domain: tuple[float, float] = (-math.inf, math.inf)
    value_floor: float = 0.0
    slope_floor: float = 0.0

    def slope_at(self, z: Tensor) -> Tensor:
        """Return f'(z) on the piece that z is in."""
        first, second = self.breaks
        slope = self.slope(z, 1)
        slope = torch.where(z < first, self.slope(z, 0), slope) if first > -math.inf else slope
        return torch.where(z > second, self.slope(z, 2), slope) if second < math.inf else slope

    @property
    def everywhere(self) -> bool:
        """Whether f is defined for all numbers."""
        return self.domain == (-math.inf, math.inf)

    def defined_on(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Tell whether f is defined on whole ranges.

        Args:
            lower: the smallest z of each range.
            upper: the largest z, of lower's shape.

        Returns:
            Bool, of lower's shape.
        """
        return (lower >= self.domain[0]) & (upper <= self.domain[1])


def curve_interval(curve: Curve, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return float64 bounds of the values on ranges: ±inf if no bound is known, NaN if an end of the range is NaN."""
    low, high = _extremes(curve, lower, upper)
    low, high = low - _value_error(curve, low), high + _value_error(curve, high)
    low, high = low.clamp(*curve.image), high.clamp(*curve.image)
    given = ~(lower.isnan() | upper.isnan())
    unknown = ~curve.defined_on(lower, upper)  # also NaN, of values that overflow
    low = low.where(~(given & (unknown | low.isnan())), -torch.inf)
    return low, high.where(~(given & (unknown | high.isnan())), torch.inf)


def _extremes(curve: Curve, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest computed value on ranges."""
    at_lower, at_upper = (_value_at(curve, end) for end in (lower, upper))
    low, high = torch.minimum(at_lower, at_upper), torch.maximum(at_lower, at_upper)
    for point in curve.stationary:
        inside = (lower <= point) & (upper >= point)
        value = curve.value(torch.tensor(point, dtype=low.dtype, device=low.device))
        low, high = torch.where(inside, low.minimum(value), low), torch.where(inside, high.maximum(value), high)
    return low, high


def _value_at(curve: Curve, z: Tensor) -> Tensor:
    value = curve.value(z.where(z.isfinite(), 1.0))
    for end, limit in zip((-torch.inf, torch.inf), curve.limits, strict=True):
        value = value.where(z != end, limit)
    return value.where(~z.isnan(), torch.nan)


def _value_error(curve: Curve, value: Tensor) -> Tensor:
    return (value.abs() + curve.value_floor) * ERROR + TINY


def curve_relaxation(curve: Curve, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    """Return the float64 relaxation, rounded outward; slopes are 0 where an end is infinite or numbers overflow."""
    low, high = curve_interval(curve, lower, upper)
    known = lower.isfinite() & upper.isfinite() & curve.defined_on(lower, upper)
    l, u = lower.where(known, 1.0), upper.where(known, 1.0)  # noqa: E741 - the field's names
    ends = curve.value(l), curve.value(u)
    parts = []
    for sign, constant in ((-1, low), (1, high)):
        side = _Side(curve, sign, l, u, sign * ends[0], sign * ends[1])
        touch = side.relaxation()
        intercept = side.intercept(touch)
        # a constant where that is lower in the middle, as with several humps
        usable = known & touch.slope.isfinite() & (touch.slope * side.middle + intercept <= sign * constant)
        parts += [(sign * touch.slope).where(usable, 0.0), (sign * intercept).where(usable, constant)]
    return LinearRelaxation(*parts)


class Touch(NamedTuple):
    """An upper relaxation and, for each concave piece, a tangent that bounds the function on this piece.

    Attributes:
        slope: slope of the relaxation.
        left: the first point where the relaxation touches the function.
        right: the last point where the relaxation touches the function. If left = right, the relaxation is a tangent;
            otherwise it is a chord.
        pieces: for each concave piece, its begin and end, and the point and slope of a tangent; a piece is empty where
            begin ≥ end.
    """

    slope: Tensor
    left: Tensor
    right: Tensor
    pieces: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]


class Contact(NamedTuple):
    """A tangent to a concave piece through an end of the range: point of contact, slope, and whether it exists."""

    point: Tensor
    slope: Tensor
    exists: Tensor


class _Side:
    """The upper relaxation of F = sign·f on finite ranges [l, u]."""

    def __init__(self, curve: Curve, sign: int, l: Tensor, u: Tensor, at_l: Tensor, at_u: Tensor) -> None:  # noqa: E741 - the field's names
        self.curve, self.sign = curve, sign
        self.l, self.u, self.at_l, self.at_u = (part.contiguous() for part in (l, u, at_l, at_u))
        self.middle = torch.minimum(torch.maximum(self.l / 2 + self.u / 2, self.l), self.u)

    def value(self, z: Tensor) -> Tensor:
        return self.sign * self.curve.value(z)

    def slope(self, z: Tensor, piece: int) -> Tensor:
        return self.sign * self.curve.slope(z, piece)

    def relaxation(self) -> Touch:
        return self._valley() if self.curve.middle_convex == (self.sign > 0) else self._hill()

    def intercept(self, touch: Touch) -> Tensor:
        """Return an upper bound of F(z) − slope·z on the range, where F = sign·f."""
        curve, s = self.curve, touch.slope
        highest = torch.maximum(self._excess(self.l, self.at_l, s), self._excess(self.u, self.at_u, s))
        for point in curve.breaks:
            if math.isfinite(point):
                inside = (self.l < point) & (self.u > point)
                z = torch.full_like(s, point)
                highest = torch.where(inside, highest.maximum(self._excess(z, self.value(z), s)), highest)
        for begin, end, t, slope in touch.pieces:
            error = (slope.abs() + curve.slope_floor) * ERROR + s.abs() * ROUNDED + TINY
            rise = (slope - s + error).clamp(min=0) * (end - t)
            fall = (s - slope + error).clamp(min=0) * (t - begin)
            beyond = torch.maximum(rise, fall) * (1 + ROUNDED) + TINY
            reached = self._excess(t, self.value(t), s) + beyond
            highest = torch.where(begin < end, highest.maximum(reached + reached.abs() * ROUNDED), highest)
        return highest

    def _excess(self, z: Tensor, value: Tensor, s: Tensor) -> Tensor:
        """Return a number that is at least F(z) − s·z."""
        product = s * z
        return value - product + (value.abs() + product.abs()) * ROUNDED + _value_error(self.curve, value)

    def _chord(self) -> Tensor:
        """Return the slope of the chord; where rounding spoils it, return the derivative in the middle."""
        difference = self.at_u - self.at_l
        noise = _value_error(self.curve, self.at_l) + _value_error(self.curve, self.at_u)
        chord = difference / (self.u - self.l)
        doubtful = ~(difference.abs() > noise * 2.0**10)
        if not bool(doubtful.any()):
            return chord
        return torch.where(doubtful, self.sign * self.curve.slope_at(self.middle), chord)

    def _hill(self) -> Touch:
        """Relax an F that is convex, concave, then convex, by a tangent of the middle piece or else by the chord."""
        l, u, m = self.l, self.u, self.middle  # noqa: E741 - the field's names
        first, second = self.curve.breaks
        begin, end = l.clamp(min=first), u.clamp(max=second)
        has = begin < end
        from_left, from_right = (l < first) & has, (u > second) & has
        right = self._contact(l, self.at_l, begin, end, 1, from_left)
        left = self._contact(u, self.at_u, end, begin, 1, from_right)
        right_point, left_point = torch.where(from_left, right.point, begin), torch.where(from_right, left.point, end)
        tangent = has & (right.exists | ~from_left) & (left.exists | ~from_right) & (right_point <= left_point)
        point = torch.minimum(torch.maximum(m, right_point), left_point)
        if not bool(tangent.all()):
            other = torch.where(left.exists, left_point, end.where(from_left, begin))
            point = torch.where(tangent, point, torch.where(right.exists, right_point, other))
        slope = self.slope(point, 1)
        through_l, through_u = right.exists & (m < right_point), left.exists & (m > left_point)
        relaxed = torch.where(through_l, right.slope, torch.where(through_u, left.slope, slope))
        if not bool(tangent.all()):
            relaxed = torch.where(tangent, relaxed, self._chord())
        first_touch = torch.where(through_l | ~tangent, l, point)
        last_touch = torch.where(through_u | ~tangent, u, point)
        return Touch(relaxed, first_touch, last_touch, ((begin, end, point, slope),))

    def _valley(self) -> Touch:
        """Relax F (concave, convex, concave) by a tangent at the range's middle or through an end, or by the chord."""
        l, u, m = self.l, self.u, self.middle  # noqa: E741 - the field's names
        first, second = self.curve.breaks
        in_left, in_right = u <= first, l >= second
        bridged = ~(in_left | in_right)
        right_begin, left_end = l.clamp(min=second), u.clamp(max=first)
        right = self._contact(l, self.at_l, right_begin, u, 2, bridged & (u > second))
        left = self._contact(u, self.at_u, left_end, l, 0, bridged & (l < first) & ~right.exists)
        relaxed = self._chord() if bool((bridged & ~right.exists & ~left.exists).any()) else torch.zeros_like(l)
        first_touch, last_touch, pieces = l, u, []
        if second < math.inf:
            point = torch.where(in_right, m, torch.where(right.exists, right.point.maximum(m), u)).maximum(right_begin)
            slope = self.slope(point, 2)
            pieces.append((right_begin, u, point, slope))
            through_l, touched = right.exists & (m < right.point), in_right | right.exists
            relaxed = torch.where(through_l, right.slope, torch.where(touched, slope, relaxed))
            first_touch, last_touch = torch.where(touched & ~through_l, point, l), torch.where(touched, point, u)
        if first > -math.inf:
            point = torch.where(in_left, m, torch.where(left.exists, left.point.minimum(m), l)).minimum(left_end)
            slope = self.slope(point, 0)
            pieces.append((l, left_end, point, slope))
            through_u, touched = left.exists & (m > left.point), in_left | left.exists
            relaxed = torch.where(through_u, left.slope, torch.where(touched, slope, relaxed))
            first_touch = torch.where(touched, point, first_touch)
            last_touch = torch.where(touched & ~through_u, point, last_touch)
        return Touch(relaxed, first_touch, last_touch, tuple(pieces))

    def _contact(
        self, origin: Tensor, at_origin: Tensor, near: Tensor, far: Tensor, piece: int, wanted: Tensor
    ) -> Contact:
        """Return the line through (origin, F(origin)) that touches a concave piece between its near and far ends.

        The tangent at a point of the piece has a value at ``origin``. This value grows as the point moves from the near
        to the far end, so bisection finds the point of contact. For the elements in ``wanted``, the point of contact is
        read from a table made by bisection, and improved by a Newton step. If the point of contact is the near end,
        where the function has a kink, the line is the chord from the origin to this end.
        """
        point, line, touches = far.clone(), torch.zeros_like(far), torch.zeros_like(wanted)
        (index,) = wanted.flatten().nonzero(as_tuple=True)
        if not len(index):
            return Contact(point, line, touches)
        x, height, low, high = (part.flatten()[index] for part in (origin, at_origin, near, far))
        direction = 1 if bool(high[0] > low[0]) else -1
        table = _contacts(self.curve, self.sign, piece, direction)
        t = table.near + direction * table.offsets(direction * (table.near - x))
        (rest,) = t.isnan().nonzero(as_tuple=True)
        if len(rest):
            t[rest] = self._bisected(x[rest], height[rest], low[rest], high[rest], piece)
        exists, kink = (direction * (high - t) >= 0) & t.isfinite(), t == table.near
        t = torch.where(exists, t, high)
        slope = self.slope(t, piece)
        # one step of Newton's method, with a difference for the second derivative
        step = (t - table.near) * 2.0**-10
        bend = (self.slope(t + step, piece) - slope) / step
        better = t - (self.value(t) + slope * (x - t) - height) / (bend * (x - t))
        better = torch.minimum(torch.maximum(better, torch.minimum(low, high)), torch.maximum(low, high))
        t = torch.where(better.isfinite() & ~kink, better, t)
        slope = self.slope(t, piece)
        if bool(kink.any()):
            slope = torch.where(kink, (self.value(t) - height) / (t - x), slope)
        point.view(-1)[index], line.view(-1)[index], touches.view(-1)[index] = t, slope, exists
        return Contact(point, line, touches)

    def _bisected(self, x: Tensor, height: Tensor, low: Tensor, high: Tensor, piece: int) -> Tensor:
        """Bisect a piece from low (nearer x) to high for the contact of a tangent through (x, height); NaN if none."""

        def above(t: Tensor) -> Tensor:
            return self.value(t) + self.slope(t, piece) * (x - t) >= height

        exists, kink, corner = above(high), above(low), low
        for _ in range(_HALVINGS):
            t = low / 2 + high / 2
            reaches = above(t)
            low, high = torch.where(reaches, low, t), torch.where(reaches, t, high)
        return torch.where(exists, torch.where(kink, corner, high), torch.nan)


class _Contacts(NamedTuple):
    """Points of contact for a geometric grid of distances between origin and piece; infinite if there is none."""

    near: float
    found: Tensor

    def offsets(self, distance: Tensor) -> Tensor:
        """Return the distance from the piece's near end to the contact: inf if there is none, NaN if unknown."""
        place = (distance.log() - _FIRST) / _STEP
        place = place.where(place < len(self.found) - 1, torch.nan)
        index = place.nan_to_num(0).clamp(min=0).long()
        share = place.clamp(min=0) - index
        left, right = self.found[index], self.found[index + 1]
        offset = torch.where(left == right, left, left * (1 - share) + right * share).where(place.isfinite(), torch.nan)
        offset = offset.where(left.isfinite() == right.isfinite(), torch.nan)
        return torch.where(place < 0, self.found[0] * (distance / math.exp(_FIRST)), offset)


_FIRST, _STEP, _KNOTS = math.log(1e-3), 0.01, 1400  # distances up to about 1200


@functools.cache
def _contacts(curve: Curve, sign: int, piece: int, direction: int) -> _Contacts:
    """Tabulate the points of contact of tangents to a piece through origins left of it (direction 1) or right (−1)."""
    ends = (-math.inf, *curve.breaks, math.inf)[piece : piece + 2]
    near, far = ends if direction > 0 else ends[::-1]
    distance = torch.exp(_FIRST + _STEP * torch.arange(_KNOTS, dtype=torch.float64))
    x = near - direction * distance
    side = _Side(curve, sign, x, x, sign * curve.value(x), sign * curve.value(x))
    last = torch.full_like(x, far if math.isfinite(far) else near + direction * 1e4)
    point = side._bisected(x, side.at_l, torch.full_like(x, near), last, piece)
    return _Contacts(near, ((point - near) * direction).nan_to_num(math.inf))


def differentiable_curve(curve_of: Callable[[Activation], Curve]) -> Differentiable:
    """Return the bounds of a curve for training.

    A relaxation touches the curve at an end of the range, at the middle of the range, or at a computed point.
    Differentiation treats a computed point as a constant, because the slope of a tangent through an end has derivative
    0 with respect to the point of contact.
    """

    def interval(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return _extremes(curve_of(node), lower, upper)

    def relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
        curve, middle = curve_of(node), (lower + upper) / 2
        l, u = lower.detach().double(), upper.detach().double()  # noqa: E741 - the field's names
        parts = []
        for sign in (-1, 1):
            with torch.no_grad():
                touch = _Side(curve, sign, l, u, sign * curve.value(l), sign * curve.value(u)).relaxation()
            tangent = touch.left >= touch.right
            begin = torch.where(touch.left <= l, lower, touch.left.to(lower.dtype)).where(~tangent, middle)
            end = torch.where(touch.right >= u, upper, touch.right.to(upper.dtype)).where(~tangent, middle)
            tangent = begin >= end
            value = curve.value(begin)
            chord = (curve.value(end) - value) / torch.where(tangent, 1, end - begin)
            slope = torch.where(tangent, curve.slope_at(begin), chord)
            parts += [slope, value - slope * begin]
        return LinearRelaxation(*parts)

    return Differentiable(interval, relaxation)


def row_of_curve(
    forward: Callable[[Activation, Tensor], Tensor],
    curve_of: Callable[[Activation], Curve],
    *,
    slope_range: Callable[[Activation], tuple[float, float]] | None = None,
    offset: Callable[[Activation], float] = lambda node: 0.0,
) -> ActivationRow:
    """Return the table's row of an activation whose function is a ``Curve``."""
    return row_of_bounds(
        forward,
        lambda node, lower, upper: curve_interval(curve_of(node), lower, upper),
        lambda node, lower, upper: curve_relaxation(curve_of(node), lower, upper),
        slope_range=slope_range,
        differentiable=differentiable_curve(curve_of),
        offset=offset,
        defined=lambda node: None if curve_of(node).everywhere else curve_of(node).defined_on,
    )


def row_of_bounds(
    forward: Callable[[Activation, Tensor], Tensor],
    interval: Callable[[Activation, Tensor, Tensor], tuple[Tensor, Tensor]],
    relaxation: Callable[[Activation, Tensor, Tensor], LinearRelaxation],
    *,
    slope_range: Callable[[Activation], tuple[float, float]] | None = None,
    differentiable: Differentiable | None = None,
    roundings: Callable[[Activation], int] = lambda node: 16,
    offset: Callable[[Activation], float] = lambda node: 0.0,
    defined: Callable[[Activation], Defined | None] = lambda node: None,
) -> ActivationRow:
    """Return the row of a function whose bounds are computed by torch operations that already round outward."""

    def rule(node: Activation) -> RelaxationRule:
        def apply(l: npt.NDArray[np.float64], u: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], ...]:  # noqa: E741 - the field's names
            lower, upper = torch.from_numpy(l), torch.from_numpy(u)
            parts = *relaxation(node, lower, upper), *interval(node, lower, upper)
            return tuple(part.numpy() for part in parts)

        return apply

    return ActivationRow(
        forward=forward,
        interval=lambda node, lower, upper, rounding: interval(node, lower, upper),
        relaxation=lambda node, lower, upper, rounding: relaxation(node, lower, upper),
        native_code=None,
        rule=rule,
        slope_range=slope_range,
        differentiable=differentiable,
        roundings=roundings,
        offset=offset,
        defined=defined,
    )
