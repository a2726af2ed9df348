"""Attacks that take all their moves on every example, which are not steps along a gradient: PIFGSM, PIFGSMPP, SPSA."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.attacks.losses import margin, targeted_margin
from pyrobust.attacks.state import AttackState
from pyrobust.checks import count, positive, shape_text
from pyrobust.errors import InputError

from .served import AllSteps, Engine, Served, slope_of_labels

# Adam's constants (Kingma and Ba, 2015).
_BETAS, _ADAM_EPSILON = (0.9, 0.999), 1e-8


class PIFGSM(Served):
    """Patch-wise iterative attack: large signed steps, whose excess over eps moves the neighbors (Gao et al., 2020).

    Args:
        model: maps images to logits.
        max_epsilon: radius of the ball.
        num_iter_set: number of steps.
        momentum: accepted and unused, as in torchattacks.
        amplification: factor of the step size max_epsilon / num_iter_set.
        prob: accepted and unused, as in torchattacks.
        seed: random seed of random targets.

    >>> PIFGSM(nn.Linear(4, 3)).amplification
    10.0
    """

    _name = "PIFGSM"

    def __init__(
        self,
        model: nn.Module,
        max_epsilon: float = 16 / 255,
        num_iter_set: int = 10,
        momentum: float = 1.0,
        amplification: float = 10.0,
        prob: float = 0.7,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(self._name, model, seed=seed)
        self.max_epsilon = max_epsilon
        self.num_iter_set = num_iter_set
        self.momentum = momentum
        self.amplification = amplification
        self.prob = prob

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments are as for ``Served.forward``.

        Raises:
            InputError: images that are not [N, C, H, W], or what ``Served.forward`` raises.
        """
        if images.dim() != 4:
            raise InputError(f"images: expected [N, C, H, W] for {self.attack}, got shape {shape_text(images.shape)}")
        return super().forward(images, labels)

    def _native(self, model: nn.Module, examples: int) -> Engine:
        return AllSteps(
            model,
            self.max_epsilon,
            device=self.device,
            steps=self.num_iter_set,
            step_size=None,
            gradient=self._move,
            seed=self._seed,
            batch_size=self._batch_size(examples),
        )

    def _move(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        size = self.max_epsilon / self.num_iter_set * self.amplification
        step = size * self._gradient(state, x_adv).sign()
        moved = step if t == 0 else self._moved + step
        excess = (moved.abs() - self.max_epsilon).clamp(min=0) * moved.sign()
        spread = size * _neighbors(excess).sign()
        return self._move_of(moved, step, spread)

    def _gradient(self, state: AttackState, x_adv: Tensor) -> Tensor:
        return slope_of_labels(state, x_adv, coupled=self._modes[0])

    def _move_of(self, moved: Tensor, step: Tensor, spread: Tensor) -> Tensor:
        self._moved = moved + spread
        return step + spread


class PIFGSMPP(PIFGSM):
    """Patch-wise iterative attack with smoothed gradients and a smaller move of the neighbors (Gao et al., 2020).

    Gradients are smoothed alike in all channels, and targeted mode moves toward the targets, where torchattacks uses
    another column of the kernel in each channel, and the labels instead of the targets.

    Args:
        model: maps images to logits.
        max_epsilon: radius of the ball.
        num_iter_set: number of steps.
        momentum: accepted and unused, as in torchattacks.
        amplification: factor of the step size max_epsilon / num_iter_set.
        prob: accepted and unused, as in torchattacks.
        project_factor: size of the neighbors' move over the step size.
        seed: random seed of random targets.

    >>> PIFGSMPP(nn.Linear(4, 3)).project_factor
    0.8
    """

    _name = "PIFGSMPP"

    def __init__(
        self,
        model: nn.Module,
        max_epsilon: float = 16 / 255,
        num_iter_set: int = 10,
        momentum: float = 1.0,
        amplification: float = 10.0,
        prob: float = 0.7,
        project_factor: float = 0.8,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(model, max_epsilon, num_iter_set, momentum, amplification, prob, seed=seed)
        self.project_factor = project_factor
        self.supported_mode = ["default", "targeted"]

    def _gradient(self, state: AttackState, x_adv: Tensor) -> Tensor:
        gradient = super()._gradient(state, x_adv)
        line = (-(torch.tensor([-3.0, 0.0, 3.0]) ** 2) / 2).exp().to(gradient)  # a Gaussian at -3, 0 and 3 deviations
        return smoothed(gradient, line / line.sum())

    def _move_of(self, moved: Tensor, step: Tensor, spread: Tensor) -> Tensor:
        self._moved = moved
        return step + self.project_factor * spread


class SPSA(Served):
    """Adam on the margin with gradients estimated from finite differences in random directions (Uesato et al., 2018).

    Args:
        model: maps images to logits; need not be differentiable.
        eps: radius of the ball.
        delta: size of the finite differences in each coordinate.
        lr: Adam's step size.
        nb_iter: number of steps.
        nb_sample: directions per step.
        max_batch_size: accepted; directions are tried one at a time.
        seed: random seed of the directions and of random targets.

    >>> SPSA(nn.Linear(4, 3)).nb_sample
    128
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 0.3,
        delta: float = 0.01,
        lr: float = 0.01,
        nb_iter: int = 1,
        nb_sample: int = 128,
        max_batch_size: int = 64,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("SPSA", model, seed=seed)
        self.eps = eps
        self.delta = positive("delta", delta)
        self.lr = lr
        self.nb_iter = nb_iter
        self.nb_sample = count("nb_sample", nb_sample)
        self.max_batch_size = max_batch_size
        self.supported_mode = ["default", "targeted"]

    def _native(self, model: nn.Module, examples: int) -> Engine:
        return AllSteps(
            model,
            self.eps,
            device=self.device,
            steps=self.nb_iter,
            step_size=None,
            gradient=self._move,
            seed=self._seed,
            batch_size=self._batch_size(examples),
        )

    def _move(self, state: AttackState, x_adv: Tensor, velocity: Tensor, t: int) -> Tensor:
        loss = targeted_margin if state.targeted else margin
        gradient = torch.zeros_like(x_adv)
        for sample in range(self.nb_sample):
            direction = state.noise("gaussian", t * self.nb_sample + sample)[:, 0].sign()
            ends = [state.logits(x_adv + side * self.delta * direction) for side in (1, -1)]
            above, below = (loss(logits, state.y, state.y).value for logits in ends)
            rise = ((above - below) / (2 * self.delta * self.nb_sample)).to(gradient)
            gradient += direction.mul_(rise.view(-1, *[1] * (x_adv.dim() - 1)))
        if t == 0:
            self._moments = torch.zeros_like(gradient), torch.zeros_like(gradient)
        first, second = self._moments
        first.lerp_(gradient, 1 - _BETAS[0])
        second.lerp_(gradient.square(), 1 - _BETAS[1])
        first_mean, second_mean = first / (1 - _BETAS[0] ** (t + 1)), second / (1 - _BETAS[1] ** (t + 1))
        return self.lr * first_mean / (second_mean.sqrt() + _ADAM_EPSILON)


def smoothed(gradient: Tensor, line: Tensor) -> Tensor:
    """Convolve each channel of [B, C, H, W] with the outer product of a line [L] with itself."""
    return _convolved(gradient, torch.outer(line, line))


def _neighbors(values: Tensor) -> Tensor:
    """Mean over each pixel's eight neighbors, [B, C, H, W]; those outside the image count as zero."""
    kernel = torch.full((3, 3), 1 / 8).to(values)
    kernel[1, 1] = 0
    return _convolved(values, kernel)


def _convolved(images: Tensor, kernel: Tensor) -> Tensor:
    channels = images.shape[1]
    return functional.conv2d(images, kernel.expand(channels, 1, -1, -1), padding="same", groups=channels)
