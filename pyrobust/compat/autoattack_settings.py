"""The settings of AutoAttack's attacks, under the reference implementation's names.

An unknown name is an error. ``verbose`` is accepted and has no effect.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

from torch import Tensor

from pyrobust.attacks.apgd import APGD
from pyrobust.attacks.engine import BatchAttack
from pyrobust.attacks.eot import EOT
from pyrobust.attacks.fab import FAB
from pyrobust.attacks.square import Square
from pyrobust.runner import Classifier

#: (name of an attack, x, y) → x_adv.
RunAttack: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]


@dataclass(slots=True)
class AttackSettings(abc.ABC):
    """The settings of one attack, which ``perturb`` runs alone."""

    _run: RunAttack
    _: KW_ONLY
    verbose: bool = False

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Run this attack alone; an example without an adversarial example comes back unchanged."""
        return self._run(self._name(), x, y)

    @abc.abstractmethod
    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """Make the attack of that name with these settings."""

    @abc.abstractmethod
    def _name(self) -> str:
        """Name of the attack that ``perturb`` runs."""


@dataclass(slots=True, kw_only=True)
class APGDSettings(AttackSettings):
    """The settings of "apgd-ce" and "apgd-dlr"."""

    n_restarts: int = 1
    n_iter: int = 100
    eot_iter: int = 1
    thr_decr: float = 0.75
    use_largereps: bool = False
    loss: str = "ce"

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """Make the attack of that name with these settings."""
        return self._apgd(model, epsilon, norm, loss=name[5:], **options)

    def _name(self) -> str:
        return f"apgd-{self.loss}"

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


@dataclass(slots=True, kw_only=True)
class TargetedAPGDSettings(APGDSettings):
    """The settings of "apgd-t"."""

    loss: str = "dlr-targeted"
    n_target_classes: int = 9

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """Make the attack with these settings."""
        return self._apgd(model, epsilon, norm, loss=self.loss, targets=self.n_target_classes, **options)

    def _name(self) -> str:
        return "apgd-t"


@dataclass(slots=True, kw_only=True)
class FABSettings(AttackSettings):
    """The settings of "fab" and "fab-t"; "fab-t" has one start, whatever n_restarts."""

    n_restarts: int = 5
    n_iter: int = 100
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    targeted: bool = False
    n_target_classes: int = 9

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """Make the attack of that name with these settings."""
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

    def _name(self) -> str:
        return "fab-t" if self.targeted else "fab"


@dataclass(slots=True, kw_only=True)
class SquareSettings(AttackSettings):
    """The settings of "square"."""

    n_queries: int = 5000
    p_init: float = 0.8
    n_restarts: int = 1
    loss: str = "margin"
    rescale_schedule: bool = False

    def native(self, name: str, model: Classifier, epsilon: float, norm: str, options: dict[str, Any]) -> BatchAttack:
        """Make the attack with these settings."""
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

    def _name(self) -> str:
        return "square"
