"""Calls of compute_ibp_bounds, whose captured network is kept, against interval bounds written by hand in PyTorch.

Bounds of the logits over l-infinity balls, not clipped. The function compares all weights with the captured ones at
every call, and its bounds are rounded outward; "held" is a BoundedModel, which compares a few of them. The nets are two
of PYROBUST_DATA, else with random weights, and zoo:digits-ibp-0.10.
"""

from __future__ import annotations

from functools import partial

import nets
import torch
from torch import Tensor, nn

from pyrobust import BoundedModel, compute_ibp_bounds
from pyrobust.microbench.bounds import interval_through
from pyrobust.microbench.timing import Call, Case
from pyrobust.zoo import load_data, load_model

BATCHES = (1, 32, 256)
DIGITS = "zoo:digits-ibp-0.10"
EPSILON = 0.01


def cases(device: torch.device) -> list[Case]:
    return [_case(name, batch, device) for name in ("mnist_6_100", DIGITS, "mnist_cnn_a_adv") for batch in BATCHES]


def _net(name: str) -> tuple[nn.Module, Tensor]:
    if name == DIGITS:
        return load_model(name).eval(), load_data("digits").x
    model, x, _ = nets.load(name)
    return model[1], x.repeat(2, 1, 1, 1)


def _by_hand(net: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    pair = x, torch.full_like(x, EPSILON)
    for layer in net:
        pair = interval_through(layer, pair)
    return pair[0] - pair[1], pair[0] + pair[1]


def _case(name: str, batch: int, device: torch.device) -> Case:
    net, x = _net(name)
    net, x = net.to(device), x[:batch].to(device)
    assert isinstance(net, nn.Sequential)
    bounded = BoundedModel(net, x)
    variants: dict[str, Call] = {
        "compute_ibp_bounds": partial(compute_ibp_bounds, net, x, EPSILON),
        "held": lambda: bounded.bounds(x, EPSILON, method="ibp"),
        "plain PyTorch": torch.no_grad()(partial(_by_hand, net, x)),
        "plain forward pass": torch.no_grad()(partial(net, x)),
    }
    return Case(f"compute_ibp_bounds, {name}, batch {batch}", variants, {"examples": batch}, items=batch)
