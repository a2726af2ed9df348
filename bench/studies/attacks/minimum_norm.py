"""Minimum-norm attacks against adversarial-library, foolbox and torchattacks, on the same nets and images.

Every attack runs once on all images, after a run on four of them. A point counts if the model misclassifies it alone.
Distances are recomputed here in exact arithmetic; ``excess`` is the largest relative amount by which they exceed what
the library says: the reported distance of pyrobust, and the float32 norm of x_adv - x for libraries that report none.

``optimality`` is that of Cinà et al. (2025), in AttackBench: 1 - (A - A*) / (c·ε₀ - A*), with A the area under the
curve of robust accuracy up to the largest of the best known distances ε₀, A* that of the best known distances, and c
the clean accuracy. ``passes`` are the forward and backward passes of an image.

``reached`` is the time at which the ensemble's median first was at most that of the best other library.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import nets
import peers
import torch
from study import Results, Row
from torch import Tensor, nn

from pyrobust import attacks
from pyrobust.attacks.minimum import nearest
from pyrobust.metrics import distances_above, perturbation_quantiles

_NETS = ("mnist_cnn_a_adv", "cifar_resnet2b", "digits-smooth-0.25")
_NORMS = ("linf", "l2", "l1", "l0")
_ORDER = {"linf": torch.inf, "l2": 2.0, "l1": 1.0, "l0": 0.0}


class Counted(nn.Module):
    """Count the rows that pass through a model, forward and backward."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x)
        logits = self.net(x)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.passes += len(gradient)


@dataclass
class Result:
    """One attack of one library."""

    attack: str
    library: str
    seconds: float
    passes: float
    distance: Tensor  # [N], exact
    excess: float
    reached: list[tuple[float, Tensor]]  # (seconds, distances so far)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--net", default="", help="run the nets whose name contains this text")
    parser.add_argument("--norm", default="", choices=("", *_NORMS))
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100, help="steps of each attack that takes some")
    parser.add_argument("--threads", type=int)


def measure(options: argparse.Namespace) -> Results:
    for name in (net for net in _NETS if options.net in net):
        model, x, y = nets.load(name)
        x, y = x[: options.images], y[: options.images]
        for norm in (norm for norm in _NORMS if options.norm in ("", norm)):
            results = [
                _run(attack, library, make, model, x, y, norm)
                for attack, library, make in _attacks(norm, options.steps)
            ]
            yield from _rows(name, norm, results, y)


def _attacks(norm: str, steps: int) -> list[tuple[str, str, Callable[[nn.Module], Any]]]:
    """(attack, library, model → attack): the same attacks of every library, ours first."""
    ours: dict[str, tuple[Any, dict[str, Any]]] = {
        "fmn": (attacks.FMN, {"steps": steps}),
        "fab": (attacks.FAB, {"steps": steps, "targets": 3}),
        "deepfool": (attacks.DeepFool, {"steps": 50}),
        "ddn": (attacks.DDN, {"steps": steps}),
        "cw": (attacks.CarliniWagner, {"steps": steps}),
        "ead": (attacks.EAD, {"steps": steps}),
        "sigma-zero": (attacks.SigmaZero, {"steps": 5 * steps}),
        "ensemble": (attacks.MinimumNormEnsemble, {}),
    }
    entries: list[tuple[str, str, Callable[[nn.Module], Any]]] = []
    for name, (attack, options) in ours.items():
        if norm not in attack.norms:
            continue
        entries.append((name, "pyrobust", lambda model, a=attack, o=options: a(model, norm=norm, batch_size=200, **o)))
        for peer in peers.installed():
            if (name, norm) in peer.minimum:
                build = peer.minimum[name, norm]
                taken = options.get("steps", steps)
                entries.append((name, peer.name, lambda model, b=build, s=taken: b(model, s)))
    return entries


def _run(
    name: str, library: str, make: Callable[[nn.Module], Any], net: nn.Module, x: Tensor, y: Tensor, norm: str
) -> Result:
    attack = make(net)
    ours = library == "pyrobust"
    call = attack.minimum if ours else attack
    call(x[:4], y[:4])
    counted = Counted(net).eval()
    counting = make(counted)
    # Counted and timed in one run: counting costs nothing beside a forward pass.
    timeline: list[tuple[float, Tensor]] = []
    original = nearest.Nearest.take
    first: list[nearest.Nearest] = []

    def take(self: nearest.Nearest, *arguments: Any) -> None:
        original(self, *arguments)
        if not first or self is first[0]:
            first[:] = [self]
            timeline.append((time.perf_counter() - begin, self.distance.clone()))

    nearest.Nearest.take = take  # type: ignore[method-assign]  # mypy forbids replacing any method
    begin = time.perf_counter()
    try:
        outcome = (counting.minimum if ours else counting)(x, y)
    finally:
        nearest.Nearest.take = original  # type: ignore[method-assign]  # as above
    seconds = time.perf_counter() - begin
    x_adv = (outcome.x_adv if ours else outcome).detach()
    with torch.no_grad():
        wrong = torch.cat([net(row[None]).argmax(1) for row in x_adv]) != y
        clean = torch.cat([net(row[None]).argmax(1) for row in x]) != y
    # A library may return pixels outside [0, 1] by a rounding; that is not counted against it here.
    distance = distances_above(x_adv, x, norm).masked_fill(~wrong, torch.inf).masked_fill(clean, 0.0)
    claimed = outcome.distance if ours else (x_adv - x).flatten(1).norm(_ORDER[norm], dim=1).double()
    counts = wrong & ~clean & (distance > 0)
    excess = float((distance / claimed - 1)[counts].max()) if bool(counts.any()) else 0.0
    return Result(name, library, seconds, counted.passes / len(x), distance, excess, timeline)


def _rows(name: str, norm: str, results: list[Result], y: Tensor) -> Iterator[Row]:
    best = torch.stack([result.distance for result in results]).amin(0)
    largest = float(best[best.isfinite()].max())
    clean = float((best > 0).double().mean())
    wrong = torch.zeros(len(y) - round(clean * len(y)), dtype=torch.float64)
    least = float(best.clamp(max=largest).mean())
    others = [result for result in results if result.library != "pyrobust"]
    goal = min((_median(result.distance) for result in others), default=torch.inf)
    for result in results:
        area = float(result.distance.clamp(max=largest).mean())
        timeline = result.reached if result.attack == "ensemble" else []
        reached = (seconds for seconds, distance in timeline if _median(torch.cat([distance, wrong])) <= goal)
        yield {
            "net": name,
            "norm": norm,
            "images": len(y),
            "attack": result.attack,
            "library": result.library,
            "seconds": result.seconds,
            "median": _median(result.distance),
            "found": int(result.distance.isfinite().sum()),
            "optimality": 1 - (area - least) / (clean * largest - least),
            "passes": result.passes,
            "excess": result.excess,
            "reached": next(reached, None),
        }


def _median(distance: Tensor) -> float:
    return perturbation_quantiles(distance, [0.5])[0]
