"""The l∞, l2, l1 and l0 norms of attacks: distance, projection on the feasible set, ascent step and random start.

Iterates of attacks come from the methods of ``Norm``. The last operation of ``place``, ``step``, ``momentum_step`` and
``single_step`` rounds toward the clean example, so these points lie inside the ball and the clip range in exact
arithmetic.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import ATTACK_NORMS, AttackNormName, NormLike, attack_norm_name, finite_values
from pyrobust.clip import LIMIT
from pyrobust.errors import InputError
from pyrobust.metrics.distance import box_diameter
from pyrobust.ops.examples import count_changed
from pyrobust.ops.norm_balls import project_l2_ball, project_linf_ball
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.ops.projections import project_l1_ball, project_l1_ball_box
from pyrobust.ops.rows import box, round_inward
from pyrobust.ops.steps import linf_momentum_step, linf_step

#: (noise family, first sample, samples) → [B, samples, ...]: each example's random numbers, see ``AttackState.noise``.
Noise: TypeAlias = Callable[..., Tensor]


class Ball(NamedTuple):
    """The feasible set of each example: ``{z : ‖z − x‖ ≤ epsilon, lower ≤ z ≤ upper}``."""

    x: Tensor  # [B, ...], the clean examples
    epsilon: Tensor  # [B], float64
    lower: float
    upper: float


class Norm(abc.ABC):
    """The operations of an attack that depend on the norm. Shapes: x_adv, delta, gradient [B, ...]; step [B]."""

    name: AttackNormName
    #: Radii of elements, [...], the units of distances; None for one common unit.
    radius: Tensor | None = None

    @abc.abstractmethod
    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Return ‖x_adv − x‖ of each example, float64 [B]."""

    @abc.abstractmethod
    def project(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project delta so that x plus the result is feasible, up to the rounding of this sum."""

    def project_outside(self, delta: Tensor, ball: Ball, nearest: Tensor) -> Tensor:
        """Project delta where x may lie outside the clip range; ``nearest`` holds the points of the range nearest to x.

        x is first moved to ``nearest``. The rest of delta, which is delta − (nearest − x), is then projected onto a
        smaller ball around ``nearest``. The radius of this ball is epsilon minus the distance from x to ``nearest``, or
        0 if this difference is negative.
        """
        clean, epsilon, lower, upper = ball
        move = nearest - clean
        budget = (epsilon - self.distance(nearest, clean)).clamp(min=0)
        return move + self.project(delta - move, Ball(nearest, budget, lower, upper))

    @abc.abstractmethod
    def direction(self, gradient: Tensor) -> Tensor:
        """Return the ascent step before scaling; zero where the gradient is zero, NaN or, except in linf, infinite."""

    @abc.abstractmethod
    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Draw a perturbation uniformly from the ball of radius epsilon; in l0, a later projection makes it sparse."""

    def default_step(self, epsilon: Tensor, steps: int, width: float) -> Tensor:
        """Return PGD's step size: 1.25 times the ball's diameter, divided by the number of steps."""
        return epsilon * (2.5 / steps)

    def diameter(self, coordinates: int, width: float) -> float:
        """Return the distance between opposite corners of a clip range with this width in every coordinate."""
        return box_diameter(self.name, coordinates, width)

    def width(self, lower: float, upper: float) -> float:
        """Return the clip range's width, in elements' radii if any; without limits, 1 or 1 / largest radius."""
        return 1.0 if upper >= LIMIT else upper - lower

    def scaled(self, z: Tensor) -> Tensor:
        """Multiply elements by their own radii, if they have any; elements that cannot move become 0."""
        return z

    def unscaled(self, z: Tensor) -> Tensor:
        """Divide elements by their own radii, if they have any."""
        return z

    def box(self, ball: Ball) -> tuple[float | Tensor, float | Tensor, Tensor | None]:
        """Return the ends of the clip range (numbers or [D]) and the radii of elements ([D]; None if all share one)."""
        return ball.lower, ball.upper, None

    def moved(self, delta: Tensor, ball: Ball) -> Tensor:
        """Return the point x + delta, rounded toward x and clipped, but not projected onto the ball."""
        return add_perturbation(ball.x, delta, ball.lower, ball.upper)

    def place(self, delta: Tensor, ball: Ball) -> Tensor:
        """Return the point x + project(delta), rounded toward x: exactly inside the ball and the clip range."""
        return add_perturbation(ball.x, self.project(delta, ball), ball.lower, ball.upper)

    def step(self, x_adv: Tensor, gradient: Tensor, step: Tensor, ball: Ball) -> Tensor:
        """Return the next iterate Π(x_adv + step·direction(gradient)), a new tensor; may overwrite the gradient."""
        delta = self.direction(gradient).mul_(per_example(step, x_adv)).add_(x_adv).sub_(ball.x)
        return self.place(delta, ball)

    def momentum_step(self, x_adv: Tensor, gradient: Tensor, previous: Tensor, step: Tensor, ball: Ball) -> Tensor:
        """Return APGD's iterate Π(x_adv + 0.75·(z − x_adv) + 0.25·(x_adv − previous)), with z from ``step``."""
        z = self.step(x_adv, gradient, step, ball)
        delta = z.mul_(0.75).add_(x_adv, alpha=0.5).sub_(previous, alpha=0.25).sub_(ball.x)
        return self.place(delta, ball)

    def single_step(self, gradient: Tensor, ball: Ball) -> Tensor:
        """Return FGSM's point, one step of length epsilon from x."""
        return self.step(ball.x, gradient, ball.epsilon, ball)


class _ProjectThenClip(Norm):
    """A norm whose projection is the projection onto the ball, followed by clipping."""

    @abc.abstractmethod
    def project_ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        """Project delta onto the ball of radius epsilon."""

    def project(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project delta onto the ball, then onto the clip range."""
        return _clip(self.project_ball(delta, ball.epsilon), ball)

    def project_outside(self, delta: Tensor, ball: Ball, nearest: Tensor) -> Tensor:
        """Project delta onto the ball, then onto the clip range, which takes precedence."""
        return self.project(delta, ball)

    def place(self, delta: Tensor, ball: Ball) -> Tensor:
        """Return the point x + project(delta), rounded toward x; ``add_perturbation`` does the clipping."""
        return add_perturbation(ball.x, self.project_ball(delta, ball.epsilon), ball.lower, ball.upper)


class Linf(_ProjectThenClip):
    """‖z‖∞ = max |z_i|."""

    name = "linf"

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Largest |x_adv − x|."""
        return (x_adv.double() - x).abs_().flatten(1).amax(1)

    def project_ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        """Clip delta to [−epsilon, epsilon]."""
        return per_row(project_linf_ball, delta, epsilon)

    def direction(self, gradient: Tensor) -> Tensor:
        """Sign of the gradient."""
        return gradient.sign()

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Each coordinate uniform on [−epsilon, epsilon]."""
        z = noise("uniform", draw)[:, 0].mul_(1 / math.sqrt(3))
        return z.mul_(per_example(epsilon, z))

    def step(self, x_adv: Tensor, gradient: Tensor, step: Tensor, ball: Ball) -> Tensor:
        """The base class's step, fused into one kernel."""
        return linf_step(x_adv, gradient, ball.x, step, epsilon=ball.epsilon, lower=ball.lower, upper=ball.upper)

    def momentum_step(self, x_adv: Tensor, gradient: Tensor, previous: Tensor, step: Tensor, ball: Ball) -> Tensor:
        """The base class's step, fused into one kernel."""
        clean, epsilon, lower, upper = ball
        return linf_momentum_step(
            x_adv, gradient, clean, previous, step=step, epsilon=epsilon, lower=lower, upper=upper, share=0.75
        )


class L2(_ProjectThenClip):
    """‖z‖₂ = √Σ z_i²."""

    name = "l2"

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """√Σ (x_adv − x)²."""
        return _length((x_adv.double() - x).flatten(1))

    def project_ball(self, delta: Tensor, epsilon: Tensor) -> Tensor:
        """Scale delta to length epsilon where it is longer."""
        return per_row(project_l2_ball, delta, epsilon)

    def direction(self, gradient: Tensor) -> Tensor:
        """Gradient divided by its l2 norm."""
        return unit(gradient, _length(gradient))

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Draw a vector of normal variables (Muller, 1959); scale it to length epsilon·u^(1/D) with a uniform u."""
        z = noise("gaussian", draw)[:, 0]
        z = unit(z, _length(z))
        return z.mul_(per_example(epsilon * _radius(noise, draw, z), z))


class L1(Norm):
    """‖z‖₁ = Σ |z_i|."""

    name = "l1"

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Σ |x_adv − x|."""
        return (x_adv.double() - x).abs_().flatten(1).sum(1)

    def project(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project delta onto the intersection of ball and clip range."""
        return project_l1_ball_box(delta, *ball)

    def project_outside(self, delta: Tensor, ball: Ball, nearest: Tensor) -> Tensor:
        """Project delta onto the intersection of ball and range or, if it is empty, onto the ball, then the range."""
        meets = self.distance(nearest, ball.x) <= ball.epsilon
        clipped = _clip(per_row(project_l1_ball, delta, ball.epsilon), ball)
        return torch.where(per_example(meets, delta) > 0, super().project_outside(delta, ball, nearest), clipped)

    def direction(self, gradient: Tensor) -> Tensor:
        """Gradient divided by its largest coordinate; the projection makes the step sparse.

        The step moves all coordinates. If it moved only a few, the attack would stall: the projection would take from
        the other coordinates what the step adds to these few.
        """
        return unit(gradient, gradient.abs().flatten(1).amax(1).double())

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Draw a vector of Laplace variables; scale it to l1 length epsilon·u^(1/D) with a uniform u."""
        z = noise("laplace", draw)[:, 0]
        z = unit(z, z.abs().flatten(1).sum(1, dtype=torch.float64))
        return z.mul_(per_example(epsilon * _radius(noise, draw, z), z))

    def single_step(self, gradient: Tensor, ball: Ball) -> Tensor:
        """Move coordinates uphill as far as the clip range allows, steepest first, until epsilon is used up.

        No feasible point has a larger inner product with the gradient than the resulting point.
        """
        clean, epsilon, lower, upper = ball
        slope = gradient.reshape(len(clean), -1).nan_to_num(nan=0.0)
        room = torch.where(gradient > 0, upper - clean.double(), clean.double() - lower).reshape(len(clean), -1)
        room = torch.where(slope == 0, 0.0, room)
        order = slope.abs().argsort(dim=1, descending=True, stable=True)
        room = room.gather(1, order)
        spent = (epsilon[:, None] - (room.cumsum(1) - room)).clamp_(min=0).minimum(room)
        delta = torch.zeros_like(room).scatter_(1, order, spent).to(gradient.dtype).mul_(slope.sign())
        return self.place(torch.empty_like(clean).copy_(delta.reshape(clean.shape)), ball)


class L0(Norm):
    """‖z‖₀, the number of z_i ≠ 0; at most ⌊epsilon⌋ coordinates may change, each to any value in the clip range."""

    name = "l0"

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Number of changed coordinates."""
        return count_changed(x_adv, x).double()

    def project(self, delta: Tensor, ball: Ball) -> Tensor:
        """Project delta onto the intersection of ball and clip range.

        A coordinate δ that is kept moves to the nearest valid value c. This reduces the squared distance from δ² to (δ
        − c)², that is, by c·(2δ − c). The projection therefore keeps the coordinates with the largest c·(2δ − c). On a
        tie, the coordinate with the lower index is kept.
        """
        clipped = _clip(delta, ball)
        gain = (clipped * (2 * delta - clipped)).flatten(1)
        return keep_largest(clipped.flatten(1), gain, ball.epsilon).view(delta.shape)

    def direction(self, gradient: Tensor) -> Tensor:
        """Gradient divided by its largest coordinate; the projection makes the step sparse."""
        return unit(gradient, gradient.abs().flatten(1).amax(1).double())

    def start(self, noise: Noise, draw: int, epsilon: Tensor) -> Tensor:
        """Draw a vector of normal variables; the projection later keeps the largest of them."""
        return noise("gaussian", draw)[:, 0]

    def default_step(self, epsilon: Tensor, steps: int, width: float) -> Tensor:
        """Return the width of the clip range, since the ball limits how many coordinates change, but not how far."""
        return torch.full_like(epsilon, width)

    def single_step(self, gradient: Tensor, ball: Ball) -> Tensor:
        """Move coordinates uphill to the end of the clip range, choosing those with the largest |gradient|·distance."""
        clean, epsilon, lower, upper = ball
        slope = gradient.nan_to_num(nan=0.0)
        room = torch.where(slope > 0, upper - clean, lower - clean) * (slope != 0)
        delta = keep_largest(room.flatten(1), (room * slope).flatten(1), epsilon).view(clean.shape)
        return self.place(delta, ball)


#: The norms by name.
NORMS: dict[str, Norm] = {norm.name: norm for norm in (Linf(), L2(), L1(), L0())}


def norm_of(norm: NormLike, norms: tuple[AttackNormName, ...] = ATTACK_NORMS) -> Norm:
    """Look up a norm by name or order; raises InputError for an unknown norm."""
    return NORMS[attack_norm_name("norm", norm, norms)]


def project_perturbation(norm: Norm, delta: Tensor, ball: Ball) -> Tensor:
    """Project perturbations [B, ...] of examples [B, ...] in their dtype, as ``AdversarialAttack.project`` does.

    The values come from the attacks' own kernels, which control rounding. The gradient in delta and x ignores rounding:
    it is the gradient of the projection in real numbers.

    >>> x, delta = torch.tensor([[0.5, 1.5]]), torch.tensor([[0.5, 0.125]], requires_grad=True)
    >>> z = project_perturbation(norm_of("linf"), delta, Ball(x, torch.tensor([0.25]).double(), 0.0, 1.0))
    >>> z.tolist(), torch.autograd.grad(z.sum(), delta)[0].tolist()
    ([[0.25, -0.5]], [[0.0, 0.0]])
    """
    x, _, lower, upper = ball
    low = high = None
    with torch.no_grad():
        z = _placed(norm, delta, ball)
        if z is None:
            finite_values("delta", delta)
            finite_values("x", x)
            lower, upper = box("project", lower, upper)
            low, high = round_inward(lower, x.dtype, -1), round_inward(upper, x.dtype, 1)
            nearest = x.clamp(low, high)
            projected = norm.project_outside(delta, ball, nearest)
            clipped = (x + projected).clamp_(low, high)
            z = between(torch.where(nearest == x, add_perturbation(nearest, projected, lower, upper), clipped), x)
    if not (torch.is_grad_enabled() and (delta.requires_grad or x.requires_grad)):
        return z
    smooth = norm.project(delta, ball) if low is None else norm.project_outside(delta, ball, x.clamp(low, high))
    return z + (smooth - smooth.detach())


def _placed(norm: Norm, delta: Tensor, ball: Ball) -> Tensor | None:
    """Project the perturbations; return None if an example is outside the clip range or a number is not finite."""
    shape, x = ball.x.shape, ball.x.flatten(1)
    try:
        z = between(norm.place(delta.flatten(1), ball._replace(x=x)), x).view(shape)
    except InputError:
        return None
    return None if z.is_cuda and bool(z.isnan().any()) else z  # on a GPU, ops return NaN instead of raising


def between(x_adv: Tensor, x: Tensor) -> Tensor:
    """Return z near x_adv − x such that x + z, computed in x's dtype, lies between x and x_adv.

    Because rounding is monotonic, |x_adv − x| ≤ |d| implies |z| ≤ |d| for every number d of x's dtype.
    """
    z = x_adv - x
    missed = (x + z).sub_(x_adv).sign_().square_()  # 1 or 0; comparisons and selections take several times as long
    # With z shortened by more than the difference's rounding error, x + z is between them before and after rounding.
    return z.addcmul_(z, missed, value=-torch.finfo(z.dtype).eps)


def keep_largest(values: Tensor, gain: Tensor, count: Tensor) -> Tensor:
    """Set values [B, D] to zero except at the ⌊count⌋ [B] coordinates of largest positive gain [B, D].

    >>> keep_largest(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[5.0, 1.0, 7.0]]), torch.tensor([2.0]))
    tensor([[1., 0., 3.]])
    """
    kept = count.clamp(0, values.shape[1]).long()
    limit = values.shape[1] if values.is_cuda else int(kept.max()) if len(kept) else 0  # on a GPU, a test would block
    order = gain.topk(limit, dim=1) if limit < values.shape[1] else gain.sort(dim=1, descending=True, stable=True)
    chosen = (torch.arange(limit, device=values.device) < kept[:, None]) & (order.values > 0)
    return torch.zeros_like(values).scatter_(1, order.indices, values.gather(1, order.indices) * chosen)


def widened(x: Tensor) -> Tensor:
    """Return x in float32 or wider, so that squares of small gradients and Adam's epsilon do not underflow to 0."""
    return x.float() if x.dtype.itemsize < 4 else x


def per_example(values: Tensor, like: Tensor) -> Tensor:
    """Reshape [B] to [B, 1, ...] for broadcasting against ``like``, in its dtype."""
    return values.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def unit(v: Tensor, length: Tensor) -> Tensor:
    """Divide each example by its length [B]; zero where the length is zero or not finite."""
    usable = length.isfinite() & (length > 0)
    if not v.is_cuda and bool(usable.all()):  # skip the masking pass; on a GPU the test would cost a synchronization
        return v / per_example(length, v)
    scaled = v / per_example(torch.where(usable, length, 1.0), v)
    return scaled.masked_fill_(~usable.view(-1, *[1] * (v.dim() - 1)), 0.0)


def per_row(project: Callable[[Tensor, Tensor], Tensor], delta: Tensor, epsilon: Tensor) -> Tensor:
    """Flatten each example to a row, project the rows, and restore shape and memory format."""
    if delta.dim() == 4 and not delta.is_contiguous():
        rows = delta.permute(0, 2, 3, 1)  # channels_last: reshape without a copy
        return project(rows.reshape(len(rows), -1), epsilon).view(rows.shape).permute(0, 3, 1, 2)
    return project(delta.reshape(len(delta), -1), epsilon).view(delta.shape)


def _clip(delta: Tensor, ball: Ball) -> Tensor:
    """Return the nearest perturbations for which x + delta is in the clip range."""
    return torch.minimum(torch.maximum(delta, ball.lower - ball.x), ball.upper - ball.x)


def _length(v: Tensor) -> Tensor:
    """The l2 norm of each example, in float64 so that squares of tiny numbers do not underflow."""
    length: Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), dtype=torch.float64)
    return length


def _radius(noise: Noise, draw: int, z: Tensor) -> Tensor:
    """Length u^(1/D) that turns a uniform direction into a uniform point of the unit ball, float64 [B]."""
    u = noise("uniform", draw, shape=(1,))[:, 0, 0].double() / math.sqrt(12) + 0.5
    return u.clamp_(0, 1) ** (1 / z[0].numel())
