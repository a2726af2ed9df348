"""Filling a sequential run: images come and go one by one, and those in work are kept too."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.evaluation.progress import Report
from pyrobust.evaluation.resume import Tally
from pyrobust.runs.parameters import RULE, chosen_indices
from pyrobust.runs.reader import read_columns, read_histograms, reading
from pyrobust.runs.run import Run
from pyrobust.runs.schema import COMMON, LAYOUTS, PENDING
from pyrobust.runs.writer import RunWriter
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing
from pyrobust.smoothing.packing import SequencePacker
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence
from pyrobust.zoo import ImageSet

# Between two commits: what a kill costs, besides the round that it hits.
_COMMIT_S = 1.0
_LIMITS = ("p_lower", "p_upper", "rival_lower", "rival_upper")


def fill_sequentially(writer: RunWriter, smoother: RandomizedSmoothing, images: ImageSet, report: Report) -> None:
    """Certifies the images that a sequential run does not have yet, and those that it has half.

    Args:
        writer: of the run.
        smoother: its model, sigma, noise and seed.
        images: all images of the data set.
        report: told of each batch.

    Raises:
        FileFormatError: the run is damaged.
        StoreError: it cannot be written.
        ModelError: the model failed; what was committed is kept.
    """
    parameters = writer.header.parameters
    n0, classes = parameters["n0"], parameters["num_classes"]
    rule = smoother.rule(**{name: parameters[name] for name in RULE}, delta=parameters.get("delta", 0.0))
    tally = Tally(Run(writer.connection, writer.path))  # checks what is there, too
    report(tally.progress())
    begun = read_pending(writer.connection, writer.path or Path("(in memory)"), parameters, writer.done)
    skipped = writer.done | {image.index for image in begun}
    missing = [index for index in chosen_indices(parameters) if index not in skipped]
    if not begun and not missing:
        return

    def fetch(some: Sequence[ImageSequence]) -> Tensor:
        rows = [image.index for image in some]
        return smoother.examples(images.x[torch.tensor(rows)], rows)[0]

    def new(index: int) -> ImageSequence:
        return ImageSequence(index, np.zeros(classes + 1, dtype=np.int64))

    def work(drawn: int) -> None:
        report(tally.progress(samples + drawn, max(1, len(active)) * (n0 + rule.n), len(active)))

    packer = SequencePacker(smoother.sampler, rule, n0, fetch([new((missing or [begun[0].index])[0])])[0])
    finished: list[ImageSequence] = []
    active: list[ImageSequence] = []
    samples, last = 0, time.monotonic()
    for now in packer.run(chain(begun, map(new, missing)), fetch, work):
        finished += now.finished
        active = now.active
        samples = sum(n0 + image.drawn for image in active if image.counts0 is not None)
        if time.monotonic() - last >= _COMMIT_S or not active:
            _commit(writer, rule, finished, active, images, tally)
            finished, last = [], time.monotonic()
            work(0)
    _commit(writer, rule, finished, [], images, tally)
    report(tally.progress())


def _commit(
    writer: RunWriter,
    rule: CertificationRule,
    finished: list[ImageSequence],
    active: list[ImageSequence],
    images: ImageSet,
    tally: Tally,
) -> None:
    found = rule.results(finished)
    prediction = found["prediction"]
    rows: dict[str, Any] = {name: found[name] for name in LAYOUTS["sequential"]} | {
        "idx": found["indices"],
        "label": images.y[torch.from_numpy(found["indices"])].numpy(),
        "prediction": prediction,
        "status": ["abstain" if value == ABSTAIN else "ok" for value in prediction],
        "seconds": [image.seconds for image in finished],
        "undecided": ["".join(str(int(open_)) for open_ in row) for row in found["undecided"]],
    }
    selected = [image for image in active if image.counts0 is not None]
    limits = np.array([image.limits for image in selected]).reshape(-1, len(_LIMITS))
    pending: dict[str, Any] = {
        "idx": [image.index for image in selected],
        "counts0": [image.counts0 for image in selected],
        "counts": [image.counts for image in selected],
        "seconds": [image.seconds for image in selected],
        **dict(zip(_LIMITS, limits.T, strict=True)),
    }
    writer.append({name: rows[name] for name in COMMON | LAYOUTS["sequential"]}, pending)
    tally.add(rows)


def read_pending(
    connection: sqlite3.Connection, path: Path, parameters: dict[str, Any], done: set[int]
) -> list[ImageSequence]:
    """The images that a sequential run was at work on when it was left.

    Args:
        connection: to its file; untrusted.
        path: for messages.
        parameters: of the run.
        done: images that have their results.

    Returns:
        One for each, in the order of the index.

    Raises:
        FileFormatError: the table is damaged.
    """
    names = [name for name in PENDING if not name.startswith("counts")]
    columns = read_columns(connection, path, "sequential", names, "pending")
    counts0, counts = (
        read_histograms(connection, path, "sequential", name, parameters["num_classes"], "pending")
        for name in ("counts0", "counts")
    )
    limits = np.array([columns[name] for name in _LIMITS], dtype=np.float64).T.reshape(-1, len(_LIMITS))
    expected = chosen_indices(parameters)
    with reading(path):
        checks = {
            "an image that is not to be computed": all(i in expected and i not in done for i in columns["idx"]),
            "a selection of other samples": (counts0.sum(axis=1) == parameters["n0"]).all(),
            "a sequence that is at its end": (counts.sum(axis=1) < parameters["n"]).all(),
            "limits out of range": ((limits[:, ::2] >= 0) & (limits[:, ::2] < 1)).all()
            and ((limits[:, 1::2] > 0) & (limits[:, 1::2] <= 1)).all(),
            "a negative time": all(seconds >= 0 for seconds in columns["seconds"]),
        }
        wrong = [what for what, fine in checks.items() if not fine]
        if wrong:
            raise ValueError(f"table pending holds {wrong[0]}")
    return [
        ImageSequence(index, counts[row], counts0[row], limits[row], columns["seconds"][row])
        for row, index in enumerate(columns["idx"])
    ]
