"""Projected gradient descent, with random starts and momentum."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pyrobust.checks import NORMS, count, non_negative, positive
from pyrobust.errors import InputError

from .engine.batches import BatchAttack
from .engine.norms import per_example
from .engine.settings import one_of, optional, setting, truth
from .engine.state import AttackState
from .engine.tracking import Best
from .losses import LOSS_HELP, LOSSES, Loss, LossName, named_loss


class PGD(BatchAttack):
    """Projected gradient descent on the negative loss (Madry, Makelov, Schmidt, Tsipras and Vladu, 2018).

    x_{t+1} = Π(x_t + α·d(∇L(x_t))). Here Π projects on the ball and then on the clip range in linf and l2, and on their
    intersection in l1 and l0. The direction d is the sign of the gradient in linf; it is the gradient divided by its l2
    norm in l2, and by its largest coordinate in l1 and l0. With momentum μ, the gradient is replaced by g_{t+1} = μ·g_t
    + ∇L(x_t) / ‖∇L(x_t)‖₁ (MI-FGSM; Dong et al., 2018).

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.

    Raises:
        InputError: a value out of range, or several restarts without a random start.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> attack = PGD(model, epsilon=0.25, steps=5)
    >>> x, y = torch.tensor([[0.5, 0.25], [0.9, 0.1]]), torch.tensor([0, 0])
    >>> attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"]
    0.5
    """

    _elementwise = NORMS

    steps: int = setting(count, "number of gradient steps, at least 1", default=40, option="steps")
    step_size: float | None = setting(
        optional(positive),
        "α, positive, in units of epsilon where that has elements; default 2.5·epsilon / steps",
        default=None,
    )
    random_start: bool = setting(
        truth, "whether to start from a uniformly random point of the ball, rather than from x", default=True
    )
    restarts: int = setting(
        count,
        "number of starts; each attacks only the examples that earlier ones did not fool",
        default=1,
        option="restarts",
    )
    momentum: float = setting(non_negative, "μ ≥ 0", default=0.0)
    loss: LossName = setting(one_of(*LOSSES), LOSS_HELP, default="ce")

    def _check_settings(self) -> None:
        if self.restarts > 1 and not self.random_start:
            raise InputError("restarts", "1 with random_start=False, where all restarts are the same", self.restarts)

    def _run(self, state: AttackState) -> None:
        loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
        best = Best(state)
        for restart in range(self.restarts):
            self._ascend(state, best, loss, self._first(state, restart))
            if not len(state):
                break
        state.finish(best.x)

    def _step_sizes(self, state: AttackState) -> Tensor:
        """The step size of each example, float64 [B]."""
        if self.step_size is None:
            return state.norm.default_step(state.epsilon, self.steps, state.upper - state.lower)
        return torch.full_like(state.epsilon, self.step_size)

    def _first(self, state: AttackState, restart: int) -> Tensor:
        """The start of a run, in the ball and the clip range."""
        return state.start(restart) if self.random_start else state.x.clone()

    def _ascend(self, state: AttackState, best: Best, loss: Loss, x_adv: Tensor) -> None:
        """Do the steps from one start, and a final forward pass for the last iterate."""
        velocity = torch.zeros_like(x_adv) if self.momentum else x_adv[:, :0]
        step = self._step_sizes(state)
        for _ in range(self.steps):
            _, value, gradient, verdict = state.gradient(x_adv, loss)
            best.offer(value, x_adv, may_keep=True)
            x_adv, gradient, velocity, best.x, best.value = state.retire(
                verdict, x_adv, gradient, velocity, best.x, best.value
            )
            if not len(state):
                return
            if self.momentum:
                length = gradient.abs().flatten(1).sum(1).clamp_(min=torch.finfo(gradient.dtype).tiny)
                velocity = velocity.mul_(self.momentum).add_(gradient.div_(per_example(length, gradient)))
                gradient = velocity.clone()
            if len(step) != len(state):
                step = self._step_sizes(state)
            x_adv = state.step(x_adv, gradient, step)
        logits = state.logits(x_adv)
        value = loss(logits, state.y, state.y).value
        best.offer(value, x_adv, may_keep=True)
        _, best.x, best.value = state.retire(state.verdict(logits), x_adv, best.x, best.value)


class BIM(PGD):
    """The basic iterative method (Kurakin, Goodfellow and Bengio, 2017): ``PGD`` started from x itself.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.
        step_size, momentum, loss: see ``PGD``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> attack = BIM(lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1), epsilon=0.25, steps=5)
    >>> attack.generate(torch.tensor([[0.625]]), torch.tensor([0]))
    tensor([[0.3750]])
    """

    steps: int = setting(count, "number of gradient steps, at least 1", default=10, option="steps")
    random_start: bool = setting(default=False, init=False)
    restarts: int = setting(default=1, init=False)
