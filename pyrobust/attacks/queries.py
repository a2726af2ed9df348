"""Queries of the attacked model: logits, gradients of a loss, verdicts; every forward row is counted."""

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
    """Result of one forward and one backward pass for each example under attack."""

    logits: Tensor  # [B, K]
    value: Tensor  # [B], the loss, float64
    gradient: Tensor  # [B, ...], of the loss with respect to the input, in the input's dtype
    verdict: Tensor  # [B], uint8


class Queries:
    """Runs a model for an attack, averaging an ``EOT`` over its draws. Use it inside a session with gradients.

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
        """Logits [B, K], float32 or float64."""
        batch = x.to(self.runner.dtype)
        return self._mean([self._forward(batch) for _ in range(self.draws)])

    def gradient(self, x: Tensor, loss: Callable[[Tensor], LogitLoss]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, K], value [B] in float64 and dvalue/dx [B, ...] of a loss of the logits.

        The gradient is scaled by a positive factor per example, the same for all draws of an ``EOT``: the backward pass
        starts from derivatives of size 1 by the logits, so it does not vanish where the loss is nearly flat.
        """
        leaf = x.detach().to(self.runner.dtype).requires_grad_()
        logits, values, gradients = [], [], []
        scale: Tensor | None = None  # size of the first draw's derivative by the logits
        for _ in range(self.draws):
            with torch.enable_grad():
                output = self._forward(leaf)
            if not output.requires_grad:
                raise ModelError(
                    "model: expected logits differentiable with respect to the input, got logits without a gradient; "
                    "use a score-based attack such as Square"
                )
            detached = output.detach()
            value, slope, size = loss(detached)
            if self.draws > 1:
                scale = size.clamp(min=torch.finfo(size.dtype).tiny) if scale is None else scale
                slope = (slope * (size / scale).unsqueeze(1)).to(slope.dtype)
            (gradient,) = torch.autograd.grad(output, leaf, slope)
            logits.append(detached)
            values.append(value)
            gradients.append(gradient)
        return self._mean(logits), self._mean(values), self._mean(gradients).to(x.dtype)

    def verdict(self, logits: Tensor, y: Tensor, targeted: bool, *, both: bool = False) -> Tensor:
        """Verdict on each row, uint8 [B]: ``STANDING``, ``FOOLED`` or ``CLOSE``.

        A row is correct if y is its predicted class (see ``winner``), and fooled if it is not correct or, where
        targeted, if it is. Close rows are decided by ``fooled_alone``: fooled rows whose logit of y and largest other
        logit differ by at most √ε of the model's dtype times the row's largest |logit|, and rows where these two are
        equal or not finite. With ``both``, robust rows that differ by so little are close, too.
        """
        tolerance = torch.finfo(self.runner.dtype).eps ** 0.5
        return logit_verdict(logits, y, targeted, tolerance=tolerance, both=both)

    def fooled_alone(self, x: Tensor, y: Tensor, targeted: bool) -> bool:
        """Whether an example [1, ...] is fooled in a batch of its own, as a user would run it."""
        right = bool(winner(self.logits(x)) == y)
        return right if targeted else not right

    def _forward(self, batch: Tensor) -> Tensor:
        self.forwards += len(batch)
        logits = self.runner.logits(batch)
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _mean(self, draws: list[Tensor]) -> Tensor:
        return draws[0] if len(draws) == 1 else torch.stack(draws).mean(0)


def note_no_winner(runner: Runner, count: int, total: int) -> None:
    """Warn, once per runner, that ``count`` of ``total`` examples have no predicted class."""
    if count and not runner.noted_no_winner:
        runner.noted_no_winner = True
        logger.warning(
            "%d of %d examples have no predicted class and count as wrong: their logits hold NaN or +inf, or only -inf",
            count,
            total,
        )


def winner(logits: Tensor) -> Tensor:
    """The predicted class: that of the largest logit, the lowest on a tie; K where NaN or infinities leave none.

    >>> winner(torch.tensor([[0.0, 1.0, 1.0], [0.0, torch.nan, 1.0]]))
    tensor([1, 3])
    """
    classes = logits.shape[1]
    largest = logits.amax(1, keepdim=True)
    index = torch.arange(classes, device=logits.device)
    first = torch.where(logits == largest, index, classes).amin(1)
    return torch.where(largest.squeeze(1).isfinite(), first, classes)
