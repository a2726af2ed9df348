"""The model as attacks see it: logits, gradients of a loss, verdicts; every row counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.errors import ModelError
from pyrobust.ops.logits import LogitLoss, logit_verdict
from pyrobust.runner import Runner

from .eot import EOT

logger = logging.getLogger(__name__)


class Gradient(NamedTuple):
    """What one forward and one backward pass tell of each example under attack."""

    logits: Tensor  # [B, K]
    value: Tensor  # [B], of the loss, float64
    gradient: Tensor  # [B, ...], of the loss by the input, in the input's dtype
    verdict: Tensor  # [B], uint8


class Queries:
    """Runs a model for an attack; an ``EOT`` is averaged over its draws. Call it in a session with gradients.

    >>> queries = Queries(Runner(torch.nn.Linear(4, 3)))
    >>> queries.logits(torch.zeros(5, 4)).shape, queries.forwards
    (torch.Size([5, 3]), 5)
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.draws = runner.model.samples if isinstance(runner.model, EOT) else 1
        #: Rows pushed through the model so far.
        self.forwards = 0

    def logits(self, x: Tensor) -> Tensor:
        """[B, K], float32 or float64."""
        batch = x.to(self.runner.dtype)
        return self._mean([self._forward(batch) for _ in range(self.draws)])

    def gradient(self, x: Tensor, loss: Callable[[Tensor], LogitLoss]) -> tuple[Tensor, Tensor, Tensor]:
        """(logits [B, K], value [B] in float64, dvalue/dx [B, ...]) of a loss of logits.

        The gradient is that of an example's loss up to a positive factor, the same for all draws of an ``EOT``: with
        derivatives of size 1 by the logits it does not vanish in the model where the loss is nearly flat.
        """
        leaf = x.detach().to(self.runner.dtype).requires_grad_()
        logits, values, gradients = [], [], []
        largest: Tensor | None = None  # derivative by the logits in the first draw
        for _ in range(self.draws):
            with torch.enable_grad():
                output = self._forward(leaf)
            if not output.requires_grad:
                raise ModelError(
                    "model: expected logits that are differentiable by the input, got logits without a gradient; "
                    "a score-based attack such as Square needs none"
                )
            detached = output.detach()
            value, slope, size = loss(detached)
            if self.draws > 1:
                largest = size.clamp(min=torch.finfo(size.dtype).tiny) if largest is None else largest
                slope = (slope * (size / largest).unsqueeze(1)).to(slope.dtype)
            (gradient,) = torch.autograd.grad(output, leaf, slope)
            logits.append(detached)
            values.append(value)
            gradients.append(gradient)
        return self._mean(logits), self._mean(values), self._mean(gradients).to(x.dtype)

    def verdict(self, logits: Tensor, y: Tensor, targeted: bool, *, both: bool = False) -> Tensor:
        """``STANDING``, ``FOOLED`` or ``CLOSE`` for each row, uint8 [B].

        Right means that y is the winner (see ``winner``); fooled is not right, or right where targeted. Close are the
        fooled rows whose logit of y and largest other one differ by at most √ε of the model's dtype times the row's
        largest |logit|, and all rows where these two are equal or not finite: there ``fooled_alone`` decides. With
        ``both``, standing rows that differ by so little are close, too.
        """
        tolerance = torch.finfo(self.runner.dtype).eps ** 0.5
        return logit_verdict(logits, y, targeted, tolerance=tolerance, both=both)

    def fooled_alone(self, x: Tensor, y: Tensor, targeted: bool) -> bool:
        """Whether one example [1, ...] is fooled in a batch of its own, as its user will run it."""
        right = bool(winner(self.logits(x)) == y)
        return right if targeted else not right

    def _forward(self, batch: Tensor) -> Tensor:
        self.forwards += len(batch)
        logits = self.runner.logits(batch)
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _mean(self, draws: list[Tensor]) -> Tensor:
        return draws[0] if len(draws) == 1 else torch.stack(draws).mean(0)


def note_no_winner(runner: Runner, count: int, total: int) -> None:
    """Logs as a warning, once for each runner, that so many of the examples have logits without a winner.

    >>> note_no_winner(Runner(lambda x: x), 0, 5)
    """
    if count and not runner.noted_no_winner:
        runner.noted_no_winner = True
        logger.warning(
            "%d of %d examples have logits with NaN or +inf, or nothing but -inf: no class wins, they count as wrong",
            count,
            total,
        )


def winner(logits: Tensor) -> Tensor:
    """The class of the largest logit, ties to the lowest; K, which is no class, where NaN or +inf leaves none.

    >>> winner(torch.tensor([[0.0, 1.0, 1.0], [0.0, torch.nan, 1.0]]))
    tensor([1, 3])
    """
    classes = logits.shape[1]
    largest = logits.amax(1, keepdim=True)
    index = torch.arange(classes, device=logits.device)
    first = torch.where(logits == largest, index, classes).amin(1)
    return torch.where(largest.squeeze(1).isfinite(), first, classes)
