"""One run of Auto-PGD: the state of each example, the step, the checkpoints."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pyrobust.ops.examples import count_changed, put_rows
from pyrobust.ops.steps import l1_step_in_ball

from .job import Job
from .losses import Loss
from .tracking import Best, replaced

# linf and l2: the first checkpoint, how much closer each is than the last, and how close they get; shares of the steps.
_FIRST, _CLOSER, _CLOSEST = 0.22, 0.03, 0.06
# l1: the distance of the checkpoints; the share of the coordinates of the first steps; what their number and the step
# are divided by; the least step, over epsilon; the share of the coordinates below which a point has become sparser.
_L1_PERIOD, _L1_SHARE, _L1_DIVISOR, _L1_LEAST, _L1_SPARSER = 0.04, 0.2, 1.5, 0.1, 0.95


@dataclasses.dataclass
class Climb:
    """What a run keeps of each example; all of it [B] or [B, ...], so that rows can be dropped."""

    x_adv: Tensor
    before: Tensor  # the iterate before x_adv
    gradient: Tensor  # at x_adv
    best_x: Tensor  # of this run
    best_gradient: Tensor
    best_value: Tensor
    value: Tensor  # of the last iterate
    rises: Tensor  # steps since the last checkpoint in which the loss rose
    halved: Tensor  # whether the last checkpoint halved the step
    checked_value: Tensor  # best_value at the last checkpoint
    step: Tensor  # float64
    epsilon: Tensor  # of this run, float64
    share: Tensor  # l1: of the coordinates that a step changes, float64
    changed: Tensor  # l1: how many the best point of the last checkpoint changes, float64
    targets: Tensor  # [B, T]


def climb(
    job: Job,
    best: Best,
    loss: Loss,
    x_adv: Tensor,
    epsilon: Tensor,
    targets: Tensor,
    *,
    column: int,
    steps: int,
    rho: float,
    sparse: bool,
) -> tuple[Tensor, Tensor]:
    """A run from x_adv in the ball of radius epsilon; fooled examples leave where that is the job's.

    Args:
        job: the examples.
        best: takes the run's best points, where the ball is the job's.
        loss: what to climb.
        x_adv: [B, ...], in the ball.
        epsilon: float64 [B]; ``job.epsilon`` itself, or larger radii.
        targets: [B, T], int64.
        column: the loss's target is targets[:, column].
        steps: at least 1.
        rho: the share of rising steps at which the step is halved.
        sparse: l1: whether x_adv tells how many coordinates to change.

    Returns:
        (best points [B, ...], targets [B, T]) of the examples that are left.
    """
    inside = epsilon is job.epsilon
    l1 = job.norm.name == "l1"
    state, verdict = _begin(job, loss, x_adv, epsilon, targets, column, sparse=sparse)
    if inside:
        _retire(job, state, best, verdict)
    period = max(int((_L1_PERIOD if l1 else _FIRST) * steps), 1)
    since = 0
    for i in range(steps if len(job) else 0):
        x_adv = _sparse_step(job, state) if l1 else _momentum_step(job, state, first=i == 0)
        state.before, state.x_adv = state.x_adv, x_adv
        target = state.targets[:, column]
        if i < steps - 1:
            _, value, state.gradient, verdict = job.gradient(x_adv, loss, target)
        else:
            logits = job.logits(x_adv)
            value = loss(logits, job.y, target).value
            verdict = job.verdict(logits)
        state.rises += value > state.value
        state.value = value
        better = value > state.best_value
        state.best_value = torch.where(better, value, state.best_value)
        put_rows(better, x_adv, state.best_x)
        put_rows(better, state.gradient, state.best_gradient)
        if inside:
            _retire(job, state, best, verdict)
            if not len(job):
                break
        since += 1
        if since == period:
            _check_sparsity(job, state) if l1 else _check_progress(state, period, rho)
            if not l1:
                period = max(period - max(int(_CLOSER * steps), 1), max(int(_CLOSEST * steps), 1))
            since = 0
    if inside:
        best.offer(state.best_value, state.best_x)
    return state.best_x, state.targets


def _begin(
    job: Job, loss: Loss, x_adv: Tensor, epsilon: Tensor, targets: Tensor, column: int, *, sparse: bool
) -> tuple[Climb, Tensor]:
    """The state before the first step, and the verdict on the start."""
    _, value, gradient, verdict = job.gradient(x_adv, loss, targets[:, column])
    coordinates = job.x[0].numel()
    changed = _changed(job, x_adv) if sparse else torch.full_like(epsilon, coordinates)
    state = Climb(
        x_adv=x_adv,
        before=x_adv,
        gradient=gradient,
        best_x=x_adv.clone(),
        best_gradient=gradient.clone(),
        best_value=value.nan_to_num(nan=-torch.inf),
        value=value,
        rises=torch.zeros_like(job.y),
        halved=torch.ones_like(job.y, dtype=torch.bool),
        checked_value=value.clone(),
        step=epsilon * (1.0 if job.norm.name == "l1" else 2.0),
        epsilon=epsilon.clone(),
        share=changed / (coordinates * _L1_DIVISOR) if sparse else torch.full_like(epsilon, _L1_SHARE),
        changed=changed,
        targets=targets,
    )
    return state, verdict


def _retire(job: Job, state: Climb, best: Best, verdict: Tensor) -> None:
    """``Job.retire`` of all that is kept."""
    names = [field.name for field in dataclasses.fields(state)]
    *kept, best.x, best.value = job.retire(verdict, *(getattr(state, name) for name in names), best.x, best.value)
    for name, tensor in zip(names, kept, strict=True):
        setattr(state, name, tensor)


def _momentum_step(job: Job, state: Climb, *, first: bool) -> Tensor:
    """The point x + 0.75·(z − x) + 0.25·(x − before), z the plain step from x; on the first step z."""
    x_adv, gradient, step, epsilon = state.x_adv, state.gradient, state.step, state.epsilon
    if first:
        return job.norm.step(x_adv, gradient, job.x, step, epsilon, job.lower, job.upper)
    return job.norm.carried_step(x_adv, gradient, job.x, state.before, step, epsilon, job.lower, job.upper)


def _sparse_step(job: Job, state: Climb) -> Tensor:
    """The l1 step on as many coordinates as the state says, of those that can move."""
    coordinates = job.x[0].numel()
    k = (state.share * coordinates).floor_().clamp_(min=1).long()
    return l1_step_in_ball(state.x_adv, state.gradient, job.x, state.step, k, state.epsilon, job.lower, job.upper)


def _check_progress(state: Climb, period: int, rho: float) -> None:
    """For linf and l2: halves the step of the examples that do not get on, and takes them back to their best points."""
    halve = (state.rises <= rho * period) | (~state.halved & (state.checked_value >= state.best_value))
    state.step = torch.where(halve, state.step / 2, state.step)
    state.halved = halve
    state.checked_value = state.best_value.clone()
    state.rises = torch.zeros_like(state.rises)
    _go_back(state, halve)


def _check_sparsity(job: Job, state: Climb) -> None:
    """For l1: full steps and back to the best point where it has become sparser, else shorter steps."""
    changed = _changed(job, state.best_x)
    sparser = changed < _L1_SPARSER * state.changed
    shorter = torch.maximum(state.step / _L1_DIVISOR, state.epsilon * _L1_LEAST)
    state.step = torch.where(sparser, state.epsilon, shorter)
    state.share = changed / (job.x[0].numel() * _L1_DIVISOR)
    state.changed = changed
    _go_back(state, sparser)


def _go_back(state: Climb, chosen: Tensor) -> None:
    """The chosen examples go on from their best points."""
    state.x_adv = replaced(chosen, state.best_x, state.x_adv)
    state.gradient = replaced(chosen, state.best_gradient, state.gradient)


def _changed(job: Job, x_adv: Tensor) -> Tensor:
    """How many coordinates differ from x, float64 [B]."""
    return count_changed(x_adv, job.x).double()
