"""Sandwiches of real nets: shares certified, undecided and attacked, crossings, and the time.

The bundled nets and those of PYROBUST_DATA, each in linf and l2, with float32 semantics and MinimumNormEnsemble; the
bundled smoothed classifier with 10,000 samples. ``seconds`` are of the whole sweep.
"""

from __future__ import annotations

import argparse
import math
import time

import nets
import numpy as np
from study import Results, Row

from pyrobust import RandomizedSmoothing, Sandwich, sandwich

# Radii of the table: small, and those that papers report for the net.
RADII = {
    "digits-ibp-0.10": {"linf": (0.05, 0.1, 0.2), "l2": (0.1, 0.25, 0.5)},
    "digits-smooth-0.25": {"linf": (0.05, 0.1, 0.2), "l2": (0.1, 0.25, 0.5)},
    "mnist_cnn_a_adv": {"linf": (0.1, 0.2, 0.3), "l2": (0.25, 0.5, 1.0)},
    "oval_base": {"linf": (1 / 255, 2 / 255, 8 / 255), "l2": (0.05, 0.1, 0.25)},
    "cifar_resnet2b": {"linf": (1 / 255, 2 / 255, 8 / 255), "l2": (0.05, 0.1, 0.25)},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--net", default="", help="run the nets whose name contains this text")
    parser.add_argument("--norm", default="", choices=("", "linf", "l2"))
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threads", type=int)


def measure(options: argparse.Namespace) -> Results:
    for name in (net for net in RADII if options.net in net):
        model, x, y = nets.load(name)
        x, y = x[: options.images], y[: options.images]
        for norm in (norm for norm in ("linf", "l2") if options.norm in ("", norm)):
            begin = time.perf_counter()
            both = sandwich(model, x, y, norm=norm)
            yield _row(name, norm, both, time.perf_counter() - begin, RADII[name][norm])
        if name == "digits-smooth-0.25" and options.norm in ("", "l2"):
            begin = time.perf_counter()
            both = sandwich(RandomizedSmoothing(model, 10, sigma=0.25), x, y)
            yield _row(f"{name}, smoothed", "l2", both, time.perf_counter() - begin, (0.25, 0.5, 0.75))


def _row(name: str, norm: str, both: Sandwich, seconds: float, radii: tuple[float, ...]) -> Row:
    shares, right = both.shares(radii), both.run.correct
    return {
        "net": name,
        "norm": norm,
        "examples": len(both),
        "right": int(right.sum()),
        "crossings": len(both.crossings),
        "shares": [
            {"radius": radius, "certified": c.value, "undecided": u.value, "attacked": a.value}
            for radius, c, u, a in zip(radii, shares.certified, shares.undecided, shares.attacked, strict=True)
        ],
        "median_lower": _median(both.lower[right]),
        "median_upper": _median(both.upper[right]),
        "none_found": int(np.isinf(both.upper).sum()),
        "seconds": seconds,
    }


def _median(values: np.ndarray) -> float | None:
    value = float(np.quantile(values, 0.5, method="inverted_cdf")) if len(values) else math.inf
    return value if math.isfinite(value) else None
