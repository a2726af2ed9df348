"""Peak memory of bounding margins, pyrobust against its peers, each measurement in a separate process. Linux only.

python bench/bounds_memory.py [--only TEXT] [--json FILE] [--threads N] [--repeats N] [--limit MB]

The figure is the increase of the resident size during one call, at its peak, after a call with one example has
triggered lazy loading and the C library has returned its free memory: the lowest of --repeats processes, since an
allocator may keep more. The settings are the batched ones of bench/cases/bounds.py. With --limit, both engines of
pyrobust are measured with that memory_limit, and a figure above it is an error.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import peers
import torch
from cases.bounds import SETTINGS, boxes, ours, title
from rich.console import Console
from rich.table import Table

from pyrobust.microbench.timing import describe_machine

_OURS = {"native": ("native", True), "native, sound=False": ("native", False), "torch": ("torch", True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the settings whose name contains this text")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each variant, the lowest counts")
    parser.add_argument("--limit", type=int, help="memory_limit in MB, for both engines of pyrobust")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    others = [peer.name for peer in peers.installed() if peer.margins]
    variants = ["native", "torch"] if args.limit else ["native", "native, sound=False", *others]
    results: dict[str, dict[str, float]] = {}
    # One process per task: memory that a call leaves in the allocator would be free for the next.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, text, epsilon, batch, methods in SETTINGS:
            for method in methods:
                setting = title(name, text, batch, method)
                if batch == 1 or args.only not in setting:
                    continue
                results[setting] = {
                    variant: min(
                        pool.apply(_megabytes, (name, epsilon, batch, method, variant, args.threads, args.limit))
                        for _ in range(args.repeats)
                    )
                    for variant in variants
                }
    if not results:
        raise SystemExit(f"--only {args.only}: no setting name contains it")
    console = Console(width=110)
    console.print(_table(results))
    if args.json:
        command = "python bench/bounds_memory.py " + shlex.join(sys.argv[1:])
        figures = {"command": command, "machine": describe_machine(torch.device("cpu")), "peak_megabytes": results}
        args.json.write_text(json.dumps(figures, indent=1))
        console.print(f"wrote {args.json}")
    over = [name for name, row in results.items() if args.limit and max(row.values()) > args.limit]
    if over:
        raise SystemExit(f"above {args.limit} MB: {'; '.join(over)}")


def _table(results: dict[str, dict[str, float]]) -> Table:
    variants = next(iter(results.values()))
    out = Table(title="Peak memory of one call, MB", title_justify="left")
    out.add_column("setting")
    for variant in variants:
        out.add_column(variant, justify="right")
    for setting, megabytes in results.items():
        out.add_row(setting, *(f"{value:.1f}" for value in megabytes.values()))
    return out


def _megabytes(
    name: str, epsilon: float, batch: int, method: str, variant: str, threads: int, limit: int | None
) -> float:
    torch.set_num_threads(threads)
    net, *box = boxes(name, epsilon, batch)
    example = box[0][:1]
    if variant in _OURS:
        engine, sound = _OURS[variant]
        margins = ours(net, example, method, sound, engine, None if limit is None else limit * 10**6)
    else:
        margins = next(peer for peer in peers.installed() if peer.name == variant).margins[method](net, example)
    margins(*(t[:1] for t in box))
    gc.collect()
    # Free memory that stays resident would be reused without being counted.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current resident size
    before = _resident("VmRSS")
    margins(*box)
    return (_resident("VmHWM") - before) / 1e6


def _resident(field: str) -> int:
    """Read a field of /proc/self/status in bytes."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if match is None:
        raise RuntimeError(f"/proc/self/status: no {field}")
    return 1024 * int(match.group(1))


if __name__ == "__main__":
    main()
