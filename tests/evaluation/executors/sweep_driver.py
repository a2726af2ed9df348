"""A script that certifies digits on an executor, to be killed: OUT EXECUTOR METHOD."""

from __future__ import annotations

import logging
import sys
from typing import Any

import counted_model

from pyrobust.evaluation import certify_dataset, write_log
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data

IMAGES = 96
#: Chunks of 8 images in both methods.
METHODS: dict[str, dict[str, Any]] = {
    "fixed": {"n0": 20, "n": 500},
    "sequential": {"n0": 20, "n": 2000, "method": "sequential", "radii": [0.25, 0.5]},
}


def certify(out: str, executor: str, method: str = "fixed") -> None:
    smoother = RandomizedSmoothing(counted_model.load(), 10, 0.25, batch_size=256)
    where = None if executor == "none" else executor
    run = certify_dataset(
        smoother, load_data("digits"), out=out, max_images=IMAGES, executor=where, threads=1, **METHODS[method]
    )
    write_log(run, f"{out}.tsv")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    certify(*sys.argv[1:4])
