"""Attacks that search for the nearest adversarial example: CW, DeepFool, EADL1 and EADEN."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.attacks.engine.norms import L2, Norm
from pyrobust.attacks.engine.settings import setting
from pyrobust.attacks.minimum import carlini_wagner, deepfool, ead
from pyrobust.attacks.minimum.engine import MinimumNormAttack
from pyrobust.checks import count, non_negative, positive
from pyrobust.errors import InputError
from pyrobust.runner import modes_restored

from .served import Adapted, Engine, Seeded, Served

# DeepFool considers every class; the engine caps the number at the model's.
_ALL_CLASSES = 1 << 31


class _Nearest(Served):
    """Attacks that return the nearest adversarial example, or the image if none is found, with repeatable results."""

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments and errors are as for ``Served.forward``."""
        self._refuse_training_mode()
        return super().forward(images, labels)

    def _native(self, model: nn.Module, examples: int) -> Engine:
        return _Minimum(self._minimum(model))

    def _grid(self) -> str | None:
        """Return the grid on which the attack must search: "1/255" if it returns integers, else None."""
        return "1/255" if self.return_type == "int" else None

    @abc.abstractmethod
    def _minimum(self, model: nn.Module) -> MinimumNormAttack:
        """Make the attack with the current settings."""


class _Minimum:
    """A minimum-norm attack whose results may lie at any distance."""

    def __init__(self, attack: MinimumNormAttack) -> None:
        self._attack = attack

    def generate(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        indices: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """See ``MinimumNormAttack.minimum``."""
        return self._attack.minimum(x, y, targeted, target_labels, indices=indices).x_adv


class _BeyondRounding(MinimumNormAttack):
    """An attack that moves points outward, up to twice their distance, until they fool the model in any batch."""

    _certain_overshoots = (*MinimumNormAttack._certain_overshoots, 1.03, 1.1, 1.3, 2.0)


class _CarliniWagner(_BeyondRounding, carlini_wagner.CarliniWagner):
    pass


class _DeepFool(_BeyondRounding, deepfool.DeepFool):
    pass


class _EAD(_BeyondRounding, ead.EAD):
    pass


class _ElasticNetEAD(_EAD):
    """EAD that returns the point with the least ‖z − x‖₂² + β·‖z − x‖₁."""

    norms = ("l2",)

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, norm="l2", **options)

    @property
    def _norm(self) -> Norm:
        return _ElasticNet(self.beta)


class _ElasticNet(L2):
    """A norm whose steps and balls are those of l2, but whose distances are elastic-net distances."""

    def __init__(self, beta: float) -> None:
        self._beta = beta

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Compute ‖x_adv − x‖₂² + β·‖x_adv − x‖₁."""
        size = (x_adv.double() - x.double()).abs_().flatten(1)
        return (size.square() + self._beta * size).sum(1)

    def diameter(self, coordinates: int, width: float) -> float:
        """Return the largest elastic-net distance in a box of this width.

        ``MinimumNormAttack.minimum`` also uses this number as the radius of an l2 ball that must contain the box. If
        the width is 1, the ball does, because the number is at least the largest l2 distance in the box.
        """
        return coordinates * (width**2 + self._beta * width)


class CW(_Nearest, Seeded):
    """The l2 attack of Carlini and Wagner (2017), with one constant for all images.

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> CW(nn.Linear(4, 3)).steps
    50
    """

    c: float = setting(
        help="weight of the margin against the squared distance, positive; it is not searched", default=1
    )
    kappa: float = setting(
        help="margin beyond which only the distance counts; as in torchattacks, the nearest adversarial point has less",
        default=0,
    )
    steps: int = setting(help="number of steps", default=50)
    lr: float = setting(help="learning rate of Adam", default=0.01)

    def _minimum(self, model: nn.Module) -> MinimumNormAttack:
        return _CarliniWagner(
            model,
            device=self.device,
            grid=self._grid(),
            seed=self._seed,
            steps=self.steps,
            searches=1,
            constant=positive("c", self.c),
            learning_rate=positive("lr", self.lr),
            confidence=non_negative("kappa", self.kappa),
            abort_early=False,  # with so few steps an example may improve after a pause
        )


class DeepFool(_Nearest):
    """DeepFool in l2 (Moosavi-Dezfooli, Fawzi and Frossard, 2016), with a gradient for every class.

    Args:
        model: maps images to logits.

    >>> DeepFool(nn.Linear(4, 3)).overshoot
    0.02
    """

    _targetable = False

    steps: int = setting(help="largest number of steps", default=50)
    overshoot: float = setting(help="share by which a step passes the linearized boundary", default=0.02)

    def forward_return_target_labels(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Generate adversarial images [N, C, H, W]; also return the classes [N] that the model assigns to them.

        Arguments and errors are as for ``forward``.
        """
        adversarial = self.forward(images, labels)
        with modes_restored(self.model), torch.no_grad():
            self._set_modes()
            return adversarial, Adapted(self)(adversarial).argmax(1)

    def _minimum(self, model: nn.Module) -> MinimumNormAttack:
        return _DeepFool(
            model,
            norm="l2",
            device=self.device,
            grid=self._grid(),
            steps=self.steps,
            candidates=_ALL_CLASSES,
            overshoot=self.overshoot,
        )


class EADL1(_Nearest, Seeded):
    """The elastic-net attack that returns the nearest point in l1 (Chen, Sharma, Zhang, Yi and Hsieh, 2018).

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> EADL1(nn.Linear(4, 3)).max_iterations
    100
    """

    _engine: type[ead.EAD] = _EAD

    kappa: float = setting(
        help="0; the nearest adversarial points, which this attack returns, have no larger margin", default=0
    )
    lr: float = setting(help="first step size", default=0.01)
    binary_search_steps: int = setting(help="number of constants to try", default=9)
    max_iterations: int = setting(help="number of steps for each constant", default=100)
    abort_early: bool = setting(
        help="whether an image leaves the steps for a constant when it no longer improves", default=True
    )
    initial_const: float = setting(help="first constant", default=0.001)
    beta: float = setting(help="weight of l1", default=0.001)

    def _minimum(self, model: nn.Module) -> MinimumNormAttack:
        if non_negative("kappa", self.kappa):
            raise InputError(
                "kappa",
                f"0 for {self.attack}, which returns the nearest adversarial points",
                self.kappa,
                "keep torchattacks itself for points with a margin",
            )
        return self._engine(
            model,
            device=self.device,
            grid=self._grid(),
            seed=self._seed,
            steps=count("max_iterations", self.max_iterations),
            searches=count("binary_search_steps", self.binary_search_steps),
            constant=positive("initial_const", self.initial_const),
            learning_rate=positive("lr", self.lr),
            beta=self.beta,
            abort_early=self.abort_early,
        )


class EADEN(EADL1):
    """The elastic-net attack that returns the nearest point in l2² + beta·l1 (Chen, Sharma, Zhang, Yi and Hsieh, 2018).

    Args:
        model, kappa, lr, binary_search_steps, max_iterations, abort_early, initial_const, beta, seed: as for ``EADL1``.

    >>> EADEN(nn.Linear(4, 3)).attack
    'EADEN'
    """

    _engine = _ElasticNetEAD
