"""SPSA: gradient ascent that needs only logits, with gradients estimated from finite differences."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from pyrobust.checks import NORMS, count, positive

from ..engine.batches import BatchAttack
from ..engine.norms import per_example, widened
from ..engine.settings import one_of, setting
from ..engine.state import AttackState
from ..engine.tracking import Best
from ..losses import Loss, named_loss

# Adam's constants (Kingma and Ba, 2015).
_FIRST, _SECOND, ADAM_EPSILON = 0.9, 0.999, 1e-8


class Moments:
    """Adam's moving averages of a gradient and its square (Kingma and Ba, 2015), [B, ...]."""

    def __init__(self, like: Tensor) -> None:
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)
        self._steps = 0

    def update(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Add a gradient; return the moving mean and root mean square, corrected for their bias toward zero."""
        self._steps += 1
        self.first.lerp_(gradient, 1 - _FIRST)
        self.second.lerp_(gradient.square(), 1 - _SECOND)
        scale = (self.second / (1 - _SECOND**self._steps)).sqrt_()
        return self.first / (1 - _FIRST**self._steps), scale


class SPSA(BatchAttack):
    """Simultaneous perturbation stochastic approximation (Uesato, O'Donoghue, van den Oord and Kohli, 2018).

    The gradient at an iterate is estimated as the mean, over random vectors vᵢ with entries ±1 (Spall, 1992), of

        (L(xₜ + delta·vᵢ) − L(xₜ − delta·vᵢ)) / (2·delta) · vᵢ,

    Adam turns the estimate into a step (Kingma and Ba, 2015), and the new iterate is projected on ball and clip range;
    the points xₜ ± delta·vᵢ are not projected. An image costs 2·samples + 1 forward passes per step, until it fools the
    model.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``; the model need not be differentiable.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> def model(x):  # steps of 1/16: its gradient is 0
    ...     return torch.stack([x[:, 0].mul(16).round(), x[:, 1].mul(16).round()], 1)
    >>> attack = SPSA(model, epsilon=0.25, delta=0.1, samples=16, step_size=0.05)
    >>> x, y = torch.tensor([[0.75, 0.5]]), torch.tensor([0])
    >>> attack.evaluate(x, y, attack(x, y))["robust_accuracy"]
    0.0
    """

    norms = NORMS
    _elementwise = NORMS

    steps: int = setting(count, "number of steps, at least 1", default=100, option="steps")
    samples: int = setting(count, "random vectors per step, at least 1", default=128)
    step_size: float = setting(positive, "Adam's, in the input's unit, positive", default=0.01)
    delta: float = setting(
        positive,
        "size of the finite differences in each coordinate, positive; on a grid at least its step",
        default=0.01,
    )
    loss: Literal["margin", "ce"] = setting(
        one_of("margin", "ce"), '"margin" or "ce", see ``pyrobust.ops.logit_loss``', default="margin"
    )

    _family = "uniform"  # of the noise whose signs form the vectors

    def _run(self, state: AttackState) -> None:
        loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
        best = Best(state)
        rows = len(state)  # most rows per forward pass, so that it fits memory
        x_adv = state.x.clone()
        moments = Moments(widened(x_adv))
        for t in range(self.steps):
            mean, scale = moments.update(self._estimate(state, x_adv, loss, t, rows))
            delta = mean.div_(scale.add_(ADAM_EPSILON)).mul_(self.step_size).add_(x_adv).sub_(state.x)
            x_adv = state.place(delta.to(x_adv.dtype))
            logits = state.logits(x_adv)
            best.offer(loss(logits, state.y, state.y).value, x_adv)
            x_adv, moments.first, moments.second, best.x, best.value = state.retire(
                state.verdict(logits), x_adv, moments.first, moments.second, best.x, best.value
            )
            if not len(state):
                break
        state.finish(best.x)

    def _estimate(self, state: AttackState, x_adv: Tensor, loss: Loss, step: int, rows: int) -> Tensor:
        """Estimate the gradient at x_adv [B, ...], in forward passes of at most ``rows`` rows."""
        width = max(1, rows // (2 * len(x_adv)))
        # The model sees only levels: a smaller difference might vanish.
        size = self.delta if state.levels is None else max(self.delta, float(state.levels.step))
        gradient = torch.zeros_like(widened(x_adv))
        for begin in range(0, self.samples, width):
            vectors = state.noise(self._family, step * self.samples + begin, min(width, self.samples - begin)).sign()
            tried = vectors.shape[1]
            points = torch.stack([x_adv[:, None] + size * vectors, x_adv[:, None] - size * vectors], 1)
            above, below = self._values(state, points, loss, rows).unbind(1)
            rise = ((above - below) / (2 * size * self.samples)).nan_to_num_(0.0, 0.0, 0.0)
            for i in range(tried):  # one by one, so that the sum does not depend on ``tried``
                gradient += vectors[:, i] * per_example(rise[:, i], gradient)
        return gradient

    def _values(self, state: AttackState, points: Tensor, loss: Loss, rows: int) -> Tensor:
        """Compute the loss [B, 2, T] at points [B, 2, T, ...], in forward passes of at most ``rows`` rows."""
        logits = torch.cat([state.logits(block) for block in torch.split(points.flatten(0, 2), rows)])
        y = state.y.repeat_interleave(points.shape[1] * points.shape[2])
        return loss(logits, y, y).value.view(points.shape[:3])
