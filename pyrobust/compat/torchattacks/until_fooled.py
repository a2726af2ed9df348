"""Attacks that end for an example once the model is fooled: FGSM, variants of PGD, APGD, FAB, Square and AutoAttack."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pyrobust.attacks import apgd, autoattack, autoattack_versions, fgsm, pgd
from pyrobust.attacks.black_box import square
from pyrobust.attacks.engine.batches import BatchAttack
from pyrobust.attacks.engine.settings import Converted, one_of, setting, state
from pyrobust.attacks.engine.state import AttackState
from pyrobust.attacks.eot import EOT
from pyrobust.attacks.losses import LOSSES, LossName
from pyrobust.attacks.minimum import fab
from pyrobust.checks import NormName
from pyrobust.errors import InputError

from ..autoattack_settings import NORMS
from .served import AllSteps, Engine, Seeded, Served, Start, slope_of_labels


def _targets(name: str, classes: Any) -> Any:
    """Return the number of target classes."""
    return classes - 1


def _seed(name: str, seed: int | None) -> int:
    return 0 if seed is None else seed


class _Steps(Seeded):
    """Takes projected gradient steps until an example fools the model; in training mode, always takes all steps."""

    eps: float = setting(help="radius of the ball", default=8 / 255)
    alpha: float = state(0.0)
    steps: int = state(1)
    random_start: bool = state(False)
    decay: float = state(0.0)
    loss: LossName = state("ce")
    eot_iter: int = state(1)
    _norm: ClassVar[NormName] = "linf"

    def _native(self, model: nn.Module, examples: int) -> Engine:
        if not self._modes[0]:
            return self._until_fooled(EOT(model, self.eot_iter) if self.eot_iter > 1 else model)

        # Batch statistics must not change because examples leave, and no example may be judged alone.
        def gradient(state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
            draws = [slope_of_labels(state, x_adv, coupled=True, loss=self.loss) for _ in range(self.eot_iter)]
            return torch.stack(draws).mean(0)

        return AllSteps(
            model,
            self.eps,
            self._norm,
            self.device,
            steps=self.steps,
            step_size=self._step_size(),
            gradient=gradient,
            start=self._random_start if self.random_start else None,
            decay=self.decay or None,
            seed=self._seed,
            batch_size=examples,
        )

    def _step_size(self) -> float:
        return self.alpha

    def _random_start(self, state: AttackState) -> Tensor:
        return state.start(0)

    def _until_fooled(self, model: nn.Module) -> BatchAttack:
        return _PGD(
            self._random_start,
            model,
            self.eps,
            self._norm,
            device=self.device,
            seed=self._seed,
            steps=self.steps,
            step_size=self._step_size(),
            random_start=self.random_start,
            momentum=self.decay,
            loss=self.loss,
        )


class _PGD(pgd.PGD):
    """PGD with the random start that torchattacks uses."""

    def __init__(self, start: Start, model: nn.Module, *settings: Any, **options: Any) -> None:
        super().__init__(model, *settings, **options)
        self._random_start = start

    def _first(self, state: AttackState, restart: int) -> Tensor:
        return self._random_start(state) if self.random_start else super()._first(state, restart)


class FGSM(_Steps):
    """The fast gradient sign method in linf.

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> atk = FGSM(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), eps=8/255)
    >>> atk(torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)).shape
    torch.Size([5, 1, 2, 2])
    """

    def _step_size(self) -> float:
        return self.eps

    def _until_fooled(self, model: nn.Module) -> BatchAttack:
        return fgsm.FGSM(model, self.eps, device=self.device, seed=self._seed)


class FFGSM(_Steps):
    """One signed step from a random point in the linf ball (Wong, Rice and Kolter, 2020).

    Args:
        model: maps images to logits.
        seed: random seed of random starts and random targets.

    >>> FFGSM(nn.Linear(4, 3)).alpha * 255
    10.0
    """

    alpha: float = setting(help="step size", default=10 / 255)
    random_start = True


class BIM(_Steps):
    """The basic iterative method in linf.

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> BIM(nn.Linear(4, 3), eps=8/255, steps=0).steps
    10
    """

    alpha: float = setting(help="step size", default=2 / 255)
    steps: int = setting(
        help="number of steps; 0 means min(255·eps + 4, 1.25·255·eps), rounded down (Kurakin et al., 2017)", default=10
    )

    def _constructed(self) -> None:
        self.steps = self.steps or int(min(self.eps * 255 + 4, 1.25 * self.eps * 255))


class PGD(_Steps):
    """Projected gradient descent in linf.

    Args:
        model: maps images to logits.
        seed: random seed of random starts and random targets.

    >>> atk = PGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), eps=8/255, alpha=2/255, steps=4)
    >>> images = torch.rand(5, 1, 2, 2)
    >>> bool(((atk(images, torch.zeros(5, dtype=torch.int64)) - images).abs() <= 8/255 + 1e-6).all())
    True
    """

    alpha: float = setting(help="step size", default=2 / 255)
    steps: int = setting(help="number of steps", default=10)
    random_start: bool = setting(
        help="whether to start from a random point of the ball, rather than from the image", default=True
    )


class PGDL2(_Steps):
    """Projected gradient descent in l2.

    Args:
        model: maps images to logits.
        seed: random seed of random starts and random targets.

    >>> PGDL2(nn.Linear(4, 3)).eps
    1.0
    """

    eps: float = setting(help="radius of the ball", default=1.0)
    alpha: float = setting(help="step size", default=0.2)
    steps: int = setting(help="number of steps", default=10)
    random_start: bool = setting(
        help="whether to start in a random direction from the image, at a distance uniform up to eps", default=True
    )
    eps_for_division: float = setting(help="accepted and unused; a gradient of zero gives no step", default=1e-10)

    _norm = "l2"

    def _random_start(self, state: AttackState) -> Tensor:
        share = state.noise("uniform", 1, shape=(1,))[:, 0, 0].double() / math.sqrt(12) + 0.5
        return state.place(state.norm.start(state.noise, 0, state.epsilon * share.clamp(0, 1)))


class EOTPGD(_Steps):
    """Projected gradient descent in linf on a randomized model, with gradients averaged over several draws.

    Args:
        model: maps images to logits.
        seed: random seed of random starts and random targets.

    >>> EOTPGD(nn.Linear(4, 3)).eot_iter
    2
    """

    alpha: float = setting(help="step size", default=2 / 255)
    steps: int = setting(help="number of steps", default=10)
    eot_iter: int = setting(help="draws per step, whose logits decide whether an example is fooled, too", default=2)
    random_start: bool = setting(
        help="whether to start from a random point of the ball, rather than from the image", default=True
    )


class UPGD(_Steps):
    """Projected gradient descent in linf with momentum, a choice of losses, and gradients from several draws.

    Args:
        model: maps images to logits.
        seed: random seed of random starts and random targets.

    >>> UPGD(nn.Linear(4, 3)).decay
    1.0
    """

    alpha: float = setting(help="step size", default=2 / 255)
    steps: int = setting(help="number of steps", default=10)
    random_start: bool = setting(
        help="whether to start from a random point of the ball, rather than from the image", default=False
    )
    loss: LossName = setting(one_of(*LOSSES), '"ce", "dlr" or "margin"; functions are not supported', default="ce")
    decay: float = setting(help="factor of the momentum", default=1.0)
    eot_iter: int = setting(help="draws per step", default=1)


class _Judged(Served):
    """An attack that returns the original image where it fails; each call draws the same random numbers."""

    norm: str = setting(help='"Linf", "L2" or "L1"', default="Linf")
    eps: float = setting(help="radius of the ball", default=8 / 255)
    seed: int = state(0)
    thr_decr: float = state(0.75)
    n_target_classes: int = state(9)
    rescale_schedule: bool = state(True)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments and errors are as for ``Served.forward``."""
        self._refuse_training_mode()
        self._seen = 0
        self._fooled: list[int] = []
        adversarial = super().forward(images, labels)
        result = images.detach().to(adversarial.device).clone()
        result[self._fooled] = adversarial[self._fooled]
        return result

    def _native(self, model: nn.Module, examples: int) -> Engine:
        if self.norm not in NORMS:
            raise InputError("norm", f"one of {', '.join(NORMS)}", repr(self.norm))
        native = self._judged(model, NORMS[self.norm])
        fooled = self._fooled

        def note(row: int, success: bool, point: Tensor) -> None:
            if success:
                fooled.append(row)

        native.callback = note
        return native

    @abc.abstractmethod
    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack | autoattack.AutoAttack:
        """Make the attack with the current settings."""


class APGD(_Judged):
    """Auto-PGD on the cross entropy or the DLR loss (Croce and Hein, 2020).

    Args:
        model: maps images to logits.

    >>> APGD(nn.Linear(4, 3), "L2", 0.5).steps
    10
    """

    steps: int = setting(help="number of steps per run", default=10)
    n_restarts: int = setting(help="number of runs", default=1)
    seed: int = setting(help="random seed of random starts", default=0)
    loss: Literal["ce", "dlr"] = setting(one_of("ce", "dlr"), '"ce" or "dlr"', default="ce")
    eot_iter: int = setting(help="draws of a randomized model per step", default=1)
    rho: float = setting(
        help="share of rising steps below which the step size is halved", default=0.75, attribute="thr_decr"
    )
    verbose: bool = setting(help="accepted; progress is not printed", default=False)

    _targetable = False

    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack:
        return _auto_pgd(self, model, norm, loss=self.loss)


class APGDT(_Judged):
    """Auto-PGD on the targeted DLR loss, toward each of the other classes in turn (Croce and Hein, 2020).

    Args:
        model: maps images to logits.

    >>> APGDT(nn.Linear(4, 5), n_classes=5).n_target_classes
    4
    """

    steps: int = setting(help="number of steps per run", default=10)
    n_restarts: int = setting(help="number of runs for each class", default=1)
    seed: int = setting(help="random seed of random starts", default=0)
    eot_iter: int = setting(help="draws of a randomized model per step", default=1)
    rho: float = setting(
        help="share of rising steps below which the step size is halved", default=0.75, attribute="thr_decr"
    )
    verbose: bool = setting(help="accepted; progress is not printed", default=False)
    n_classes: int = setting(
        _targets, "1 + the number of classes to try, by decreasing logit", default=10, attribute="n_target_classes"
    )

    _targetable = False

    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack:
        return _auto_pgd(self, model, norm, loss="dlr-targeted", targets=self.n_target_classes)


def _auto_pgd(settings: APGD | APGDT, model: nn.Module, norm: NormName, **keywords: Any) -> apgd.APGD:
    return apgd.APGD(
        EOT(model, settings.eot_iter) if settings.eot_iter > 1 else model,
        settings.eps,
        norm,
        device=settings.device,
        seed=settings.seed,
        steps=settings.steps,
        restarts=settings.n_restarts,
        rho=settings.thr_decr,
        **keywords,
    )


class FAB(_Judged):
    """The fast adaptive boundary attack (Croce and Hein, 2020).

    Args:
        model: maps images to logits.

    >>> FAB(nn.Linear(4, 3), "L2", eps=None).eps
    1.0
    """

    eps: Converted[float, float | None] = setting(
        help="radius of the ball; None for 0.3, 1 and 5 in Linf, L2 and L1", default=8 / 255
    )
    steps: int = setting(help="number of steps for each start and class", default=10)
    n_restarts: int = setting(help="number of starts", default=1)
    alpha_max: float = setting(help="largest weight of the step from the image", default=0.1)
    eta: float = setting(help="overshoot", default=1.05)
    beta: float = setting(help="backward step", default=0.9)
    verbose: bool = setting(help="accepted; progress is not printed", default=False)
    seed: int = setting(help="random seed of random starts", default=0)
    multi_targeted: bool = setting(
        help="try the other classes in turn, rather than the nearest boundary at every step", default=False
    )
    n_classes: int = setting(
        _targets, "1 + the number of classes to try, by decreasing logit", default=10, attribute="n_target_classes"
    )

    def _constructed(self) -> None:
        if self.eps is None:
            self.eps = {"Linf": 0.3, "L2": 1.0, "L1": 5.0}.get(self.norm, 0.3)

    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack:
        return fab.FAB(
            model,
            self.eps,
            norm,
            device=self.device,
            seed=self.seed,
            steps=self.steps,
            restarts=self.n_restarts,
            targets=self.n_target_classes if self.multi_targeted else None,
            alpha_max=self.alpha_max,
            eta=self.eta,
            beta=self.beta,
        )


class Square(_Judged):
    """Square attack, which uses only logits (Andriushchenko, Croce, Flammarion and Hein, 2020).

    Args:
        model: maps images to logits.

    >>> Square(nn.Linear(4, 3)).n_queries
    5000
    """

    n_queries: int = setting(help="queries per start", default=5000)
    n_restarts: int = setting(help="number of starts", default=1)
    p_init: float = setting(help="share of the image that the first windows cover", default=0.8)
    loss: Literal["margin", "ce"] = setting(one_of("margin", "ce"), '"margin" or "ce"', default="margin")
    resc_schedule: bool = setting(
        help="shrink the windows in proportion to n_queries", default=True, attribute="rescale_schedule"
    )
    seed: int = setting(help="random seed of windows and starts", default=0)
    verbose: bool = setting(help="accepted; progress is not printed", default=False)

    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack:
        return square.Square(
            model,
            self.eps,
            norm,
            device=self.device,
            seed=self.seed,
            n_queries=self.n_queries,
            p_init=self.p_init,
            restarts=self.n_restarts,
            loss=self.loss,
            rescale_schedule=self.rescale_schedule,
        )


class AutoAttack(_Judged):
    """AutoAttack with 100 steps as published (Croce and Hein, 2020), not 10; ``n_classes`` sets the number of targets.

    Args:
        model: maps images to logits.

    >>> AutoAttack(nn.Linear(4, 3)).version
    'standard'
    """

    version: autoattack_versions.Version = setting(help='"standard", "plus" or "rand"', default="standard")
    n_classes: int = setting(help="1 + the number of classes to try in the targeted attacks", default=10)
    seed: Converted[int, int | None] = setting(_seed, "random seed; None means 0", default=None)
    verbose: bool = setting(help="accepted; progress is not printed", default=False)

    _targetable = False

    def _judged(self, model: nn.Module, norm: NormName) -> autoattack.AutoAttack:
        native = autoattack.AutoAttack(model, self.eps, norm, device=self.device, seed=self.seed, version=self.version)
        for attack in native.attacks.values():
            if isinstance(attack, apgd.APGD | fab.FAB) and attack.targets is not None:
                attack.targets = self.n_classes - 1
        return native
