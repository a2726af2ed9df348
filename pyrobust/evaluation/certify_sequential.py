"""Certify sequentially: images start and finish one by one, and states of unfinished images are stored too."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.evaluation.sweep import ChunkPart
from pyrobust.runs.kinds.certify import Sequential
from pyrobust.runs.kinds.columns import Votes
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import read_columns, read_histograms, reading
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing
from pyrobust.smoothing.packing import SequencePacker
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

# Seconds between parts: a kill loses the work of this time and of the current round.
_PART_S = 1.0
_LIMITS = ("p_lower", "p_upper", "rival_lower", "rival_upper")


@dataclass(frozen=True)
class SequentialStep:
    """Certify the images of a chunk in shared batches, with the parameters of a sequential run.

    Chunks are independent of each other. The batches of a chunk depend on its images and the batch size alone. A chunk
    that is resumed from its last ``ChunkPart`` therefore draws its samples in the same batches as without the
    interruption.

    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother, digits = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, 0.25), load_data("digits")
    >>> parameters = {"num_classes": 10, "n0": 100, "n": 1000, "alpha": 0.001, "radii": [0.25, 0.5], "hybrid": 0.01}
    >>> parameters["two_class"] = False
    >>> step = SequentialStep(smoother, parameters)
    >>> rows = [part.rows for part in step(digits.x[:3], digits.y[:3], [0, 1, 2], [])]
    >>> sorted((index, int(part["prediction"][i])) for part in rows for i, index in enumerate(part["idx"]))
    [(0, 0), (1, 1), (2, 2)]
    """

    smoother: RandomizedSmoothing
    parameters: Mapping[str, Any]

    @cached_property
    def rule(self) -> CertificationRule:
        """The certification rule of the run."""
        return self.smoother.rule(
            **{name: self.parameters[name] for name in Sequential.rule}, delta=self.parameters.get("delta", 0.0)
        )

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        indices: Sequence[int],
        pending: Sequence[ImageSequence],
        advance: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[ChunkPart]:
        """Certify the unfinished images of a chunk.

        Args:
            x: [B, C, H, W], float; on the grid of the smoother, if it has one.
            y: labels, [B], int64.
            indices: data-set indices of the images, in processing order, B of them.
            pending: states of the images whose sampling has begun, in the order of the last ``ChunkPart``; modified in
                place.
            advance: called after each batch with two numbers of samples. The first is the number drawn for the images
                whose results are not in any ``ChunkPart`` yet. The second is the largest number that the B images can
                draw together.

        Yields:
            A ``ChunkPart`` about once a second, always between two rounds of batches, and a last one at the end.

        Raises:
            InputError, ModelError: see ``RandomizedSmoothing.certify_batch``.
        """
        n0, classes = self.parameters["n0"], self.parameters["num_classes"]
        rows = {index: row for row, index in enumerate(indices)}
        new = sorted(rows.keys() - {image.index for image in pending}, key=rows.__getitem__)
        images = [ImageSequence(index, np.zeros(classes + 1, dtype=np.int64)) for index in new]
        samples_of_image = n0 + self.rule.n  # samples of one image

        def fetch(sequences: Sequence[ImageSequence]) -> Tensor:
            chosen = [image.index for image in sequences]
            return self.smoother.examples(x[torch.tensor([rows[index] for index in chosen])], chosen)[0]

        def report(drawn: int) -> None:
            unfinished = sum(n0 + image.drawn for image in active if image.counts0 is not None)
            advance(len(finished) * samples_of_image + unfinished + drawn, len(indices) * samples_of_image)

        finished: list[ImageSequence] = []
        active, last = list(pending), time.monotonic()
        packer = SequencePacker(self.smoother.sampler, self.rule, n0, fetch([*pending, *images][:1])[0])
        for state in packer.run(images, fetch, report, pending):
            finished += state.finished
            active = state.active
            if time.monotonic() - last >= _PART_S:
                yield ChunkPart(self._rows(finished, y, rows), _pending(active))
                finished, last = [], time.monotonic()
                report(0)
        if finished:
            yield ChunkPart(self._rows(finished, y, rows), _pending([]))

    def _rows(self, finished: list[ImageSequence], y: Tensor, rows: Mapping[int, int]) -> dict[str, Any]:
        """Return the result columns of finished images."""
        results = self.rule.results(finished)
        indices, prediction = results["indices"].tolist(), results["prediction"]
        columns: dict[str, Any] = results | {
            "idx": indices,
            "label": y[torch.tensor([rows[index] for index in indices], dtype=torch.int64)].numpy(),
            "status": ["abstain" if value == ABSTAIN else "ok" for value in prediction],
            "seconds": [image.seconds for image in finished],
            "undecided": ["".join(str(int(undecided)) for undecided in row) for row in results["undecided"]],
        }
        return {name: columns[name] for name in Sequential.columns}


def _pending(active: list[ImageSequence]) -> dict[str, Any]:
    """Return the states of active images as table columns, in the order of the images."""
    limits = np.array([image.limits for image in active]).reshape(-1, len(_LIMITS))
    columns: dict[str, Any] = {
        "idx": [image.index for image in active],
        "counts0": [image.counts0 for image in active],
        "counts": [image.counts for image in active],
        "seconds": [image.seconds for image in active],
        **dict(zip(_LIMITS, limits.T, strict=True)),
    }
    return {name: columns[name] for name in Sequential.pending}


def as_sequences(pending: Mapping[str, Sequence[Any]]) -> list[ImageSequence]:
    """Return the states of a ``ChunkPart``, in the order in which sampling continues."""
    limits = np.array([pending[name] for name in _LIMITS], dtype=np.float64).T.reshape(-1, len(_LIMITS))
    columns = zip(pending["idx"], pending["counts"], pending["counts0"], limits, pending["seconds"], strict=True)
    return [ImageSequence(*values) for values in columns]


def read_pending(
    connection: sqlite3.Connection, path: Path, parameters: dict[str, Any], done: Container[int]
) -> list[ImageSequence]:
    """Read a sequential run's unfinished images from an untrusted file; the images of a chunk are in sampling order."""
    names = [name for name, column in Sequential.pending.items() if not isinstance(column, Votes)]
    arrays = read_columns(connection, path, Sequential(), names, "pending")
    columns = {name: array.tolist() for name, array in arrays.items()}
    counts0, counts = (
        read_histograms(connection, path, Sequential(), name, parameters["num_classes"], "pending")
        for name in ("counts0", "counts")
    )
    limits = np.array([columns[name] for name in _LIMITS], dtype=np.float64).T.reshape(-1, len(_LIMITS))
    expected = chosen_indices(parameters)
    with reading(path):
        checks = {
            "an image that is finished or not covered": all(i in expected and i not in done for i in columns["idx"]),
            "a selection that does not have n0 samples": (counts0.sum(axis=1) == parameters["n0"]).all(),
            "a finished sequence": (counts.sum(axis=1) < parameters["n"]).all(),
            "limits out of range": ((limits[:, ::2] >= 0) & (limits[:, ::2] < 1)).all()
            and ((limits[:, 1::2] > 0) & (limits[:, 1::2] <= 1)).all(),
            "a negative time": all(seconds >= 0 for seconds in columns["seconds"]),
        }
        failed = [fault for fault, passed in checks.items() if not passed]
        if failed:
            raise ValueError(f"table pending holds {failed[0]}")
    return [
        ImageSequence(index, counts[row], counts0[row], limits[row], columns["seconds"][row])
        for row, index in enumerate(columns["idx"])
    ]
