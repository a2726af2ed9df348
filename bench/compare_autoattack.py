"""AutoAttack, pyrobust's against the original (Croce and Hein 2020, 2021), on the same nets, images and epsilons.

PYROBUST_DATA=... python bench/compare_autoattack.py [--only TEXT] [--original DIR] [--json FILE] [--threads N]

Both run their version "standard" with seed 0. Results of the original are cached in the folder --original, one
file per configuration. Without a cached file the original runs if it can be imported (as ``autoattack``); otherwise its
columns stay empty. Cached figures keep the thread count of their run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import nets
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from pyrobust.attacks import AutoAttack
from pyrobust.microbench.timing import describe_machine

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


class Counted(nn.Module):
    """Count the rows that pass through a model."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return self.net(x)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the configurations whose NET_NORM contains this text")
    parser.add_argument("--original", type=Path, help="folder of the original's results, read and added to")
    parser.add_argument("--images", type=int, help="use the first N images only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads, default torch's")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    data = os.environ.get("PYROBUST_DATA")
    if not data:
        raise SystemExit("PYROBUST_DATA: expected the folder with the nets and images, got nothing")
    device = torch.device(args.device)
    console = Console(width=140)
    table = _table()
    results = []
    for name, norm, epsilon in _CONFIGURATIONS:
        if args.only not in f"{name}_{norm}":
            continue
        net, x, y = nets.load(name, Path(data))
        net, x, y = net.to(device), x[: args.images].to(device), y[: args.images].to(device)
        file = args.original / f"orig_{name}_{norm}.npz" if args.original else None
        original = _original(net, x, y, norm, epsilon, file)
        ours = _outcome(
            net, x, y, norm, epsilon, lambda model, e=epsilon, p=norm, x=x, y=y: _run_ours(model, x, y, e, p)
        )
        results.append(_compare(name, norm, epsilon, ours, original))
        _row(table, results[-1])
        console.print(f"{name} {norm} done")
    if not results:
        raise SystemExit(f"--only {args.only}: no configuration name contains it")
    console.print(table)
    if args.json:
        command = "python bench/compare_autoattack.py " + shlex.join(sys.argv[1:])
        args.json.write_text(
            json.dumps({"command": command, "machine": describe_machine(device), "results": results}, indent=1)
        )
        console.print(f"wrote {args.json}")


def _run_ours(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> Tensor:
    return AutoAttack(model, epsilon, norm, device=x.device, version="standard", seed=_SEED).generate(x, y)


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

    def run(model: nn.Module) -> Tensor:
        method = autoattack.AutoAttack(
            model,
            norm={"linf": "Linf", "l2": "L2", "l1": "L1"}[norm],
            eps=epsilon,
            seed=_SEED,
            device=x.device,
            verbose=False,
        )
        return method.run_standard_evaluation(x, y, bs=len(x))

    return _outcome(net, x, y, norm, epsilon, run, file)


def _outcome(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    norm: str,
    epsilon: float,
    run: Callable[[nn.Module], Tensor],
    file: Path | None = None,
) -> Outcome:
    """Run an attack and judge its result; save it to ``file``."""
    model = Counted(net).eval()
    wall, cpu = time.perf_counter(), time.process_time()
    x_adv = run(model)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    cost = {
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "forwards": model.rows,
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


def _compare(name: str, norm: str, epsilon: float, ours: Outcome, original: Outcome | None) -> dict[str, object]:
    result: dict[str, object] = {"net": name, "norm": norm, "epsilon": epsilon, "images": len(ours.robust)}
    result["pyrobust"] = ours.to_dict()
    if original is not None:
        result["original"] = original.to_dict()
        result["broken_only_by_original"] = np.flatnonzero(ours.robust & ~original.robust).tolist()
        result["broken_only_by_pyrobust"] = np.flatnonzero(~ours.robust & original.robust).tolist()
    return result


def _table() -> Table:
    table = Table(title="AutoAttack standard: pyrobust / original", title_justify="left")
    for column in ("net", "norm", "epsilon"):
        table.add_column(column)
    for column in ("robust", "seconds", "forwards", "over epsilon", "broken only by it", "threads"):
        table.add_column(column, justify="right")
    return table


def _row(table: Table, result: dict) -> None:
    sides = [result[key] for key in ("pyrobust", "original") if key in result]
    only = [len(result[key]) for key in ("broken_only_by_pyrobust", "broken_only_by_original") if key in result]
    columns = (
        [f"{side['robust_accuracy']:.1%}" for side in sides],
        [f"{side['seconds']:.1f}" for side in sides],
        [f"{side['forwards']:,}" for side in sides],
        [f"{side['over']:.1e}" for side in sides],
        [str(count) for count in only],
        [str(side["threads"]) for side in sides],
    )
    epsilon = f"{result['epsilon']:.4g}"
    table.add_row(result["net"], result["norm"], epsilon, *(" / ".join(column) for column in columns))


if __name__ == "__main__":
    main()
