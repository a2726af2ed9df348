"""Attacks made to transfer between models: MI-, NI-, SINI-, VMI-, VNI-, DI- and TI-FGSM, run by ``TransferAttack``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.attacks.engine.settings import setting, state
from pyrobust.attacks.engine.state import AttackState
from pyrobust.attacks.transfer import Gradients, TransferAttack
from pyrobust.checks import positive
from pyrobust.errors import InputError

from .served import Engine, EveryExample, Seeded, cross_entropy, image_batch, over_mean, slope, slope_of_labels


class _Transfer(Seeded):
    """Base class of this module's attacks; ``_OnTheModel`` reads their settings and runs them."""

    eps: float = setting(help="radius of the ball", default=8 / 255)
    alpha: float = setting(help="step size", default=2 / 255)
    steps: int = setting(help="number of steps", default=10)
    decay: float = setting(help="factor of the momentum", default=1.0)
    m: int = state(1)
    N: int = state(0)
    beta: float = state(1.0)
    random_start: bool = state(False)

    _nesterov = False
    _scaled_losses = True  # whether each example's gradient may have a positive factor, which avoids underflow

    def _native(self, model: nn.Module, examples: int) -> Engine:
        return _OnTheModel(self, model, self._batch_size(examples))

    def _transformed(self, images: Tensor, t: int) -> Tensor:
        """Return the images as the model sees them in step t."""
        return images

    def _weights(self) -> Tensor | None:
        """Return the vector v for which v·vᵀ is the kernel that smooths the gradients; None for no smoothing."""
        return None


class _OnTheModel(EveryExample, TransferAttack):
    """``TransferAttack`` as in torchattacks: with gradients of the attacked model, and all steps for every example.

    Gradients are divided by their mean absolute value. The noise of the first neighbor has sample index 0, not 1 as in
    ``TransferAttack``. The gradients of the neighbors are summed before the sum is divided by the number of neighbors,
    whereas ``TransferAttack`` divides each gradient first.
    """

    momentum: float = setting(default=1.0)
    scales: int = setting(default=1)
    neighborhood: float = setting(default=1.0)
    _first_draw = 0
    _settings: _Transfer = state(None)  # type: ignore[assignment] # set by the constructor

    def __init__(self, settings: _Transfer, model: nn.Module, batch_size: int | None) -> None:
        super().__init__(
            model,
            settings.eps,
            device=settings.device,
            surrogate=model,
            steps=settings.steps,
            step_size=positive("alpha", settings.alpha),
            momentum=settings.decay,
            nesterov=settings._nesterov,
            scales=settings.m,
            neighbors=settings.N,
            neighborhood=settings.beta,
            seed=settings._seed,
            batch_size=batch_size,
        )
        self._settings = settings

    def _run(self, state: AttackState) -> None:
        state.finish(self._climb(state, _ModelGradients(self._settings, state)))

    def _first(self, state: AttackState) -> Tensor:
        return state.start(0) if self._settings.random_start else state.x.clone()

    def _radius(self, state: AttackState) -> Tensor:
        return torch.full_like(state.epsilon, self._settings.eps)

    def _lead(self, coordinates: int) -> int:
        return 1

    def _mean(self, gradients: Iterator[Tensor]) -> Tensor:
        total: Any = sum(gradients)
        return total / self.neighbors  # type: ignore[no-any-return]  # sum() of tensors is an int for mypy

    def _normalized(self, gradient: Tensor) -> Tensor:
        return over_mean(gradient)


class _ModelGradients(Gradients):
    """The gradients of the cross entropy of the attacked model."""

    def __init__(self, settings: _Transfer, state: AttackState) -> None:
        line = settings._weights()
        kernel = None if line is None else torch.outer(line.to(state.x), line.to(state.x))[None, None]
        super().__init__(settings.m, kernel, torch.ones_like(state.epsilon))
        self._settings, self._state, self._step = settings, state, 0

    def begin(self, step: int) -> None:
        self._step = step

    def at(self, point: Tensor, scale: float) -> Tensor:
        state, settings = self._state, self._settings
        if settings._scaled_losses:
            return slope_of_labels(state, point, coupled=settings._modes[0])
        return slope(point, lambda z: cross_entropy(state, state.logits(settings._transformed(scale * z, self._step))))


class MIFGSM(_Transfer):
    """Signed steps with momentum, in linf (Dong et al., 2018).

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> MIFGSM(nn.Linear(4, 3)).decay
    1.0
    """


class NIFGSM(_Transfer):
    """Signed steps with Nesterov's momentum, in linf (Lin et al., 2020).

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> NIFGSM(nn.Linear(4, 3)).decay
    1.0
    """

    _nesterov = True


class SINIFGSM(_Transfer):
    """NIFGSM with gradients averaged over copies of the image scaled by 1, 1/2, 1/4, … (Lin et al., 2020).

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> SINIFGSM(nn.Linear(4, 3)).m
    5
    """

    m: int = setting(help="number of copies", default=5)
    _nesterov = True
    _scaled_losses = False


class VMIFGSM(_Transfer):
    """MIFGSM with gradients corrected by the mean gradient at neighbors of the previous iterate (Wang and He, 2021).

    Args:
        model: maps images to logits.
        seed: random seed of the neighbors and of random targets.

    >>> VMIFGSM(nn.Linear(4, 3)).N
    5
    """

    N: int = setting(help="number of neighbors", default=5)
    beta: float = setting(help="half-width of the neighborhood over eps", default=3 / 2)
    _scaled_losses = False


class VNIFGSM(VMIFGSM):
    """VMIFGSM with Nesterov's momentum (Wang and He, 2021).

    Args:
        model, eps, alpha, steps, decay, N, beta, seed: as for ``VMIFGSM``.

    >>> VNIFGSM(nn.Linear(4, 3)).attack
    'VNIFGSM'
    """

    _nesterov = True


class _Diverse(_Transfer):
    """Attacks whose inputs are resized and padded at random."""

    decay: float = setting(help="factor of the momentum", default=0.0)
    resize_rate: float = state(0.9)
    diversity_prob: float = state(0.5)
    _scaled_losses = False

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments are as for ``Served.forward``.

        Raises:
            InputError: the images are not [N, C, H, W], or ``Served.forward`` raises this error.
        """
        return super().forward(image_batch(self, images), labels)

    def _transformed(self, images: Tensor, t: int) -> Tensor:
        """Scale all images by one random factor, then place them at one random position on a background of zeros."""
        sides = images.shape[2:]
        least, most = sorted((1.0, self.resize_rate))
        chance, factor, *places = torch.rand(4, generator=self._generator(1 + t)).tolist()
        if chance >= self.diversity_prob:
            return images
        padded = [int(side * most) for side in sides]
        inner = [max(int(side * (least + factor * (most - least))), 1) for side in sides]
        scaled = functional.interpolate(images, size=inner, mode="bilinear", align_corners=False)
        rows, columns = (
            int((full - side_inside + 1) * share)
            for full, side_inside, share in zip(padded, inner, places, strict=True)
        )
        right, below = padded[1] - inner[1] - columns, padded[0] - inner[0] - rows
        return functional.pad(scaled, [columns, right, rows, below])


class DIFGSM(_Diverse):
    """MIFGSM on inputs that are resized and padded at random (Xie et al., 2019).

    Args:
        model: maps images to logits.
        seed: random seed of resizing, starts and random targets.

    >>> DIFGSM(nn.Linear(4, 3)).resize_rate
    0.9
    """

    resize_rate: float = setting(
        help="smallest size (below 1) or largest size (above 1) of the inputs, over the images' size", default=0.9
    )
    diversity_prob: float = setting(help="probability that the inputs of a step are resized", default=0.5)
    random_start: bool = setting(
        help="whether to start from a random point of the ball, rather than from the image", default=False
    )


class TIFGSM(_Diverse):
    """DIFGSM with gradients smoothed by a kernel, for invariance to translation (Dong et al., 2019).

    Args:
        model: maps images to logits.
        resize_rate, diversity_prob, random_start: as for ``DIFGSM``.
        seed: random seed of resizing, starts and random targets.

    >>> TIFGSM(nn.Linear(4, 3)).len_kernel
    15
    """

    kernel_name: str = setting(help='"gaussian", "linear" or "uniform"', default="gaussian")
    len_kernel: int = setting(help="side of the kernel", default=15)
    nsig: float = setting(help="standard deviations that half of a Gaussian kernel covers", default=3)
    resize_rate: float = setting(default=0.9)
    diversity_prob: float = setting(default=0.5)
    random_start: bool = setting(default=False)

    def _constructed(self) -> None:
        self._weights()  # checks the arguments

    def _weights(self) -> Tensor:
        """Return the vector v, with sum 1, for which v·vᵀ is the kernel that smooths the gradients."""
        places = torch.linspace(-1, 1, self.len_kernel, dtype=torch.float64)
        if self.kernel_name == "gaussian":
            line = (-((self.nsig * places) ** 2) / 2).exp()
        elif self.kernel_name == "linear":
            line = 1 - places.abs() * (self.len_kernel - 1) / (self.len_kernel + 1)
        elif self.kernel_name == "uniform":
            line = torch.ones_like(places)
        else:
            raise InputError("kernel_name", "gaussian, linear or uniform", repr(self.kernel_name))
        return line / line.sum()
