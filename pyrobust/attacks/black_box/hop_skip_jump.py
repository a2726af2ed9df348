"""HopSkipJump: minimum-norm adversarial examples from the predicted classes alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrobust.checks import count, finite_values, float_tensor, positive, shape_text
from pyrobust.errors import InputError
from pyrobust.metrics import predicted_classes
from pyrobust.ops.perturbation import add_perturbation

from ..engine.norms import per_example, unit
from ..engine.settings import optional, setting
from ..engine.state import AttackState
from ..minimum.engine import MinimumNormAttack
from ..minimum.nearest import Nearest

# Number of random starts to try.
_STARTS = 100
# Coarsest precision of the bisection: the formula gives almost none for inputs of few coordinates.
_PRECISION = 1e-3
# Most halvings of a jump that leaves the adversarial side, and of a segment: float32 resolves no more.
_HALVINGS = 24


def _images(name: str, starts: Tensor) -> Tensor:
    starts = float_tensor(name, starts)
    finite_values(name, starts)
    if starts.dim() < 2 or not starts.numel():
        raise InputError(name, "images [M, ...], at least one", f"shape {shape_text(starts.shape)}")
    return starts.detach()


class HopSkipJump(MinimumNormAttack):
    """HopSkipJumpAttack (Chen, Jordan and Wainwright, 2020), which sees only the predicted classes.

    A point on the decision boundary is improved ``steps`` times as follows, where d is the number of coordinates and
    ‖·‖ the norm:

    1. Draw min(samples·√t, max_samples) random unit vectors uᵢ (l2: Gaussian, linf: uniform), and get the decisions φᵢ
       = ±1 at xₜ + δ·uᵢ. The mean of (φᵢ − φ̄)·uᵢ estimates the direction g of the boundary's normal. δ is a tenth of
       the clip range in the first step, and gamma·‖xₜ − x‖ / d later; on a grid, it is at least √d grid steps.
    2. xₜ jumps by ‖xₜ − x‖/√t along g (linf: sign g); the jump is halved until the new point is adversarial.
    3. Bisection finds the boundary: on the segment to x (l2), or by clipping to a shrinking ball around x (linf). Its
       precision is the distance to x times a factor. In l2, the factor is the smaller of 0.001 and gamma·d^(−3/2); in
       linf, it is the smaller of 0.001 and gamma·d^(−2); in both, it is at least 2⁻²⁴.

    The start is a random image, or the nearest of ``starts`` that fools the model. ``minimum`` returns the nearest
    points found; ``generate`` returns them if they are within epsilon, else points in the ball that may not fool the
    model. ``forwards`` counts the queries.

    Args:
        model, epsilon, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``; the model need not be differentiable.
        norm: "l2" or "linf".

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = lambda x: torch.nn.functional.one_hot((x.sum(1) > 1).long(), 2).float()
    >>> result = HopSkipJump(model, norm="l2", steps=10).minimum(torch.tensor([[0.25, 0.25]]), torch.tensor([0]))
    >>> print(round(float(result.distance), 2))  # 0.5 / sqrt(2)
    0.35
    """

    norms = ("linf", "l2")
    _one_for_all = "its probes around the boundary are as wide in every element"
    _needs_range = True  # for random starts and the first δ

    steps: int = setting(count, "number of improvements, at least 1", default=40, option="steps")
    samples: int = setting(count, "queries for the first estimate of a direction, at least 1", default=100)
    max_samples: int = setting(count, "upper limit of the queries for one", default=10_000)
    gamma: float = setting(positive, "precision of the bisection, positive", default=1.0)
    starts: Tensor | None = setting(
        optional(_images),
        "[M, ...], images to start from, in the clip range; if none of them fools the model, random ones "
        "are tried. A targeted attack rarely succeeds without",
        default=None,
    )

    def _check_settings(self) -> None:
        if self.starts is None:
            return
        low, high = (float(value) for value in self.starts.double().aminmax())
        if low < self.clip_min or high > self.clip_max:
            raise InputError(
                "starts", f"values in the clip range [{self.clip_min}, {self.clip_max}]", f"{low} to {high}"
            )

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        limit = len(state)  # most rows per forward pass, so that it fits memory
        rows, x_adv = self._first_points(state, limit)
        if not len(rows):
            return
        state = state.take(rows)
        run = Nearest(state)
        x_adv = self._bisect(state, x_adv, run)
        drawn = _STARTS
        for t in range(1, self.steps + 1):
            samples = int(min(self.samples * math.sqrt(t), self.max_samples))
            direction = self._direction(state, x_adv, t, samples, drawn, limit)
            drawn += samples
            x_adv = self._bisect(state, self._jump(state, x_adv, direction, t), run)
        nearest.take(run, rows)

    def _first_points(self, state: AttackState, limit: int) -> tuple[Tensor, Tensor]:
        """Find adversarial starting points; return the rows [n] of examples that have one, and the points [n, ...]."""
        x_adv = state.x.clone()
        started = torch.zeros(len(state), dtype=torch.bool, device=state.x.device)
        if self.starts is not None:
            started = self._nearest_starts(state, self.starts, x_adv, limit)
        for draw in range(_STARTS):
            rows = (~started).nonzero()[:, 0]
            if not len(rows):
                break
            rest_of_batch = state.take(rows)
            share = rest_of_batch.noise("uniform", draw)[:, 0].div_(math.sqrt(12)).add_(0.5).clamp_(0, 1)
            point = self._inside(rest_of_batch, share.mul_(state.upper - state.lower).add_(state.lower))
            fooled = _fooled(rest_of_batch.logits(point), rest_of_batch.y, rest_of_batch.targeted)
            x_adv[rows[fooled]] = point[fooled]
            started[rows[fooled]] = True
        rows = started.nonzero()[:, 0]
        return rows, x_adv[rows]

    def _nearest_starts(self, state: AttackState, starts: Tensor, x_adv: Tensor, limit: int) -> Tensor:
        """Store in x_adv the nearest start that fools the model; return which examples have such a start, bool [B]."""
        if starts.shape[1:] != state.x.shape[1:]:
            expected = shape_text(("M", *state.x.shape[1:]))
            raise InputError("starts", f"shape {expected}, as x", shape_text(starts.shape))
        starts = starts.to(state.x)
        classes = torch.cat([predicted_classes(state.logits(points)) for points in torch.split(starts, limit)])
        fools = (classes == state.y[:, None]) == state.targeted  # [B, M]
        order = 2 if state.norm.name == "l2" else math.inf
        distance = torch.cdist(state.x.flatten(1).float(), starts.flatten(1).float(), order)
        distance, index = distance.masked_fill(~fools, math.inf).min(1)
        point = self._inside(state, starts[index])
        fooling = distance.isfinite() & _fooled(state.logits(point), state.y, state.targeted)
        x_adv[fooling] = point[fooling]
        return fooling

    def _direction(self, state: AttackState, x_adv: Tensor, step: int, samples: int, drawn: int, limit: int) -> Tensor:
        """Estimate the boundary's normal toward the adversarial side: a vector of length 1, or signs in linf."""
        coordinates = x_adv[0].numel()
        if step == 1:
            size = torch.full_like(state.epsilon, 0.1 * (state.upper - state.lower))
        else:
            size = state.norm.distance(x_adv, state.x) * (self.gamma / coordinates)
        if state.levels is not None:  # the model sees only levels: a smaller difference might vanish
            size = size.clamp(min=float(state.levels.step) * math.sqrt(coordinates))
        family = "gaussian" if state.norm.name == "l2" else "uniform"
        width = max(1, limit // len(state))
        weighted, plain = torch.zeros_like(x_adv), torch.zeros_like(x_adv)
        decisions = torch.zeros_like(state.epsilon)
        for begin in range(0, samples, width):
            tried = min(width, samples - begin)
            vectors = state.noise(family, drawn + begin, tried)
            length = vectors.flatten(2).norm(dim=2, dtype=torch.float64).flatten()
            vectors = unit(vectors.flatten(0, 1), length).view_as(vectors)
            reach = size.to(vectors.dtype).view(-1, *[1] * (vectors.dim() - 1))
            points = (x_adv[:, None] + reach * vectors).clamp(state.lower, state.upper)
            vectors = (points - x_adv[:, None]) / reach
            y = state.y.repeat_interleave(tried)
            fooled = _fooled(state.logits(points.flatten(0, 1)), y, state.targeted)
            decision = fooled.view(len(x_adv), tried).to(vectors.dtype) * 2 - 1
            for i in range(tried):  # one by one, so that the sums do not depend on ``tried``
                weighted += vectors[:, i] * per_example(decision[:, i], x_adv)
                plain += vectors[:, i]
                decisions += decision[:, i]
        mean = decisions / samples
        # If all decisions agree, only the mean vector is informative.
        normal = weighted - plain * per_example(torch.where(mean.abs() == 1, 0.0, mean), x_adv)
        return state.norm.direction(normal)

    def _jump(self, state: AttackState, x_adv: Tensor, direction: Tensor, step: int) -> Tensor:
        """Jump along the direction; halve the jump until the point is adversarial, and return x_adv if it never is."""
        result = x_adv.clone()
        size = state.norm.distance(x_adv, state.x) / math.sqrt(step)
        rows = torch.arange(len(x_adv), device=x_adv.device)
        for _ in range(_HALVINGS):
            substate = state.take(rows)
            point = self._inside(substate, x_adv[rows] + direction[rows] * per_example(size[rows], x_adv))
            fooled = _fooled(substate.logits(point), substate.y, substate.targeted)
            result[rows[fooled]] = point[fooled]
            rows = rows[~fooled]
            if not len(rows):
                break
            size = size / 2
        return result

    def _bisect(self, state: AttackState, x_adv: Tensor, run: Nearest) -> Tensor:
        """Move adversarial points toward x until they are next to the boundary; record the nearest in ``run``."""
        coordinates = x_adv[0].numel()
        precision = self.gamma * coordinates ** (-1.5 if state.norm.name == "l2" else -2)
        delta = x_adv - state.x
        radius = state.norm.distance(x_adv, state.x)
        low, high = torch.zeros_like(radius), torch.ones_like(radius)
        nearest = x_adv
        for _ in range(min(_HALVINGS, math.ceil(-math.log2(min(precision, _PRECISION))))):
            middle = (low + high) / 2
            if state.norm.name == "l2":
                moved = delta * per_example(middle, delta)
            else:
                reach = per_example(middle * radius, delta)
                moved = torch.maximum(torch.minimum(delta, reach), -reach)
            point = add_perturbation(state.x, moved, state.lower, state.upper)
            fooled = _fooled(state.logits(point), state.y, state.targeted)
            nearest = torch.where(fooled.view(-1, *[1] * (point.dim() - 1)), point, nearest)
            low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
        run.offer(state, torch.ones_like(run.distance, dtype=torch.bool), nearest)
        return nearest

    def _inside(self, state: AttackState, point: Tensor) -> Tensor:
        """Round the point toward x, and clip it; the result lies in the clip range in exact arithmetic."""
        return add_perturbation(state.x, point - state.x, state.lower, state.upper)


def _fooled(logits: Tensor, y: Tensor, targeted: bool) -> Tensor:
    """Whether the model is fooled: predicted classes differ from y [B] or, if targeted, equal y; bool [B]."""
    return (predicted_classes(logits) == y) == targeted
