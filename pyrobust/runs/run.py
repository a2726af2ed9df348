"""The results of a sweep, as read from its run file."""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import choice, file_path, first_values, image_indices, non_negatives, summary
from pyrobust.errors import FileFormatError, InputError
from pyrobust.frames import Tabular
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.runs.chunk_digests import ChunkDigests
from pyrobust.runs.chunks import ChunkRecord, read_chunks
from pyrobust.runs.kinds import KINDS, named
from pyrobust.runs.kinds.columns import decode_histograms
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import (
    Header,
    connect_readonly,
    join_blocks,
    read_blocks,
    read_header,
    reading,
)

# Adversarial examples that are checked at a time.
_EXAMPLES_BYTES = 1 << 26


class Run(Tabular):
    """The results of a sweep, read lazily from its file.

    A run can be read while it is being written; ``table`` then holds the results that were committed when ``table`` was
    first read.

    Args:
        source: the file, or an open connection to a run.
        path: the file behind a connection; None for a run in memory.
        checked: whether the rows behind a connection have already been compared with their digests; if True, they are
            not compared again.

    Raises:
        FileFormatError: the file is missing or damaged, or was written by another program, or by a newer or an older
            version.
        StoreError: the file cannot be opened, or its run is void, so that its results must not be used.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "digits.db")
    ...     _ = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4, out=path)
    ...     run = Run(path)
    ...     run.table["index"], run.certified_accuracy([0.0, 10.0])
    (array([0, 1, 2, 3]), array([1., 0.]))
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | sqlite3.Connection,
        path: str | os.PathLike[str] | None = None,
        *,
        checked: bool = False,
    ) -> None:
        self._checked = checked
        self._source = source if isinstance(source, sqlite3.Connection) else file_path("source", source)
        file = self._source if isinstance(self._source, Path) else path
        #: The file; None for a run in memory.
        self.path = None if file is None else Path(file)
        with self._open() as (connection, location):
            header = read_header(connection, location)
        if header is None:
            raise FileFormatError(f"{location}: empty database, not a run of pyrobust; use another file")
        #: Kind, parameters, hashes, guarantee and software versions.
        self.header: Header = header

    @property
    def kind(self) -> str:
        """Kind of the run: "certify", "predict", "attack", "verify" or "sandwich"."""
        return self.header.kind

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the run, by name."""
        return self.header.parameters

    @property
    def expected(self) -> range:
        """Data-set indices of the images that the complete run covers."""
        return chosen_indices(self.parameters)

    @property
    def files(self) -> list[Path]:
        """Files that the rows are read from; none for a run in memory."""
        return [] if self.path is None else [self.path]

    @property
    def complete(self) -> bool:
        """Whether the run has a row for every expected index."""
        return len(self) == len(self.expected)

    def __len__(self) -> int:
        if "table" in self.__dict__:
            return len(self.table["index"])
        with self._open_rows() as (connection, path), reading(path):
            return int(connection.execute("SELECT count(*) FROM result").fetchone()[0])

    def __repr__(self) -> str:
        path = None if self.path is None else str(self.path)
        return summary(self, kind=self.kind, images=len(self), expected=len(self.expected), path=path)

    @cached_property
    def table(self) -> dict[str, npt.NDArray[Any]]:
        """Columns by name, each [N], in index order; histograms and examples are returned by methods of their own.

        All kinds: ``index``, ``label`` and ``prediction`` are int64. ``prediction`` is -1 where a smoothed classifier
        abstained, or where the logits of another model have no finite maximum. ``status`` is "ok" or "abstain".
        ``seconds`` is float64.

        Certifications: ``p_lower`` and ``radius``, float64. ``p_lower`` is a lower limit of p_A, the probability of the
        selected class. ``radius`` is 0.0 where the classifier abstained. Sequential certifications have four more
        columns. ``samples`` is the number of samples, including those that selected the class. ``p_upper`` is an upper
        limit of p_A. It holds with probability 0.9 and certifies nothing. ``rival_upper`` is the upper limit of the
        probability of the strongest other class; it is 1 if the run was made without ``two_class``. ``undecided`` is
        text with one digit for each of ``parameters["radii"]``: 1 if the radius was undecided after n samples, else 0.

        Predictions: ``p_value``, float64.

        Attacks: ``prediction`` is for the clean image. ``adversarial`` is the prediction for the adversarial example
        x_adv (-1: no finite largest logit). ``broken_by`` is the attack that fooled the model ("clean" where the model
        misclassifies the clean image, "" where the model is robust). ``distance`` is ‖x_adv − x‖ in the attack's norm,
        float64. It is NaN where the model is robust, that is, where no adversarial example was found. In a minimum-norm
        run, ``distance`` is computed exactly and then rounded up. It is 0 where the clean image is misclassified, and
        inf (not NaN) where no adversarial example was found. A run with ``certify_first`` has three more columns.
        ``proved`` is 1 where the image is proved robust and was not attacked. ``rows_saved`` counts the rows
        (single-image forward passes) that the proof saved: attacks on the image would have taken at least this many.
        ``proof_seconds`` is the image's share of the proof time.

        Verifications: ``radius`` is the largest proved radius, or 0.0 if no radius was proved. A verification at given
        epsilons tries no other radii. ``verdicts``, ``stages`` and ``margins`` are encoded text, which the method
        `verdicts` decodes. In a search for radii, ``stages`` is the method that proved the radius ("" for none), and
        the other two are empty.

        Sandwiches: ``lower`` is a certified lower bound of the distance to misclassification. ``upper`` is the distance
        of the nearest adversarial example found, or inf where none was found. Both bounds are 0 where the image is
        misclassified. ``upper_by`` is the attack that found the nearest adversarial example, x_adv. ``adversarial`` is
        the prediction at x_adv. A sandwich of a base classifier has three more columns. ``lower_by`` is the method of
        the lower bound. ``confidence`` is the softmax probability of the prediction. ``margin`` is the label's logit
        minus the largest other logit at x_adv: the observed value if ``lower`` holds for float32 arithmetic, or an
        upper bound of the exact value if ``lower`` holds for exact arithmetic. It is given only where x_adv lies within
        the certified distance, that is, where ``lower`` is positive and at least ``upper``. Elsewhere, it is NaN. A
        sandwich of a smoothed classifier has two more columns. ``p_lower`` is a lower limit of p_A, the probability of
        the selected class. ``p_value`` is the p-value of the test at x_adv (1 where nothing was tested).
        """
        return join_blocks(list(self.blocks()))

    def blocks(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the rows of ``table`` in index order, some thousand at a time, without keeping the table.

        Raises:
            FileFormatError: the file is damaged.
        """
        if "table" in self.__dict__:
            yield dict(self.table)
            return
        kind = self.header.type
        with self._open_rows() as (connection, path):
            for table in read_blocks(connection, path, kind, kind.table_columns()):
                table = {"index": table.pop("idx"), **table}
                kind.check_rows(self.parameters, table, path)
                yield table

    @property
    def machines(self) -> dict[str, int]:
        """Return the number of images that each machine has computed.

        A machine is named by hardware, instruction set, threads and torch version. The dictionary is empty if the run
        has no results.
        """
        return dict(self._chunks.machines)

    @property
    def set_aside(self) -> dict[int, str]:
        """Error of each chunk that was set aside, keyed by the chunk's first image.

        A chunk is set aside if its workers died, or if one did not answer within the ``timeout``. Its results are
        missing, except for the images that a sequential certification had finished. Resuming the run computes the
        missing ones.
        """
        return dict(self._chunks.set_aside)

    @cached_property
    def _chunks(self) -> ChunkRecord:
        with self._open_rows() as (connection, path), reading(path):
            return read_chunks(connection, self.header)

    def histogram(self, name: str = "counts") -> npt.NDArray[np.int64]:
        """The votes of each image.

        Args:
            name: "counts" for the estimation samples, "counts0" for the samples that selected the class, or
                "counts_adv" for the samples with which a sandwich tests the adversarial example. Without a test, all
                counts of "counts_adv" are 0.

        Returns:
            int64 [N, K+1]; the last column counts outputs without a winner, such as NaN.

        Raises:
            InputError: this kind of run has no such histogram.
            FileFormatError: the file is damaged.
        """
        histograms = list(self.header.type.histograms())
        if not histograms:
            raise InputError(
                "histogram", "a run of a smoothed classifier", f"one of kind {self.kind}, which has no votes"
            )
        choice("histogram: name", name, histograms)
        return np.concatenate(list(self._histograms(name)))

    def _histograms(self, name: str) -> Iterator[npt.NDArray[np.int64]]:
        """Yield a histogram in blocks of some thousand rows; if there are no rows, one empty block."""
        kind = self.header.type
        column = kind.histograms()[name]
        # Images of a sequential run differ in their number of samples.
        per_image = kind.sampled_by_votes and column.samples == "n"
        with self._open_rows() as (connection, path):
            for columns in read_blocks(connection, path, kind, [name, "samples"] if per_image else [name]):
                with reading(path):
                    counts = decode_histograms(columns[name], self.parameters["num_classes"])
                votes = columns["samples"] - self.parameters["n0"] if per_image else self.parameters[column.samples]
                tested = counts.any(axis=1) if column.optional else True
                if not (counts.sum(axis=1) == np.where(tested, votes, 0)).all():
                    expected = "as many votes as samples" if kind.sampled_by_votes else f"{votes} votes"
                    raise FileFormatError(
                        f"{path}: damaged: column {name}: expected {expected} an image; do not use this file"
                    )
                yield counts

    def check(self) -> None:
        """Check the contents of the file, some rows at a time.

        Raises:
            FileFormatError: the file is damaged. Rows are compared with their digests only when this object reads rows
                for the first time; to check a file again, open it again.
        """
        for name in self.header.type.histograms():
            for _ in self._histograms(name):
                pass
        rows_at_once = max(1, _EXAMPLES_BYTES // (4 * math.prod(self.parameters.get("shape", [1]))))
        for table in self.blocks():
            indices = table["index"].tolist() if self.parameters.get("examples") else []
            for start in range(0, len(indices), rows_at_once):
                self._examples(indices[start : start + rows_at_once])
        _ = self._chunks

    def count_invalid_votes(self) -> int:
        """Return the number of images with samples that voted for no class, for example because of NaN outputs."""
        with self._open_rows() as (connection, path), reading(path):
            return int(connection.execute("SELECT count(*) FROM result WHERE counts LIKE '%nan%'").fetchone()[0])

    def certified_accuracy(self, radii: Sequence[float]) -> npt.NDArray[np.float64]:
        """The share of images that are classified correctly and certified at each radius.

        Args:
            radii: radii r >= 0 in the unit of the input, possibly inf. An image with certified radius R counts at r if
                R >= r; in a verification, R must also be above 0, since a radius of 0 proves nothing.

        Returns:
            float64 [len(radii)].

        Raises:
            InputError: the run is neither a certification nor a verification, or is empty; or a radius is negative or
                NaN.
            InputTypeError: radii that are not numbers.
        """
        kind = self.header.type
        if kind.certified != "radius":
            expected = named(other for other in KINDS.values() if other.certified == "radius")
            raise InputError("certified_accuracy", f"a run of kind {expected}", f"{self.kind}, which has no radii")
        self._expect_rows("certified_accuracy")
        radius = self.table["radius"]
        radius = radius[self.correct & kind.counted(radius)]
        return np.array([(radius >= r).sum() / len(self) for r in non_negatives("radii", radii, infinite=True)])

    def clean_accuracy(self, alpha: float = 0.05) -> Rate:
        """The share of images that are classified correctly, with its confidence interval.

        Args:
            alpha: probability that the interval misses the true share, in (0, 1).

        Returns:
            Rate; ``float(rate)`` is the share.

        Raises:
            InputError: the run is empty, or alpha is out of range.
        """
        self._expect_rows("clean_accuracy")
        return estimate_rate(int(self.correct.sum()), len(self), alpha)

    def verified_accuracy(self, epsilon: float, alpha: float = 0.05) -> Rate:
        """The share of images that are verified at epsilon, with its confidence interval.

        Args:
            epsilon: perturbation radius > 0. Images that were verified at a larger epsilon also count.
            alpha: probability that the interval misses the true share, in (0, 1).

        Returns:
            Rate; ``float(rate)`` is the share.

        Raises:
            InputError: the run is not a verification or is empty, or a value is out of range.
        """
        rate: Rate = self._of_kind("verified_accuracy")(self, epsilon, alpha)
        return rate

    def verdicts(self, epsilon: float) -> dict[str, npt.NDArray[Any]]:
        """The verdict on each image at one of the run's epsilons.

        Args:
            epsilon: one of ``parameters["epsilons"]``.

        Returns:
            A dictionary of three arrays [N]. ``verdict`` is "verified", "falsified" or "unknown". ``stage`` is the
            stage that gave the verdict ("forward", "attack" or a method), or "" where the verdict is unknown.
            ``margin``, float64, is the lower bound, proved by the last method tried, of the label's logit minus the
            largest other logit within epsilon. It is NaN where no method was tried.

        Raises:
            InputError: the run is not a verification, or does not have this epsilon.
        """
        verdicts: dict[str, npt.NDArray[Any]] = self._of_kind("verdicts_at", "verdicts")(self, epsilon)
        return verdicts

    def robust_accuracy(self, alpha: float = 0.05, *, epsilon: float | None = None) -> Rate:
        """The share of images at which the model is robust to the attack, with its confidence interval.

        Args:
            alpha: probability that the interval misses the true share, in (0, 1).
            epsilon: any radius >= 0 for a minimum-norm run; for any other run, its own epsilon or None.

        Returns:
            Rate; ``float(rate)`` is the share.

        Raises:
            InputError: the run is not an attack or is empty, or a value is out of range.
        """
        rate: Rate = self._of_kind("robust_accuracy", "robust")(self, alpha, epsilon)
        return rate

    def examples(self, indices: Sequence[int] | None = None) -> Tensor:
        """The adversarial examples of an attack, or the counterexamples of a verification.

        Args:
            indices: data-set indices, in any order. Default: all images of the run, in index order.

        Returns:
            float32 [n, C, H, W] or [n, D]. For an attack at one epsilon, every entry is within epsilon. If the model is
            robust at an image, the entry is the point that the attack returned (for PGD, for example, the iterate with
            the highest loss; for AutoAttack, the image itself). For a minimum-norm attack, the entry is the nearest
            adversarial example found, at any distance; it is the image itself if the image is misclassified or no
            adversarial example was found. For a verification, the entry is the counterexample at the smallest epsilon
            that has one, and is within this epsilon. It is the image itself if no epsilon has one. For a sandwich, the
            entry is the same as for a minimum-norm attack.

        Raises:
            InputError: the run is of another kind, was made with ``keep_examples=False``, or does not have one of the
                images.
            InputTypeError: indices that are not integers.
            FileFormatError: the file is damaged.
        """
        if not self.parameters.get("examples"):
            actual = self.header.type.without_examples(self.parameters)
            raise InputError("examples", "a run with adversarial examples", actual)
        present = self.table["index"].tolist()
        requested = present if indices is None else image_indices(indices)
        names = set(present)
        for index in requested:
            if index not in names:
                raise InputError("indices", f"images of the run, {_images(present)}", index)
        return self._examples(requested)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction equals the label; false for abstentions."""
        correct: npt.NDArray[np.bool_] = (self.table["prediction"] == self.table["label"]) & (
            self.table["prediction"] >= 0
        )
        return correct

    @property
    def robust(self) -> npt.NDArray[np.bool_]:
        """Whether the model classifies each image and its adversarial example correctly.

        Raises:
            InputError: the run is not an attack.
        """
        robust: npt.NDArray[np.bool_] = self._of_kind("robust")(self)
        return robust

    def to_dict(self) -> dict[str, Any]:
        """Return header and table as plain lists, numbers and strings."""
        return dataclasses.asdict(self.header) | {name: column.tolist() for name, column in self.table.items()}

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return self.table

    def _attributes(self) -> dict[str, Any]:
        return dataclasses.asdict(self.header)

    def _examples(self, indices: list[int]) -> Tensor:
        with self._open_rows() as (connection, path):
            ChunkDigests(connection, self.header).check_examples(path, indices)
            from pyrobust.runs.examples import read_examples

            return read_examples(connection, path, self.parameters, indices)

    def _of_kind(self, name: str, method: str = "") -> Any:
        """Return the kind's function called ``name``; if there is none, raise InputError that names ``method``."""
        attribute = getattr(self.header.type, name, None)
        if attribute is None:
            expected = named(kind for kind in KINDS.values() if hasattr(kind, name))
            raise InputError(method or name, f"a run of kind {expected}", self.kind)
        return attribute

    def _expect_rows(self, method: str) -> None:
        """Raise InputError that names the method if the run is empty."""
        if not len(self):
            raise InputError(method, problem="run is empty", hint="resume it first")

    @contextmanager
    def _open_rows(self) -> Iterator[tuple[sqlite3.Connection, Path]]:
        """Open the run; the first time, compare its rows with their digests."""
        with self._open() as (connection, path):
            if not self._checked:
                ChunkDigests(connection, self.header).check(path)
                self._checked = True
            yield connection, path

    @contextmanager
    def _open(self) -> Iterator[tuple[sqlite3.Connection, Path]]:
        if isinstance(self._source, sqlite3.Connection):
            yield self._source, self.path or Path("(in memory)")
            return
        with closing(connect_readonly(self._source)) as connection:
            yield connection, self._source


def _images(indices: Sequence[int]) -> str:
    """Describe which images a run holds, such as "0 to 5"; if there are gaps, name the first images held."""
    if not indices:
        return "which holds none yet"
    begin, stop = indices[0], indices[-1]
    return f"{begin} to {stop}" if stop - begin == len(indices) - 1 > 0 else first_values(indices)
