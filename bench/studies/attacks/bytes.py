"""Attacks on the grid of bytes against the same attacks on floats: robust accuracy, time, and what a file keeps.

Both start from the images moved to the nearest bytes. ``kept`` counts the images broken by the grid attack that are
adversarial after their bytes were written to a file and read again, ``outside`` its points outside the ball in exact
integers, and ``float_kept`` those broken by the float attack that are adversarial and in the ball after rounding to
bytes. Times are processor seconds. Needs PYROBUST_DATA.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import nets
import torch
from study import Results
from torch import Tensor, nn

from pyrobust.attacks import PGD, AutoAttack
from pyrobust.zoo import load_data, save_images

# linf epsilons are multiples of 1/255.
_CONFIGURATIONS = (
    ("cifar_resnet2b", "linf", "4/255"),
    ("cifar_resnet2b", "l2", "1/4"),
    ("cifar_resnet2b", "l1", "3/1"),
    ("mnist_cnn_a_adv", "linf", "83/255"),
    ("mnist_cnn_a_adv", "l2", "2/1"),
    ("mnist_cnn_a_adv", "l1", "7/1"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attacks", default="pgd,autoattack")
    parser.add_argument("--only", default="", help="run the configurations whose NET_NORM contains this text")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--queries", type=int, help="queries of Square in AutoAttack, default 5000")


def measure(options: argparse.Namespace) -> Results:
    for attack in options.attacks.split(","):
        for name, norm, epsilon in _CONFIGURATIONS:
            if options.only in f"{name}_{norm}":
                net, x, y = nets.load(name, nets.folder())
                x, y = x[: options.images], y[: options.images]
                setting = {"attack": attack, "net": name, "norm": norm, "epsilon": epsilon}
                yield setting | _compare(attack, net, x, y, norm, epsilon, options.queries)


def _compare(
    attack: str, net: nn.Module, x: Tensor, y: Tensor, norm: str, epsilon: str, queries: int | None
) -> dict[str, Any]:
    levels = (x.double() * 255).round()
    clean = levels.float() / 255
    attacked = {}
    for grid in (None, "1/255"):
        attacker: Any
        if attack == "pgd":
            attacker = PGD(net, epsilon, norm, steps=100, restarts=3, grid=grid)
        else:
            attacker = AutoAttack(net, epsilon, norm, grid=grid)
            if queries:
                attacker.attacks["square"].n_queries = queries
        begin = time.process_time()
        x_adv = attacker.generate(clean, y)
        seconds = time.process_time() - begin
        attacked[grid] = x_adv, _right(net, x_adv, y), seconds
    x_adv, right, seconds = attacked["1/255"]
    float_adv, float_right, float_seconds = attacked[None]
    with tempfile.TemporaryDirectory() as folder:
        save_images(Path(folder) / "adversarial.npz", x_adv, y)
        loaded = load_data(f"npz:{folder}/adversarial.npz").x
    rounded = (float_adv.double() * 255).round().float() / 255
    lost = _right(net, rounded, y) | ~_inside(rounded, levels, norm, epsilon)
    clean_right = _right(net, clean, y)
    broken, float_broken = clean_right & ~right, clean_right & ~float_right
    return {
        "images": len(x),
        "clean": int(clean_right.sum()),
        "robust": int(right.sum()),
        "robust_float": int(float_right.sum()),
        "broken": int(broken.sum()),
        "kept": int((broken & ~_right(net, loaded, y)).sum()),
        "same_bits": bool(torch.equal(loaded, x_adv)),
        "outside": int((~_inside(x_adv, levels, norm, epsilon)).sum()),
        "float_broken": int(float_broken.sum()),
        "float_kept": int((float_broken & ~lost).sum()),
        "cpu_seconds": round(seconds, 1),
        "cpu_seconds_float": round(float_seconds, 1),
        "ratio": round(seconds / float_seconds, 3),
    }


def _right(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Whether the net is right on each image, run alone."""
    with torch.no_grad():
        return torch.stack([net(x[i : i + 1]).argmax(1)[0] == y[i] for i in range(len(y))])


def _inside(x_adv: Tensor, levels: Tensor, norm: str, epsilon: str) -> Tensor:
    """Whether each image is in the ball, in Python's integers."""
    radius = Fraction(epsilon) * 255
    limit = math.floor(radius * radius if norm == "l2" else radius)
    inside = []
    for a, b in zip(
        (x_adv.double() * 255).round().flatten(1).int().tolist(), levels.flatten(1).int().tolist(), strict=True
    ):
        delta = [abs(p - q) for p, q in zip(a, b, strict=True)]
        total = {"linf": max(delta), "l2": sum(d * d for d in delta), "l1": sum(delta)}[norm]
        inside.append(total <= limit)
    return torch.tensor(inside)
