"""Auto-PGD."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.runner import Classifier

from .apgd_climb import climb
from .arguments import at_least, finite
from .engine import BatchAttack
from .job import Job
from .losses import Loss, check_loss, dlr_toward, named_loss
from .tracking import Best

_LOSSES = ("ce", "dlr", "dlr-targeted")
# The first radii of the l1 schedule, as multiples of epsilon, each with its share of the steps.
_PHASES = ((3.0, 0.3), (2.0, 0.3))


class APGD(BatchAttack):
    """Auto-PGD (Croce and Hein, 2020), and its l1 form (Croce and Hein, 2021), which choose their step sizes.

    linf and l2: the step begins at 2·epsilon and has momentum, x_{t+1} = Π(x_t + 0.75·(z − x_t) + 0.25·(x_t − x_{t−1}))
    with z = Π(x_t + step·d(∇L)). At the checkpoints p_{j+1} = p_j + max(p_j − p_{j−1} − 0.03, 0.06) of the steps,
    p_0 = 0 and p_1 = 0.22, an example's step is halved, and it goes back to its best point, where the loss rose in at
    most a share rho of the steps since the last checkpoint, or where neither step nor best loss has changed since.

    l1: the step goes to the sign on the largest derivatives of the coordinates that can still move, over their number,
    and is projected on the intersection of ball and clip range. At first it changes 20 % of the coordinates. At every
    4 % of the steps their number becomes that of the best point's perturbation over 1.5, and the step becomes epsilon
    where that perturbation has become sparser by 5 % (the example goes back to its best point), else the step over
    1.5, but at least epsilon / 10. (The original also spends the step on coordinates at the end of the clip range.)

    Args:
        model: as of ``BatchAttack``.
        epsilon: radius of the ball.
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest.
        device: where to run.
        loss: "ce", "dlr" (at least 3 classes, 4 where targeted), or "dlr-targeted" (at least 4), which aims at the
            classes of the largest clean logits besides y in turn.
        steps: of each run, at least 1.
        restarts: runs, of which each starts at another random point; of every target class.
        targets: how many classes "dlr-targeted" aims at; at most K - 1 are.
        rho: in (0, 1).
        multi_epsilon: l1 only: begin in the balls of 3 and 2 times the radius, with 30 % of the steps each, and project
            their best points on the next.
        options: as of ``BatchAttack``: seed, batch_size, dtype, memory_format, progress, callback.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> attack = APGD(lambda x: torch.stack([x[:, 0], x[:, 1]], 1), epsilon=0.25, norm="l2", steps=10)
    >>> x, y = torch.tensor([[0.75, 0.5], [0.9, 0.5]]), torch.tensor([0, 0])
    >>> attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"]  # the boundary is 0.18 and 0.28 away
    0.5
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: str = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        loss: str = "ce",
        steps: int = 100,
        restarts: int = 1,
        targets: int = 9,
        rho: float = 0.75,
        multi_epsilon: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, **options)
        self.loss = check_loss(loss, _LOSSES)
        self.steps = at_least("steps", steps, 1)
        self.restarts = at_least("restarts", restarts, 1)
        self.targets = at_least("targets", targets, 1)
        self.rho = finite("rho", rho)
        if not 0 < self.rho < 1:
            raise InputError(f"rho: expected a number in (0, 1), got {rho}")
        self.multi_epsilon = bool(multi_epsilon)
        if self.multi_epsilon and self.norm != "l1":
            raise InputError(f'multi_epsilon: expected norm="l1", got {self.norm!r}')

    def _run(self, job: Job) -> None:
        best = Best(job)
        if self.loss == "dlr-targeted":
            if job.targeted:
                raise InputError('loss: expected "ce" or "dlr" where targeted, got "dlr-targeted"')
            self._aim(job, best)
        else:
            loss = functools.partial(named_loss, name=self.loss, targeted=job.targeted)
            for restart in range(self.restarts):
                if len(job):
                    self._start(job, best, loss, job.y.unsqueeze(1).clone(), 0, restart)
        job.finish(best.x)

    def _aim(self, job: Job, best: Best) -> None:
        """A run for each target class, in the order of the clean logits."""
        logits = job.logits(job.x)
        classes = logits.shape[1]
        if classes < 4:
            raise InputError(f'loss: expected at least 4 classes for dlr-targeted, got {classes}; use loss="ce"')
        others = logits.scatter(1, job.y.unsqueeze(1), -torch.inf).argsort(dim=1, descending=True, stable=True)
        others = others[:, : min(self.targets, classes - 1)].clone()
        for column in range(others.shape[1]):
            for restart in range(self.restarts):
                if len(job):
                    others = self._start(job, best, dlr_toward, others, column, column * self.restarts + restart)

    def _start(self, job: Job, best: Best, loss: Loss, targets: Tensor, column: int, draw: int) -> Tensor:
        """A run from a random start; returns the targets [B, T] of the examples that are left."""
        l1 = self.norm == "l1"
        delta = job.noise("gaussian", draw)[:, 0] if l1 else job.norm.start(job.noise, draw, job.epsilon)
        for factor, steps in self._schedule():
            epsilon = job.epsilon if factor == 1 else job.epsilon * factor
            x_adv = job.norm.place(job.x, delta, epsilon, job.lower, job.upper)
            best_x, targets = climb(
                job,
                best,
                loss,
                x_adv,
                epsilon,
                targets,
                column=column,
                steps=steps,
                rho=self.rho,
                sparse=self.multi_epsilon,
            )
            if factor != 1:
                delta = best_x - job.x
        return targets

    def _schedule(self) -> list[tuple[float, int]]:
        """(multiple of epsilon, steps) of the phases of a run."""
        if not self.multi_epsilon:
            return [(1.0, self.steps)]
        phases, left = [], self.steps
        for factor, share in _PHASES:
            count = min(math.ceil(share * self.steps), left - 1)  # a step at least is for the ball itself
            phases.append((factor, count))
            left -= count
        return [(factor, count) for factor, count in [*phases, (1.0, left)] if count]
