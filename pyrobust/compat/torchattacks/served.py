"""Parts shared by the attacks that run on pyrobust's engine, and a gradient attack that always takes all steps."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.attacks.engine.batches import BatchAttack
from pyrobust.attacks.engine.norms import per_example
from pyrobust.attacks.engine.queries import Queries
from pyrobust.attacks.engine.settings import DeclaredInOrder, setting
from pyrobust.attacks.engine.state import AttackState
from pyrobust.attacks.losses import LossName, named_loss
from pyrobust.checks import NormName, count, positive, shape_text
from pyrobust.errors import InputError
from pyrobust.runner import modes_restored

from .attack import Attack

Gradient: TypeAlias = Callable[[AttackState, Tensor, Tensor, int], Tensor]
"""(state, x_adv [B, ...], velocity [B, ...], step) → the gradient [B, ...] to ascend."""
Start: TypeAlias = Callable[[AttackState], Tensor]
"""state → the first iterate [B, ...], inside the ball and the clip range."""


_PACKAGE = __name__.rpartition(".")[0]


class Engine(Protocol):
    """An attack with the interface of those in pyrobust.attacks; its ``generate`` takes image indices, too."""

    def generate(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        indices: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """See ``BatchAttack.generate``."""
        ...


class Served(Attack, DeclaredInOrder, abc.ABC):
    """An attack that pyrobust's engine runs; subclasses declare torchattacks' settings and define ``_native``.

    Args:
        model: maps images to logits.
    """

    _targetable = True  # whether there is a targeted mode

    if TYPE_CHECKING:
        model: nn.Module = setting()

    def __init__(self, model: nn.Module, **seeded: int) -> None:
        name = next(kind.__name__ for kind in type(self).__mro__ if kind.__module__.startswith(_PACKAGE))
        super().__init__(name, model, **seeded)
        self.supported_mode = ["default", *["targeted"] * self._targetable]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images.

        Args:
            images: [N, C, H, W], in [0, 1] even if the model takes normalized images.
            labels: [N]; after ``set_mode_targeted_by_label``, these are the targets.

        Returns:
            [N, C, H, W] in [0, 1].

        Raises:
            InputError: images outside [0, 1], labels missing or out of range, or a training mode that the attack does
                not support.
        """
        if labels is None:
            raise InputError("labels", f"the labels of the images, which {self.attack} needs", "None")
        with modes_restored(self.model):
            images, labels = images.detach().to(self.device), labels.detach().to(self.device)
            targets = self.get_target_label(images, labels) if self.targeted else None
            native = self._native(Adapted(self), len(images))
            indices = torch.arange(self._seen, self._seen + len(images))
            adversarial = native.generate(images, labels, self.targeted, targets, indices=indices)
        self._seen += len(images)
        return adversarial

    @abc.abstractmethod
    def _native(self, model: nn.Module, examples: int) -> Engine:
        """Make the attack with the current settings for a batch of this size."""

    def _refuse_training_mode(self) -> None:
        if self._modes[0]:
            raise InputError(
                "model_training",
                f"False for {self.attack}, which judges examples one by one",
                hint="call set_model_training_mode() first",
            )

    def _batch_size(self, examples: int) -> int | None:
        """Return how many rows a forward pass takes: all if rows affect each other, else as many as fit in memory."""
        return examples if self._modes[0] else None


class Seeded(Served):
    """An attack whose random numbers depend on a seed and on the number of images attacked so far.

    Args:
        model: maps images to logits.
        seed: random seed of the attack and of random targets.
    """

    if TYPE_CHECKING:
        seed: int = setting(default=0, kw_only=True)

    def __init__(self, model: nn.Module, *, seed: int = 0) -> None:
        super().__init__(model, seed=seed)


class EveryExample:
    """A mix-in for attacks on all examples, including examples that are misclassified without an attack."""

    def _correct(self, queries: Queries, x: Tensor, y: Tensor, *, targeted: bool = False) -> Tensor:
        return torch.ones(len(x), dtype=torch.bool)


class AllSteps(EveryExample, BatchAttack):
    """Takes all steps for every example, with signed or normalized gradients, even if an iterate fools the model.

    Step t moves x_t to x_{t+1} = Π(x_t + step_size·d(g_t)), where Π is the projection and d(g_t) is the direction of
    the step for g_t. If decay is None, g_t is the gradient ∇_t; otherwise, g_t = decay·g_{t−1} + ∇_t / mean|∇_t|. If
    step_size is None, x_{t+1} = Π(x_t + g_t).
    """

    def __init__(
        self,
        model: nn.Module,
        epsilon: float,
        norm: NormName = "linf",
        device: torch.device | str | None = None,
        *,
        steps: int,
        step_size: float | None,
        gradient: Gradient,
        start: Start | None = None,
        decay: float | None = None,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(model, epsilon, norm, device=device, seed=seed, batch_size=batch_size)
        self.steps = count("steps", steps)
        self.step_size = None if step_size is None else positive("alpha", step_size)
        self.decay = decay
        self._gradient = gradient
        self._start = start

    def _run(self, state: AttackState) -> None:
        x_adv = state.x.clone() if self._start is None else self._start(state)
        velocity = torch.zeros_like(x_adv)
        for t in range(self.steps):
            gradient = self._gradient(state, x_adv, velocity, t)
            if self.decay is not None:
                velocity = velocity.mul_(self.decay).add_(over_mean(gradient))
                gradient = velocity.clone()
            if self.step_size is None:
                x_adv = state.place(gradient.add_(x_adv).sub_(state.x))
            else:
                x_adv = state.step(x_adv, gradient, torch.full_like(state.epsilon, self.step_size))
        state.finish(x_adv)


def over_mean(gradient: Tensor) -> Tensor:
    """Divide each example's gradient by its mean absolute value; a gradient of 0 stays 0."""
    mean = gradient.abs().flatten(1).mean(1).clamp_(min=torch.finfo(gradient.dtype).tiny)
    return gradient / per_example(mean, gradient)


def cross_entropy(state: AttackState, logits: Tensor) -> Tensor:
    """Return the cross entropy [B] of the labels; for a targeted attack, the negative cross entropy of the targets."""
    value = functional.cross_entropy(logits, state.y, reduction="none")
    return -value if state.targeted else value


def image_batch(attack: Attack, images: Tensor) -> Tensor:
    """Return images [N, C, H, W]; raise InputError for another shape."""
    if images.dim() != 4:
        raise InputError("images", f"[N, C, H, W] for {attack.attack}", f"shape {shape_text(images.shape)}")
    return images


def slope(x: Tensor, cost: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient [B, ...] at x of the sum of the costs [B]."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        total = cost(leaf).sum()
    return torch.autograd.grad(total, leaf)[0]


def slope_of_labels(state: AttackState, x: Tensor, *, coupled: bool, loss: LossName = "ce") -> Tensor:
    """Return the gradient [B, ...] of the loss, up to a positive factor for each example.

    The factors prevent underflow. If examples are coupled, an input affects the losses of several examples, and
    different factors would give these losses different weights. All factors of "ce" are therefore 1 in this case.
    """
    if coupled and loss == "ce":
        return slope(x, lambda z: cross_entropy(state, state.logits(z)))
    return state.gradient(x, functools.partial(named_loss, name=loss, targeted=state.targeted)).gradient


class Adapted(nn.Module):
    """The attacked model with normalization as its first layer, always in the mode set for attacks."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self.model = attack.model
        self._normalize = attack.normalize if attack.normalization_used is not None else nn.Identity()
        self._set_modes = attack._set_modes

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        logits: Tensor = self.model(self._normalize(images))
        return logits

    def train(self, mode: bool = True) -> Adapted:
        """Put the model into the mode that attacks were told to use. The argument ``mode`` is ignored."""
        self._set_modes()
        return self
