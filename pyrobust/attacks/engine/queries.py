"""Queries of the attacked model: logits, gradients of a loss, verdicts, and a count of the rows of forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.correctness import Judge, verdicts
from pyrobust.errors import ModelError
from pyrobust.ops.logits import LogitLoss
from pyrobust.runner import Runner
from pyrobust.thread_trial import ThreadTrial

from ..eot import EOT


class NoGradientError(ModelError):
    """The logits have no gradient with respect to the input."""

    def __init__(self) -> None:
        super().__init__(
            "model: expected logits differentiable with respect to the input, got logits without a gradient; use a "
            "score-based attack such as Square, or BPDA for the part without a gradient"
        )


class Gradient(NamedTuple):
    """Result of one forward and one backward pass for each example under attack."""

    logits: Tensor  # [B, K]
    value: Tensor  # [B], the loss, float64
    gradient: Tensor  # [B, ...], of the loss with respect to the input, in the input's dtype
    verdict: Tensor  # [B], uint8


class Queries:
    """Runs the model for an attack, and averages the draws of an ``EOT``. Use in a ``Runner.session(gradients=True)``.

    >>> queries = Queries(Runner(torch.nn.Linear(4, 3)))
    >>> queries.logits(torch.zeros(5, 4)).shape, queries.forwards
    (torch.Size([5, 3]), 5)
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.draws = runner.model.samples if isinstance(runner.model, EOT) else 1
        #: Rows pushed through the model so far, and gradients computed for single rows.
        self.forwards = self.backwards = 0
        #: Decides the number of threads, see ``ThreadTrial``; None before an attack.
        self.trial: ThreadTrial | None = None
        #: Judges examples by these logits.
        self.judge = Judge(runner, self.logits)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits [B, K], float32 or float64."""
        batch = x.to(self.runner.dtype)
        return self._mean([self._forward(batch) for _ in range(self.draws)])

    def gradient(
        self,
        x: Tensor,
        loss: Callable[[Tensor], LogitLoss],
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits [B, K], a loss's value [B] in float64, and the loss's gradient in x [B, ...].

        With a differentiable ``transform``, the logits are those of the model at transform(x).

        The gradient of each example is multiplied by a positive factor, the same for all draws of an ``EOT``. The
        factor is chosen so that in the first draw, the derivatives of the loss with respect to the logits have size 1.
        The gradient therefore does not vanish where the loss is nearly flat.
        """
        logits, (value,), (gradient,) = self.gradients(x, [loss], transform)
        return logits, value, gradient

    def gradients(
        self,
        x: Tensor,
        losses: Sequence[Callable[[Tensor], LogitLoss]],
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Run one forward pass, and one backward pass per loss; return what ``gradient`` returns, for all losses."""
        leaf = x.detach().to(self.runner.dtype).requires_grad_()
        logits: list[Tensor] = []
        values: list[list[Tensor]] = [[] for _ in losses]
        gradients: list[list[Tensor]] = [[] for _ in losses]
        scales: list[Tensor] = []  # sizes of the first draw's derivatives with respect to the logits
        for draw in range(self.draws):
            with torch.enable_grad():
                output = self._forward(leaf if transform is None else transform(leaf))
            if not output.requires_grad:
                raise NoGradientError
            detached = output.detach()
            logits.append(detached)
            for i, loss in enumerate(losses):
                value, slope, size = loss(detached)
                if self.draws > 1:
                    if draw == 0:
                        scales.append(size.clamp(min=torch.finfo(size.dtype).tiny))
                    slope = (slope * (size / scales[i]).unsqueeze(1)).to(slope.dtype)
                (gradient,) = torch.autograd.grad(
                    output, leaf, slope, retain_graph=i + 1 < len(losses), allow_unused=True
                )
                if gradient is None:  # the logits depend only on parameters, such as after a threshold
                    raise NoGradientError
                self.backwards += len(x)
                values[i].append(value)
                # A sum's gradient is one number expanded to many places, which attacks could not overwrite.
                gradients[i].append(gradient.contiguous() if 0 in gradient.stride() else gradient)
        means = [self._mean(gradient).to(x.dtype) for gradient in gradients]
        return self._mean(logits), [self._mean(value) for value in values], means

    def verdict(self, logits: Tensor, y: Tensor, targeted: bool) -> Tensor:
        """Return the verdict on each row, uint8 [B]: ``ROBUST``, ``FOOLED`` or ``CLOSE``.

        The rule is that of ``pyrobust.correctness``; ``fooled_alone`` decides close rows. A row that is not fooled is
        ``CLOSE`` only if the gap between its logits is not finite, because an attack confirms only its successes.
        """
        return verdicts(logits, y, self.runner.unit, targeted, both=False)

    def fooled_alone(self, x: Tensor, y: Tensor, targeted: bool) -> bool:
        """Whether an example [1, ...] fools the model in a batch of its own, as a user would run it."""
        return self.judge.right_alone(x, y) == targeted

    def _forward(self, batch: Tensor) -> Tensor:
        self.forwards += len(batch)
        trial = self.trial
        logits = self._logits(batch) if trial is None else trial.run(lambda: self._logits(batch))
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _logits(self, batch: Tensor) -> Tensor:
        return self.runner.logits(batch, watch=True)

    def _mean(self, draws: list[Tensor]) -> Tensor:
        return draws[0] if len(draws) == 1 else torch.stack(draws).mean(0)
