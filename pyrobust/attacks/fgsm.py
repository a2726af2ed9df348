"""The fast gradient sign method."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pyrobust.runner import Classifier

from .engine import BatchAttack
from .job import Job
from .losses import LOSSES, check_loss, named_loss


class FGSM(BatchAttack):
    """One step of length epsilon up the gradient of the loss at x (Goodfellow, Shlens and Szegedy, 2015).

    linf: the sign of the gradient; l2: the gradient over its norm; each projected on the clip range. l1: epsilon is
    spent on the coordinates with the largest derivatives, one after the other, each up to the end of the clip range:
    no point of ball and clip range has a larger inner product with the gradient.

    Args:
        model: as of ``BatchAttack``.
        epsilon: radius of the ball.
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest.
        device: where to run.
        loss: "ce", "dlr" (at least 3 classes, 4 where targeted) or "margin", see ``pyrobust.ops.logit_loss``.
        options: as of ``BatchAttack``: seed, batch_size, dtype, memory_format, progress, callback.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> attack = FGSM(lambda x: torch.stack([x[:, 0], x[:, 1]], 1), epsilon=0.25)
    >>> attack.generate(torch.tensor([[0.75, 0.5]]), torch.tensor([0]))
    tensor([[0.5000, 0.7500]])
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
        **options: Any,
    ) -> None:
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, **options)
        self.loss = check_loss(loss, LOSSES)

    def _run(self, job: Job) -> None:
        loss = functools.partial(named_loss, name=self.loss, targeted=job.targeted)
        gradient = job.gradient(job.x, loss).gradient
        x_adv = job.norm.ascend(gradient, job.x, job.epsilon, job.lower, job.upper)
        job.finish(*job.retire(job.verdict(job.logits(x_adv)), x_adv))
