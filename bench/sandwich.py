"""Sandwiches of real nets: shares certified, undecided and attacked, crossings, and the time.

PYROBUST_DATA=... python bench/sandwich.py [--net TEXT] [--norm NORM] [--images N] [--json FILE] [--threads N]

The bundled nets and those of PYROBUST_DATA, each in linf and l2, with float32 semantics and MinimumNormEnsemble; the
bundled smoothed classifier with 10,000 samples. ``seconds`` are of the whole sweep.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import nets
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pyrobust import RandomizedSmoothing, Sandwich, sandwich
from pyrobust.microbench.timing import describe_machine
from pyrobust.zoo import load_data, load_model

# Radii of the table: small, and those that papers report for the net.
RADII = {
    "digits-ibp-0.10": {"linf": (0.05, 0.1, 0.2), "l2": (0.1, 0.25, 0.5)},
    "digits-smooth-0.25": {"linf": (0.05, 0.1, 0.2), "l2": (0.1, 0.25, 0.5)},
    "mnist_cnn_a_adv": {"linf": (0.1, 0.2, 0.3), "l2": (0.25, 0.5, 1.0)},
    "oval_base": {"linf": (1 / 255, 2 / 255, 8 / 255), "l2": (0.05, 0.1, 0.25)},
    "cifar_resnet2b": {"linf": (1 / 255, 2 / 255, 8 / 255), "l2": (0.05, 0.1, 0.25)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="", help="run the nets whose name contains this text")
    parser.add_argument("--norm", default="", choices=("", "linf", "l2"))
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    data = Path(os.environ["PYROBUST_DATA"]) if "PYROBUST_DATA" in os.environ else None
    rows: list[dict[str, Any]] = []
    for name in (net for net in RADII if arguments.net in net):
        if name.startswith("digits"):
            digits = load_data("digits")
            model, x, y = load_model(f"zoo:{name}"), digits.x, digits.y
        else:
            model, x, y = nets.load(name, data)
        x, y = x[: arguments.images], y[: arguments.images]
        for norm in (norm for norm in ("linf", "l2") if arguments.norm in ("", norm)):
            begin = time.perf_counter()
            both = sandwich(model, x, y, norm=norm)
            rows.append(_row(name, norm, both, time.perf_counter() - begin, RADII[name][norm]))
        if name == "digits-smooth-0.25" and arguments.norm in ("", "l2"):
            begin = time.perf_counter()
            both = sandwich(RandomizedSmoothing(model, 10, sigma=0.25), x, y)
            rows.append(_row(f"{name}, smoothed", "l2", both, time.perf_counter() - begin, (0.25, 0.5, 0.75)))
    _print(rows)
    if arguments.json:
        command = f"python {shlex.join(sys.argv)}"
        figures = {"command": command, "machine": describe_machine(torch.device("cpu")), "results": rows}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _row(name: str, norm: str, both: Sandwich, seconds: float, radii: tuple[float, ...]) -> dict[str, Any]:
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


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="certified / undecided / attacked, in %")
    for column in ("net", "norm", "radii", "shares", "median lower", "median upper", "crossings", "seconds"):
        table.add_column(column)
    for row in rows:
        shares = [[f"{100 * s[k]:.1f}" for k in ("certified", "undecided", "attacked")] for s in row["shares"]]
        table.add_row(
            row["net"],
            row["norm"],
            "\n".join(f"{s['radius']:.4g}" for s in row["shares"]),
            "\n".join(" / ".join(three) for three in shares),
            *("none" if row[k] is None else f"{row[k]:.4g}" for k in ("median_lower", "median_upper")),
            str(row["crossings"]),
            f"{row['seconds']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
