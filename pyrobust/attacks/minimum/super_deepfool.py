"""SuperDeepFool: DeepFool, with its perturbation repeatedly projected on the boundary's normal."""

from __future__ import annotations

import torch

from pyrobust.checks import count
from pyrobust.ops.logits import ROBUST

from ..engine.norms import per_example
from ..engine.settings import setting
from ..engine.state import AttackState
from ..losses import margin, targeted_margin
from .deepfool import DeepFool
from .nearest import Nearest


class SuperDeepFool(DeepFool):
    """SuperDeepFool, SDF(∞, 1) (Abdolahpourrostam, Abroshan and Moosavi-Dezfooli, 2024).

    At the nearest point of a smooth boundary, the boundary's normal is parallel to the perturbation; DeepFool, however,
    stops wherever it crosses the boundary. Let x̃ be the point that DeepFool reaches, and f the largest other logit
    minus the logit of y. The next iterate is

        x ← x₀ + ((x̃ − x₀)·∇f(x̃) / ‖∇f(x̃)‖²) ∇f(x̃),

    where x₀ is the example, and the vector added to it is the projection of the perturbation x̃ − x₀ on the normal.
    DeepFool restarts from this iterate, until the iterate itself fools the model. The nearest adversarial point on the
    way is kept and shortened by secant steps; all points stay in the clip range.

    Args:
        model, epsilon, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.
        norm: "l2".
        steps: largest number of steps of each DeepFool run.
        candidates, overshoot: as for ``DeepFool``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(SuperDeepFool(model).minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = ("l2",)

    rounds: int = setting(count, "most projections for an example, at least 1", default=10)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        loss = targeted_margin if state.targeted else margin
        closest = Nearest(state)
        rows, active, x_adv = torch.arange(len(state), device=state.x.device), state, state.x
        for _ in range(self.rounds):
            reached = Nearest(active)
            self._cross(active, x_adv, reached)
            closest.take(reached, rows)
            _, _, normal, _ = active.gradient(reached.x, loss)
            normal = active.norm.scaled(normal)
            flat = normal.flatten(1).double()  # squares of small gradients would underflow
            along = ((reached.x - active.x).flatten(1) * flat).sum(1)
            square = flat.square().sum(1)
            share = (along / square.clamp_(min=torch.finfo(torch.float64).tiny)).clamp_(min=0)
            x_adv = active.moved(normal.mul(per_example(share, normal)))
            fooled = active.verdict(active.logits(x_adv)) != ROBUST
            projected = Nearest(active)
            projected.offer(active, fooled, x_adv)
            closest.take(projected, rows)
            # Nothing was crossed, or the projection itself fools: DeepFool would stand still.
            staying = (~fooled & reached.distance.isfinite() & (share > 0)).nonzero()[:, 0]
            if not len(staying):
                break
            rows, active, x_adv = rows[staying], active.take(staying), x_adv[staying]
        closest.shorten(state)
        nearest.take(closest)
