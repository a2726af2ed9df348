"""certify_batch against the same procedure in plain PyTorch and against the bare forward passes.

The net and images are OVAL21's base net on CIFAR-10 where PYROBUST_DATA has them, else the bundled digits net.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import nets
import torch
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.microbench.smoothing import certify_in_a_loop, forward_passes
from pyrobust.microbench.timing import Case

_N0, _N, _SIGMA, _ALPHA = 100, 10_000, 0.25, 0.001
_LOOP_BATCH = 1000
_IMAGES = 4


def cases(device: torch.device) -> list[Case]:
    name, layered, x = _setting()
    layered, x = layered.to(device).eval(), x.to(device)
    before, net = layered
    samples = _IMAGES * (_N0 + _N)
    with_layer = RandomizedSmoothing(layered, 10, _SIGMA, grid=None)
    fused = RandomizedSmoothing(net, 10, _SIGMA, grid=None, normalize=(before.mean.flatten(), before.std.flatten()))
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


def _setting() -> tuple[str, nn.Sequential, Tensor]:
    if os.environ.get("PYROBUST_DATA"):
        name, (layered, x, _) = "oval_base", nets.load("oval_base")
    else:
        print("PYROBUST_DATA is not set: certify_batch runs on the bundled digits net", file=sys.stderr)
        net, x, _ = nets.load("digits-smooth-0.25")
        name, layered = "digits", nn.Sequential(nets.Normalize((0.0,), (1.0,)), net)
    return name, layered, x[:_IMAGES]
