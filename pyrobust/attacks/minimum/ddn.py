"""The decoupled direction and norm attack."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from pyrobust.checks import NormLike, count, positive, probability
from pyrobust.ops.logits import ROBUST
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.runner import Classifier, Progress

from ..engine import Callback
from ..levels import GridLike
from ..losses import named_loss
from ..norms import per_example, unit
from ..state import AttackState
from .engine import MinimumNormAttack
from .nearest import Nearest


class DDN(MinimumNormAttack):
    """The decoupled direction and norm attack (Rony, Hafemann, Oliveira, Ben Ayed, Sabourin and Granger, 2019), l2.

    Steps δₜ + αₜ·∇L / ‖∇L‖₂ up the cross entropy, rescaled to the length εₜ, which shrinks by the share ``gamma`` at
    an adversarial point and grows by it otherwise; then clipped. αₜ falls along a cosine from ``step_size`` to 1 % of
    it. Secant steps between x and the nearest point come last.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.
        steps: number of steps, at least 1.
        step_size: α₀, positive, in widths of the clip range.
        gamma: share by which the length changes, in (0, 1).
        start_length: ε₀, positive, in widths of the clip range.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(DDN(model).minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = ("l2",)

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: NormLike = "l2",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        steps: int = 100,
        step_size: float = 1.0,
        gamma: float = 0.05,
        start_length: float = 1.0,
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
        self.steps = count("steps", steps)
        self.step_size = positive("step_size", step_size)
        self.gamma = probability("gamma", gamma)
        self.start_length = positive("start_length", start_length)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        loss = functools.partial(named_loss, name="ce", targeted=state.targeted)
        width = state.upper - state.lower
        diameter = state.norm.diameter(state.x[0].numel(), width)
        epsilon = torch.full_like(state.epsilon, self.start_length * width)
        run, x_adv = Nearest(state), state.x
        for step in range(self.steps):
            alpha = self.step_size * width * (0.01 + 0.99 * (1 + math.cos(math.pi * step / self.steps)) / 2)
            _, _, gradient, verdict = state.gradient(x_adv, loss)
            fooled = verdict != ROBUST
            run.offer(state, fooled, x_adv)
            epsilon = torch.where(fooled, epsilon * (1 - self.gamma), epsilon * (1 + self.gamma)).clamp_(max=diameter)
            delta = state.norm.direction(gradient).mul_(alpha).add_(x_adv).sub_(state.x)
            length = torch.linalg.vector_norm(delta.flatten(1), dim=1, dtype=torch.float64)
            delta = unit(delta, length).mul_(per_example(epsilon, delta))
            x_adv = add_perturbation(state.x, delta, state.lower, state.upper)
        run.offer(state, state.verdict(state.logits(x_adv)) != ROBUST, x_adv)
        run.tighten(state)
        nearest.take(run)
