"""The three norms: distance, projection on ball and clip range, direction of a step, random start.

Every iterate of every attack is made by ``Norm.place`` or ``Norm.step``, whose last operation rounds toward the clean
example: the perturbation of what is returned is, in exact arithmetic, inside the ball and the clip range.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.ops.norm_balls import project_l2_ball, project_linf_ball
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.ops.projections import project_l1_ball_box
from pyrobust.ops.steps import linf_momentum_step, linf_step

#: (noise family, first sample, samples) → [B, samples, ...]: the random words of each example, see ``Job.noise``.
Noise: TypeAlias = Callable[..., Tensor]


class Norm(abc.ABC):
    """What an attack needs to know of its norm. Shapes: x, x_adv, delta, gradient [B, ...]; epsilon, step [B]."""

    name: str

    @abc.abstractmethod
    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """‖x_adv − x‖ of each example, float64 [B]."""

    @abc.abstractmethod
    def project(self, delta: Tensor, x: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """Delta brought into the ball of radius epsilon, with x + delta in [lower, upper]."""

    @abc.abstractmethod
    def direction(self, gradient: Tensor) -> Tensor:
        """A unit step that goes up; zero where the gradient is zero or not finite."""

    @abc.abstractmethod
    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """A perturbation drawn uniformly from the ball of radius epsilon."""

    @abc.abstractmethod
    def diameter(self, coordinates: int, width: float) -> float:
        """The distance of two opposite corners of a clip range that is ``width`` wide in every coordinate."""

    def place(self, x: Tensor, delta: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """The point x + project(delta), rounded toward x: exactly inside the ball and the clip range."""
        return add_perturbation(x, self.project(delta, x, epsilon, lower, upper), lower, upper)

    def step(
        self, x_adv: Tensor, gradient: Tensor, x: Tensor, step: Tensor, epsilon: Tensor, lower: float, upper: float
    ) -> Tensor:
        """The next iterate: x_adv + step·direction(gradient), projected. A new tensor; may overwrite the gradient."""
        delta = self.direction(gradient).mul_(per_example(step, x_adv)).add_(x_adv).sub_(x)
        return self.place(x, delta, epsilon, lower, upper)

    def carried_step(
        self,
        x_adv: Tensor,
        gradient: Tensor,
        x: Tensor,
        before: Tensor,
        step: Tensor,
        epsilon: Tensor,
        lower: float,
        upper: float,
    ) -> Tensor:
        """The step with momentum, x_adv + 0.75·(z − x_adv) + 0.25·(x_adv − before), z being ``step``; projected."""
        z = self.step(x_adv, gradient, x, step, epsilon, lower, upper)
        delta = z.mul_(0.75).add_(x_adv, alpha=0.5).sub_(before, alpha=0.25).sub_(x)
        return self.place(x, delta, epsilon, lower, upper)

    def ascend(self, gradient: Tensor, x: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """The point of ball and clip range that one step of length epsilon from x leads to."""
        return self.step(x, gradient, x, epsilon, epsilon, lower, upper)


class _Clipped(Norm):
    """A norm whose ball is projected on first, then the clip range."""

    @abc.abstractmethod
    def ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        """The projection of delta on the ball."""

    def project(self, delta: Tensor, x: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """The projection on the ball, then on the clip range."""
        return torch.minimum(torch.maximum(self.ball(delta, epsilon), lower - x), upper - x)

    def place(self, x: Tensor, delta: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """As in the base class; the addition clips by itself."""
        return add_perturbation(x, self.ball(delta, epsilon), lower, upper)


class Linf(_Clipped):
    """The largest |z_i|."""

    name = "linf"

    def diameter(self, coordinates: int, width: float) -> float:
        """The width."""
        return width

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The largest |x_adv − x|."""
        return (x_adv.double() - x.double()).abs_().flatten(1).amax(1)

    def ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        """Delta clipped to [−epsilon, epsilon]."""
        return on_rows(project_linf_ball, delta, epsilon)

    def direction(self, gradient: Tensor) -> Tensor:
        """The sign."""
        return gradient.sign()

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Each coordinate uniform on [−epsilon, epsilon]."""
        z = noise("uniform", draw)[:, 0].mul_(1 / math.sqrt(3))
        return z.mul_(per_example(epsilon, z))

    def step(
        self, x_adv: Tensor, gradient: Tensor, x: Tensor, step: Tensor, epsilon: Tensor, lower: float, upper: float
    ) -> Tensor:
        """As in the base class, in one go."""
        return linf_step(x_adv, gradient, x, step, epsilon, lower, upper)

    def carried_step(
        self,
        x_adv: Tensor,
        gradient: Tensor,
        x: Tensor,
        before: Tensor,
        step: Tensor,
        epsilon: Tensor,
        lower: float,
        upper: float,
    ) -> Tensor:
        """As in the base class, in one go."""
        return linf_momentum_step(x_adv, gradient, x, before, step, epsilon, lower, upper, share=0.75)


class L2(_Clipped):
    """The root of Σ z_i²."""

    name = "l2"

    def diameter(self, coordinates: int, width: float) -> float:
        """Its √D-fold."""
        return math.sqrt(coordinates) * width

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """√Σ (x_adv − x)²."""
        return _length((x_adv.double() - x.double()).flatten(1))

    def ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        """Delta, scaled to length epsilon where it is longer."""
        return on_rows(project_l2_ball, delta, epsilon)

    def direction(self, gradient: Tensor) -> Tensor:
        """The gradient over its length."""
        return unit(gradient, _length(gradient))

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """A normal vector (Muller 1959), of length epsilon·u^(1/D)."""
        z = noise("gaussian", draw)[:, 0]
        z = unit(z, _length(z))
        return z.mul_(per_example(epsilon * _radius(noise, draw, z), z))


class L1(Norm):
    """The sum of the |z_i|."""

    name = "l1"

    def diameter(self, coordinates: int, width: float) -> float:
        """Its D-fold."""
        return coordinates * width

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Σ |x_adv − x|."""
        return (x_adv.double() - x.double()).abs_().flatten(1).sum(1)

    def project(self, delta: Tensor, x: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """The projection on the intersection of ball and clip range."""
        return project_l1_ball_box(delta, x, epsilon, lower, upper)

    def direction(self, gradient: Tensor) -> Tensor:
        """The gradient over its largest coordinate; the projection makes the step sparse.

        A step on few coordinates would stall: the projection takes from the others what it adds to them.
        """
        return unit(gradient, gradient.abs().flatten(1).amax(1).double())

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """A vector of Laplace numbers, of length epsilon·u^(1/D)."""
        z = noise("laplace", draw)[:, 0]
        z = unit(z, z.abs().flatten(1).sum(1, dtype=torch.float64))
        return z.mul_(per_example(epsilon * _radius(noise, draw, z), z))

    def ascend(self, gradient: Tensor, x: Tensor, epsilon: Tensor, lower: float, upper: float) -> Tensor:
        """Spends epsilon on the coordinates in the order of |gradient|, each up to the end of its range.

        No point of ball and clip range has a larger inner product with the gradient.
        """
        slope = gradient.reshape(len(x), -1).nan_to_num(nan=0.0)
        room = torch.where(gradient > 0, upper - x.double(), x.double() - lower).reshape(len(x), -1)
        room = torch.where(slope == 0, 0.0, room)
        order = slope.abs().argsort(dim=1, descending=True, stable=True)
        room = room.gather(1, order)
        spent = (epsilon[:, None] - (room.cumsum(1) - room)).clamp_(min=0).minimum(room)
        delta = torch.zeros_like(room).scatter_(1, order, spent).to(gradient.dtype).mul_(slope.sign())
        return self.place(x, torch.empty_like(x).copy_(delta.reshape(x.shape)), epsilon, lower, upper)


#: The norms by name.
NORMS: dict[str, Norm] = {norm.name: norm for norm in (Linf(), L2(), L1())}


def norm_of(name: str) -> Norm:
    """The norm of that name.

    Raises:
        InputError: another name.
    """
    if not isinstance(name, str) or name not in NORMS:
        raise InputError(f"norm: expected one of {', '.join(NORMS)}, got {name!r}")
    return NORMS[name]


def movable(gradient: Tensor, x_adv: Tensor, lower: float, upper: float) -> Tensor:
    """The gradient where a step up it stays in the clip range, else 0; also where it is NaN."""
    inward = ((gradient > 0) & (x_adv < upper)) | ((gradient < 0) & (x_adv > lower))
    return torch.where(inward, gradient, 0.0)


def per_example(values: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, ...] in the dtype of ``like``."""
    return values.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def unit(v: Tensor, length: Tensor) -> Tensor:
    """Each v over its length [B]; zero where that is zero or not finite."""
    usable = length.isfinite() & (length > 0)
    if not v.is_cuda and bool(usable.all()):  # a second pass over v only where something is wrong
        return v / per_example(length, v)
    scaled = v / per_example(torch.where(usable, length, 1.0), v)
    return scaled.masked_fill_(~usable.view(-1, *[1] * (v.dim() - 1)), 0.0)


def on_rows(project: Callable[[Tensor, Tensor], Tensor], delta: Tensor, epsilon: Tensor) -> Tensor:
    """A projection of rows, applied to each example as a whole; the memory format stays."""
    if delta.dim() == 4 and not delta.is_contiguous():
        rows = delta.permute(0, 2, 3, 1)  # no copy where it is channels_last
        return project(rows.reshape(len(rows), -1), epsilon).view(rows.shape).permute(0, 3, 1, 2)
    return project(delta.reshape(len(delta), -1), epsilon).view(delta.shape)


def _length(v: Tensor) -> Tensor:
    """The l2 norm of each example, in float64, where the squares of tiny numbers do not vanish."""
    length: Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), dtype=torch.float64)
    return length


def _radius(noise: Noise, draw: int, z: Tensor) -> Tensor:
    """The length that makes a direction a uniform point of the unit ball: u^(1/D), float64 [B]."""
    u = noise("uniform", draw, shape=(1,))[:, 0, 0].double() / math.sqrt(12) + 0.5
    return u.clamp_(0, 1) ** (1 / z[0].numel())
