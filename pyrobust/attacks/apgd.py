"""Auto-PGD: projected gradient ascent that chooses its step sizes."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pyrobust.checks import NORMS, count, probability
from pyrobust.errors import InputError
from pyrobust.ops.examples import count_changed, put_rows
from pyrobust.ops.steps import l1_step_in_ball

from .engine.batches import BatchAttack
from .engine.settings import one_of, setting, state, truth
from .engine.state import AttackState
from .engine.tracking import Best, replaced
from .losses import Loss, dlr_toward, named_loss

_LOSSES = ("ce", "dlr", "dlr-targeted")
# The first radii of the multi-epsilon schedule, as multiples of epsilon, and the share of the steps at each.
_PHASES = ((3.0, 0.3), (2.0, 0.3))
# linf and l2, as shares of the steps: first checkpoint interval, decrease per interval, and shortest interval.
_FIRST_INTERVAL, _INTERVAL_DECREASE, _LEAST_INTERVAL = 0.22, 0.03, 0.06
# l1: checkpoint interval, as a share of the steps; share of the coordinates changed by the first steps; divisor of that
# number and of the step size; smallest step size divided by epsilon; factor below which a point counts as sparser.
_L1_INTERVAL, _L1_SHARE, _L1_DIVISOR, _L1_LEAST_STEP, _L1_SPARSER = 0.04, 0.2, 1.5, 0.1, 0.95


logger = logging.getLogger(__name__)


class APGD(BatchAttack):
    """Auto-PGD (Croce and Hein, 2020) and its l1 variant (Croce and Hein, 2021), which adapt their step sizes.

    In linf and l2, the step size starts at 2·epsilon, and steps have momentum, except the first: x_{t+1} = Π(x_t +
    0.75·(z − x_t) + 0.25·(x_t − x_{t−1})), z = Π(x_t + step·d(∇L)), where Π is the projection and d the norm's ascent
    direction. Checkpoints come after the shares p_1, p_2, … of the steps, where p_0 = 0, p_1 = 0.22 and p_{j+1} = p_j +
    max(p_j − p_{j−1} − 0.03, 0.06). At a checkpoint, an example's step size is halved and the example restarts from its
    best point in either of two cases: the loss rose in at most a share rho of the steps since the last checkpoint; or
    neither the step size nor the best loss has changed since then.

    In l1, a step changes only the coordinates with the largest derivatives, among the coordinates that can still move.
    The direction of the step consists of the signs of these derivatives, divided by their number. The result is
    projected on the intersection of ball and clip range. At first a step changes 20 % of the coordinates or, with
    ``multi_epsilon``, the number that the starting point changes, divided by 1.5. After every 4 % of the steps, the
    number of coordinates to change is set to the number that the best perturbation changes, divided by 1.5. If the best
    perturbation has become sparser by 5 %, the step size becomes epsilon, and the example restarts from its best point.
    Otherwise, the step size is divided by 1.5, but stays at least epsilon / 10. (The original method does not leave out
    coordinates that cannot move because they are at a bound of the clip range, and spends part of the step on them.)

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> attack = APGD(lambda x: torch.stack([x[:, 0], x[:, 1]], 1), epsilon=0.25, norm="l2", steps=10)
    >>> x, y = torch.tensor([[0.75, 0.5], [0.9, 0.5]]), torch.tensor([0, 0])
    >>> attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"]  # the boundary is 0.18 and 0.28 away
    0.5
    """

    norms = NORMS
    _elementwise = ("linf", "l2")

    loss: Literal["ce", "dlr", "dlr-targeted"] = setting(
        one_of(*_LOSSES),
        '"ce", "dlr" (at least 3 classes, 4 where targeted), or "dlr-targeted" (at least 4), which '
        "targets the classes of the largest clean logits other than y in turn",
        default="ce",
    )
    steps: int = setting(count, "number of steps per run, at least 1", default=100, option="steps")
    restarts: int = setting(
        count, "runs from different random starts, for every target class", default=1, option="restarts"
    )
    targets: int = setting(count, 'number of classes that "dlr-targeted" targets, capped at K - 1', default=9)
    rho: float = setting(probability, "share of rising steps at which the step size is halved, in (0, 1)", default=0.75)
    multi_epsilon: bool = setting(
        truth,
        "l1 only: begin in the balls of 3 and 2 times the radius, with 30 % of the steps each, and "
        "project their best points on the next ball",
        default=False,
    )

    _warned: set[str] = state(set())  # shared by the copies that sweeps make for each chunk

    def _check_settings(self) -> None:
        if self.multi_epsilon and self.norm != "l1":
            raise InputError("multi_epsilon", 'norm="l1"', repr(self.norm))

    def _constructed(self) -> None:
        self._warned = set()

    def _run(self, state: AttackState) -> None:
        best = Best(state)
        if self.loss == "dlr-targeted":
            if state.targeted:
                raise InputError("loss", '"ce" or "dlr" with targeted=True', '"dlr-targeted"')
            self._run_targets(state, best)
        else:
            loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
            for restart in range(self.restarts):
                if len(state):
                    self._run_once(state, best, loss, state.y.unsqueeze(1).clone(), 0, restart)
        state.finish(best.x)

    def _run_targets(self, state: AttackState, best: Best) -> None:
        """Run the attack toward one target class after another, in descending order of the classes' logits at x."""
        logits = state.logits(state.x)
        classes = logits.shape[1]
        if classes < 4:
            raise InputError("loss", "at least 4 classes for dlr-targeted", classes, 'use loss="ce"')
        others = logits.scatter(1, state.y.unsqueeze(1), -torch.inf).argsort(dim=1, descending=True, stable=True)
        others = others[:, : min(self.targets, classes - 1)].clone()
        for column in range(others.shape[1]):
            for restart in range(self.restarts):
                if len(state):
                    draw = column * self.restarts + restart
                    others = self._run_once(state, best, dlr_toward, others, column, draw)

    def _run_once(self, state: AttackState, best: Best, loss: Loss, targets: Tensor, column: int, draw: int) -> Tensor:
        """Do one run from a random start; return the targets [B, T] of the examples that are not fooled yet."""
        l1 = self.norm == "l1"
        delta = state.noise("gaussian", draw)[:, 0] if l1 else state.norm.start(state.noise, draw, state.epsilon)
        for factor, steps in self._schedule():
            epsilon = state.epsilon if factor == 1 else state.epsilon * factor
            x_adv = state.norm.place(delta, state.ball._replace(epsilon=epsilon))
            best_x, targets = ascend(
                state,
                best,
                loss,
                x_adv,
                epsilon,
                targets,
                column=column,
                steps=steps,
                rho=self.rho,
                sparse=self.multi_epsilon,
                begun=self._check_gradient if self.loss.startswith("dlr") else None,
            )
            if factor != 1:
                delta = best_x - state.x
        return targets

    def _check_gradient(self, gradient: Tensor) -> None:
        """Flag the examples whose DLR loss has a zero gradient at the start, since no step can move them."""
        count = int((gradient == 0).flatten(1).all(1).sum())
        if count:
            self._flag_zero_gradient(count)

    def _flag_zero_gradient(self, count: int) -> None:
        """Warn, once per attack, that ``count`` examples have a zero gradient."""
        if "zero-gradient" not in self._warned:
            self._warned.add("zero-gradient")
            logger.warning(
                "%d examples have a gradient of zero: gradient-based attacks cannot move there; add an attack on the "
                "logits alone, such as Square",
                count,
            )

    def _schedule(self) -> list[tuple[float, int]]:
        """Return the phases of a run, each as (multiple of epsilon, number of steps)."""
        if not self.multi_epsilon:
            return [(1.0, self.steps)]
        phases, remaining = [], self.steps
        for factor, share in _PHASES:
            count = min(math.ceil(share * self.steps), remaining - 1)  # keep at least one step for the ball itself
            phases.append((factor, count))
            remaining -= count
        return [(factor, count) for factor, count in [*phases, (1.0, remaining)] if count]


@dataclasses.dataclass
class _Iterates:
    """The per-example tensors of a run, [B] or [B, ...]; ``AttackState.retire`` drops the rows of finished examples."""

    x_adv: Tensor
    previous: Tensor  # the iterate before x_adv
    gradient: Tensor  # at x_adv
    best_x: Tensor  # of this run
    best_gradient: Tensor
    best_value: Tensor
    value: Tensor  # loss of the last iterate
    rises: Tensor  # steps since the last checkpoint in which the loss rose
    halved: Tensor  # whether the last checkpoint halved the step size
    checked_value: Tensor  # best_value at the last checkpoint
    step: Tensor  # step size, float64
    epsilon: Tensor  # of this run, float64
    share: Tensor  # l1: share of the coordinates that a step changes, float64
    changed: Tensor  # l1: number of coordinates changed by the last checkpoint's best point, float64
    targets: Tensor  # [B, T]


def ascend(
    state: AttackState,
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
    begun: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run Auto-PGD from x_adv [B, ...] in the ball of radius epsilon [B].

    If epsilon is ``state.epsilon`` itself, fooled examples are dropped, and the run's best points are stored in
    ``best``. With larger radii neither is done, because the points may lie outside the attack's ball. The loss's target
    is targets[:, column]. With ``sparse`` (l1), the sparsity of x_adv determines how many coordinates the first step
    changes. ``begun`` is called with the first gradient. Returns the best points [B, ...] and the targets [B, T] of the
    examples that remain.
    """
    inside = epsilon is state.epsilon
    l1 = state.norm.name == "l1"
    run, verdict = _begin(state, loss, x_adv, epsilon, targets, column, sparse=sparse)
    if begun is not None:
        begun(run.gradient)
    if inside:
        _retire(state, run, best, verdict)
    interval = max(int((_L1_INTERVAL if l1 else _FIRST_INTERVAL) * steps), 1)
    since = 0
    for i in range(steps if len(state) else 0):
        x_adv = _sparse_step(state, run) if l1 else _momentum_step(state, run, first=i == 0)
        run.previous, run.x_adv = run.x_adv, x_adv
        target = run.targets[:, column]
        if i < steps - 1:
            _, value, run.gradient, verdict = state.gradient(x_adv, loss, target)
        else:
            logits = state.logits(x_adv)
            value = loss(logits, state.y, target).value
            verdict = state.verdict(logits)
        run.rises += value > run.value
        run.value = value
        better = value > run.best_value
        run.best_value = torch.where(better, value, run.best_value)
        put_rows(better, x_adv, run.best_x)
        put_rows(better, run.gradient, run.best_gradient)
        if inside:
            _retire(state, run, best, verdict)
            if not len(state):
                break
        since += 1
        if since == interval:
            _check_sparsity(state, run) if l1 else _check_progress(run, interval, rho)
            if not l1:
                interval = max(interval - max(int(_INTERVAL_DECREASE * steps), 1), max(int(_LEAST_INTERVAL * steps), 1))
            since = 0
    if inside:
        best.offer(run.best_value, run.best_x)
    return run.best_x, run.targets


def _begin(
    state: AttackState, loss: Loss, x_adv: Tensor, epsilon: Tensor, targets: Tensor, column: int, *, sparse: bool
) -> tuple[_Iterates, Tensor]:
    """Begin a run: return its state before the first step, and the verdict on its starting points, uint8 [B]."""
    _, value, gradient, verdict = state.gradient(x_adv, loss, targets[:, column])
    coordinates = state.x[0].numel()
    changed = _count_changed(state, x_adv) if sparse else torch.full_like(epsilon, coordinates)
    run = _Iterates(
        x_adv=x_adv,
        previous=x_adv,
        gradient=gradient,
        best_x=x_adv.clone(),
        best_gradient=gradient.clone(),
        best_value=value.nan_to_num(nan=-torch.inf),
        value=value,
        rises=torch.zeros_like(state.y),
        halved=torch.ones_like(state.y, dtype=torch.bool),
        checked_value=value.clone(),
        step=epsilon * (1.0 if state.norm.name == "l1" else 2.0),
        epsilon=epsilon.clone(),
        share=changed / (coordinates * _L1_DIVISOR) if sparse else torch.full_like(epsilon, _L1_SHARE),
        changed=changed,
        targets=targets,
    )
    return run, verdict


def _retire(state: AttackState, run: _Iterates, best: Best, verdict: Tensor) -> None:
    """Call ``AttackState.retire`` for all tensors of the run."""
    names = [field.name for field in dataclasses.fields(run)]
    *kept, best.x, best.value = state.retire(verdict, *(getattr(run, name) for name in names), best.x, best.value)
    for name, tensor in zip(names, kept, strict=True):
        setattr(run, name, tensor)


def _momentum_step(state: AttackState, run: _Iterates, *, first: bool) -> Tensor:
    """Return the next iterates in linf and l2; the first step has no momentum."""
    ball = state.ball._replace(epsilon=run.epsilon)
    if first:
        return state.norm.step(run.x_adv, run.gradient, run.step, ball)
    return state.norm.momentum_step(run.x_adv, run.gradient, run.previous, run.step, ball)


def _sparse_step(state: AttackState, run: _Iterates) -> Tensor:
    """Return the next iterates in l1; a step changes a share of all coordinates, only those that can move."""
    coordinates = state.x[0].numel()
    k = (run.share * coordinates).floor_().clamp_(min=1).long()
    return l1_step_in_ball(
        run.x_adv, run.gradient, state.x, run.step, keep=k, epsilon=run.epsilon, lower=state.lower, upper=state.upper
    )


def _check_progress(run: _Iterates, interval: int, rho: float) -> None:
    """Check progress in linf and l2: halve the step of stalled examples and restart them from their best points."""
    halve = (run.rises <= rho * interval) | (~run.halved & (run.checked_value >= run.best_value))
    run.step = torch.where(halve, run.step / 2, run.step)
    run.halved = halve
    run.checked_value = run.best_value.clone()
    run.rises = torch.zeros_like(run.rises)
    _return_to_best(run, halve)


def _check_sparsity(state: AttackState, run: _Iterates) -> None:
    """Check progress in l1: restart with full steps if the best point has become sparser, else shorten the steps."""
    changed = _count_changed(state, run.best_x)
    sparser = changed < _L1_SPARSER * run.changed
    shorter = torch.maximum(run.step / _L1_DIVISOR, run.epsilon * _L1_LEAST_STEP)
    run.step = torch.where(sparser, run.epsilon, shorter)
    run.share = changed / (state.x[0].numel() * _L1_DIVISOR)
    run.changed = changed
    _return_to_best(run, sparser)


def _return_to_best(run: _Iterates, mask: Tensor) -> None:
    """Continue the masked examples [B] from their best points."""
    run.x_adv = replaced(mask, run.best_x, run.x_adv)
    run.gradient = replaced(mask, run.best_gradient, run.gradient)


def _count_changed(state: AttackState, x_adv: Tensor) -> Tensor:
    """Return the number of coordinates in which x_adv differs from x, float64 [B]."""
    return count_changed(x_adv, state.x).double()
