"""Share and cost of each guarantee on bundled nets: an attack, randomized smoothing, and three kinds of bounds.

The nets are zoo:digits-ibp-0.10, trained with interval bounds, and zoo:digits-smooth-0.25, trained with noise; the
images are the first N digits. The ball is l-infinity of radius 0.05 within pixels of [0, 1]. Smoothing certifies the
smoothed net in l2: at 0.05 * sqrt(64) = 0.4, whose ball contains that cube. Seconds are wall time for one image, all
images in one call, on one thread; the capture of the net for bounds is not included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from study import Results, Row

from pyrobust import PGD, BoundedModel, RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

NETS = ("zoo:digits-ibp-0.10", "zoo:digits-smooth-0.25")
EPSILON, L2, SIGMA, N = 0.05, 0.4, 0.25, 2_000


def of_net(net: str, x: torch.Tensor, y: torch.Tensor) -> Iterator[Row]:
    model = load_model(net).eval()
    correct = model(x).argmax(1) == y
    bounded = BoundedModel(model, x)
    smoother = RandomizedSmoothing(model, 10, SIGMA)

    def attacked() -> torch.Tensor:
        return correct & (model(PGD(model, EPSILON).generate(x, y)).argmax(1) == y)

    def smoothed() -> torch.Tensor:
        certificates = smoother.certify_batch(x, n=N, alpha=0.001)
        return torch.from_numpy((certificates.prediction == y.numpy()) & (certificates.radius >= L2))

    def proved(method: str) -> Callable[[], torch.Tensor]:
        return lambda: bounded.certify(x, y, EPSILON, clip=(0, 1), method=method)

    steps: dict[str, Callable[[], torch.Tensor]] = {"clean": lambda: model(x).argmax(1) == y, "PGD": attacked}
    steps["smoothing"] = smoothed
    steps |= {method: proved(method) for method in ("ibp", "crown-ibp", "crown")}
    for name, step in steps.items():
        start = time.perf_counter()
        share = step().double().mean().item()
        seconds = (time.perf_counter() - start) / len(x)
        yield {"net": net, "method": name, "share": round(share, 4), "seconds": float(f"{seconds:.2g}")}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=100)


def measure(options: argparse.Namespace) -> Results:
    torch.set_num_threads(1)
    digits = load_data("digits")
    x, y = digits.x[: options.images], digits.y[: options.images]
    for net in NETS:
        yield from of_net(net, x, y)
    return {"images": len(x), "epsilon": EPSILON, "l2": L2, "sigma": SIGMA, "n": N}
