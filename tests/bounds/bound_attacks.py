"""Attacks within certified radii, for the tests of several methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel


def attacked(
    net: nn.Module, x: Tensor, y: Tensor, norm: str, method: str, largest: float, semantics: str, seed: int, steps: int
) -> int:
    """Attack the certified examples at their own radii, assert that none falls, and return their number."""
    model = BoundedModel(net, x)
    radius = model.certified_radius(
        x, y, norm=norm, method=method, clip=(0.0, 1.0), largest=largest, semantics=semantics
    )
    held = radius > 0
    x, y, radius = x[held], y[held], radius[held]
    for loss in ("ce", "margin"):
        attack = PGD(net, radius.float() * (1 - 2.0**-20), norm, steps=steps, loss=loss, seed=seed)
        with torch.no_grad():
            wrong = net(attack.generate(x, y)).argmax(1) != y
        assert not wrong.any(), f"{int(wrong.sum())} of {len(x)} certified examples fell to PGD"
    return len(x)
