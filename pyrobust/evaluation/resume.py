"""Start or resume a run and compute its missing chunks; shared by sweeps of every kind."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from pyrobust.checks import WORDS, count, file_path, first_values
from pyrobust.errors import FileFormatError, InputError, ModelError, PyrobustError, RowDependenceError
from pyrobust.evaluation.datasets import take
from pyrobust.evaluation.progress import Report, SweepProgress, sweep_reporting
from pyrobust.runner import Runner
from pyrobust.runs.identity import Identity, software_versions
from pyrobust.runs.parameters import check_parameters, processing_order
from pyrobust.runs.reader import Header, connect_readonly, read_header
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter
from pyrobust.zoo import ImageSet

#: Receives the progress of the current chunk as (done, total).
Advance: TypeAlias = Callable[[int, int], None]
#: Computes the columns of a chunk, except idx, label and seconds, from its images and their data-set indices.
Step: TypeAlias = Callable[[Tensor, Sequence[int], Advance], dict[str, Any]]


class Tally:
    """Running counts of right, certified and robust images, from the rows of a run, or given ones, on."""

    def __init__(self, run: Run, rows: Mapping[str, Any] | None = None) -> None:
        parameters, table = run.parameters, run.table
        self.total = len(run.expected)
        self.done = 0
        # A search for radii has no radius of reference, so that only right images are counted.
        thresholds = parameters.get("radii") or parameters.get("epsilons") or [0.0]
        self.radius = thresholds[0] if "radii" in parameters else parameters.get("sigma", thresholds[0])
        self.right = 0
        sandwich = "upper" in table
        self.certified = 0 if (sandwich or "radius" in table) and self.radius else None
        # At whatever distance, a minimum-norm attack breaks nearly every image.
        broken = "adversarial" in table and "minimum" not in parameters and (self.radius or not sandwich)
        self.robust = 0 if broken else None
        self.add(table if rows is None else rows)

    def add(self, rows: Mapping[str, Any]) -> None:
        """Count committed rows."""
        self.done += len(rows["label"])
        right = np.asarray(rows["prediction"]) == rows["label"]
        self.right += int(right.sum())
        if self.certified is not None:
            lower = rows["lower" if "lower" in rows else "radius"]
            self.certified += int((right & (np.asarray(lower) >= self.radius)).sum())
        if self.robust is not None:
            if "upper" in rows:  # None and inf where no adversarial example was found
                broken = np.asarray(rows["upper"], dtype=np.float64) <= self.radius
            else:
                broken = np.asarray(rows["adversarial"]) != rows["label"]
            self.robust += int((right & ~broken).sum())

    def progress(self, samples: int = 0, chunk_samples: int = 0, chunk: int = 0) -> SweepProgress:
        """Return the counts with the progress of the current chunk."""
        return SweepProgress(
            self.done,
            self.total,
            samples,
            chunk_samples,
            chunk,
            self.right,
            self.certified,
            self.radius,
            self.robust,
        )


def write_run(
    out: str | os.PathLike[str] | None,
    header: Header,
    step: Step,
    images: ImageSet,
    progress: bool | Report,
    *,
    identify: Callable[[], Identity],
    allow_changed_code: bool,
    committed: Callable[[Run, Sequence[int]], None] | None = None,
) -> Run:
    """Start or resume a run, computing its missing chunks with ``step``; ``committed`` is called after each."""

    def fill(writer: RunWriter, report: Report) -> None:
        _write_chunks(writer, step, images, report, committed)

    return fill_run(out, header, fill, progress, identify=identify, allow_changed_code=allow_changed_code)


def fill_run(
    out: str | os.PathLike[str] | None,
    header: Header,
    fill: Callable[[RunWriter, Report], None],
    progress: bool | Report,
    *,
    identify: Callable[[], Identity],
    allow_changed_code: bool,
) -> Run:
    """Start or resume a run, in memory for None, and let ``fill`` add the missing rows.

    A complete run is only read: its file may be read-only. The model is identified before and after, and a run whose
    model turns out to be no function of one input is void.
    """
    before = identify()
    header = dataclasses.replace(header, identity=before)
    complete = None if out is None else _complete_run(Path(out), header)
    with sweep_reporting(progress) as report:
        if complete is not None:
            report(Tally(complete).progress())
            return complete
        with RunWriter(out, header, allow_changed_code=allow_changed_code) as writer:
            try:
                fill(writer, report)
                _check_unchanged(before, identify(), exact=header.guarantee == "grid")
            except RowDependenceError as error:
                if writer.done:
                    writer.void(str(error))
                raise
    return Run(writer.connection if out is None else out)


def _check_unchanged(before: Identity, after: Identity, *, exact: bool) -> None:
    """Raise RowDependenceError if the model's logits changed, in their bits or by more than rounding."""
    # Its source files may have been edited meanwhile, without effect on this process.
    after = dataclasses.replace(after, code=before.code, bits=after.bits if exact else "")
    changes = before.differences(after)
    if changes:
        raise RowDependenceError(
            f"model: expected the same logits before and after the run, but they changed: {'; '.join(changes)}; make "
            "it a function of its input, without counters or other state"
        )


def _complete_run(path: Path, header: Header) -> Run | None:
    """Return the run in a file if it is complete and agrees with the header."""
    # A write-ahead log left by a killed writer is recovered by the next writer.
    if not os.path.isfile(path) or os.path.exists(f"{os.path.realpath(path)}-wal"):
        return None
    with closing(connect_readonly(path)) as connection:
        stored = read_header(connection, path)
    # Any torch may read a complete run, since nothing more is computed.
    if stored is None or stored.differences(header, ignore=frozenset({"torch"})):
        return None
    run = Run(path)
    return run if run.complete else None


def _write_chunks(
    writer: RunWriter,
    step: Step,
    images: ImageSet,
    report: Report,
    committed: Callable[[Run, Sequence[int]], None] | None,
) -> None:
    """Compute and append the missing chunks."""
    parameters = writer.header.parameters
    order = processing_order(parameters)
    tally = Tally(Run(writer.connection, writer.path))  # validates the stored rows as well

    def advance(chunk: int, samples: int, total: int) -> None:
        report(tally.progress(samples, total, chunk))

    report(tally.progress())
    for start in range(0, len(order), parameters["chunk"]):
        indices = order[start : start + parameters["chunk"]]
        present = sum(index in writer.done for index in indices)
        if present == len(indices):
            continue
        if present:
            raise FileFormatError(
                f"{writer.path}: damaged: holds part of a chunk, images {first_values(indices)}; start a new run"
            )
        begin = time.perf_counter()
        rows = step(
            take(images.x, indices),
            indices,
            partial(advance, len(indices)),
        )
        rows["seconds"] = [(time.perf_counter() - begin) / len(indices)] * len(indices)
        rows["idx"] = indices
        rows["label"] = take(images.y, indices).numpy()
        writer.append(rows)
        tally.add(rows)
        report(tally.progress())
        if committed is not None:
            committed(Run(writer.connection, writer.path), indices)


def stored_parameters(out: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the parameters of the run in a file; {} for None, and if the file is missing or an empty database."""
    if out is None:
        return {}
    path = file_path("out", out)
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        return {}
    with closing(connect_readonly(path)) as connection:
        header = read_header(connection, path)
    return {} if header is None else header.parameters


def attack_or_verify_header(
    kind: str,
    own: dict[str, Any],
    *,
    runner: Runner,
    model: tuple[str, str],
    images: ImageSet,
    selection: dict[str, Any],
    batch: int,
    stored: dict[str, Any],
    guarantee: str,
) -> Header:
    """Return the header of an attack or a verification; a resumed run keeps the chunk of its stored parameters.

    ``own`` are the parameters of the kind, ``model`` is the model's name and hash, and ``batch`` the rows of a batch.
    """
    batch = count("batch_size", batch, WORDS)
    parameters = own | {
        "dtype": str(runner.dtype).removeprefix("torch."),
        "memory_format": str(runner.memory_format).removeprefix("torch."),
        "device": runner.device.type,
        "shape": list(images.x.shape[1:]),
        "example_dtype": "float32",
        **selection,
        "batch_size": batch,
        "chunk": stored.get("chunk", min(WORDS, batch)),
    }
    try:
        check_parameters(kind, parameters)
    except ValueError as error:
        raise InputError(f"{kind}: expected values that a run can store, got {error}") from error
    return Header(
        kind=kind,
        parameters=parameters,
        model=model[0],
        model_sha256=model[1],
        data=images.name,
        data_sha256=images.sha256,
        guarantee=guarantee,
        versions=software_versions(),
    )


@contextmanager
def probing(shape: Sequence[int]) -> Iterator[None]:
    """Translate any exception of a model on its first image, of this shape, to ModelError.

    A model that does not fit the images is the most likely mistake, and its traceback says little. Exceptions later in
    a sweep, and this package's own errors, propagate unchanged.

    >>> with probing((1, 8, 8)):
    ...     raise ValueError("expected 3 channels")
    Traceback (most recent call last):
    pyrobust.errors.ModelError: model: failed on one image of shape (1, 8, 8): ValueError: expected 3 channels
    """
    try:
        yield
    except PyrobustError:
        raise
    except Exception as error:
        reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise ModelError(f"model: failed on one image of shape {tuple(shape)}: {reason}") from error
