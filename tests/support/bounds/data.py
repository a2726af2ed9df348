"""The nets, images and reference bounds of PYROBUST_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel

NETS = ("mnist_6_100", "mnist_cnn_a_adv", "oval_base", "cifar_resnet2b")


def folder() -> Path:
    """Return the folder PYROBUST_DATA, or skip the test if it is not set."""
    folder_name = os.environ.get("PYROBUST_DATA")
    if not folder_name:
        pytest.skip("PYROBUST_DATA is not set")
    return Path(folder_name)


def trained(name: str) -> nn.Module:
    """Load a net that expects normalised images."""
    model, _, _ = nets.load(name, folder())
    return model[1]


def on_images(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Load a net of raw images with its 200 test images and their labels."""
    return nets.load(name, folder())


def published(name: str) -> dict[str, np.ndarray]:
    """Load the reference bounds of a net, by key."""
    with np.load(folder() / "bounds" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


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
