"""The elastic-net attack."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from pyrobust.checks import AttackNormName, flag, non_negative

from ..engine.norms import per_example
from ..engine.settings import setting
from ..engine.state import AttackState
from .nearest import Nearest
from .search_constant import ConstantSearch, Descent


class EAD(ConstantSearch):
    """The elastic-net attack (Chen, Sharma, Zhang, Yi and Hsieh, 2018), which keeps the point that is nearest in l1.

    FISTA (Beck and Teboulle, 2009) minimizes c·max(z_y − max_{k≠y} z_k, −κ) + ‖z − x‖₂² + β·‖z − x‖₁ in the clip range.
    After each gradient step on the first two terms, with momentum, every coordinate of z − x is shrunk by β. The step
    size falls with the square root of the share of steps left. A binary search finds the constant c of each example, as
    in ``CarliniWagner``. The descent of an example ends early only if its objective has stopped falling and no nearer
    point was found since the last check. Finally, secant steps between x and the nearest point shorten the
    perturbation.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(EAD(model).minimum(x, y).distance), 3))  # 0.2 and a margin
    0.2
    """

    norms: ClassVar[tuple[AttackNormName, ...]] = ("l1",)
    _elementwise = ("l1",)
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l1"}

    beta: float = setting(non_negative, "β, at least 0, in widths of the clip range", default=0.01)
    confidence: float = setting(non_negative, "κ, at least 0, the margin of logits to reach", default=0.0)
    abort_early: bool = setting(
        flag, "whether examples that no longer improve leave the steps for a constant", default=True
    )

    def _descent(self, state: AttackState, run: Nearest) -> Descent:
        return _Fista(state, run, self.steps, self.learning_rate, self.beta)


class _Fista(Descent):
    """The iterates of FISTA (Beck and Teboulle, 2009), and the points extrapolated from them by momentum."""

    def __init__(self, state: AttackState, run: Nearest, steps: int, rate: float, beta: float) -> None:
        self._steps, self._rate, self._beta = steps, rate, beta
        self._width = state.width
        self._x_adv = self._ahead = state.x
        self._delta = self._ahead
        self._before = run.distance

    def point(self, subset: AttackState) -> Tensor:
        self._delta = self._ahead - subset.x
        return self._ahead

    def objective(self, subset: AttackState, distance: Tensor, penalty: Tensor) -> Tensor:
        sizes = self._delta.flatten(1) / self._width
        return penalty + sizes.square().sum(1) + self._beta * sizes.abs().sum(1)

    def nearer(self, run: Nearest) -> Tensor:
        """Return which examples stay because of a nearer point, even if momentum raises the objective for a while."""
        nearer = run.distance < self._before
        self._before = run.distance
        return nearer

    def keep(self, staying: Tensor) -> None:
        self._x_adv, self._delta = self._x_adv[staying], self._delta[staying]

    def move(self, subset: AttackState, gradient: Tensor, active: Tensor, step: int) -> None:
        width, delta = self._width, self._delta
        # In units of the clip range's width: c·∇f is multiplied by one width, and so is its step.
        gradient = gradient.mul_(per_example(active * width**2, gradient)).nan_to_num_(0.0).sub_(delta, alpha=2)
        delta = delta.add_(gradient, alpha=self._rate * math.sqrt(1 - step / self._steps))
        delta = delta.sign() * (delta.abs() - self._beta * width).clamp_(min=0)
        following = subset.moved(delta)
        momentum = (following - self._x_adv).mul_(step / (step + 3)).add_(following).sub_(subset.x)
        self._x_adv, self._ahead = following, subset.moved(momentum)

    def last(self) -> tuple[Tensor, ...]:
        return self._x_adv, self._ahead
