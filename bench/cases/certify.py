"""certify_batch against the same procedure in plain PyTorch and against the bare forward passes.

The net and images are OVAL21's base net on CIFAR-10 where PYROBUST_DATA has them, else the bundled digits net.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing, zoo
from pyrobust.microbench.smoothing import certify_in_a_loop, forward_passes
from pyrobust.microbench.timing import Case

_N0, _N, _SIGMA, _ALPHA = 100, 10_000, 0.25, 0.001
_LOOP_BATCH = 1000
_IMAGES = 4


class Normalize(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.view(-1, 1, 1))
        self.register_buffer("std", std.view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def cases(device: torch.device) -> list[Case]:
    name, net, x, mean, std = _setting()
    net, x, mean, std = net.to(device).eval(), x.to(device), mean.to(device), std.to(device)
    layered = nn.Sequential(Normalize(mean, std), net).eval()
    samples = _IMAGES * (_N0 + _N)
    with_layer = RandomizedSmoothing(layered, 10, _SIGMA, grid=None)
    fused = RandomizedSmoothing(net, 10, _SIGMA, grid=None, normalize=(mean, std))
    size = with_layer.runner.batch_size(tuple(x.shape[1:]))
    certify = {"n0": _N0, "n": _N, "alpha": _ALPHA}
    baseline = {
        f"plain PyTorch loop, batch {_LOOP_BATCH}": partial(certify_in_a_loop, layered, x, _N0, _N, _LOOP_BATCH)
    }
    return [
        Case(
            f"certify {name}, normalisation as a layer",
            {
                "native": partial(with_layer.certify_batch, x, **certify),
                **baseline,
                f"bare forward passes, batch {size}": partial(forward_passes, layered, x, samples, size),
                f"bare forward passes, batch {_LOOP_BATCH}": partial(forward_passes, layered, x, samples, _LOOP_BATCH),
            },
            items=samples,
        ),
        Case(
            f"certify {name}, normalize= given to the smoother",
            {
                "native": partial(fused.certify_batch, x, **certify),
                **baseline,
                f"bare forward passes, batch {size}": partial(forward_passes, net, x, samples, size),
                f"bare forward passes, batch {_LOOP_BATCH}": partial(forward_passes, net, x, samples, _LOOP_BATCH),
            },
            items=samples,
        ),
    ]


def _setting() -> tuple[str, nn.Module, Tensor, Tensor, Tensor]:
    data = os.environ.get("PYROBUST_DATA")
    if not data:
        print("PYROBUST_DATA is not set: certify_batch runs on the bundled digits net", file=sys.stderr)
        images = zoo.load_data("digits").x[:_IMAGES]
        return "digits", zoo.load_model("zoo:digits-smooth-0.25"), images, torch.tensor([0.0]), torch.tensor([1.0])
    net = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
    net.load_state_dict(torch.load(Path(data, "nets/oval_base.pt"), weights_only=True))
    with np.load(Path(data, "images/cifar_sdp.npz")) as file:
        x = torch.from_numpy(file["X"][:_IMAGES])
    return "oval_base", net, x, torch.tensor([0.485, 0.456, 0.406]), torch.full((3,), 0.225)
