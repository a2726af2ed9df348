"""Carlini and Wagner's l2 attack."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrobust.checks import count, flag, non_negative, positive
from pyrobust.ops.perturbation import add_perturbation

from ..engine.norms import per_example, widened
from ..engine.settings import setting
from ..engine.state import AttackState
from .nearest import Nearest
from .search_constant import ConstantSearch, Descent


class CarliniWagner(ConstantSearch):
    """The l2 attack of Carlini and Wagner (2017).

    With z = lower + (upper − lower)·(tanh(w) + 1) / 2, which stays in the clip range, Adam (Kingma and Ba, 2015)
    minimizes

        ‖z − x‖₂² + c·max(z_y − max_{k≠y} z_k, −κ)   over w.

    A binary search finds the constant c of each example: c is multiplied by 10 until a point is adversarial, and then
    bisected. An example's descent for one constant ends when its objective has not fallen by 0.01 % over a tenth of the
    steps. Finally, secant steps between x and the nearest adversarial point shorten the perturbation.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(CarliniWagner(model, steps=200).minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = ("l2",)
    _one_for_all = "its change of variables, tanh, needs one range of some width"
    _needs_range = True  # for the change of variables
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l2"}

    steps: int = setting(count, "Adam steps for each constant, at least 1", default=1000, option="steps")
    learning_rate: float = setting(positive, "of Adam, positive", default=0.01)
    confidence: float = setting(non_negative, "κ, at least 0, the margin of logits to reach", default=0.0)
    abort_early: bool = setting(
        flag, "whether examples that no longer improve leave the steps for a constant", default=True
    )

    # The step that follows the judged point counts as taken.
    _ahead = 1

    def _descent(self, state: AttackState, run: Nearest) -> Descent:
        return _Adam(state, self.learning_rate)


class _Adam(Descent):
    """Adam's iterates w, and the points z in the clip range that they stand for."""

    def __init__(self, state: AttackState, rate: float) -> None:
        self._rate, self._width = rate, state.upper - state.lower
        # Slightly inside, where the derivative of tanh is not zero.
        self._w = ((widened(state.x) - state.lower) * (2 / self._width)).sub_(1).mul_(1 - 1e-6).atanh_()
        self._mean, self._square = torch.zeros_like(self._w), torch.zeros_like(self._w)
        self._t = self._delta = self._w

    def point(self, subset: AttackState) -> Tensor:
        self._t = self._w.tanh()
        self._delta = (self._t + 1).mul_(self._width / 2).add_(subset.lower).sub_(subset.x)
        return add_perturbation(subset.x, self._delta.to(subset.x.dtype), subset.lower, subset.upper)

    def objective(self, subset: AttackState, distance: Tensor, penalty: Tensor) -> Tensor:
        return (distance / self._width).square_().add_(penalty)

    def keep(self, staying: Tensor) -> None:
        kept = (tensor[staying] for tensor in (self._w, self._mean, self._square, self._t, self._delta))
        self._w, self._mean, self._square, self._t, self._delta = kept

    def move(self, subset: AttackState, gradient: Tensor, active: Tensor, step: int) -> None:
        width, t = self._width, self._t
        # The gradient with respect to w, for distances in units of the clip range's width.
        gradient = widened(gradient)
        gradient = gradient.mul_(per_example(-active * width, gradient)).nan_to_num_(0.0)
        gradient.add_(self._delta, alpha=2 / width).mul_(1 - t * t).mul_(0.5)
        self._mean.lerp_(gradient, 0.1)
        self._square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = (self._square / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
        self._w = self._w.addcdiv(self._mean, scale, value=-self._rate / (1 - 0.9 ** (step + 1)))
