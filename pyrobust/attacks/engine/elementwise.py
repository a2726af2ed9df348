"""Balls whose radius or clip range differs between the elements of an example, such as the features of a table."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrobust.checks import finite_values
from pyrobust.clip import LIMIT
from pyrobust.ops.norm_balls import project_l2_ball, project_linf_ball
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.ops.projections import project_l1_ball

from .norms import Ball, Noise, Norm, between, per_row

_ORDERS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}
_TINY, _BISECTIONS = 1e-300, 50
_BALLS = {"linf": project_linf_ball, "l2": project_l2_ball, "l1": project_l1_ball}


class Elementwise(Norm):
    """A norm in which each element has its own radius or clip range.

    In linf, elements can have radii of their own. The distance is then max |δᵢ| / radiusᵢ, where 0/0 counts as 0. In a
    ball of radius epsilon, an element can change by at most epsilon times its own radius. Without such radii, distances
    are those of ``norm``. At its end, ``place`` rounds toward x, and then clips. Its points are therefore in the ball
    and the clip range in exact arithmetic. An element stays unchanged if its radius is 0 or the ends of its clip range
    are equal. The ``lower`` and ``upper`` of a ``Ball`` are not used.

    Args:
        norm: the norm over all elements.
        radius: [*shape], float64, the radius of each element of an example; None if all elements share one radius.
        lower, upper: [*shape], float64, the ends of each element's clip range.

    >>> from .norms import norm_of
    >>> norm = Elementwise(norm_of("linf"), torch.tensor([0.5, 0.0]).double(), torch.zeros(2).double(), torch.ones(2))
    >>> x, one = torch.tensor([[0.75, 0.5]]), torch.ones(1).double()
    >>> norm.place(torch.tensor([[1.0, 1.0]]), Ball(x, one, 0.0, 0.0))
    tensor([[1.0000, 0.5000]])
    """

    def __init__(self, norm: Norm, radius: Tensor | None, lower: Tensor, upper: Tensor) -> None:
        self.name = norm.name
        self.norm = norm
        self.radius = radius
        self._ends = lower, upper
        room = (upper - lower).clamp(max=2 * LIMIT)
        weight = torch.ones_like(room) if radius is None else radius
        #: Unit of each element's moves, float64: its radius or 1, and 0 if it cannot move.
        self.weight = torch.where(room > 0, weight, 0.0)
        # A bound on each element's change in its own unit.
        self._room = torch.where(self.weight > 0, room / weight, 0.0)
        self._rounded: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Return the norm's distance or, with radii of elements, the largest |x_adv − x| in units of these radii."""
        if self.radius is None:
            return self.norm.distance(x_adv, x)
        return in_radii(x_adv.double() - x, self.radius).flatten(1).amax(1)

    def project(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project delta onto the ball, then onto the clip range; in l1, onto their intersection."""
        low, high = (limit - ball.x for limit in self._clip(ball.x))
        if self.name == "l1":
            delta = _shrunk(delta, ball.epsilon, low, high)
        return torch.minimum(torch.maximum(self._in_ball(delta, ball.epsilon), low), high)

    def project_outside(self, delta: Tensor, ball: Ball, nearest: Tensor) -> Tensor:
        """Project delta onto the ball, then onto the clip range, which takes precedence."""
        return self.project(delta, ball)

    def place(self, delta: Tensor, ball: Ball) -> Tensor:
        """Return the point x + project(delta), rounded toward x."""
        delta = self.project(delta, ball) if self.name == "l1" else delta
        x_adv = add_perturbation(ball.x, self._in_ball(delta, ball.epsilon), -LIMIT, LIMIT)
        low, high = self._clip(ball.x)
        return torch.minimum(torch.maximum(x_adv, low), high)

    def perturbation(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project perturbations as ``AdversarialAttack.project`` does."""
        with torch.no_grad():
            z = between(self.place(finite_values("delta", delta), ball), finite_values("x", ball.x))
        if not (torch.is_grad_enabled() and (delta.requires_grad or ball.x.requires_grad)):
            return z
        smooth = self.project(delta, ball)
        return z + (smooth - smooth.detach())

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the step of steepest ascent in the norm, with each element multiplied by its radius."""
        moves = torch.where(self.weight.to(gradient.device) > 0, gradient, 0.0)
        direction = self.norm.direction(moves)
        return direction if self.radius is None else self.scaled(direction)

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Draw a point from the ball."""
        z = self.norm.start(noise, draw, epsilon)
        return z if self.radius is None else z.mul_(self.radius.to(z))

    def diameter(self, coordinates: int, width: float) -> float:
        """Return the distance between opposite corners of the clip range; the arguments are not used."""
        return min(float(torch.linalg.vector_norm(self._room, _ORDERS[self.name])), 1 / _TINY)

    def width(self, lower: float, upper: float) -> float:
        """Return the span of all ranges, or the largest width in radii; without limits, 1 or 1 / largest radius."""
        if self.radius is None:
            return self.norm.width(lower, upper)
        return 1 / max(float(self.radius.max()), _TINY) if upper >= LIMIT else self.diameter(0, 0.0)

    def scaled(self, z: Tensor) -> Tensor:
        """Multiply elements by their radii, or by 1 if all share one radius; elements that cannot move become 0."""
        return z * self.weight.to(z)

    def unscaled(self, z: Tensor) -> Tensor:
        """Divide changes [..., D], one flattened example per row, by the radii of the elements."""
        return z if self.radius is None else in_radii(z, self.radius.flatten()).to(z.dtype)

    def box(self, ball: Ball) -> tuple[float | Tensor, float | Tensor, Tensor | None]:
        """Return the ends of the clip range and the radii of flattened examples, in the dtype of x."""
        low, high = (limit.flatten() for limit in self._clip(ball.x))
        return low, high, None if self.radius is None else self.weight.flatten().to(ball.x)

    def moved(self, delta: Tensor, ball: Ball) -> Tensor:
        """Return the point x + delta, rounded toward x and clipped; elements that cannot move stay unchanged."""
        delta = torch.where(self.weight.to(delta.device) > 0, delta, 0.0)
        low, high = self._clip(ball.x)
        return torch.minimum(torch.maximum(add_perturbation(ball.x, delta, -LIMIT, LIMIT), low), high)

    def _in_ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        if self.radius is None:
            return per_row(_BALLS[self.name], delta, epsilon)
        radius = self.radius.to(delta.device)
        reach = epsilon.view(-1, *[1] * radius.dim()) * radius
        exact = (epsilon == 1).view(-1, *[1] * radius.dim())
        below = torch.nextafter(reach, torch.zeros_like(reach))  # the product may have been rounded up
        limit = rounded_down(torch.where(exact, reach, below), delta.dtype)
        return torch.minimum(torch.maximum(delta, -limit), limit)

    def _clip(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the clip range in the dtype of x, rounded into the range."""
        key = x.dtype, x.device
        if key not in self._rounded:
            lower, upper = (limit.to(x.device) for limit in self._ends)
            info = torch.finfo(x.dtype)
            low, high = -rounded_down(-lower, x.dtype), rounded_down(upper, x.dtype)
            self._rounded[key] = low.clamp(info.min, info.max), high.clamp(info.min, info.max)
        return self._rounded[key]


def _shrunk(delta: Tensor, epsilon: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Project delta [B, ...] onto l1 balls within low <= z <= high, up to rounding errors; low <= 0 <= high.

    The elements' sizes are max(0, min(|δᵢ| − t, roomᵢ)), where roomᵢ is highᵢ if δᵢ > 0, else −lowᵢ. Bisection finds
    the smallest t >= 0 at which the sizes add up to at most epsilon.
    """
    size, room = delta.double().abs(), torch.where(delta > 0, high, -low).double()
    rows = (-1, *[1] * (delta.dim() - 1))

    def sizes(t: Tensor) -> Tensor:
        return torch.minimum(size - t.view(rows), room).clamp(min=0)

    least, most = torch.zeros_like(epsilon), size.flatten(1).amax(1)
    most = torch.where(sizes(least).flatten(1).sum(1) <= epsilon, least, most)
    for _ in range(_BISECTIONS):
        middle = (least + most) / 2
        fits = sizes(middle).flatten(1).sum(1) <= epsilon
        least, most = torch.where(fits, least, middle), torch.where(fits, middle, most)
    return (sizes(most) * delta.sign()).to(delta.dtype)


def in_radii(change: Tensor, radius: Tensor) -> Tensor:
    """Return |change| / radius of each element, float64, with 0/0 = 0.

    >>> in_radii(torch.tensor([[0.5, 0.0, -1.0]]), torch.tensor([0.25, 0.0, 0.0], dtype=torch.float64))
    tensor([[2., 0., inf]], dtype=torch.float64)
    """
    change = change.double().abs()
    return torch.where(change == 0, 0.0, change / radius.to(change.device))


def rounded_down(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest numbers of a dtype that do not exceed the given float64 values.

    >>> rounded_down(torch.tensor([0.1], dtype=torch.float64), torch.float32).double().item() <= 0.1
    True
    """
    nearest = values.to(dtype)
    return torch.where(
        nearest.double() > values, torch.nextafter(nearest, torch.full_like(nearest, -math.inf)), nearest
    )
