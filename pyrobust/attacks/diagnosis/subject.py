"""The model and the examples of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import PyrobustError
from pyrobust.machine import is_out_of_memory
from pyrobust.metrics import predicted_classes
from pyrobust.ops.logits import LogitLoss, logit_loss
from pyrobust.runner import Classifier

from ..engine.norms import Ball, Norm
from ..engine.queries import NoGradientError, Queries

#: A loss of logits [B, K] for labels y [B].
LossOf = Callable[[Tensor, Tensor], LogitLoss]


def cross_entropy(logits: Tensor, y: Tensor) -> LogitLoss:
    """Return the cross-entropy, and its derivative scaled so that it does not vanish where the loss is nearly flat."""
    return logit_loss(logits, y, y, "cross_entropy")


def margin(logits: Tensor, y: Tensor) -> LogitLoss:
    """The largest other logit minus the logit of y."""
    return logit_loss(logits, y, y, "margin")


@dataclass
class ExaminedModel:
    """A model, the examples on which it is examined, and the ball and the clip range of the attacks.

    Attributes:
        model: as given.
        queries: the ``Queries`` of the model.
        x: [N, ...], the examples, on the CPU or the device on which they were given.
        y: [N], int64 on the CPU: the labels, or the classes that the model predicts (-1 where it predicts none).
        norm: the norm of the ball.
        epsilon: radius of the ball.
        lower: lower end of the clip range.
        upper: upper end of the clip range.
        options: the seed, and arguments of ``BatchAttack`` that say how the model runs.
        generator: source of random directions, on the CPU.
    """

    model: Classifier
    queries: Queries
    x: Tensor
    y: Tensor
    norm: Norm
    epsilon: float
    lower: float
    upper: float
    options: dict[str, Any]
    generator: torch.Generator

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, rows: Tensor) -> ExaminedModel:
        """Return the same model with the examples of these row numbers, int64 [M] on the CPU."""
        return replace(self, x=self.x[rows.to(self.x.device)], y=self.y[rows])

    def over(self, step: Callable[..., tuple[Tensor, ...]], *columns: Tensor) -> tuple[Tensor, ...]:
        """Call ``step`` on each batch of the tensors ``columns`` [N, ...], on the device; concatenate the results."""
        parts: dict[int, tuple[Tensor, ...]] = {}
        runner = self.queries.runner

        def run(begin: int, end: int) -> None:
            parts[begin] = step(*(runner.batch(column[begin:end]) for column in columns))

        with runner.session(gradients=True):
            runner.for_each(len(columns[0]), tuple(columns[0].shape[1:]), run, gradients=True)
        return tuple(torch.cat(results) for results in zip(*parts.values(), strict=True))

    def logits(self, x: Tensor) -> Tensor:
        """Return the model's logits [N, K] at the points x [N, ...], on the model's device."""

        def step(batch: Tensor) -> tuple[Tensor, ...]:
            return (self.queries.logits(batch),)

        return self.over(step, x)[0]

    def gradient(self, x: Tensor, loss: LossOf) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits [N, K], and the value [N] and gradient [N, ...] of a loss at x.

        The gradient of each example is divided by the ``size`` of its loss, a positive number, so that it does not
        vanish where the loss is nearly flat.

        Raises:
            NoGradientError: the model cannot be differentiated.
        """

        def step(batch: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            try:
                return self.queries.gradient(batch, lambda logits: loss(logits, y))
            except RuntimeError as error:
                # Only the forward pass has run, so torch has no derivative of the model, for example because it leaves
                # torch.
                if isinstance(error, PyrobustError) or is_out_of_memory(error):
                    raise
                raise NoGradientError from error

        logits, value, gradient = self.over(step, x, self.y)
        return logits, value, gradient

    def corner(self, x: Tensor, epsilon: float | None = None) -> Tensor:
        """Draw a random point [N, ...] on the surface of each example's ball, and clip it."""
        direction = torch.randn(x.shape, generator=self.generator, dtype=torch.float32).to(x)
        radius = torch.full((len(x),), self.epsilon if epsilon is None else epsilon, dtype=torch.float64).to(x.device)
        return self.norm.single_step(direction, Ball(x, radius, self.lower, self.upper))

    def predictions(self, logits: Tensor) -> Tensor:
        """Return predicted classes, int64 [N] on the CPU; -1 where there is none."""
        return predicted_classes(logits).cpu()
