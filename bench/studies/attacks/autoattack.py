"""AutoAttack, pyrobust's against the original (Croce and Hein 2020, 2021), on the same nets, images and epsilons.

Both run their version "standard" with seed 0. Results of the original are cached in the folder --original, one
file per configuration. Without a cached file the original runs if it can be imported (as ``autoattack``); otherwise its
figures are left out. Cached figures keep the thread count of their run. Needs PYROBUST_DATA.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import nets
import numpy as np
import torch
from study import Results
from torch import Tensor, nn

from pyrobust.attacks import AutoAttack

# (net of bench/nets.py, norm, epsilon): each leaves the original a robust accuracy between 20 and 60 %.
_CONFIGURATIONS = (
    ("cifar_resnet2b", "linf", 4 / 255),
    ("cifar_resnet2b", "l2", 0.25),
    ("cifar_resnet2b", "l1", 3.0),
    ("mnist_cnn_a_adv", "linf", 0.325),
    ("mnist_cnn_a_adv", "l2", 2.0),
    ("mnist_cnn_a_adv", "l1", 7.0),
)
_SEED = 0


@dataclass
class Outcome:
    """A run of one library; ``robust`` and ``over`` are computed here from its x_adv alone."""

    robust: np.ndarray  # [N], bool: right on x_adv, run alone
    seconds: float
    cpu_seconds: float
    forwards: int
    threads: int
    over: float  # distance outside the ball or [0, 1], in float64; 0 inside

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "robust": self.robust.tolist(), "robust_accuracy": float(self.robust.mean())}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="run the configurations whose NET_NORM contains this text")
    parser.add_argument("--original", type=Path, help="folder of the original's results, read and added to")
    parser.add_argument("--images", type=int, help="use the first N images only")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads, default torch's")


def measure(options: argparse.Namespace) -> Results:
    for name, norm, epsilon in _CONFIGURATIONS:
        if options.only not in f"{name}_{norm}":
            continue
        net, x, y = nets.load(name, nets.folder())
        net, x, y = (each.to(options.device) for each in (net, x[: options.images], y[: options.images]))
        file = options.original / f"orig_{name}_{norm}.npz" if options.original else None
        original = _original(net, x, y, norm, epsilon, file)
        attack = AutoAttack(net, epsilon, norm, device=x.device, version="standard", seed=_SEED)
        ours = _outcome(net, x, y, norm, epsilon, attack.generate)
        row = {"net": name, "norm": norm, "epsilon": epsilon, "images": len(x), "pyrobust": ours.to_dict()}
        if original is not None:
            row["original"] = original.to_dict()
            row["broken_only_by_original"] = np.flatnonzero(ours.robust & ~original.robust).tolist()
            row["broken_only_by_pyrobust"] = np.flatnonzero(~ours.robust & original.robust).tolist()
        yield row


def _original(net: nn.Module, x: Tensor, y: Tensor, norm: str, epsilon: float, file: Path | None) -> Outcome | None:
    if file is not None and file.exists():
        with np.load(file) as saved:
            if float(saved["epsilon"]) != epsilon or len(saved["x_adv"]) != len(x):
                raise SystemExit(
                    f"{file}: expected {len(x)} images at epsilon {epsilon}, got {len(saved['x_adv'])} at "
                    f"{float(saved['epsilon'])}; give --original another folder"
                )
            x_adv = torch.from_numpy(saved["x_adv"]).to(x.device)
            cost = {key: saved[key].item() for key in ("wall_seconds", "cpu_seconds", "forwards", "threads")}
        return _judge(net, x, y, x_adv, norm, epsilon, **cost)
    try:
        import autoattack
    except ImportError as error:
        print(f"skipped the original AutoAttack: {error}")
        return None

    name = {"linf": "Linf", "l2": "L2", "l1": "L1"}[norm]
    attack = autoattack.AutoAttack(net, norm=name, eps=epsilon, seed=_SEED, device=x.device, verbose=False)
    return _outcome(net, x, y, norm, epsilon, partial(attack.run_standard_evaluation, bs=len(x)), file)


def _outcome(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    norm: str,
    epsilon: float,
    attack: Callable[[Tensor, Tensor], Tensor],
    file: Path | None = None,
) -> Outcome:
    """Run an attack and judge its result; save it to ``file``."""
    with nets.counted(net) as rows:
        wall, cpu = time.perf_counter(), time.process_time()
        x_adv = attack(x, y)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        cost = {
            "wall_seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "forwards": rows(),
            "threads": torch.get_num_threads(),
        }
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, x_adv=x_adv.cpu().numpy(), epsilon=epsilon, **cost)
    return _judge(net, x, y, x_adv, norm, epsilon, **cost)


def _judge(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    x_adv: Tensor,
    norm: str,
    epsilon: float,
    *,
    wall_seconds: float,
    cpu_seconds: float,
    forwards: int,
    threads: int,
) -> Outcome:
    with torch.no_grad():
        # One at a time: a verdict must not depend on the rest of the batch.
        robust = torch.cat([net(row[None]).argmax(1) for row in x_adv]) == y
    delta = (x_adv.double() - x.double()).flatten(1)
    distance = {"linf": delta.abs().amax(1), "l2": delta.norm(dim=1), "l1": delta.abs().sum(1)}[norm]
    outside = torch.maximum(-x_adv.amin(), x_adv.amax() - 1).double()
    over = max(0.0, float(torch.maximum(distance.amax() - epsilon, outside)))
    return Outcome(robust.cpu().numpy(), wall_seconds, cpu_seconds, forwards, threads, over)
