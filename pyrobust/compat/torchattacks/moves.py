"""PIFGSM, PIFGSMPP and SPSA: attacks whose updates are not plain gradient steps; every example gets all updates."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from pyrobust.attacks.black_box import spsa
from pyrobust.attacks.black_box.spsa import ADAM_EPSILON, Moments
from pyrobust.attacks.engine.settings import setting
from pyrobust.attacks.engine.state import AttackState
from pyrobust.attacks.losses import Loss, named_loss
from pyrobust.attacks.transfer import smoothed
from pyrobust.checks import count, positive

from .served import AllSteps, Engine, EveryExample, Seeded, image_batch, slope_of_labels


class PIFGSM(Seeded):
    """Patch-wise iterative attack (Gao et al., 2020): where signed steps exceed eps, the excess moves nearby pixels.

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> PIFGSM(nn.Linear(4, 3)).amplification
    10.0
    """

    _targetable = False

    max_epsilon: float = setting(help="radius of the ball", default=16 / 255)
    num_iter_set: int = setting(help="number of steps", default=10)
    momentum: float = setting(help="accepted and unused, as in torchattacks", default=1.0)
    amplification: float = setting(help="factor of the step size max_epsilon / num_iter_set", default=10.0)
    prob: float = setting(help="accepted and unused, as in torchattacks", default=0.7)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate adversarial images; arguments are as for ``Served.forward``.

        Raises:
            InputError: the images are not [N, C, H, W], or ``Served.forward`` raises this error.
        """
        return super().forward(image_batch(self, images), labels)

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
    """A variant of ``PIFGSM`` that smooths gradients and moves nearby pixels less (Gao et al., 2020).

    Gradients are smoothed with the same kernel in all channels, and targeted mode moves toward the targets. In
    torchattacks, each channel is smoothed with a different column of the kernel rather than with the whole kernel, and
    targeted mode uses the labels in place of the targets.

    Args:
        model: maps images to logits.
        seed: random seed of random targets.

    >>> PIFGSMPP(nn.Linear(4, 3)).project_factor
    0.8
    """

    _targetable = True

    project_factor: float = setting(help="size of the neighbors' move over the step size", default=0.8)

    def _gradient(self, state: AttackState, x_adv: Tensor) -> Tensor:
        gradient = super()._gradient(state, x_adv)
        line = (-(torch.tensor([-3.0, 0.0, 3.0]) ** 2) / 2).exp().to(gradient)  # a Gaussian at -3, 0 and 3 deviations
        line = line / line.sum()
        return smoothed(gradient, torch.outer(line, line)[None, None])

    def _move_of(self, moved: Tensor, step: Tensor, spread: Tensor) -> Tensor:
        self._moved = moved
        return step + self.project_factor * spread


class SPSA(Seeded):
    """Adam on the margin, with gradients estimated from finite differences in random directions (Uesato et al., 2018).

    Args:
        model: maps images to logits; need not be differentiable.
        seed: random seed of the directions and of random targets.

    >>> SPSA(nn.Linear(4, 3)).nb_sample
    128
    """

    eps: float = setting(help="radius of the ball", default=0.3)
    delta: float = setting(positive, "size of the finite differences in each coordinate", default=0.01)
    lr: float = setting(help="Adam's step size", default=0.01)
    nb_iter: int = setting(help="number of steps", default=1)
    nb_sample: int = setting(count, "directions per step", default=128)
    max_batch_size: int = setting(help="accepted; directions are tried one at a time", default=64)

    def _native(self, model: nn.Module, examples: int) -> Engine:
        return _SPSA(
            model,
            self.eps,
            device=self.device,
            steps=self.nb_iter,
            samples=self.nb_sample,
            step_size=self.lr,
            delta=self.delta,
            seed=self._seed,
            batch_size=self._batch_size(examples),
        )


class _SPSA(EveryExample, spsa.SPSA):
    """SPSA as in torchattacks, with all steps for every example."""

    step_size: float = setting(default=0.01)
    _family = "gaussian"

    def _run(self, state: AttackState) -> None:
        loss = functools.partial(named_loss, name=self.loss, targeted=state.targeted)
        rows, x_adv, moments = len(state), state.x.clone(), Moments(state.x)
        for t in range(self.steps):
            mean, scale = moments.update(self._estimate(state, x_adv, loss, t, rows))
            move = self.step_size * mean / (scale + ADAM_EPSILON)
            x_adv = state.place(move.add_(x_adv).sub_(state.x))
        state.finish(x_adv)

    def _values(self, state: AttackState, points: Tensor, loss: Loss, rows: int) -> Tensor:
        """Return the loss [B, 2, 1] on both sides of each example, with one forward pass of the batch for each side."""
        sides = [loss(state.logits(point), state.y, state.y).value for point in points[:, :, 0].unbind(1)]
        return torch.stack(sides, 1).unsqueeze(2)


def _neighbors(values: Tensor) -> Tensor:
    """Return the mean over each pixel's eight neighbors, [B, C, H, W]; neighbors outside the image count as zero."""
    kernel = torch.full((3, 3), 1 / 8).to(values)
    kernel[1, 1] = 0
    return smoothed(values, kernel[None, None])
