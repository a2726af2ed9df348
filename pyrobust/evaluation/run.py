"""Reading runs: one, or the shards of one sweep together."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError, InputError, MissingExtraError
from pyrobust.evaluation.parameters import EXECUTION, chosen_indices
from pyrobust.evaluation.store import (
    COMMON,
    KINDS,
    Header,
    connect_readonly,
    decode_counts,
    read_columns,
    read_header,
    reading,
)

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"INTEGER": np.int64, "REAL": np.float64, "TEXT": np.str_}


class Run:
    """The results of a sweep, read from its file when they are asked for.

    A run can be read while it is being written; it then shows what was committed when it was opened.

    Args:
        source: the file, or a connection to the run.
        path: the file that a connection is to; None for a run in memory.

    Raises:
        FileFormatError: the file is missing, damaged, of another program or of a newer version.
        StoreError: it cannot be opened.

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
        self, source: str | os.PathLike[str] | sqlite3.Connection, path: str | os.PathLike[str] | None = None
    ) -> None:
        self._source = source if isinstance(source, sqlite3.Connection) else Path(source)
        file = self._source if isinstance(self._source, Path) else path
        #: The file; None for a run in memory.
        self.path = None if file is None else Path(file)
        with self._open() as (connection, where):
            header = read_header(connection, where)
        if header is None:
            raise FileFormatError(f"{where}: an empty database, not a run of pyrobust; name another file")
        #: Kind, parameters, hashes, guarantee and versions.
        self.header: Header = header

    @property
    def kind(self) -> str:
        """What was computed: "certify" or "predict"."""
        return self.header.kind

    @property
    def parameters(self) -> dict[str, Any]:
        """What the run was asked for, by name."""
        return self.header.parameters

    @property
    def expected(self) -> range:
        """The data-set indices that the run is to cover."""
        return chosen_indices(self.parameters)

    @property
    def complete(self) -> bool:
        """Whether all of them are there."""
        return len(self) == len(self.expected)

    def __len__(self) -> int:
        return len(self.table["index"])

    @cached_property
    def table(self) -> dict[str, npt.NDArray[Any]]:
        """Columns by name, rows in the order of the index; the histograms are under `histogram`.

        ``index``, ``label`` and ``prediction`` (-1: abstained) int64; ``status`` "ok" or "abstain"; ``seconds``
        float64; then ``p_lower`` and ``radius`` (0.0 where abstained), or ``p_value``, float64.
        """
        columns = COMMON | KINDS[self.kind]
        names = [name for name in columns if not name.startswith("counts")]
        with self._open() as (connection, where):
            found = read_columns(connection, where, self.kind, names)
            table = {name: np.array(found[name], dtype=_DTYPES[columns[name].split()[0]]) for name in names}
            table = {"index": table.pop("idx"), **table}
            self._check(table, where)
        return table

    def histogram(self, name: str = "counts") -> npt.NDArray[np.int64]:
        """The votes of each image.

        Args:
            name: "counts", or "counts0" for those that selected the class.

        Returns:
            int64 [N, K+1]; the last column holds the votes without a winner, such as NaN.

        Raises:
            InputError: this kind of run has no such histogram.
            FileFormatError: the file is damaged.
        """
        if not name.startswith("counts") or name not in KINDS[self.kind]:
            kept = ", ".join(column for column in KINDS[self.kind] if column.startswith("counts"))
            raise InputError(f"histogram: name: expected one of {kept}, got {name!r}")
        classes, total = self.parameters["num_classes"], self.parameters["n0" if name == "counts0" else "n"]
        with self._open() as (connection, where):
            texts = read_columns(connection, where, self.kind, [name])[name]
            with reading(where):
                counts = np.zeros((len(texts), classes + 1), dtype=np.int64)
                for row, text in zip(counts, texts, strict=True):
                    for column, votes in decode_counts(text, classes).items():
                        row[column] = votes
                if not (counts.sum(axis=1) == total).all():
                    raise ValueError(f"column {name}: expected {total} votes for each image")
        return counts

    def certified_accuracy(self, radii: Sequence[float]) -> npt.NDArray[np.float64]:
        """The share of images whose prediction is right and certified at each radius.

        Args:
            radii: in the unit of the input; a radius R counts at r where R >= r.

        Returns:
            float64 [len(radii)].

        Raises:
            InputError: the run holds predictions, or no image yet.
        """
        if self.kind != "certify":
            raise InputError(f"certified_accuracy: expected a run of kind certify, got {self.kind}; it has no radii")
        if not len(self):
            raise InputError("certified_accuracy: the run holds no image yet; go on with it first")
        radius = self.table["radius"][self.right]
        return np.array([(radius >= r).sum() / len(self) for r in map(float, radii)])

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction is the label; an abstention is not."""
        right: npt.NDArray[np.bool_] = (self.table["prediction"] == self.table["label"]) & (
            self.table["prediction"] >= 0
        )
        return right

    def to_dict(self) -> dict[str, Any]:
        """Header and table as plain lists, numbers and strings."""
        return dataclasses.asdict(self.header) | {name: column.tolist() for name, column in self.table.items()}

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame with the header in ``attrs``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("to_pandas: pandas is not installed: pip install pandas") from error
        frame = pd.DataFrame(self.table)
        frame.attrs = dataclasses.asdict(self.header)
        return frame

    @contextmanager
    def _open(self) -> Iterator[tuple[sqlite3.Connection, Path]]:
        if isinstance(self._source, sqlite3.Connection):
            yield self._source, self.path or Path("(in memory)")
            return
        with closing(connect_readonly(self._source)) as connection:
            yield connection, self._source

    def _check(self, table: dict[str, npt.NDArray[Any]], where: Path) -> None:
        """Refuses rows that no run writes."""
        classes = self.parameters["num_classes"]
        expected = self.expected
        checks = {
            "an image that the run does not cover": all(index in expected for index in table["index"].tolist()),
            "a label out of range": ((table["label"] >= 0) & (table["label"] < classes)).all(),
            "a prediction out of range": ((table["prediction"] >= -1) & (table["prediction"] < classes)).all(),
            "an unknown status": np.isin(table["status"], ("ok", "abstain")).all(),
            "a status that contradicts the prediction": (
                (table["status"] == "abstain") == (table["prediction"] < 0)
            ).all(),
            "a negative time": (table["seconds"] >= 0).all(),
        }
        for name in {"p_lower", "p_value"} & set(table):
            checks[f"a {name} out of range"] = ((table[name] >= 0) & (table[name] <= 1)).all()
        if "radius" in table:
            abstained = table["prediction"] < 0
            checks["a radius out of range"] = ((table["radius"] >= 0) & ~(abstained & (table["radius"] > 0))).all()
        wrong = [what for what, fine in checks.items() if not fine]
        if wrong:
            raise FileFormatError(f"{where}: damaged: holds {wrong[0]}; do not use it")


class _MergedRun(Run):
    """Shards as one run. A class of its own, because its rows come from several files."""

    def __init__(self, shards: list[Run]) -> None:
        self._shards = shards
        self.path = None
        first = shards[0].header
        self.header = dataclasses.replace(first, parameters=first.parameters | {"shard": None})
        self._order = np.argsort(np.concatenate([shard.table["index"] for shard in shards]), kind="stable")

    @cached_property
    def table(self) -> dict[str, npt.NDArray[Any]]:
        names = list(self._shards[0].table)
        return {name: np.concatenate([shard.table[name] for shard in self._shards])[self._order] for name in names}

    def histogram(self, name: str = "counts") -> npt.NDArray[np.int64]:
        counts: npt.NDArray[np.int64] = np.concatenate([shard.histogram(name) for shard in self._shards])[self._order]
        return counts


def merge_runs(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """The shards of one sweep as one run.

    Args:
        paths: one file, sharded or not, which is read as it is; or the files of all K shards, in any order.

    Returns:
        The run, rows in the order of the index. Shards that are not finished contribute what they have.

    Raises:
        InputError: no file; several that are not all shards of one sweep: other parameters (batch size, chunk and
            device may differ), a missing shard, or one given twice. Each is named.
        FileFormatError: a file is missing or damaged.

    >>> merge_runs([])
    Traceback (most recent call last):
    pyrobust.errors.InputError: merge_runs: paths: expected at least one run, got none
    """
    if not paths:
        raise InputError("merge_runs: paths: expected at least one run, got none")
    runs = [Run(path) for path in paths]
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    seen: dict[int, Run] = {}
    for run in runs:
        if run.parameters["shard"] is None:
            raise InputError(
                f"merge_runs: {run.path}: is not a shard; several runs are merged only if made with --shard I/K"
            )
        differences = first.header.differences(run.header, ignore=EXECUTION)
        if first.parameters["shard"][1] != run.parameters["shard"][1]:
            differences.append(f"shard: of {first.parameters['shard'][1]} there, of {run.parameters['shard'][1]} now")
        if differences:
            raise InputError(
                f"merge_runs: {run.path}: is not of the same sweep as {first.path}: {'; '.join(differences)} "
                f"(there: {first.path}, now: {run.path})"
            )
        other = seen.setdefault(run.parameters["shard"][0], run)
        if other is not run:
            raise InputError(
                f"merge_runs: shard {_shard(run)} is given twice: {other.path} and {run.path}; leave one out"
            )
    count = first.parameters["shard"][1]
    missing = list(islice((i for i in range(1, count + 1) if i not in seen), 21))
    if missing:
        named = ", ".join(f"{i}/{count}" for i in missing[:20]) + (" …" if len(missing) > 20 else "")
        raise InputError(f"merge_runs: missing shards: {named}; add their files, or export the others one by one")
    return _MergedRun(runs)


def _shard(run: Run) -> str:
    index, count = run.parameters["shard"]
    return f"{index}/{count}"
