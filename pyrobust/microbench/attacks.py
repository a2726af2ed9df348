"""Attacks: a step along the gradient's sign, and a whole PGD attack.

A step takes at least the time of a clone of the images; PGD takes at least the time of its forward passes and input
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyrobust.attacks import PGD
from pyrobust.microbench.timing import Case, compare
from pyrobust.ops import linf_step
from pyrobust.zoo import load_digits, load_model

_EPSILON, _STEP = 8 / 255, 2 / 255
# So small that no example is fooled; then every example takes all steps.
_PGD_EPSILON, _STEPS = 1e-4, 20


def cases(device: torch.device) -> Iterator[Case]:
    """Yield the cases."""
    for batch in (1, 256):
        yield _step((batch, 3, 32, 32), device)
    for batch in (1, 128):
        yield _pgd(batch, device)


def sign_step(x_adv: Tensor, gradient: Tensor, x: Tensor, step: float, epsilon: float) -> Tensor:
    """Step along the gradient's sign, and project onto the ball and the box [0, 1], as scripts usually do."""
    moved = x_adv + step * gradient.sign()
    return (x + (moved - x).clamp(-epsilon, epsilon)).clamp(0, 1)


def pgd(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, step: float, steps: int) -> Tensor:
    """Attack by projected gradient descent from x, as scripts usually do (Madry et al., 2018)."""
    x_adv = x.clone()
    for _ in range(steps):
        x_adv.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x_adv), y), x_adv)
        x_adv = sign_step(x_adv.detach(), gradient, x, step, epsilon)
    return x_adv


def input_gradients(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Run the forward passes and input gradients of an attack, and nothing else."""
    for _ in range(steps):
        point = x.detach().requires_grad_()
        torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)


def _step(shape: tuple[int, ...], device: torch.device) -> Case:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.rand(shape, device=device, generator=generator)
    gradient = torch.randn(shape, device=device, generator=generator)
    step = torch.full((1,), _STEP, device=device)
    return compare(
        f"linf_step {'x'.join(map(str, shape))}",
        partial(linf_step, x, gradient, x, step, _EPSILON),
        ("sign, clamp, clamp", partial(sign_step, x, gradient, x, _STEP, _EPSILON)),
        ("clone", x.clone),
        bytes_moved=16 * x.numel(),
    )


def _pgd(batch: int, device: torch.device) -> Case:
    net = load_model("zoo:digits-ibp-0.10").requires_grad_(False).to(device)
    x = load_digits("train").x[:batch].to(device)
    # Predictions serve as labels, so that all examples start correctly classified.
    y = net(x).argmax(1)
    attack = PGD(net, _PGD_EPSILON, steps=_STEPS, batch_size=batch, device=device)
    return compare(
        f"PGD, {_STEPS} steps, digits, batch {batch}",
        partial(attack.generate, x, y),
        ("loop with sign, clamp, clamp", partial(pgd, net, x, y, _PGD_EPSILON, _PGD_EPSILON / 4, _STEPS)),
        ("forward passes and input gradients", partial(input_gradients, net, x, y, _STEPS)),
    )
