"""The Square attack: random search with square windows, using only logits."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import torch
from torch import Tensor

from pyrobust.checks import NORMS, count, finite
from pyrobust.errors import InputError
from pyrobust.ops.logits import ROBUST

from ..engine.batches import BatchAttack
from ..engine.settings import one_of, setting, truth
from ..engine.state import AttackState
from ..engine.tracking import Best
from ..losses import named_loss
from .square_proposals import proposals as proposals_of
from .square_windows import window_share

# Number of queries whose random numbers are drawn at once.
_QUERIES_PER_DRAW = 64


def _share_above_zero(name: str, value: Any) -> float:
    number = finite(name, value)
    if not 0 < number <= 1:
        raise InputError(name, "a share in (0, 1]", number)
    return number


class Square(BatchAttack):
    """Square attack (Andriushchenko, Croce, Flammarion and Hein, 2020): a gradient-free random search.

    The start consists of random stripes (linf) or tiles (l2, l1). Each query then changes one window of every image, at
    a random place and with random signs, and the change is kept if the loss rose. Windows first cover the share p_init
    of the image and shrink on a schedule (``square_windows.window_share``). In linf, each channel of a window is set to
    x + ε or x − ε, clipped, where ε is epsilon. In l2 and l1, the norm of the changes in two windows is moved into one
    of them. In l1, the result is then projected on ball and clip range (Croce and Hein, 2021). One query is one forward
    pass on the examples not fooled yet.

    Inputs other than images [N, C, H, W] are treated as one row of one channel. A window is a square cut to the image's
    sides, so that on D values in one row, it covers only √(share·D) of them.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``; the model need not be differentiable.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> attack = Square(lambda x: torch.stack([x.sum((1, 2, 3)), 8 - x.sum((1, 2, 3))], 1), epsilon=0.1, n_queries=10)
    >>> x = torch.full((1, 1, 4, 4), 0.3)
    >>> bool(attack.generate(x, torch.tensor([1])).sum() > 4)
    True
    """

    norms = NORMS
    _elementwise = ("linf",)

    n_queries: int = setting(count, "queries per restart after the start, at least 1", default=5000, option="steps")
    p_init: float = setting(
        _share_above_zero, "share of the image that the first windows cover, in (0, 1]", default=0.8
    )
    restarts: int = setting(count, "number of starts, at least 1", default=1, option="restarts")
    loss: Literal["margin", "ce"] = setting(
        one_of("margin", "ce"), '"margin" or "ce", see ``pyrobust.ops.logit_loss``', default="margin"
    )
    rescale_schedule: bool = setting(
        truth, "halve the windows in proportion to n_queries, rather than as for 10 000 queries", default=True
    )

    def _run(self, state: AttackState) -> None:
        best = Best(state)
        for restart in range(self.restarts):
            self._search(state, restart, best)
            if not len(state):
                break
        state.finish(best.x)

    def _search(self, state: AttackState, restart: int, best: Best) -> None:
        """Run the queries from one start."""
        loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
        proposals = proposals_of(state)
        draw = restart * (1 + -(-self.n_queries // _QUERIES_PER_DRAW))
        x_adv = proposals.start(_uniform(state, draw, proposals.start_numbers))
        logits = state.logits(x_adv)
        value = loss(logits, state.y, state.y).value
        start = x_adv.clone()  # proposals overwrite x_adv
        _, x_adv, value, best.x, best.value, *proposals.tensors = state.retire(
            state.verdict(logits), start, x_adv, value, best.x, best.value, *proposals.tensors
        )
        for query in range(self.n_queries):
            if not len(state):
                return
            position = query % _QUERIES_PER_DRAW
            if position == 0:
                draw += 1
                block = _uniform(state, draw, _QUERIES_PER_DRAW * proposals.query_numbers)
                block = block.view(len(state), _QUERIES_PER_DRAW, -1)
            share = window_share(query, self.n_queries, self.p_init, self.rescale_schedule)
            candidate = proposals.propose(x_adv, proposals.grid.sides(share, proposals.odd), block[:, position])
            logits = state.logits(candidate)
            verdict = state.verdict(logits)
            proposed = loss(logits, state.y, state.y).value
            accepted = (proposed > value) | (verdict != ROBUST)
            value = torch.where(accepted, proposed, value)
            x_adv = proposals.settle(x_adv, accepted)
            _, x_adv, value, block, best.x, best.value, *proposals.tensors = state.retire(
                verdict, candidate, x_adv, value, block, best.x, best.value, *proposals.tensors
            )
        best.offer(value, x_adv)


def _uniform(state: AttackState, draw: int, count: int) -> Tensor:
    """Draw uniform random numbers in [-1, 1], [B, count]."""
    return state.noise("uniform", draw, shape=(count,))[:, 0].mul_(1 / math.sqrt(3))
