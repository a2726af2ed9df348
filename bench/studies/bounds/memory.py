"""Peak memory of bounding margins, pyrobust against its peers, each measurement in a separate process. Linux only.

The figure is the increase of the resident size during one call, at its peak, after a call with one example has
triggered lazy loading and the C library has returned its free memory, in MB: the lowest of --repeats processes, since
an allocator may keep more. The settings are the batched ones of bench/cases/bounds.py. With --limit, both engines of
pyrobust are measured with that memory_limit, and a figure above it is an error.
"""

from __future__ import annotations

import argparse

import peers
import torch
from cases.bounds import SETTINGS, boxes, ours, title
from study import Results, peak_rise, separately

_OURS = {"native": ("native", True), "native, sound=False": ("native", False), "torch": ("torch", True)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="run the settings whose name contains this text")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each variant, the lowest counts")
    parser.add_argument("--limit", type=int, help="memory_limit in MB, for both engines of pyrobust")


def measure(options: argparse.Namespace) -> Results:
    others = [peer.name for peer in peers.installed() if peer.margins]
    variants = ["native", "torch"] if options.limit else ["native", "native, sound=False", *others]
    over = []
    for name, text, epsilon, batch, methods in SETTINGS:
        for method in methods:
            setting = title(name, text, batch, method)
            if batch == 1 or options.only not in setting:
                continue
            case = name, epsilon, batch, method
            megabytes = {
                # One process per call: memory that a call leaves in the allocator would be free for the next.
                variant: min(
                    separately(_megabytes, *case, variant, options.threads, options.limit)
                    for _ in range(options.repeats)
                )
                for variant in variants
            }
            over += [setting] if options.limit and max(megabytes.values()) > options.limit else []
            yield setting, megabytes
    if over:
        raise SystemExit(f"above {options.limit} MB: {'; '.join(over)}")


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
    return peak_rise(lambda: margins(*box), trimmed=True)[1] / 1e6
