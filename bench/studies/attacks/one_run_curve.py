"""Robust accuracy over epsilon: one run of minimum-norm attacks against AutoAttack, by bisection and at each epsilon.

``excess`` is the largest height of the curve of minimum-norm attacks above that of AutoAttack (standard), in points.
Forward passes are counted in images, by a hook on the net. --independent runs AutoAttack at every epsilon, too. Needs
PYROBUST_DATA.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nets
from study import Results
from torch import nn

from pyrobust.attacks import AutoAttack, MinimumNormEnsemble
from pyrobust.evaluation import minimum_norm_curve, robustness_curve

_EPSILONS = ",".join(f"{0.03 * i:g}" for i in range(1, 11))


@contextmanager
def _counting(net: nn.Module) -> Iterator[Callable[[], dict[str, Any]]]:
    start = time.process_time()
    with nets.counted(net) as rows:
        yield lambda: {"forwards": rows(), "seconds": round(time.process_time() - start, 1)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--net", default="mnist_cnn_a_adv")
    parser.add_argument("--norm", default="linf")
    parser.add_argument("--epsilons", default=_EPSILONS)
    parser.add_argument("--restarts", default="0", help="starts of the attacks that have restarts; 0: their own")
    parser.add_argument("--independent", action="store_true")


def measure(options: argparse.Namespace) -> Results:
    epsilons = [float(epsilon) for epsilon in options.epsilons.split(",")]
    net, x, y = nets.load(options.net, nets.folder())
    yield from {"net": options.net, "norm": options.norm, "epsilons": epsilons, "images": len(x)}.items()
    with _counting(net) as spent:
        counts = robustness_curve(AutoAttack, net, x, y, epsilons, norm=options.norm).counts.tolist()
        yield "autoattack, bisection", {"right": counts, **spent()}
    for restarts in map(int, options.restarts.split(",")):
        ensemble = MinimumNormEnsemble(net, norm=options.norm)
        for attack in ensemble.attacks.values():
            if restarts and hasattr(attack, "restarts"):
                attack.restarts = restarts
        with _counting(net) as spent:
            curve = minimum_norm_curve(ensemble.minimum(x, y))
            right = [curve.rate(epsilon).successes for epsilon in epsilons]
            excess = max(100 * (ours - theirs) / len(x) for ours, theirs in zip(right, counts, strict=True))
            yield f"minimum norm, restarts {restarts}", {"right": right, "excess": excess, **spent()}
    if options.independent:
        with _counting(net) as spent:
            for epsilon in epsilons:
                AutoAttack(net, epsilon, options.norm).generate(x, y)
            yield "autoattack, each epsilon", spent()
