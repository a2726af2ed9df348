"""The loops of the documents that define the terms, on their own code in plain torch and on pyrobust's functions.

- certified: ``compute_certified_accuracy`` over 100 digits; the document's with a smoother in plain torch (Cohen,
  Rosenfeld and Kolter, 2019), in batches of 1,000.
- intervals: ``certified_accuracy_ibp`` over ten batches of 32, the document's with interval bounds in plain torch;
  the first call, which captures the network, apart.
- curve: ``compute_robustness_curve`` of a user's PGD, ten steps and five epsilons on 128 digits, on either base class.
  "small" divides the epsilons by 20, so that hardly any example is fooled and every epsilon attacks them all.

The documents' code is read from the folder of documents beside PYROBUST_DATA. Runs alternate; each row has the median
ratio of CPU seconds, ours over the document's.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import nets
import torch
from scipy import stats
from study import Results
from torch import Tensor, nn
from torch.nn import functional

from pyrobust import (
    AdversarialAttack,
    RandomizedSmoothing,
    certified_accuracy_ibp,
    compute_certified_accuracy,
    compute_robustness_curve,
)
from pyrobust.zoo import load_data, load_model

Loop: TypeAlias = Callable[[], Any]

_EPSILONS = {
    "linf": [0.02, 0.05, 0.1, 0.15, 0.2],
    "l2": [0.1, 0.25, 0.5, 0.75, 1.0],
    "l1": [0.5, 1.0, 2.0, 3.0, 4.0],
}
_STEPS = 10


def _document(number: str, **undefined: Any) -> dict[str, Any]:
    """Run the blocks of a document with names for what they leave undefined; return what they define."""
    (path,) = nets.folder().parent.glob(f"documents/{number}_*.txt")
    names: dict[str, Any] = {"torch": torch, **undefined}
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)), names)
    return names


class PlainSmoother:
    """Certification by smoothing, in plain torch."""

    def __init__(self, model: nn.Module, sigma: float, batch: int = 1000) -> None:
        self.model, self.sigma, self.batch = model, sigma, batch

    def _votes(self, x: Tensor, n: int) -> Tensor:
        counts = torch.zeros(10, dtype=torch.int64)
        with torch.no_grad():
            for begin in range(0, n, self.batch):
                rows = x.repeat(min(self.batch, n - begin), 1, 1, 1)
                votes = self.model(rows + self.sigma * torch.randn_like(rows)).argmax(1)
                counts += votes.bincount(minlength=10)
        return counts

    def certify(self, x: Tensor, n: int, alpha: float) -> tuple[int, float]:
        """Return class and radius, or -1 and 0."""
        label = int(self._votes(x, 100).argmax())
        k = int(self._votes(x, n)[label])
        lower = float(stats.beta.ppf(alpha, k, n - k + 1)) if k else 0.0
        return (label, self.sigma * float(stats.norm.ppf(lower))) if lower > 0.5 else (-1, 0.0)


def _plain_intervals(model: nn.Module, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Interval bounds of a chain of layers, in plain torch."""
    lower, upper = x - epsilon, x + epsilon
    with torch.no_grad():
        for layer in model.children():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                center, radius = (lower + upper) / 2, (upper - lower) / 2
                if isinstance(layer, nn.Linear):
                    radius = radius @ layer.weight.abs().T
                else:
                    radius = functional.conv2d(radius, layer.weight.abs(), None, layer.stride, layer.padding)
                center = layer(center)
                lower, upper = center - radius, center + radius
            else:
                lower, upper = layer(lower), layer(upper)
    return lower, upper


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


def certified() -> Iterator[tuple[str, Loop, Loop]]:
    """Yield the loops of certified accuracy."""
    theirs = _document("000")["compute_certified_accuracy"]
    digits = load_data("digits")
    resnet, x, y = nets.load("cifar_resnet2b", nets.folder())
    cases = (
        ("digits net, 100 images", load_model("zoo:digits-smooth-0.25"), digits.x[:100], digits.y[:100], 10_000),
        ("cifar_resnet2b, 10 images", resnet, x[:10], y[:10], 2000),
    )
    for name, model, x, y, n in cases:
        smoother, plain = RandomizedSmoothing(model, 10, 0.25), PlainSmoother(model, 0.25)
        yield (
            f"certified, {name}",
            lambda s=smoother, x=x, y=y, n=n: compute_certified_accuracy(s, x, y, n=n),
            lambda s=plain, x=x, y=y, n=n: theirs(s, x, y, n=n),
        )


def intervals() -> Iterator[tuple[str, Loop, Loop]]:
    """Yield the loops of certified accuracy by intervals."""
    digits = load_data("digits")
    theirs = _document("000", compute_ibp_bounds=_plain_intervals)["certified_accuracy_ibp"]
    loader = [(digits.x[i : i + 32], digits.y[i : i + 32]) for i in range(0, 320, 32)]
    for name in ("digits-ibp-0.10", "digits-smooth-0.25"):
        model = load_model(f"zoo:{name}")
        begin = time.process_time()
        certified_accuracy_ibp(model, loader, 0.01, device="cpu")
        print(f"intervals, {name}: first call {time.process_time() - begin:.2f} s", flush=True)
        yield (
            f"intervals, {name}",
            lambda model=model: certified_accuracy_ibp(model, loader, 0.01, device="cpu"),
            lambda model=model: theirs(model, loader, 0.01, device="cpu"),
        )


def curve() -> Iterator[tuple[str, Loop, Loop]]:
    """Yield the loops of robustness curves."""
    document, digits, model = _document("004"), load_data("digits"), load_model("zoo:digits-smooth-0.25")
    x, y = digits.x[:128], digits.y[:128]
    ours, theirs = _pgd(AdversarialAttack), _pgd(document["AdversarialAttack"])
    for size, factor in (("", 1.0), (", small", 1 / 20)):
        for norm, sizes in _EPSILONS.items():
            epsilons = [factor * epsilon for epsilon in sizes]
            yield (
                f"curve, {norm}{size}",
                lambda norm=norm, sizes=epsilons: compute_robustness_curve(ours, model, x, y, sizes, norm=norm),
                lambda norm=norm, sizes=epsilons: document["compute_robustness_curve"](
                    theirs, model, x, y, sizes, norm=norm
                ),
            )


LOOPS = {"certified": certified, "intervals": intervals, "curve": curve}


def _seconds(run: Loop) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=LOOPS, help="default: all")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs of each loop")
    parser.add_argument("--threads", type=int, default=1)


def measure(options: argparse.Namespace) -> Results:
    for name in [options.only] if options.only else LOOPS:
        for title, ours, document in LOOPS[name]():
            pairs = [(_seconds(ours), _seconds(document)) for _ in range(options.runs + 1)][1:]
            ratio = statistics.median(a / b for a, b in pairs)
            first, second = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
            yield {"loop": title, "ratio": round(ratio, 3), "ms": round(first, 1), "document ms": round(second, 1)}
    return {"runs": options.runs}
