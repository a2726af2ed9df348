"""A user's PGD on ``AdversarialAttack`` under ``compute_robustness_curve``, beside the document that defines both.

PYROBUST_DATA=... python bench/own_attack.py [--small] [--runs N]

The same class, ten steps of plain torch with ``generate`` alone, stands on either base class; five epsilons, 128
digits, one thread. The document's code is read from the folder of documents beside PYROBUST_DATA. Curves run in pairs;
each line has the median ratio of their CPU seconds. --small divides the epsilons by 20, so that hardly any example is
fooled and every epsilon attacks them all.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from pyrobust import AdversarialAttack, compute_robustness_curve
from pyrobust.zoo import load_data, load_model

_EPSILONS = {
    "linf": [0.02, 0.05, 0.1, 0.15, 0.2],
    "l2": [0.1, 0.25, 0.5, 0.75, 1.0],
    "l1": [0.5, 1.0, 2.0, 3.0, 4.0],
}
_STEPS = 10


def _pgd(base: Any) -> type:
    """PGD by hand on a base class."""

    class Steps(base):
        def generate(self, x: Any, y: Any, targeted: bool = False, target_labels: Any = None) -> Any:
            delta, size = torch.zeros_like(x), 2.5 * self.epsilon / _STEPS
            for _ in range(_STEPS):
                delta.requires_grad_()
                (slope,) = torch.autograd.grad(functional.cross_entropy(self.model(x + delta), y), delta)
                with torch.no_grad():
                    delta = self.project(delta + size * slope.sign(), x)
            return x + delta

    return Steps


def _document() -> dict[str, Any]:
    (path,) = (Path(os.environ["PYROBUST_DATA"]).parent / "documents").glob("004_*.txt")
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)), names)
    return names


def _seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print a line for each norm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="divide the epsilons by 20")
    parser.add_argument("--runs", type=int, default=7, help="pairs of curves for each norm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    document, digits, model = _document(), load_data("digits"), load_model("zoo:digits-smooth-0.25")
    x, y = digits.x[:128], digits.y[:128]
    ours, theirs = _pgd(AdversarialAttack), _pgd(document["AdversarialAttack"])
    for norm, sizes in _EPSILONS.items():
        epsilons = [size / 20 for size in sizes] if options.small else sizes
        runs: tuple[Callable[[], Any], Callable[[], Any]] = (
            lambda norm=norm, sizes=epsilons: compute_robustness_curve(ours, model, x, y, sizes, norm=norm),
            lambda norm=norm, sizes=epsilons: document["compute_robustness_curve"](
                theirs, model, x, y, sizes, norm=norm
            ),
        )
        pairs = [tuple(_seconds(run) for run in runs) for _ in range(options.runs + 1)][1:]
        ratio = statistics.median(own / other for own, other in pairs)
        first, second = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        print(f"{norm}: {ratio:.2f} of the document's CPU time ({first:.0f} and {second:.0f} ms)", flush=True)


if __name__ == "__main__":
    main()
