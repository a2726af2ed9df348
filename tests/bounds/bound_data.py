"""The nets, images and reference bounds of PYROBUST_DATA."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import nets

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
