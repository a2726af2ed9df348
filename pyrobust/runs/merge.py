"""The shards of one sweep as one run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.runs.parameters import EXECUTION, EXECUTION_ON_GRID
from pyrobust.runs.run import Run


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

    def _examples(self, indices: list[int]) -> Tensor:
        found = torch.empty((len(indices), *self.parameters["shape"]))
        for shard in self._shards:
            own = set(shard.table["index"].tolist())
            rows = [row for row, index in enumerate(indices) if index in own]
            found[rows] = shard._examples([indices[row] for row in rows])
        return found


def merge_runs(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """The shards of one sweep as one run.

    Args:
        paths: one file, sharded or not, which is read as it is; or the files of all K shards, in any order.

    Returns:
        The run, rows in the order of the index. Shards that are not finished contribute what they have.

    Raises:
        InputError: no file; several that are not all shards of one sweep: other parameters (batch size, chunk and
            device may differ; on a grid chunk alone, and torch may not), a missing shard, or one given twice. Each is
            named.
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
        ignore = EXECUTION_ON_GRID if "grid" in first.parameters else EXECUTION
        differences = first.header.differences(run.header, ignore=ignore)
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
