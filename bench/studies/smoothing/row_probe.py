"""How often the probe of rows refuses dependent models at first use, and that it refuses no honest one."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from study import Results

from pyrobust.errors import RowDependenceError
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.row_independence import EARLY
from pyrobust.runner import Runner

sys.path.append(str(Path(__file__).parents[3] / "tests"))
from support.row_models import DEPENDENT, HONEST, RowModel

ROWS = 256


def batches(model: RowModel, rows: int, count: int, seed: int) -> Iterator[torch.Tensor]:
    """Noisy copies of an image, as smoothing draws them."""
    x = torch.rand(1, *model.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    for number in range(count):
        runs = [(0, seed, number * rows, rows)]
        yield sample_noise(x, runs, sigma=0.25, noise="gaussian", stage="estimate", seed=seed).to(model.dtype)


def refused_at(model: RowModel, rows: int, count: int, seed: int) -> tuple[int | None, int]:
    """Return the batch at which a fresh model is refused, None if never, and the probe's passes."""
    runner = Runner(model.make(), batch_size=rows)
    probe = type(runner.row_probe)(runner.model, runner.logits, seed)
    runner.row_probe = probe
    with runner.session():
        for number, batch in enumerate(batches(model, rows, count, seed)):
            try:
                probe.expect_known_modules(single=rows == 1)
                probe.logits(batch, exact=False)
            except RowDependenceError:
                return number, probe.passes
    return None, probe.passes


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", choices=["dependent", "honest"], help="default: both")
    parser.add_argument("--share", type=int, default=1, help="every Kth model")


def measure(options: argparse.Namespace) -> Results:
    warnings.simplefilter("ignore")
    for kind, registry in (("dependent", DEPENDENT), ("honest", HONEST)):
        for name, model in list(registry.items())[:: options.share]:
            if options.only not in name or model.slow or options.kind not in (None, kind):
                continue
            rows = model.batch_size or (ROWS if kind == "dependent" else 64)
            count = (2 if model.typical else EARLY) if kind == "dependent" else 4
            refusals = [refused_at(model, rows, count, seed) for seed in range(options.seeds)]
            yield {
                "kind": kind,
                "name": name,
                "typical": model.typical,
                "rate": model.rate,
                "batches": count,
                "seeds": options.seeds,
                "refused_at_first": sum(at == 0 for at, _ in refusals),
                "refused": sum(at is not None for at, _ in refusals),
            }
