"""Measure pyrobust against plain PyTorch and against the floor, side by side in one run.

python bench/run.py [--group FILES] [--only TEXT] [--json FILE] [--device cpu|cuda] [--simd avx2] [--threads N]
    [--repeats N]
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import traceback
from pathlib import Path

import cases
import torch
from rich.console import Console
from rich.table import Table
from study import write

from pyrobust import _C
from pyrobust.microbench.timing import Case, Timing, measure, row

# Read by torch, oneDNN and MKL when they are loaded: the others are held to the same instructions.
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def table(case: Case, times: dict[str, Timing]) -> Table:
    native = next(iter(times.values())).median
    unit, scale = ("us", 1e6) if native / case.items < 1e-4 else ("ms", 1e3)
    per = "" if case.items == 1 else f" per item of {case.items}"
    out = Table(title=case.name, title_justify="left")
    out.add_column("variant")
    forward = times.get("plain forward pass")
    for column in (f"median {unit}{per}", "min", "max", "x native", *(["x forward pass"] if forward else [])):
        out.add_column(column, justify="right")
    for name, t in times.items():
        cells = [f"{value / case.items * scale:.3f}" for value in (t.median, t.low, t.high)]
        ratios = [f"{t.median / base.median:.2f}" for base in (next(iter(times.values())), forward) if base]
        out.add_row(name, *cells, *ratios)
    return out


def cases_of(module: str, device: torch.device, failed: list[str]) -> list[Case]:
    """Return the cases of a file; where they cannot be prepared, print why and return none."""
    imported = importlib.import_module(f"cases.{module}")
    try:
        return list(imported.cases(device))
    except Exception:
        failed.append(module)
        traceback.print_exc()
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--group", default="", help="run the cases of these files of bench/cases alone: bounds,certify")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--simd", choices=["avx2"], help="as on a processor without AVX-512, for every library")
    parser.add_argument("--threads", type=int, help="CPU threads, default torch's")
    parser.add_argument("--repeats", type=int, default=9, help="measurements of each variant; the median counts")
    args = parser.parse_args()
    if args.simd:
        if any(os.environ.get(name) != value for name, value in _AVX2.items()):
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_AVX2})
        _C.set_simd_level(args.simd)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    console = Console(width=110)
    results: list[dict[str, object]] = []
    failed: list[str] = []
    groups = sorted(module.name for module in pkgutil.iter_modules(cases.__path__))
    for module in args.group.split(",") if args.group else groups:
        for case in cases_of(module, device, failed):
            if args.only not in case.name:
                continue
            try:
                times = measure(case, args.repeats, device)
            except Exception:  # the cases after it are worth having
                failed.append(f"{module}: {case.name}")
                traceback.print_exc()
                continue
            console.print(table(case, times))
            results.append({"group": module, **row(case, times)})
            if args.json:  # after each case: a run that is stopped keeps what it measured
                unfinished = args.json.with_name(args.json.name + ".new")
                write(unfinished, results, args.device)
                unfinished.replace(args.json)
    if failed:
        raise SystemExit("cases that raised an error:\n  " + "\n  ".join(failed))
    if not results:
        raise SystemExit(f"--group {args.group} --only {args.only}: no such case")
    if args.json:
        console.print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
