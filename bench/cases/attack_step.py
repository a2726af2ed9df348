"""A step of PGD and APGD against the bare forward and input gradient, and against the peers.

The net is OVAL21's base net on CIFAR-10 images where PYROBUST_DATA has them, else the same net with random weights on
random images. Work: one forward pass and one gradient with respect to the input for each example and step, which is the
floor. epsilon is so small that no example is fooled and every attack takes all its steps with all examples. A step is
the difference of a long and a short attack by the difference of their steps, so that start-up is not counted.
"""

from __future__ import annotations

import os
from functools import partial

import nets
import peers
import torch
from torch import Tensor, nn

from pyrobust.attacks import APGD, PGD
from pyrobust.microbench.attacks import input_gradients
from pyrobust.microbench.timing import Call, Case

_SHORT, _LONG = 10, 60
# Small enough to fool no example, large enough that the loss changes by more than its rounding.
_EPSILON = {"linf": 1e-4, "l2": 1e-3, "l1": 1e-2}
# 4 MiB of images on a CPU; enough to fill a large GPU.
_BATCH, _CUDA_BATCH = 341, 8192


def cases(device: torch.device) -> list[Case]:
    name, model, x, y = _setting(device)
    return [
        _case(f"{attack} step, {name}, batch {len(x)}", attack, norm, model, x, y)
        for attack, norm in (("pgd-linf", "linf"), ("apgd-linf", "linf"), ("apgd-l2", "l2"), ("apgd-l1", "l1"))
    ]


def _case(name: str, attack: str, norm: str, model: nn.Module, x: Tensor, y: Tensor) -> Case:
    epsilon = _EPSILON[norm]
    long, short = (_variants(attack, norm, epsilon, model, x, y, steps) for steps in (_LONG, _SHORT))
    return Case(name, long, {"examples": len(x)}, items=_LONG - _SHORT, less=short)


def _variants(
    attack: str, norm: str, epsilon: float, model: nn.Module, x: Tensor, y: Tensor, steps: int
) -> dict[str, Call]:
    method = PGD if attack.startswith("pgd") else APGD
    native = method(model, epsilon, norm, device=x.device, steps=steps, batch_size=len(x))
    variants: dict[str, Call] = {
        "native": partial(native.generate, x, y),
        "bare forward and input gradient": partial(input_gradients, model, x, y, steps),
    }
    for peer in peers.installed():
        if attack in peer.attacks:
            variants[peer.name] = partial(peer.attacks[attack](model, epsilon, steps), x, y)
    return variants


def _setting(device: torch.device) -> tuple[str, nn.Module, Tensor, Tensor]:
    model, x, _ = nets.load("oval_base")
    name = "oval_base" if os.environ.get("PYROBUST_DATA") else "oval_base with random weights"
    with torch.no_grad():
        top = model(x).topk(2)
    margin = top.values[:, 0] - top.values[:, 1]
    # Predictions serve as labels, so all start right; the half nearest to a decision boundary is left out.
    clear = margin >= margin.median()
    x, y = x[clear], top.indices[clear, 0]
    size = _CUDA_BATCH if device.type == "cuda" else _BATCH
    index = torch.arange(size) % len(x)
    return name, model.to(device), x[index].to(device), y[index].to(device)
