"""Robust accuracy over epsilon: one run of minimum-norm attacks against AutoAttack, by bisection and at each epsilon.

PYROBUST_DATA=... python bench/one_run_curve.py [--net NAME] [--norm N] [--epsilons E,...] [--restarts N,...]
    [--independent] [--json FILE]

``excess`` is the largest height of the curve of minimum-norm attacks above that of AutoAttack (standard), in points.
Forward passes are counted in images, by a hook on the net. --independent runs AutoAttack at every epsilon, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nets
import torch
from torch import nn

from pyrobust.attacks import AutoAttack, MinimumNormEnsemble
from pyrobust.evaluation import minimum_norm_curve, robustness_curve
from pyrobust.microbench.timing import describe_machine

_EPSILONS = ",".join(f"{0.03 * i:g}" for i in range(1, 11))


@contextmanager
def _counting(net: nn.Module) -> Iterator[Callable[[], dict[str, Any]]]:
    rows, start = 0, time.process_time()

    def count(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        nonlocal rows
        rows += len(output)

    handle = net.register_forward_hook(count)
    try:
        yield lambda: {"forwards": rows, "seconds": round(time.process_time() - start, 1)}
    finally:
        handle.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="mnist_cnn_a_adv")
    parser.add_argument("--norm", default="linf")
    parser.add_argument("--epsilons", default=_EPSILONS)
    parser.add_argument("--restarts", default="0", help="starts of the attacks that have restarts; 0: their own")
    parser.add_argument("--independent", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    epsilons = [float(epsilon) for epsilon in arguments.epsilons.split(",")]
    net, x, y = nets.load(arguments.net, Path(os.environ["PYROBUST_DATA"]))
    results: dict[str, Any] = {"net": arguments.net, "norm": arguments.norm, "epsilons": epsilons, "images": len(x)}
    with _counting(net) as spent:
        counts = robustness_curve(AutoAttack, net, x, y, epsilons, norm=arguments.norm).counts.tolist()
        results["autoattack, bisection"] = {"right": counts, **spent()}
    for restarts in map(int, arguments.restarts.split(",")):
        ensemble = MinimumNormEnsemble(net, norm=arguments.norm)
        for attack in ensemble.attacks.values():
            if restarts and hasattr(attack, "restarts"):
                attack.restarts = restarts
        with _counting(net) as spent:
            curve = minimum_norm_curve(ensemble.minimum(x, y))
            right = [curve.rate(epsilon).successes for epsilon in epsilons]
            excess = max(100 * (ours - theirs) / len(x) for ours, theirs in zip(right, counts, strict=True))
            results[f"minimum norm, restarts {restarts}"] = {"right": right, "excess": excess, **spent()}
    if arguments.independent:
        with _counting(net) as spent:
            for epsilon in epsilons:
                AutoAttack(net, epsilon, arguments.norm).generate(x, y)
            results["autoattack, each epsilon"] = spent()
    for name, figures in results.items():
        print(f"{name}: {figures}")
    if arguments.json:
        command = shlex.join(["python", *sys.argv])
        content = {"command": command, "machine": describe_machine(torch.device("cpu")), "results": results}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
