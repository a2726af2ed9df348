"""The σ-zero attack."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from pyrobust.checks import count, positive, share
from pyrobust.ops.logits import ROBUST
from pyrobust.ops.perturbation import add_perturbation

from ..engine.norms import per_example, unit, widened
from ..engine.settings import setting
from ..engine.state import AttackState
from ..losses import margin, targeted_margin
from .engine import MinimumNormAttack
from .nearest import Nearest


class SigmaZero(MinimumNormAttack):
    """The σ-zero attack (Cinà, Villani, Pintor, Schönherr, Biggio and Pelillo, 2025), l0.

    Adam, with the gradient divided by its largest coordinate, minimizes max(z_y − max_{k≠y} z_k, 0) + (1/D)·Σ δᵢ² /
    (δᵢ² + σ), where D is the number of coordinates and the second term approximates ‖δ‖₀ / D. The point x + δ stays in
    the clip range. After each step, coordinates with |δᵢ| < τ are zeroed. At an adversarial point, τ grows by
    ``threshold_step`` times the step size; otherwise, τ falls by that amount. The step size falls along a cosine to 10
    % of its first value. Finally, unneeded changes are removed.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(SigmaZero(model, steps=100).minimum(x, y).distance), 3))  # one coordinate
    1.0
    """

    norms = ("l0",)
    _one_for_all = "it counts changed elements, of whatever size"
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l0"}

    steps: int = setting(count, "number of steps, at least 1", default=500, option="steps")
    step_size: float = setting(positive, "first step size, positive, in widths of the clip range", default=1.0)
    sigma: float = setting(positive, "σ, positive: small values are close to ‖δ‖₀, large ones smooth", default=1e-3)
    threshold: float = setting(share, "first τ, in [0, 1], in widths of the clip range", default=0.3)
    threshold_step: float = setting(positive, "share of the step size by which τ changes, positive", default=0.01)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        loss = targeted_margin if state.targeted else margin
        width = state.upper - state.lower
        coordinates = state.x[0].numel()
        run, x_adv = Nearest(state), state.x
        clean = widened(state.x)
        mean, square = torch.zeros_like(clean), torch.zeros_like(clean)
        threshold = torch.full_like(state.epsilon, self.threshold)
        rate = self.step_size
        for step in range(self.steps):
            if step == self.steps // 2:  # an early result, close to the final one
                run.tighten(state)
                nearest.take(run)
            _, value, gradient, verdict = state.gradient(x_adv, loss)
            fooled = verdict != ROBUST
            run.offer(state, fooled, x_adv)
            delta, gradient = (x_adv - clean).div_(width), widened(gradient)
            smooth = delta.square().add_(self.sigma)
            gradient = gradient.mul_(per_example((value < 0) * -width, gradient)).nan_to_num_(0.0)
            gradient.addcdiv_(delta, smooth.square_(), value=2 * self.sigma / coordinates)
            gradient = unit(gradient, gradient.abs().flatten(1).amax(1).double())
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = (square / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
            delta.addcdiv_(mean, scale, value=-rate / (1 - 0.9 ** (step + 1)))
            rate = self.step_size * (0.1 + 0.9 * (1 + math.cos(math.pi * step / self.steps)) / 2)
            change = self.threshold_step * rate
            threshold = torch.where(fooled, threshold + change, threshold - change).clamp_(0, 1)
            low, high = (state.lower - clean).div_(width), (state.upper - clean).div_(width)
            delta = torch.minimum(torch.maximum(delta, low), high)
            delta = delta.mul_(width).masked_fill_(delta.abs() < per_example(threshold * width, delta), 0.0)
            x_adv = add_perturbation(state.x, delta.to(x_adv.dtype), state.lower, state.upper)
        run.offer(state, state.verdict(state.logits(x_adv)) != ROBUST, x_adv)
        run.tighten(state)
        nearest.take(run)
