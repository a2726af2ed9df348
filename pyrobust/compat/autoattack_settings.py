"""The settings of AutoAttack's attacks, under the names of the reference implementation.

An unknown name is an error. ``verbose`` is taken and has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from pyrobust.attacks.apgd import APGD
from pyrobust.attacks.engine import BatchAttack
from pyrobust.attacks.eot import EOT
from pyrobust.attacks.fab import FAB
from pyrobust.attacks.square import Square
from pyrobust.runner import Classifier

#: (name of an attack, x, y) → x_adv.
Run: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]


class Part(Protocol):
    """The settings of one attack."""

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """The attack of that name with these settings."""


@dataclass(slots=True)
class APGDPart:
    """Of "apgd-ce" and "apgd-dlr"."""

    _run: Run
    _: KW_ONLY
    n_restarts: int = 1
    n_iter: int = 100
    eot_iter: int = 1
    thr_decr: float = 0.75
    use_largereps: bool = False
    loss: str = "ce"
    verbose: bool = False

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Adversarial examples of this attack alone; x itself where there is none."""
        return self._run(f"apgd-{self.loss}", x, y)

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """The attack of that name with these settings."""
        return self._apgd(model, epsilon, norm, loss=name[5:], **options)

    def _apgd(self, model: Classifier, epsilon: float, norm: str, **options: Any) -> BatchAttack:
        return APGD(
            EOT(model, self.eot_iter) if self.eot_iter > 1 else model,
            epsilon,
            norm,
            steps=self.n_iter,
            restarts=self.n_restarts,
            rho=self.thr_decr,
            multi_epsilon=self.use_largereps,
            **options,
        )


@dataclass(slots=True)
class TargetedPart(APGDPart):
    """Of "apgd-t"."""

    loss: str = "dlr-targeted"
    n_target_classes: int = 9

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Adversarial examples of this attack alone; x itself where there is none."""
        return self._run("apgd-t", x, y)

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """The attack with these settings."""
        return self._apgd(model, epsilon, norm, loss=self.loss, targets=self.n_target_classes, **options)


@dataclass(slots=True)
class FABPart:
    """Of "fab" and "fab-t"; the latter has one start, whatever n_restarts."""

    _run: Run
    _: KW_ONLY
    n_restarts: int = 5
    n_iter: int = 100
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    targeted: bool = False
    n_target_classes: int = 9
    verbose: bool = False

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Adversarial examples of this attack alone, targeted or not; x itself where there is none."""
        return self._run("fab-t" if self.targeted else "fab", x, y)

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """The attack of that name with these settings."""
        return FAB(
            model,
            epsilon,
            norm,
            steps=self.n_iter,
            restarts=1 if name == "fab-t" else self.n_restarts,
            targets=self.n_target_classes if name == "fab-t" else None,
            alpha_max=self.alpha_max,
            eta=self.eta,
            beta=self.beta,
            **options,
        )


@dataclass(slots=True)
class SquarePart:
    """Of "square"."""

    _run: Run
    _: KW_ONLY
    n_queries: int = 5000
    p_init: float = 0.8
    n_restarts: int = 1
    loss: str = "margin"
    rescale_schedule: bool = False
    verbose: bool = False

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Adversarial examples of this attack alone; x itself where there is none."""
        return self._run("square", x, y)

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """The attack with these settings."""
        return Square(
            model,
            epsilon,
            norm,
            n_queries=self.n_queries,
            p_init=self.p_init,
            restarts=self.n_restarts,
            loss=self.loss,
            rescale_schedule=self.rescale_schedule,
            **options,
        )
