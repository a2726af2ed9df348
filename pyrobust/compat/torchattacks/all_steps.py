"""Attacks that have special losses and take all steps on every example: RFGSM, TPGD, Jitter, PGDRS and PGDRSL2."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.attacks.engine.settings import setting
from pyrobust.attacks.engine.state import AttackState
from pyrobust.checks import NormName
from pyrobust.errors import InputError

from .served import AllSteps, Engine, Seeded, cross_entropy, slope, slope_of_labels


def _noise_type(name: str, value: Any) -> Any:
    if value not in ("guassian", "gaussian", "uniform"):
        raise InputError(name, "guassian, gaussian or uniform", repr(value))
    return value


class Steps(Seeded):
    """Signed or normalized gradient steps for every example; subclasses define ``_gradient`` or ``_cost``."""

    _norm: ClassVar[NormName] = "linf"

    eps: float = setting(help="radius of the ball", default=8 / 255)
    alpha: float = setting(help="step size", default=2 / 255)
    steps: int = setting(help="number of steps", default=10)

    def _native(self, model: nn.Module, examples: int) -> Engine:
        return AllSteps(
            model,
            self.eps,
            self._norm,
            self.device,
            steps=self.steps,
            step_size=self.alpha,
            gradient=self._gradient,
            start=self._first,
            seed=self._seed,
            batch_size=self._batch_size(examples),
        )

    def _first(self, state: AttackState) -> Tensor:
        return state.x.clone()

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        return slope(x_adv, functools.partial(self._cost, state, t=t))

    def _slope_of_labels(self, state: AttackState, x: Tensor) -> Tensor:
        return slope_of_labels(state, x, coupled=self._modes[0])

    def _cost(self, state: AttackState, x_adv: Tensor, *, t: int) -> Tensor:
        """Return the objective that the attack maximizes, [B]."""
        return cross_entropy(state, state.logits(x_adv))


class RFGSM(Steps):
    """Signed steps in linf, starting from the image plus random signs of size alpha (Tramèr et al., 2018).

    Args:
        model: maps images to logits.
        seed: random seed of starts and random targets.

    >>> RFGSM(nn.Linear(4, 3)).steps
    10
    """

    alpha: float = setting(help="step size, and size of the random signs", default=2 / 255)

    def _first(self, state: AttackState) -> Tensor:
        return state.place(state.noise("gaussian", 0)[:, 0].sign().mul_(self.alpha))

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        return self._slope_of_labels(state, x_adv)


class TPGD(Steps):
    """Takes signed steps that increase the KL divergence from the clean output, in linf (TRADES; Zhang et al., 2019).

    Args:
        model: maps images to logits.
        seed: random seed of the starts.

    >>> atk = TPGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    >>> atk(torch.rand(5, 1, 2, 2)).shape  # labels are not used
    torch.Size([5, 1, 2, 2])
    """

    _targetable = False

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments are as for ``Served.forward``; labels are not used."""
        return super().forward(images, torch.zeros(len(images), dtype=torch.int64))

    def _first(self, state: AttackState) -> Tensor:
        self._clean = state.logits(state.x).log_softmax(1)
        return state.place(state.noise("gaussian", 0)[:, 0].mul_(0.001))

    def _cost(self, state: AttackState, x_adv: Tensor, *, t: int) -> Tensor:
        output = state.logits(x_adv).log_softmax(1)
        return functional.kl_div(output, self._clean, reduction="none", log_target=True).sum(1)


class Jitter(Steps):
    """Signed steps that move scaled, noisy softmax outputs away from the one-hot label, in linf (Schwinn et al., 2021).

    For misclassified examples, the distance between outputs and label is divided by the size of the perturbation.

    Args:
        model: maps images to logits.
        seed: random seed of the noise, starts and random targets.

    >>> Jitter(nn.Linear(4, 3)).scale
    10
    """

    scale: float = setting(help="factor of the logits over their largest absolute value", default=10)
    std: float = setting(help="standard deviation of the noise on the outputs", default=0.1)
    random_start: bool = setting(
        help="whether to start from a random point of the ball, rather than from the image", default=True
    )

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments and errors are as for ``Served.forward``."""
        self._labels = labels
        return super().forward(images, labels)

    def _first(self, state: AttackState) -> Tensor:
        return state.start(0) if self.random_start else super()._first(state)

    def _cost(self, state: AttackState, x_adv: Tensor, *, t: int) -> Tensor:
        logits = state.logits(x_adv)
        largest = logits.abs().amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
        output = (self.scale * logits / largest).softmax(1)
        noise = state.noise("gaussian", t, shape=output.shape[1:])[:, 0]
        goal = functional.one_hot(state.y, output.shape[1])
        distance = (output + self.std * noise - goal).square().mean(1)
        assert self._labels is not None  # forward requires labels
        labels = self._labels.to(state.index.device)[state.index - self._seen]
        moved = (x_adv - state.x).abs().flatten(1).amax(1)
        divided = (logits.argmax(1) != labels) & (moved > 0)
        distance = distance / torch.where(divided, moved, 1.0)
        return -distance if state.targeted else distance


class PGDRS(Steps):
    """Signed steps against a smoothed classifier, in linf (Salman et al., 2019).

    The steps increase the cross entropy of the mean softmax of noisy copies.

    Args:
        model: the base classifier; maps images to logits.
        seed: random seed of the noise and of random targets.

    >>> PGDRS(nn.Linear(4, 3)).noise_batch_size
    5
    """

    noise_type: str = setting(
        _noise_type, '"guassian", as torchattacks spells it, "gaussian" or "uniform"', default="guassian"
    )
    noise_sd: float = setting(help="standard deviation of Gaussian noise, half-width of uniform noise", default=0.5)
    noise_batch_size: int = setting(help="noisy copies of each image per step", default=5)
    batch_max: int = setting(help="largest number of noisy copies per forward pass", default=2048)

    def _batch_size(self, examples: int) -> int | None:
        return max(self.batch_max // self.noise_batch_size, 1)

    def _cost(self, state: AttackState, x_adv: Tensor, *, t: int) -> Tensor:
        uniform = self.noise_type == "uniform"
        noise = state.noise("uniform" if uniform else "gaussian", t * self.noise_batch_size, self.noise_batch_size)
        copies = x_adv.unsqueeze(1) + noise.mul_(self.noise_sd / math.sqrt(3) if uniform else self.noise_sd)
        softmax = state.logits(copies.flatten(0, 1)).softmax(1).view(*copies.shape[:2], -1)
        chosen = softmax.mean(1).clamp(min=1e-20).log().gather(1, state.y.unsqueeze(1)).squeeze(1)
        return chosen if state.targeted else -chosen


class PGDRSL2(PGDRS):
    """Normalized steps against a smoothed classifier, like ``PGDRS`` but in l2 (Salman et al., 2019).

    Args:
        model: the base classifier; maps images to logits.
        seed: random seed of the noise and of random targets.

    >>> PGDRSL2(nn.Linear(4, 3)).eps
    1.0
    """

    _norm = "l2"

    eps: float = setting(help="radius of the ball", default=1.0)
    alpha: float = setting(help="step size", default=0.2)
    eps_for_division: float = setting(help="accepted and unused; a gradient of zero gives no step", default=1e-10)
