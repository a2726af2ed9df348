"""The fast gradient sign method."""

from __future__ import annotations

import functools

from pyrobust.checks import NORMS

from .engine.batches import BatchAttack
from .engine.settings import one_of, setting
from .engine.state import AttackState
from .losses import LOSS_HELP, LOSSES, LossName, named_loss


class FGSM(BatchAttack):
    """One step of length epsilon along the gradient of the loss at x (Goodfellow, Shlens and Szegedy, 2015).

    The step is along the sign of the gradient in linf and along the normalized gradient in l2, and the result is
    clipped. In l1, the coordinates move uphill one after the other, in order of decreasing |derivative|. Each moves as
    far as the clip range allows, until epsilon is used up. No feasible point has a larger inner product with the
    gradient than the resulting point.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> import torch
    >>> attack = FGSM(lambda x: torch.stack([x[:, 0], x[:, 1]], 1), epsilon=0.25)
    >>> attack.generate(torch.tensor([[0.75, 0.5]]), torch.tensor([0]))
    tensor([[0.5000, 0.7500]])
    """

    _elementwise = NORMS

    loss: LossName = setting(one_of(*LOSSES), LOSS_HELP, default="ce")

    def _run(self, state: AttackState) -> None:
        loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
        gradient = state.gradient(state.x, loss).gradient
        x_adv = state.norm.single_step(gradient, state.ball)
        state.finish(*state.retire(state.verdict(state.logits(x_adv)), x_adv))
