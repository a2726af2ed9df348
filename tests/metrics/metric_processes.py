"""Compute every torchmetrics metric in two processes, each writing its results: python metric_processes.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp
from metric_cases import CASES, batches, updated


def work(rank, folder):
    """One process: one batch for the first, the rest for the second; then all for the second."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mine = batches()[:1] if rank == 0 else batches()[1:]
    results = {}
    for name in CASES:
        metric = updated(name, mine)
        results[name] = {"value": float(metric.compute())}
        if hasattr(metric, "rate"):
            results[name]["rate"] = metric.rate().to_dict()
            # After gathering, the process continues with its own counts.
            results[name]["own"] = int(metric.total)
        results[name]["value of the second's"] = float(updated(name, batches() if rank else []).compute())
    (Path(folder) / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")  # without another import of torch
