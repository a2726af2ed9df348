"""Computes every twin in two processes: python metric_processes.py FOLDER writes what each of them found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp
from metric_cases import CASES, batches, fed


def work(rank, folder):
    """One process: its own batches, more of them for the second; then again, where it has all of them."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mine = batches()[:1] if rank == 0 else batches()[1:]
    found = {}
    for name in CASES:
        metric = fed(name, mine)
        found[name] = {"value": float(metric.compute())}
        if hasattr(metric, "rate"):
            found[name]["rate"] = metric.rate().to_dict()
            # What was gathered is given back: the process goes on with its own counts.
            found[name]["own"] = int(metric.total)
        found[name]["value of the second's"] = float(fed(name, batches() if rank else []).compute())
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
