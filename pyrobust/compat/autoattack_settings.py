"""The settings of AutoAttack's attacks, under the reference implementation's names.

Setting a name that the settings do not have is an error. ``verbose`` is accepted and has no effect.
"""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from pyrobust.attacks.apgd import APGD
from pyrobust.attacks.black_box.square import Square
from pyrobust.attacks.engine.batches import BatchAttack
from pyrobust.attacks.engine.queries import Queries
from pyrobust.attacks.eot import EOT
from pyrobust.attacks.losses import named_loss
from pyrobust.attacks.minimum.fab import FAB
from pyrobust.checks import NormName, class_labels
from pyrobust.errors import InputError
from pyrobust.runner import Classifier, evaluation_mode

#: The reference's names of norms → pyrobust's.
NORMS: dict[str, NormName] = {"Linf": "linf", "L2": "l2", "L1": "l1"}


class Evaluation(Protocol):
    """The parts of an AutoAttack object that the settings of its attacks need."""

    model: Classifier

    def options(self, seed: int | None, bs: int) -> dict[str, Any]:
        """Return the keyword arguments that all attacks share."""

    def perturb(self, name: str, seed: int | None, x: Tensor, y: Tensor) -> Tensor:
        """Run the attack of that name alone."""

    def predict(self, x: Tensor, bs: int) -> Tensor:
        """Return the predicted classes of x, int64 [N] on the CPU."""


@dataclass(slots=True)
class AttackSettings(abc.ABC):
    """The settings of one attack, with ``perturb`` to run that attack alone."""

    _evaluation: Evaluation
    eps: float
    norm: str
    _: KW_ONLY
    seed: int | None = None
    verbose: bool = False

    def perturb(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Run this attack alone; an example is returned unchanged if no adversarial example is found.

        Args:
            x: [N, ...], in [0, 1].
            y: [N], the labels; default: the predicted classes.
        """
        return self._evaluation.perturb(self._name(), self.seed, x, self._labels(x, y))

    @abc.abstractmethod
    def native(self, name: str, model: Classifier, options: dict[str, Any]) -> BatchAttack:
        """Make the attack of that name with these settings."""

    @abc.abstractmethod
    def _name(self) -> str:
        """Name of the attack that ``perturb`` runs."""

    def _labels(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self._evaluation.predict(x, max(len(x), 1)).clamp(min=0) if y is None else y

    def _options(self, x: Tensor) -> dict[str, Any]:
        return self._evaluation.options(self.seed, max(len(x), 1))


@dataclass(slots=True, kw_only=True)
class APGDSettings(AttackSettings):
    """The settings of "apgd-ce" and "apgd-dlr"."""

    n_restarts: int = 1
    n_iter: int = 100
    eot_iter: int = 1
    thr_decr: float = 0.75
    use_largereps: bool = False
    loss: str = "ce"

    def attack_single_run(
        self, x: Tensor, y: Tensor, x_init: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run this attack from one random start ("apgd-t": one for each target class).

        Args:
            x: [N, ...], in [0, 1].
            y: [N], the labels.
            x_init: not supported.

        Returns:
            The tuple (x_best, acc, loss, x_best). x_best [N, ...] is the first point that fools the model or, if there
            is none, the point of highest loss. acc, bool [N], says whether x_best is classified correctly. loss [N] is
            the loss of x_best; for "apgd-t", it is the untargeted DLR loss.

        Raises:
            InputError: an ``x_init``; or, for "apgd-t", a model with fewer than four classes, for which this method
                does not replace the attack.
        """
        if x_init is not None:
            raise InputError("x_init", "None: starts are random here", hint="set seed for another one")
        single = dataclasses.replace(self, n_restarts=1)
        with evaluation_mode(self._evaluation.model):
            attack = single.native(self._name(), self._evaluation.model, self._options(x))
        x_best = attack.generate(x, y)
        queries = Queries(attack.runner)
        labels = class_labels("y", y, len(x))
        acc = queries.judge.correct(x_best, labels).to(x.device)
        with attack.runner.session(gradients=True):
            logits = queries.logits(attack.runner.batch(x_best))
            target = labels.to(logits.device)
            loss = named_loss(logits, target, target, name="ce" if self.loss == "ce" else "dlr", targeted=False).value
        return x_best, acc, loss.to(x), x_best

    def native(self, name: str, model: Classifier, options: dict[str, Any]) -> BatchAttack:
        """Make the attack of that name with these settings."""
        return self._apgd(model, loss=name[5:], **options)

    def _name(self) -> str:
        return f"apgd-{self.loss}"

    def _apgd(self, model: Classifier, **options: Any) -> BatchAttack:
        return APGD(
            EOT(model, self.eot_iter) if self.eot_iter > 1 else model,
            self.eps,
            NORMS[self.norm],
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

    def native(self, name: str, model: Classifier, options: dict[str, Any]) -> BatchAttack:
        """Make the attack with these settings."""
        return self._apgd(model, loss=self.loss, targets=self.n_target_classes, **options)

    def _name(self) -> str:
        return "apgd-t"


@dataclass(slots=True, kw_only=True)
class FABSettings(AttackSettings):
    """The settings of "fab" and "fab-t"; "fab-t" ignores n_restarts and has one start."""

    n_restarts: int = 5
    n_iter: int = 100
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    targeted: bool = False
    n_target_classes: int = 9

    def attack_single_run(
        self, x: Tensor, y: Tensor | None = None, use_rand_start: bool = False, is_targeted: bool = False
    ) -> Tensor:
        """Find the nearest adversarial examples, at any distance, with a search that starts at x.

        Args:
            x: [N, ...], in [0, 1].
            y: [N], the labels; default: the predicted classes.
            use_rand_start: not supported.
            is_targeted: True to try ``n_target_classes`` classes in turn, False to try all classes at once.

        Returns:
            [N, ...]; x itself where no adversarial example was found.

        Raises:
            InputError: ``use_rand_start``.
        """
        if use_rand_start:
            raise InputError("use_rand_start", "False: the first start is x", hint="set n_restarts for random ones")
        single = dataclasses.replace(self, n_restarts=1)
        with evaluation_mode(self._evaluation.model):
            attack = single._fab("fab-t" if is_targeted else "fab", self._evaluation.model, self._options(x))
        return attack.minimum(x, self._labels(x, y)).x_adv

    def native(self, name: str, model: Classifier, options: dict[str, Any]) -> BatchAttack:
        """Make the attack of that name with these settings."""
        return self._fab(name, model, options)

    def _fab(self, name: str, model: Classifier, options: dict[str, Any]) -> FAB:
        return FAB(
            model,
            self.eps,
            NORMS[self.norm],
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
    loss: Literal["margin", "ce"] = "margin"
    rescale_schedule: bool = False

    def native(self, name: str, model: Classifier, options: dict[str, Any]) -> BatchAttack:
        """Make the attack with these settings."""
        return Square(
            model,
            self.eps,
            NORMS[self.norm],
            n_queries=self.n_queries,
            p_init=self.p_init,
            restarts=self.n_restarts,
            loss=self.loss,
            rescale_schedule=self.rescale_schedule,
            **options,
        )

    def _name(self) -> str:
        return "square"
