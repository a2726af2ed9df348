"""The fast gradient sign method."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pyrobust.checks import NormLike
from pyrobust.runner import Classifier, Progress

from .engine import BatchAttack, Callback
from .levels import GridLike
from .losses import LOSSES, LossName, check_loss, named_loss
from .state import AttackState


class FGSM(BatchAttack):
    """One step of length epsilon along the gradient of the loss at x (Goodfellow, Shlens and Szegedy, 2015).

    linf steps along the sign of the gradient, l2 along the gradient over its norm, then both clip. l1 spends epsilon on
    the coordinates by decreasing |derivative|, each up to its end of the clip range: no feasible point has a larger
    inner product with the gradient.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.
        loss: "ce", "dlr" (at least 3 classes, 4 where targeted) or "margin", see ``pyrobust.ops.logit_loss``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> attack = FGSM(lambda x: torch.stack([x[:, 0], x[:, 1]], 1), epsilon=0.25)
    >>> attack.generate(torch.tensor([[0.75, 0.5]]), torch.tensor([0]))
    tensor([[0.5000, 0.7500]])
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        loss: LossName = "ce",
        clip: tuple[float, float] | None = None,
        grid: GridLike = None,
        seed: int = 0,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        progress: bool | Progress = False,
        callback: Callback | None = None,
    ) -> None:
        super().__init__(
            model,
            epsilon,
            norm,
            clip_min,
            clip_max,
            device,
            clip=clip,
            grid=grid,
            seed=seed,
            batch_size=batch_size,
            dtype=dtype,
            memory_format=memory_format,
            progress=progress,
            callback=callback,
        )
        self.loss = check_loss(loss, LOSSES)

    def _run(self, state: AttackState) -> None:
        loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
        gradient = state.gradient(state.x, loss).gradient
        x_adv = state.norm.single_step(gradient, state.ball)
        state.finish(*state.retire(state.verdict(state.logits(x_adv)), x_adv))
