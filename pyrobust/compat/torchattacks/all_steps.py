"""Attacks that take all their steps on every example, as those made to transfer to another model need."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.attacks.state import AttackState
from pyrobust.checks import NormName, shape_text
from pyrobust.errors import InputError

from .moves import smoothed
from .served import AllSteps, Engine, Served, cross_entropy, slope, slope_of_labels


class _AllSteps(Served):
    """Signed or normalized gradient steps; subclasses define ``_gradient`` or ``_cost``."""

    _norm: NormName = "linf"
    decay: float | None = None

    def __init__(self, name: str, model: nn.Module, eps: float, alpha: float, steps: int, seed: int) -> None:
        super().__init__(name, model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps
        self.supported_mode = ["default", "targeted"]

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
            decay=self.decay,
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
        """Objective that the attack maximizes, [B]."""
        return cross_entropy(state, state.logits(x_adv))


class RFGSM(_AllSteps):
    """Signed steps from an image moved by random signs, in linf (Tramèr et al., 2018).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size, and size of the random signs.
        steps: number of steps.
        seed: random seed of starts and random targets.

    >>> RFGSM(nn.Linear(4, 3)).steps
    10
    """

    def __init__(
        self, model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10, *, seed: int = 0
    ) -> None:
        super().__init__("RFGSM", model, eps, alpha, steps, seed)

    def _first(self, state: AttackState) -> Tensor:
        return state.place(state.noise("gaussian", 0)[:, 0].sign().mul_(self.alpha))

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        return self._slope_of_labels(state, x_adv)


class TPGD(_AllSteps):
    """Signed steps up the Kullback-Leibler divergence from the clean output, in linf (Zhang et al., 2019, TRADES).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        seed: random seed of the starts.

    >>> atk = TPGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    >>> atk(torch.rand(5, 1, 2, 2)).shape  # labels are not used
    torch.Size([5, 1, 2, 2])
    """

    def __init__(
        self, model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10, *, seed: int = 0
    ) -> None:
        super().__init__("TPGD", model, eps, alpha, steps, seed)
        self.supported_mode = ["default"]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments are as for ``Served.forward``; labels are not used."""
        return super().forward(images, torch.zeros(len(images), dtype=torch.int64))

    def _first(self, state: AttackState) -> Tensor:
        self._clean = state.logits(state.x).log_softmax(1)
        return state.place(state.noise("gaussian", 0)[:, 0].mul_(0.001))

    def _cost(self, state: AttackState, x_adv: Tensor, *, t: int) -> Tensor:
        output = state.logits(x_adv).log_softmax(1)
        return functional.kl_div(output, self._clean, reduction="none", log_target=True).sum(1)


class MIFGSM(_AllSteps):
    """Signed steps with momentum, in linf (Dong et al., 2018).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        decay: factor of the momentum.
        seed: random seed of random targets.

    >>> MIFGSM(nn.Linear(4, 3)).decay
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        decay: float = 1.0,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("MIFGSM", model, eps, alpha, steps, seed)
        self.decay: float = decay

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        return self._slope_of_labels(state, x_adv)


class NIFGSM(_AllSteps):
    """Signed steps with Nesterov's momentum, in linf (Lin et al., 2020).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        decay: factor of the momentum.
        seed: random seed of random targets.

    >>> NIFGSM(nn.Linear(4, 3)).decay
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        decay: float = 1.0,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("NIFGSM", model, eps, alpha, steps, seed)
        self.decay: float = decay

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        return self._slope_of_labels(state, x_adv + self.decay * self.alpha * velocity)


class SINIFGSM(_AllSteps):
    """NIFGSM with gradients averaged over copies of the image scaled by 1, 1/2, 1/4, … (Lin et al., 2020).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        decay: factor of the momentum.
        m: number of copies.
        seed: random seed of random targets.

    >>> SINIFGSM(nn.Linear(4, 3)).m
    5
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        decay: float = 1.0,
        m: int = 5,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("SINIFGSM", model, eps, alpha, steps, seed)
        self.decay: float = decay
        self.m = m

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        point = x_adv + self.decay * self.alpha * velocity
        gradient = torch.zeros_like(x_adv)
        for copy in range(self.m):
            gradient += slope(point / 2**copy, functools.partial(self._cost, state, t=t)) / (2**copy * self.m)
        return gradient


class VMIFGSM(_AllSteps):
    """MIFGSM with gradients corrected by their mean over neighbors of the previous iterate (Wang and He, 2021).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        decay: factor of the momentum.
        N: number of neighbors.
        beta: half-width of the neighborhood over eps.
        seed: random seed of the neighbors and of random targets.

    >>> VMIFGSM(nn.Linear(4, 3)).N
    5
    """

    _name = "VMIFGSM"

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        decay: float = 1.0,
        N: int = 5,
        beta: float = 3 / 2,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(self._name, model, eps, alpha, steps, seed)
        self.decay: float = decay
        self.N = N
        self.beta = beta

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        cost = functools.partial(self._cost, state, t=t)
        own = slope(self._point(x_adv, velocity), cost)
        if t == 0:
            self._correction = torch.zeros_like(own)
        gradient = own + self._correction
        around = torch.zeros_like(own)
        width = self.beta * self.eps / math.sqrt(3)  # the noise is uniform on [-√3, √3]
        for neighbor in state.noise("uniform", t * self.N, self.N).mul_(width).unbind(1):
            around += slope(x_adv + neighbor, cost)
        self._correction = around / self.N - own
        return gradient

    def _point(self, x_adv: Tensor, velocity: Tensor) -> Tensor:
        return x_adv


class VNIFGSM(VMIFGSM):
    """VMIFGSM with Nesterov's momentum (Wang and He, 2021).

    Args:
        model, eps, alpha, steps, decay, N, beta, seed: as for ``VMIFGSM``.

    >>> VNIFGSM(nn.Linear(4, 3)).attack
    'VNIFGSM'
    """

    _name = "VNIFGSM"

    def _point(self, x_adv: Tensor, velocity: Tensor) -> Tensor:
        return x_adv + self.decay * self.alpha * velocity


class DIFGSM(_AllSteps):
    """MIFGSM on inputs that are resized and padded at random (Xie et al., 2019).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        decay: factor of the momentum.
        resize_rate: smallest size (below 1) or largest size (above 1) of the inputs, over the images' size.
        diversity_prob: probability that the inputs of a step are resized.
        random_start: whether to start from a random point of the ball, rather than from the image.
        seed: random seed of resizing, starts and random targets.

    >>> DIFGSM(nn.Linear(4, 3)).resize_rate
    0.9
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        decay: float = 0.0,
        resize_rate: float = 0.9,
        diversity_prob: float = 0.5,
        random_start: bool = False,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("DIFGSM", model, eps, alpha, steps, seed)
        self.decay: float = decay
        self.resize_rate = resize_rate
        self.diversity_prob = diversity_prob
        self.random_start = random_start

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments are as for ``Served.forward``.

        Raises:
            InputError: images that are not [N, C, H, W], or what ``Served.forward`` raises.
        """
        if images.dim() != 4:
            raise InputError(f"images: expected [N, C, H, W] for {self.attack}, got shape {shape_text(images.shape)}")
        return super().forward(images, labels)

    def _first(self, state: AttackState) -> Tensor:
        return state.start(0) if self.random_start else super()._first(state)

    def _cost(self, state: AttackState, x_adv: Tensor, *, t: int) -> Tensor:
        return cross_entropy(state, state.logits(self._resized(x_adv, self._generator(1 + t))))

    def _resized(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images scaled by one random factor and padded with zeros to one size, at one random place."""
        sides = images.shape[2:]
        least, most = sorted((1.0, self.resize_rate))
        chance, factor, *places = torch.rand(4, generator=generator).tolist()
        if chance >= self.diversity_prob:
            return images
        padded = [int(side * most) for side in sides]
        inner = [max(int(side * (least + factor * (most - least))), 1) for side in sides]
        scaled = functional.interpolate(images, size=inner, mode="bilinear", align_corners=False)
        rows, columns = (
            int((full - part + 1) * place) for full, part, place in zip(padded, inner, places, strict=True)
        )
        right, below = padded[1] - inner[1] - columns, padded[0] - inner[0] - rows
        return functional.pad(scaled, [columns, right, rows, below])


class TIFGSM(DIFGSM):
    """DIFGSM with gradients smoothed by a kernel, for invariance to translation (Dong et al., 2019).

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        decay: factor of the momentum.
        kernel_name: "gaussian", "linear" or "uniform".
        len_kernel: side of the kernel.
        nsig: standard deviations that half of a Gaussian kernel covers.
        resize_rate: as for ``DIFGSM``.
        diversity_prob: as for ``DIFGSM``.
        random_start: whether to start from a random point of the ball, rather than from the image.
        seed: random seed of resizing, starts and random targets.

    >>> TIFGSM(nn.Linear(4, 3)).len_kernel
    15
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        decay: float = 0.0,
        kernel_name: str = "gaussian",
        len_kernel: int = 15,
        nsig: float = 3,
        resize_rate: float = 0.9,
        diversity_prob: float = 0.5,
        random_start: bool = False,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(model, eps, alpha, steps, decay, resize_rate, diversity_prob, random_start, seed=seed)
        self.attack = "TIFGSM"
        self.kernel_name = kernel_name
        self.len_kernel = len_kernel
        self.nsig = nsig
        self._weights()  # check the arguments now

    def _gradient(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        gradient = super()._gradient(state, x_adv, velocity, t)
        return smoothed(gradient, self._weights().to(gradient))

    def _weights(self) -> Tensor:
        """One side of the kernel, which is the outer product of two; sums to 1."""
        places = torch.linspace(-1, 1, self.len_kernel, dtype=torch.float64)
        if self.kernel_name == "gaussian":
            line = (-((self.nsig * places) ** 2) / 2).exp()
        elif self.kernel_name == "linear":
            line = 1 - places.abs() * (self.len_kernel - 1) / (self.len_kernel + 1)
        elif self.kernel_name == "uniform":
            line = torch.ones_like(places)
        else:
            raise InputError(f"kernel_name: expected gaussian, linear or uniform, got {self.kernel_name!r}")
        return line / line.sum()


class Jitter(_AllSteps):
    """Signed steps up the distance of scaled, noisy softmax outputs from the label's, in linf (Schwinn et al., 2021).

    For misclassified examples the distance is divided by the size of the perturbation.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        scale: factor of the logits over their largest absolute value.
        std: standard deviation of the noise on the outputs.
        random_start: whether to start from a random point of the ball, rather than from the image.
        seed: random seed of the noise, of starts and random targets.

    >>> Jitter(nn.Linear(4, 3)).scale
    10
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        scale: float = 10,
        std: float = 0.1,
        random_start: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("Jitter", model, eps, alpha, steps, seed)
        self.scale = scale
        self.std = std
        self.random_start = random_start

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


class PGDRS(_AllSteps):
    """Signed steps against a smoothed classifier, in linf (Salman et al., 2019).

    They go up the cross entropy of the mean softmax of noisy copies.

    Args:
        model: the base classifier; maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        noise_type: "guassian", as torchattacks spells it, "gaussian" or "uniform".
        noise_sd: standard deviation of Gaussian noise, half-width of uniform noise.
        noise_batch_size: noisy copies of each image per step.
        batch_max: largest number of noisy copies per forward pass.
        seed: random seed of the noise and of random targets.

    >>> PGDRS(nn.Linear(4, 3)).noise_batch_size
    5
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        noise_type: str = "guassian",
        noise_sd: float = 0.5,
        noise_batch_size: int = 5,
        batch_max: int = 2048,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("PGDRS", model, eps, alpha, steps, seed)
        if noise_type not in ("guassian", "gaussian", "uniform"):
            raise InputError(f"noise_type: expected guassian, gaussian or uniform, got {noise_type!r}")
        self.noise_type = noise_type
        self.noise_sd = noise_sd
        self.noise_batch_size = noise_batch_size
        self.batch_max = batch_max

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
    """Normalized steps against a smoothed classifier, as ``PGDRS``, in l2 (Salman et al., 2019).

    Args:
        model: the base classifier; maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        noise_type, noise_sd, noise_batch_size, batch_max: as for ``PGDRS``.
        eps_for_division: accepted and unused; a gradient of zero gives no step.
        seed: random seed of the noise and of random targets.

    >>> PGDRSL2(nn.Linear(4, 3)).eps
    1.0
    """

    _norm = "l2"

    def __init__(
        self,
        model: nn.Module,
        eps: float = 1.0,
        alpha: float = 0.2,
        steps: int = 10,
        noise_type: str = "guassian",
        noise_sd: float = 0.5,
        noise_batch_size: int = 5,
        batch_max: int = 2048,
        eps_for_division: float = 1e-10,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(model, eps, alpha, steps, noise_type, noise_sd, noise_batch_size, batch_max, seed=seed)
        self.attack = "PGDRSL2"
        self.eps_for_division = eps_for_division
