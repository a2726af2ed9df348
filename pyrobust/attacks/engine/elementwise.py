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

_BALLS = {"linf": project_linf_ball, "l2": project_l2_ball, "l1": project_l1_ball}


class Elementwise(Norm):
    """A norm in which elements have radii or clip ranges of their own.

    With radii, which linf alone has, distances are max |δᵢ| / radiusᵢ, 0/0 being 0, and the epsilon of a ball
    multiplies all of them. Without, distances are the norm's. The last operations of ``place`` round toward x and
    clip, so its
    points are in the ball and the clip range in exact arithmetic. The ends of a ``Ball`` are not used.

    Args:
        norm: of all elements.
        radius: [*shape], float64, of one example; None where all elements share one.
        lower, upper: ends of the clip range, [*shape], float64, of one example.

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
        self._rounded: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The norm's distance, or the largest |x_adv − x| in radii."""
        if self.radius is None:
            return self.norm.distance(x_adv, x)
        change = (x_adv.double() - x).abs_()
        return torch.where(change == 0, 0.0, change / self.radius.to(change.device)).flatten(1).amax(1)

    def project(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project delta on the ball, then on the clip range."""
        low, high = self._clip(ball.x)
        clean = ball.x
        return torch.minimum(torch.maximum(self._in_ball(delta, ball.epsilon), low - clean), high - clean)

    def project_outside(self, delta: Tensor, ball: Ball, nearest: Tensor) -> Tensor:
        """Project delta on the ball, then on the clip range, which wins."""
        return self.project(delta, ball)

    def place(self, delta: Tensor, ball: Ball) -> Tensor:
        """The point x + project(delta), rounded toward x."""
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
        """The norm's direction; its elements are as long as the radii."""
        direction = self.norm.direction(gradient)
        return direction if self.radius is None else direction * self.radius.to(direction)

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """A point drawn from the ball."""
        z = self.norm.start(noise, draw, epsilon)
        return z if self.radius is None else z.mul_(self.radius.to(z))

    def diameter(self, coordinates: int, width: float) -> float:
        """No limit: the ends of the clip range are not those of one width."""
        return math.inf

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
        """The ends of the clip range, rounded into it in the dtype of x."""
        key = x.dtype, x.device
        if key not in self._rounded:
            lower, upper = (end.to(x.device) for end in self._ends)
            info = torch.finfo(x.dtype)
            low, high = -rounded_down(-lower, x.dtype), rounded_down(upper, x.dtype)
            self._rounded[key] = low.clamp(info.min, info.max), high.clamp(info.min, info.max)
        return self._rounded[key]


def rounded_down(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest numbers of a dtype that are at most float64 values.

    >>> rounded_down(torch.tensor([0.1], dtype=torch.float64), torch.float32).double().item() <= 0.1
    True
    """
    nearest = values.to(dtype)
    return torch.where(
        nearest.double() > values, torch.nextafter(nearest, torch.full_like(nearest, -math.inf)), nearest
    )
