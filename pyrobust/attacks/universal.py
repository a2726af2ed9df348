"""Universal perturbations: one perturbation for a whole data set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrobust.checks import (
    NORMS,
    AttackNormName,
    NormLike,
    finite,
    float_tensor,
    non_negative,
    positive,
    shape_text,
    summary,
)
from pyrobust.clip import OMITTED, ClipArgument, finite_ends
from pyrobust.errors import InputError
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.ops.norm_balls import project_l2_ball, project_linf_ball
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.ops.projections import project_l1_ball
from pyrobust.runner import Classifier

from .engine.norms import norm_of
from .engine.queries import Queries
from .input_agnostic import InputAgnosticAttack
from .losses import LOSSES, LossName, check_loss

# Adam's decay rates (Kingma and Ba, 2015).
_FIRST, _SECOND = 0.9, 0.999
_PROJECTIONS = {"linf": project_linf_ball, "l2": project_l2_ball, "l1": project_l1_ball}


@dataclass(frozen=True, eq=False)
class UniversalResult:
    """A universal perturbation.

    Attributes:
        delta: [...], in the shape of one example; ‖delta‖ ≤ epsilon in exact arithmetic.
        fooling_rate: share of the examples of ``fit`` whose predicted class is changed by ``delta``. The rate's
            interval does not hold for other examples, because ``delta`` was chosen on the examples of ``fit``: see
            ``UniversalPerturbation.evaluate``.
        clip_min, clip_max: the clip range.
        forwards: number of rows that the model was run on.
    """

    delta: Tensor
    fooling_rate: Rate
    clip_min: float
    clip_max: float
    forwards: int

    def apply(self, x: Tensor) -> Tensor:
        """Add the perturbation to examples and clip.

        Args:
            x: [N, ...], in [clip_min, clip_max].

        Returns:
            [N, ...], in x's dtype and on its device: x + delta, clipped and rounded toward x, so that every example
            lies inside the ball and the clip range in exact arithmetic.

        Raises:
            InputError: another shape, or values out of range.
            InputTypeError: an x that is not a float tensor.
        """
        x = float_tensor("x", x)
        if x.shape[1:] != self.delta.shape:
            raise InputError("x", f"shape {shape_text(('N', *self.delta.shape))}", shape_text(x.shape))
        return _added(x.detach(), self.delta, self.clip_min, self.clip_max)

    def __repr__(self) -> str:
        return summary(
            self, shape=tuple(self.delta.shape), fooling_rate=self.fooling_rate.value, forwards=self.forwards
        )


class UniversalPerturbation(InputAgnosticAttack):
    """One perturbation that fools a model on many examples (Moosavi-Dezfooli, Fawzi, Fawzi and Frossard, 2017).

    It is found by gradient steps (Shafahi, Najibi, Xu, Dickerson, Davis and Goldstein, 2020): each step ascends Σᵢ
    min(L(f(xᵢ + δ), yᵢ), beta) over a minibatch and projects δ on the ball. The limit beta keeps a few examples of
    large loss from deciding the direction. In linf the steps are Adam's (Kingma and Ba, 2015). In l2 and l1 a step
    follows the running mean of the gradients that Adam uses. This mean is divided by its l2 norm in l2, and by its
    largest coordinate in l1. After each epoch the fooling rate on all examples is measured, and the best δ is returned.

    Args:
        model, clip_min, clip_max, device: see ``AdversarialAttack``; clip_min and clip_max are numbers.
        epsilon: radius of the ball, a number.
        norm: "linf", "l2" or "l1".
        epochs: passes over the data, at least 1.
        step_size: size of a step, positive; default epsilon / 20.
        beta: limit of the loss.
        loss: "ce", "dlr" (at least 3 classes) or "margin", see ``pyrobust.ops.logit_loss``.
        clip: (clip_min, clip_max), replacing the two arguments; None for no limit.
        seed: random seed of the order of the examples, in [0, 2**64).
        batch_size: examples in a step, at least 1.
        dtype: of the batches, see ``pyrobust.runner.Runner``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = lambda x: torch.stack([x.sum(1) - 1, 1 - x.sum(1)], 1)
    >>> x, y = torch.tensor([[0.6, 0.6], [0.5, 0.9]]), torch.tensor([0, 0])
    >>> attack = UniversalPerturbation(model, epsilon=0.125)
    >>> result = attack.fit(x, y)
    >>> result.delta
    tensor([-0.1250, -0.1250])
    >>> attack.evaluate(x, y, result)["fooling_rate"].value
    0.5
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        epochs: int = 50,
        step_size: float | None = None,
        beta: float = 9.0,
        loss: LossName = "ce",
        clip: ClipArgument = OMITTED,
        seed: int = 0,
        batch_size: int = 50,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            model,
            clip_min,
            clip_max,
            device,
            clip=clip,
            epochs=epochs,
            seed=seed,
            batch_size=batch_size,
            dtype=dtype,
        )
        self.norm: AttackNormName = norm_of(norm, NORMS).name
        self.epsilon = non_negative("epsilon", epsilon)
        self.step_size = None if step_size is None else positive("step_size", step_size)
        self.beta = finite("beta", beta)
        self.loss = check_loss(loss, LOSSES)

    def fit(self, x: Tensor, y: Tensor) -> UniversalResult:
        """Find a perturbation for these examples.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels; the perturbation moves the predictions away from them.

        Returns:
            The perturbation, and its fooling rate on x.

        Raises:
            InputError: mismatched shapes, or values or labels out of range.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits, or logits without a gradient.
        """
        x, y = self._checked(x, y)
        queries = Queries(self.runner)
        queries.judge.correct(x[:1], y.amax()[None])  # raises for a label that is no class of the model
        before = queries.judge.classes(x)
        best, highest_count = torch.zeros_like(x[0]), -1
        delta = torch.zeros_like(x[:1])
        # Float64, because squares of small derivatives underflow float32.
        first, second = torch.zeros_like(delta, dtype=torch.float64), torch.zeros_like(delta, dtype=torch.float64)
        size = self.epsilon / 20 if self.step_size is None else self.step_size
        steps = -(-len(x) // self.batch_size)
        for step, rows in enumerate(self._minibatches(len(x)), 1):
            gradient = self._gradient(queries, x[rows.to(x.device)], y[rows], delta)
            first.lerp_(gradient, 1 - _FIRST)
            second.lerp_(gradient.square(), 1 - _SECOND)
            if self.norm == "linf":
                scale = (second / (1 - _SECOND**step)).sqrt_().clamp_(min=torch.finfo(second.dtype).tiny)
                direction = first / (1 - _FIRST**step) / scale
            else:
                direction = norm_of(self.norm, NORMS).direction(first.clone())
            moved = (delta + size * direction).to(delta.dtype)
            delta = _PROJECTIONS[self.norm](moved.flatten(1), self.epsilon).view_as(delta)
            if step % steps == 0:
                after = queries.judge.classes(_added(x, delta[0], self.clip_min, self.clip_max))
                fooled = int((after != before).sum())
                if fooled >= highest_count:
                    best, highest_count = delta[0].clone(), fooled
        rate = estimate_rate(highest_count, len(x))
        return UniversalResult(best, rate, self.clip_min, self.clip_max, queries.forwards)

    def evaluate(self, x: Tensor, y: Tensor, result: UniversalResult) -> dict[str, Rate]:
        """Measure a perturbation on examples other than those that ``fit`` was given.

        Args:
            x: [N, ...], in [clip_min, clip_max].
            y: [N], the labels.
            result: result of ``fit``.

        Returns:
            Rates by name: clean_accuracy; robust_accuracy (the share classified correctly with and without the
            perturbation); attack_success_rate (1 - robust_accuracy); fooling_rate (the share whose predicted class the
            perturbation changes); and success_rate_on_correct (the share of the correctly classified examples that the
            perturbation breaks; only if any example is classified correctly). Each value is a ``pyrobust.metrics`` rate
            with its exact interval; predictions follow the rule of ``pyrobust.correctness``.

        Raises:
            InputError: mismatched shapes, or values or labels out of range.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits.
        """
        x, y = self._checked(x, y)
        return self._rates(x, y, result.apply(x))

    def _gradient(self, queries: Queries, x: Tensor, y: Tensor, delta: Tensor) -> Tensor:
        """Compute the gradient [1, ...] of the minibatch's loss with respect to delta."""
        x_adv = _added(x, delta[0], self.clip_min, self.clip_max)
        gradient = self._gradients(queries, x_adv, y, self.loss, False, self.beta)
        # A clipped coordinate does not move with delta.
        free = (x + delta >= self.clip_min) & (x + delta <= self.clip_max)
        return torch.where(free, gradient, 0).sum(0, keepdim=True, dtype=torch.float64)


def _added(x: Tensor, delta: Tensor, clip_min: float, clip_max: float) -> Tensor:
    """Return the points x + delta, clipped to the range and rounded toward x."""
    return add_perturbation(x, delta.to(x).expand_as(x).contiguous(), *finite_ends(clip_min, clip_max))
