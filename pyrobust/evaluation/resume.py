"""What sweeps of every kind share: the chunks that a run does not have yet, one after the other."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import WORDS, count
from pyrobust.errors import FileFormatError, InputError, ModelError, PyrobustError
from pyrobust.evaluation.progress import Report, SweepProgress, sweep_reporting
from pyrobust.runner import Runner
from pyrobust.runs.parameters import check_parameters, chosen_indices
from pyrobust.runs.reader import Header, connect_readonly, read_header
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter
from pyrobust.zoo import ImageSet

#: (done, total): how far the chunk in work is.
Advance: TypeAlias = Callable[[int, int], None]
#: Images, their data-set indices and an ``Advance`` to columns of the store, all but idx, label and seconds.
Step: TypeAlias = Callable[[Tensor, range, Advance], dict[str, Any]]


class Tally:
    """What the results so far come to, for the progress."""

    def __init__(self, run: Run) -> None:
        parameters, table = run.parameters, run.table
        self.total = len(run.expected)
        self.done = 0
        # Of a search for radii nothing is counted but what is right: no radius is the one to ask for.
        asked = parameters.get("radii") or parameters.get("epsilons") or [0.0]
        self.radius = asked[0] if "radii" in parameters else parameters.get("sigma", asked[0])
        self.right = 0
        self.certified = 0 if "radius" in table and self.radius else None
        self.robust = 0 if "adversarial" in table else None
        self.add(table)

    def add(self, rows: Mapping[str, Any]) -> None:
        """Counts rows that are committed."""
        self.done += len(rows["label"])
        right = np.asarray(rows["prediction"]) == rows["label"]
        self.right += int(right.sum())
        if self.certified is not None:
            self.certified += int((rows["radius"][right] >= self.radius).sum())
        if self.robust is not None:
            self.robust += int((right & (rows["adversarial"] == rows["label"])).sum())

    def progress(self, samples: int = 0, chunk_samples: int = 0, chunk: int = 0) -> SweepProgress:
        """What is committed, and how far the chunk in work is."""
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
    out: str | os.PathLike[str] | None, header: Header, step: Step, images: ImageSet, progress: bool | Report
) -> Run:
    """`fill_run` by chunks of images, each whole.

    Args:
        out: the file; None keeps the run in memory.
        header: of the run.
        step: computes one chunk.
        images: all images of the data set.
        progress: as of ``certify_dataset``.

    Returns:
        The run.

    Raises:
        StoreError, FileFormatError: as `fill_run`.
    """
    return fill_run(out, header, lambda writer, report: _fill(writer, step, images, report), progress)


def fill_run(
    out: str | os.PathLike[str] | None,
    header: Header,
    fill: Callable[[RunWriter, Report], None],
    progress: bool | Report,
) -> Run:
    """Begins a run, or goes on with the one that is there, and computes what is missing.

    Of a finished run nothing is written: it may be read-only.

    Args:
        out: the file; None keeps the run in memory.
        header: of the run.
        fill: adds what is missing to the writer.
        progress: as of ``certify_dataset``.

    Returns:
        The run.

    Raises:
        StoreError: the run cannot be written, is being written by another process, or has other parameters.
        FileFormatError: ``out`` is not a run, or damaged.
    """
    there = None if out is None else _finished(Path(out), header)
    with sweep_reporting(progress) as report:
        if there is not None:
            report(Tally(there).progress())
            return there
        with RunWriter(out, header) as writer:
            fill(writer, report)
    return Run(writer.connection if out is None else out)


def _finished(path: Path, header: Header) -> Run | None:
    """The run in a file, where it is the one asked for and whole."""
    # What a killed writer left beside the file is for the next writer to clear up.
    if not os.path.isfile(path) or os.path.exists(f"{path}-wal"):
        return None
    with closing(connect_readonly(path)) as connection:
        stored = read_header(connection, path)
    if stored is None or stored.differences(header, ignore=frozenset({"torch"})):  # nothing more is computed
        return None
    run = Run(path)
    return run if run.complete else None


def _fill(writer: RunWriter, step: Step, images: ImageSet, report: Report) -> None:
    """Adds the chunks that are missing, each whole."""
    parameters = writer.header.parameters
    chosen = chosen_indices(parameters)
    tally = Tally(Run(writer.connection, writer.path))  # checks what is there, too

    def advance(chunk: int, samples: int, total: int) -> None:
        report(tally.progress(samples, total, chunk))

    report(tally.progress())
    for start in range(0, len(chosen), parameters["chunk"]):
        indices = chosen[start : start + parameters["chunk"]]
        present = sum(index in writer.done for index in indices)
        if present == len(indices):
            continue
        if present:
            raise FileFormatError(f"{writer.path}: damaged: holds part of a chunk, images {indices}; begin a new run")
        begin = time.perf_counter()
        rows = step(
            images.x[indices.start : indices.stop : indices.step],
            indices,
            partial(advance, len(indices)),
        )
        rows["seconds"] = [(time.perf_counter() - begin) / len(indices)] * len(indices)
        rows["idx"] = indices
        rows["label"] = images.y[indices.start : indices.stop : indices.step].numpy()
        writer.append(rows)
        tally.add(rows)
        report(tally.progress())


def stored_parameters(path: Path) -> dict[str, Any]:
    """The parameters of the run in a file; none where there is no file or nothing in it.

    Raises:
        FileFormatError: the file is no run.
    """
    if not os.path.isfile(path):  # false where the name is too long, at which Path.is_file fails
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
    """The header of a run that attacks or verifies images.

    Args:
        kind: "attack" or "verify".
        own: parameters of the kind.
        runner: of the model.
        model: what it is called, and its hash.
        images: all images of the data set.
        selection: which of them are covered.
        batch: rows of a batch.
        stored: parameters of the run that is gone on with, which may have another chunk.
        guarantee: of the results.

    Raises:
        InputError: parameters that a run cannot keep.
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
        raise InputError(f"{kind}: expected values that a run can keep, got {error}") from error
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


def software_versions() -> dict[str, str]:
    """What the results were made with.

    >>> sorted(software_versions())
    ['numpy', 'pyrobust', 'python', 'torch']
    """
    return {
        "pyrobust": metadata.version("pyrobust"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@contextmanager
def probing(shape: Sequence[int]) -> Iterator[None]:
    """Says that a model failed on one image, where it was given one to see whether it takes it.

    A model that does not fit the images is the likeliest mistake of all, and its traceback says little. What fails
    later, in the middle of a sweep, keeps its own.

    Args:
        shape: of the image, without batch dimension.

    Raises:
        ModelError: whatever the model raised, as its cause; this package's errors pass unchanged.

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
