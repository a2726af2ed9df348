"""The Square attack: random search with square windows, from logits alone."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.ops.logits import STANDING
from pyrobust.runner import Classifier

from .arguments import at_least, finite
from .engine import BatchAttack
from .job import Job
from .losses import check_loss, named_loss
from .square_moves import MOVES
from .square_windows import window_share
from .tracking import Best

# Random numbers are drawn for so many queries at once.
_QUERIES_PER_DRAW = 64


class Square(BatchAttack):
    """Square attack (Andriushchenko, Croce, Flammarion and Hein, 2020): a random search that needs no gradients.

    From random stripes (linf) or tiles (l2, l1) on, each query changes one window of every image, at a random place and
    with random signs, and the change stays where the loss grew. Windows begin with the share p_init of the image and
    get smaller (``square_windows.window_share``). linf puts a window at a corner of the ball; l2 moves the budget of
    two windows into one of them; l1 does the same and projects on ball and clip range (Croce and Hein, 2021).
    One query is one forward pass of the examples not fooled yet.

    Inputs that are not images [N, C, H, W] are taken as one row of one channel.

    Args:
        model: module or callable, [N, ...] → logits [N, K]; need not be differentiable.
        epsilon: radius of the ball, ≥ 0; or [N].
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest.
        device: where to run.
        n_queries: queries of each restart after the start, at least 1.
        p_init: share of the image that the first windows cover, in (0, 1].
        restarts: at least 1.
        loss: "margin" or "ce", of ``pyrobust.ops.logit_loss``.
        rescale_schedule: halve the windows in proportion to n_queries, rather than as for 10 000 queries.
        options: as of ``BatchAttack``: seed, batch_size, dtype, memory_format, progress, callback.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> attack = Square(lambda x: torch.stack([x.sum((1, 2, 3)), 8 - x.sum((1, 2, 3))], 1), epsilon=0.1, n_queries=10)
    >>> x = torch.full((1, 1, 4, 4), 0.3)
    >>> bool(attack.generate(x, torch.tensor([1])).sum() > 4)
    True
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
        n_queries: int = 5000,
        p_init: float = 0.8,
        restarts: int = 1,
        loss: str = "margin",
        rescale_schedule: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, **options)
        self.n_queries = at_least("n_queries", n_queries, 1)
        self.p_init = finite("p_init", p_init)
        if not 0 < self.p_init <= 1:
            raise InputError(f"p_init: expected a share in (0, 1], got {self.p_init}")
        self.restarts = at_least("restarts", restarts, 1)
        self.loss = check_loss(loss, ("margin", "ce"))
        self.rescale_schedule = bool(rescale_schedule)

    def _run(self, job: Job) -> None:
        record = Best(job)
        for restart in range(self.restarts):
            self._climb(job, restart, record)
            if not len(job):
                break
        job.finish(record.x)

    def _climb(self, job: Job, restart: int, record: Best) -> None:
        """One start and its queries."""
        loss = functools.partial(named_loss, name=self.loss, targeted=job.targeted)
        moves = MOVES[self.norm](job)
        draw = restart * (1 + -(-self.n_queries // _QUERIES_PER_DRAW))
        best = moves.start(_uniform(job, draw, moves.start_numbers))
        logits = job.logits(best)
        value = loss(logits, job.y, job.y).value
        first = best.clone()  # for moves write to best
        _, best, value, record.x, record.value, *moves.state = job.retire(
            job.verdict(logits), first, best, value, record.x, record.value, *moves.state
        )
        for query in range(self.n_queries):
            if not len(job):
                return
            place = query % _QUERIES_PER_DRAW
            if place == 0:
                draw += 1
                block = _uniform(job, draw, _QUERIES_PER_DRAW * moves.query_numbers)
                block = block.view(len(job), _QUERIES_PER_DRAW, -1)
            share = window_share(query, self.n_queries, self.p_init, self.rescale_schedule)
            candidate = moves.propose(best, moves.grid.sides(share, moves.odd), block[:, place])
            logits = job.logits(candidate)
            verdict = job.verdict(logits)
            found = loss(logits, job.y, job.y).value
            accepted = (found > value) | (verdict != STANDING)
            value = torch.where(accepted, found, value)
            best = moves.settle(best, accepted)
            _, best, value, block, record.x, record.value, *moves.state = job.retire(
                verdict, candidate, best, value, block, record.x, record.value, *moves.state
            )
        record.offer(value, best)


def _uniform(job: Job, draw: int, count: int) -> Tensor:
    """[B, count], in [-1, 1]."""
    return job.noise("uniform", draw, shape=(count,))[:, 0].mul_(1 / math.sqrt(3))
