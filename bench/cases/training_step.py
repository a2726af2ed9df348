"""A step of certified training, without the optimizer: bounds of the margins, their cross entropy, all gradients.

The loss is ibp_loss or crown_ibp_loss with kappa 0: log(1 + sum of exp(-margin)), the mean over the batch. Balls are
l-infinity, not clipped; images are normalised beforehand. Every variant has its own net with the same weights. The
floor is a step of plain training, which has one forward pass where bounds have at least two.
"""

from __future__ import annotations

import copy
import os
from functools import partial

import nets
import peers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyrobust.bounds import DifferentiableBounds
from pyrobust.microbench.bounds import interval_margins
from pyrobust.microbench.timing import Call, Case
from pyrobust.training import crown_ibp_loss, ibp_loss
from pyrobust.zoo import load_digits, load_model

_LOSSES = {"ibp": ibp_loss, "crown-ibp": crown_ibp_loss}
# (net, epsilon as text, epsilon on normalised images, batch)
SETTINGS = (
    ("digits-ibp-0.10", "0.1", 0.1, 128),
    ("mnist_cnn_a_adv", "0.1", 0.1, 100),
    ("oval_base", "2/255", 2 / 255 / 0.225, 100),
)


def cases(device: torch.device) -> list[Case]:
    return [_case(*setting, method, device) for setting in SETTINGS for method in _LOSSES]


def _case(name: str, text: str, epsilon: float, batch: int, method: str, device: torch.device) -> Case:
    if name.startswith("digits"):
        net, images = load_model(f"zoo:{name}"), load_digits("train")
        x, y, weights = images.x, images.y, ""
    else:
        (before, net), x, y = nets.load(name)
        x, weights = before(x), "" if os.environ.get("PYROBUST_DATA") else " with random weights"
    x, y = x[:batch].to(device), y[:batch].to(device)
    net = net.to(device)

    def fresh() -> nn.Module:
        return copy.deepcopy(net).requires_grad_(True)

    def stepped(model: nn.Module, loss: Call) -> Call:
        parameters = list(model.parameters())

        def step() -> None:
            for parameter in parameters:
                parameter.grad = None
            loss().backward()

        return step

    def worst_case(margins: peers.BallMargins) -> Tensor:
        return F.pad(-margins(x, y), (1, 0)).logsumexp(1).mean()

    bounds = DifferentiableBounds(fresh(), x)
    variants = {"native": stepped(bounds.model, partial(_LOSSES[method], bounds, x, y, epsilon, kappa=0.0))}
    for peer in peers.installed():
        if method in peer.training:
            model = fresh()
            margins = peer.training[method](model, x, epsilon)
            variants[peer.name] = stepped(model, partial(worst_case, margins))
    if method == "ibp":
        model = fresh()
        variants["plain PyTorch"] = stepped(
            model, partial(worst_case, lambda x, y, model=model: interval_margins(model, x - epsilon, x + epsilon, y))
        )
    model = fresh()
    variants["plain training step"] = stepped(model, lambda: F.cross_entropy(model(x), y))
    return Case(f"{method} training step, {name}{weights}, epsilon {text}, batch {batch}", variants, items=batch)
