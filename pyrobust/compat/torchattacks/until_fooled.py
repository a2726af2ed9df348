"""Attacks that end for an example as soon as it is fooled: FGSM, PGD's relatives, APGD, FAB, Square, AutoAttack."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pyrobust.attacks import apgd, autoattack, autoattack_versions, fgsm, pgd
from pyrobust.attacks.black_box import square
from pyrobust.attacks.engine import BatchAttack
from pyrobust.attacks.eot import EOT
from pyrobust.attacks.losses import LOSSES, LossName, check_loss
from pyrobust.attacks.minimum import fab
from pyrobust.attacks.state import AttackState
from pyrobust.checks import NormName
from pyrobust.errors import InputError

from ..autoattack_settings import NORMS
from .served import AllSteps, Engine, Served, Start, slope_of_labels


@dataclass(frozen=True)
class _Plan:
    """Settings of an attack by gradient steps."""

    epsilon: float
    step_size: float
    steps: int
    norm: NormName = "linf"
    random_start: bool = False
    decay: float = 0.0
    loss: LossName = "ce"
    draws: int = 1


class _Steps(Served):
    """Projected gradient steps: until an example is fooled, or all of them while the model is in training mode."""

    @abc.abstractmethod
    def _plan(self) -> _Plan:
        """The current settings."""

    def _native(self, model: nn.Module, examples: int) -> Engine:
        plan = self._plan()
        if not self._modes[0]:
            return self._until_fooled(EOT(model, plan.draws) if plan.draws > 1 else model, plan)

        # Batch statistics must not change because examples leave, and no example may be judged alone.
        def gradient(state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
            draws = [slope_of_labels(state, x_adv, coupled=True, loss=plan.loss) for _ in range(plan.draws)]
            return torch.stack(draws).mean(0)

        return AllSteps(
            model,
            plan.epsilon,
            plan.norm,
            self.device,
            steps=plan.steps,
            step_size=plan.step_size,
            gradient=gradient,
            start=self._random_start if plan.random_start else None,
            decay=plan.decay or None,
            seed=self._seed,
            batch_size=examples,
        )

    def _random_start(self, state: AttackState) -> Tensor:
        return state.start(0)

    def _until_fooled(self, model: nn.Module, plan: _Plan) -> BatchAttack:
        return _PGD(
            self._random_start,
            model,
            plan.epsilon,
            plan.norm,
            device=self.device,
            seed=self._seed,
            steps=plan.steps,
            step_size=plan.step_size,
            random_start=plan.random_start,
            momentum=plan.decay,
            loss=plan.loss,
        )


class _PGD(pgd.PGD):
    """PGD with a random start of the drop-in replacement's."""

    def __init__(self, start: Start, model: nn.Module, *settings: Any, **options: Any) -> None:
        super().__init__(model, *settings, **options)
        self._random_start = start

    def _first(self, state: AttackState, restart: int) -> Tensor:
        return self._random_start(state) if self.random_start else super()._first(state, restart)


class FGSM(_Steps):
    """The fast gradient sign method in linf.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        seed: random seed of random targets.

    >>> atk = FGSM(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), eps=8/255)
    >>> atk(torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)).shape
    torch.Size([5, 1, 2, 2])
    """

    def __init__(self, model: nn.Module, eps: float = 8 / 255, *, seed: int = 0) -> None:
        super().__init__("FGSM", model, seed=seed)
        self.eps = eps
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.eps, 1)

    def _until_fooled(self, model: nn.Module, plan: _Plan) -> BatchAttack:
        return fgsm.FGSM(model, plan.epsilon, device=self.device, seed=self._seed)


class FFGSM(_Steps):
    """One signed step from a random point of the ball in linf (Wong, Rice and Kolter, 2020).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        seed: random seed of random starts and random targets.

    >>> FFGSM(nn.Linear(4, 3)).alpha * 255
    10.0
    """

    def __init__(self, model: nn.Module, eps: float = 8 / 255, alpha: float = 10 / 255, *, seed: int = 0) -> None:
        super().__init__("FFGSM", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.alpha, 1, random_start=True)


class BIM(_Steps):
    """The basic iterative method in linf.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps; 0 means min(255·eps + 4, 1.25·255·eps), rounded down (Kurakin et al., 2017).
        seed: random seed of random targets.

    >>> BIM(nn.Linear(4, 3), eps=8/255, steps=0).steps
    10
    """

    def __init__(
        self, model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10, *, seed: int = 0
    ) -> None:
        super().__init__("BIM", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps or int(min(eps * 255 + 4, 1.25 * eps * 255))
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.alpha, self.steps)


class PGD(_Steps):
    """Projected gradient descent in linf.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        random_start: whether to start from a random point of the ball, rather than from the image.
        seed: random seed of random starts and random targets.

    >>> atk = PGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), eps=8/255, alpha=2/255, steps=4)
    >>> images = torch.rand(5, 1, 2, 2)
    >>> bool(((atk(images, torch.zeros(5, dtype=torch.int64)) - images).abs() <= 8/255 + 1e-6).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        random_start: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("PGD", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps
        self.random_start = random_start
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.alpha, self.steps, random_start=self.random_start)


class PGDL2(_Steps):
    """Projected gradient descent in l2.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        random_start: whether to start in a random direction from the image, at a distance uniform up to eps.
        eps_for_division: accepted and unused; a gradient of zero gives no step.
        seed: random seed of random starts and random targets.

    >>> PGDL2(nn.Linear(4, 3)).eps
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 1.0,
        alpha: float = 0.2,
        steps: int = 10,
        random_start: bool = True,
        eps_for_division: float = 1e-10,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("PGDL2", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps
        self.random_start = random_start
        self.eps_for_division = eps_for_division
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.alpha, self.steps, "l2", self.random_start)

    def _random_start(self, state: AttackState) -> Tensor:
        share = state.noise("uniform", 1, shape=(1,))[:, 0, 0].double() / math.sqrt(12) + 0.5
        return state.place(state.norm.start(state.noise, 0, state.epsilon * share.clamp(0, 1)))


class EOTPGD(_Steps):
    """Projected gradient descent in linf on a randomized model, with gradients averaged over several draws.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        eot_iter: draws per step, whose logits decide whether an example is fooled, too.
        random_start: whether to start from a random point of the ball, rather than from the image.
        seed: random seed of random starts and random targets.

    >>> EOTPGD(nn.Linear(4, 3)).eot_iter
    2
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        eot_iter: int = 2,
        random_start: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("EOTPGD", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps
        self.eot_iter = eot_iter
        self.random_start = random_start
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.alpha, self.steps, random_start=self.random_start, draws=self.eot_iter)


class UPGD(_Steps):
    """Projected gradient descent in linf with momentum, several losses and draws.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        random_start: whether to start from a random point of the ball, rather than from the image.
        loss: "ce", "dlr" or "margin"; functions are not supported.
        decay: factor of the momentum.
        eot_iter: draws per step.
        seed: random seed of random starts and random targets.

    >>> UPGD(nn.Linear(4, 3)).decay
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        random_start: bool = False,
        loss: LossName = "ce",
        decay: float = 1.0,
        eot_iter: int = 1,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("UPGD", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps
        self.random_start = random_start
        self.loss = check_loss(loss, LOSSES)
        self.decay = decay
        self.eot_iter = eot_iter
        self.supported_mode = ["default", "targeted"]

    def _plan(self) -> _Plan:
        return _Plan(self.eps, self.alpha, self.steps, "linf", self.random_start, self.decay, self.loss, self.eot_iter)


class _Judged(Served):
    """An attack that returns images that it does not fool unchanged, and is repeatable: each call draws alike."""

    norm: str
    eps: float
    seed: int

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
            raise InputError(f"norm: expected one of {', '.join(NORMS)}, got {self.norm!r}")
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
        norm: "Linf", "L2" or "L1".
        eps: radius of the ball.
        steps: number of steps per run.
        n_restarts: number of runs.
        seed: random seed of random starts.
        loss: "ce" or "dlr".
        eot_iter: draws of a randomized model per step.
        rho: share of rising steps below which the step size is halved.
        verbose: accepted; progress is not printed.

    >>> APGD(nn.Linear(4, 3), "L2", 0.5).steps
    10
    """

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        steps: int = 10,
        n_restarts: int = 1,
        seed: int = 0,
        loss: Literal["ce", "dlr"] = "ce",
        eot_iter: int = 1,
        rho: float = 0.75,
        verbose: bool = False,
    ) -> None:
        super().__init__("APGD", model)
        self.norm = norm
        self.eps = eps
        self.steps = steps
        self.n_restarts = n_restarts
        self.seed = seed
        self.loss = check_loss(loss, ("ce", "dlr"))
        self.eot_iter = eot_iter
        self.thr_decr = rho
        self.verbose = verbose

    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack:
        return apgd.APGD(
            EOT(model, self.eot_iter) if self.eot_iter > 1 else model,
            self.eps,
            norm,
            device=self.device,
            seed=self.seed,
            loss=self.loss,
            steps=self.steps,
            restarts=self.n_restarts,
            rho=self.thr_decr,
        )


class APGDT(_Judged):
    """Auto-PGD on the targeted DLR loss, toward each of the other classes in turn (Croce and Hein, 2020).

    Args:
        model: maps images to logits.
        norm: "Linf", "L2" or "L1".
        eps: radius of the ball.
        steps: number of steps per run.
        n_restarts: number of runs for each class.
        seed: random seed of random starts.
        eot_iter: draws of a randomized model per step.
        rho: share of rising steps below which the step size is halved.
        verbose: accepted; progress is not printed.
        n_classes: 1 + the number of classes to try, by decreasing logit.

    >>> APGDT(nn.Linear(4, 5), n_classes=5).n_target_classes
    4
    """

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        steps: int = 10,
        n_restarts: int = 1,
        seed: int = 0,
        eot_iter: int = 1,
        rho: float = 0.75,
        verbose: bool = False,
        n_classes: int = 10,
    ) -> None:
        super().__init__("APGDT", model)
        self.norm = norm
        self.eps = eps
        self.steps = steps
        self.n_restarts = n_restarts
        self.seed = seed
        self.eot_iter = eot_iter
        self.thr_decr = rho
        self.verbose = verbose
        self.n_target_classes = n_classes - 1

    def _judged(self, model: nn.Module, norm: NormName) -> BatchAttack:
        return apgd.APGD(
            EOT(model, self.eot_iter) if self.eot_iter > 1 else model,
            self.eps,
            norm,
            device=self.device,
            seed=self.seed,
            loss="dlr-targeted",
            steps=self.steps,
            restarts=self.n_restarts,
            rho=self.thr_decr,
            targets=self.n_target_classes,
        )


class FAB(_Judged):
    """The fast adaptive boundary attack (Croce and Hein, 2020).

    Args:
        model: maps images to logits.
        norm: "Linf", "L2" or "L1".
        eps: radius of the ball; None for 0.3, 1 and 5 in Linf, L2 and L1.
        steps: number of steps for each start and class.
        n_restarts: number of starts.
        alpha_max: largest weight of the step from the image.
        eta: overshoot.
        beta: backward step.
        verbose: accepted; progress is not printed.
        seed: random seed of random starts.
        multi_targeted: try the other classes in turn, rather than the nearest boundary at every step.
        n_classes: 1 + the number of classes to try, by decreasing logit.

    >>> FAB(nn.Linear(4, 3), "L2", eps=None).eps
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float | None = 8 / 255,
        steps: int = 10,
        n_restarts: int = 1,
        alpha_max: float = 0.1,
        eta: float = 1.05,
        beta: float = 0.9,
        verbose: bool = False,
        seed: int = 0,
        multi_targeted: bool = False,
        n_classes: int = 10,
    ) -> None:
        super().__init__("FAB", model)
        self.norm = norm
        self.eps = {"Linf": 0.3, "L2": 1.0, "L1": 5.0}.get(norm, 0.3) if eps is None else eps
        self.steps = steps
        self.n_restarts = n_restarts
        self.alpha_max = alpha_max
        self.eta = eta
        self.beta = beta
        self.verbose = verbose
        self.seed = seed
        self.multi_targeted = multi_targeted
        self.n_target_classes = n_classes - 1
        self.supported_mode = ["default", "targeted"]

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
    """Square attack, from logits alone (Andriushchenko, Croce, Flammarion and Hein, 2020).

    Args:
        model: maps images to logits.
        norm: "Linf", "L2" or "L1".
        eps: radius of the ball.
        n_queries: queries per start.
        n_restarts: number of starts.
        p_init: share of the image that the first windows cover.
        loss: "margin" or "ce".
        resc_schedule: shrink the windows in proportion to n_queries.
        seed: random seed of windows and starts.
        verbose: accepted; progress is not printed.

    >>> Square(nn.Linear(4, 3)).n_queries
    5000
    """

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        n_queries: int = 5000,
        n_restarts: int = 1,
        p_init: float = 0.8,
        loss: Literal["margin", "ce"] = "margin",
        resc_schedule: bool = True,
        seed: int = 0,
        verbose: bool = False,
    ) -> None:
        super().__init__("Square", model)
        self.norm = norm
        self.eps = eps
        self.n_queries = n_queries
        self.n_restarts = n_restarts
        self.p_init = p_init
        self.loss = check_loss(loss, ("margin", "ce"))
        self.rescale_schedule = resc_schedule
        self.seed = seed
        self.verbose = verbose
        self.supported_mode = ["default", "targeted"]

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
    """AutoAttack with the published budgets (Croce and Hein, 2020): 100 steps where torchattacks takes 10.

    Args:
        model: maps images to logits.
        norm: "Linf", "L2" or "L1".
        eps: radius of the ball.
        version: "standard", "plus" or "rand".
        n_classes: 1 + the number of classes to try in the targeted attacks.
        seed: random seed; None means 0.
        verbose: accepted; progress is not printed.

    >>> AutoAttack(nn.Linear(4, 3)).version
    'standard'
    """

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        version: autoattack_versions.Version = "standard",
        n_classes: int = 10,
        seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__("AutoAttack", model)
        self.norm = norm
        self.eps = eps
        self.version = version
        self.n_classes = n_classes
        self.seed = 0 if seed is None else seed
        self.verbose = verbose

    def _judged(self, model: nn.Module, norm: NormName) -> autoattack.AutoAttack:
        native = autoattack.AutoAttack(model, self.eps, norm, device=self.device, seed=self.seed, version=self.version)
        for attack in native.attacks.values():
            if isinstance(attack, apgd.APGD | fab.FAB) and attack.targets is not None:
                attack.targets = self.n_classes - 1
        return native
