"""Merge the shards of a sweep into one run."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError, PyrobustError, StoreError
from pyrobust.runs.chunks import ChunkRecord
from pyrobust.runs.reader import Header, is_run, join_blocks
from pyrobust.runs.run import Run


class _MergedRun(Run):
    """A run whose rows come from the files of several shards."""

    def __init__(self, shards: list[Run]) -> None:
        self._shards = shards
        self.path = None
        first = shards[0].header
        self.header = dataclasses.replace(first, parameters=first.parameters | {"shard": None}, command="")

    @property
    def files(self) -> list[Path]:
        return [file for shard in self._shards for file in shard.files]

    def __len__(self) -> int:
        return len(self.table["index"]) if "table" in self.__dict__ else sum(map(len, self._shards))

    def blocks(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the tables of the shards one after another, in blocks of some thousand rows."""
        for shard in self._shards:
            yield from shard.blocks()

    @cached_property
    def table(self) -> dict[str, npt.NDArray[Any]]:
        table = join_blocks(list(self.blocks()))
        self._order = np.argsort(table["index"], kind="stable")
        return {name: table.pop(name)[self._order] for name in list(table)}

    @cached_property
    def _chunks(self) -> ChunkRecord:
        machines: Counter[str] = Counter()
        set_aside: dict[int, str] = {}
        for shard in self._shards:
            machines.update(shard.machines)
            set_aside |= shard.set_aside
        return ChunkRecord(machines=dict(machines), set_aside=set_aside)

    def histogram(self, name: str = "counts") -> npt.NDArray[np.int64]:
        images = len(self.table["index"])
        counts = np.concatenate([shard.histogram(name) for shard in self._shards])
        if len(counts) != images:
            raise StoreError("merged run: a shard is being written; wait for it to finish")
        ordered: npt.NDArray[np.int64] = counts[self._order]
        return ordered

    def _examples(self, indices: list[int]) -> Tensor:
        examples = torch.empty((len(indices), *self.parameters["shape"]))
        for shard in self._shards:
            rows = [row for row, index in enumerate(indices) if index in shard.expected]
            examples[rows] = shard._examples([indices[row] for row in rows])
        return examples


def merge_runs(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """Merge the shards of one sweep into one run.

    Args:
        paths: the files of all K shards, in any order. A single file (a shard or an undivided run) is read as it is.

    Returns:
        The run, with its rows in index order. Unfinished shards contribute the rows they have.

    Raises:
        InputError: there is no path, or the files are not exactly the shards of one sweep. For example, a shard is
        missing or given twice, or parameters differ. Shards may differ in chunk and order. Unless their guarantee is
        "grid", they may also differ in batch size, threads, hardware, device and torch version.
        FileFormatError: a file is missing or damaged, or was written by another program, or by a newer or an older
            version. A file that cannot be opened, or whose run is void, raises StoreError.

    >>> merge_runs([])
    Traceback (most recent call last):
    pyrobust.errors.InputError: merge_runs: paths: expected at least one run file, got none
    """
    if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Sequence):
        raise InputTypeError("merge_runs: paths", "a list of run files", repr(paths))
    if not paths:
        raise InputError("merge_runs: paths", "at least one run file", "none")
    runs = [Run(path) for path in paths]
    return runs[0] if len(runs) == 1 else _MergedRun(check_shards("merge_runs", runs))


def check_shards(function: str, runs: list[Run], *, partial: bool = False) -> list[Run]:
    """Return the shards of one sweep in order; for any other runs, raise InputError with the name of the function.

    All shards must be given, unless ``partial`` is True.
    """
    first = runs[0]
    shards: dict[int, Run] = {}
    for run in runs:
        if run.parameters["shard"] is None:
            raise InputError(
                function, problem=f"{run.path}: not a shard", hint="only runs made with --shard I/K can be merged"
            )
        differences = shard_differences(first.header, run.header)
        if differences:
            raise InputError(
                function,
                problem=f"{first.path} and {run.path} are shards of different sweeps: {'; '.join(differences)}",
            )
        other = shards.setdefault(run.parameters["shard"][0], run)
        if other is not run:
            raise InputError(
                function, problem=f"shard {_shard(run)} given twice: {other.path} and {run.path}", hint="leave one out"
            )
    count = first.parameters["shard"][1]
    missing = list(islice((i for i in range(1, count + 1) if i not in shards), 21))
    if missing and not partial:
        named = ", ".join(f"{i}/{count}" for i in missing[:20]) + (" …" if len(missing) > 20 else "")
        raise InputError(
            function, problem=f"missing shards: {named}", hint="add their files, or export the others one by one"
        )
    return [shards[number] for number in sorted(shards)]


def group_shards(paths: Sequence[str | os.PathLike[str]]) -> list[list[Path]]:
    """Group shards by sweep, in order of first appearance; any other file, even an unreadable one, is its own group.

    >>> group_shards(["log.tsv", "log.tsv"])
    [[PosixPath('log.tsv')], [PosixPath('log.tsv')]]
    """
    groups: list[list[Path]] = []
    shards: list[tuple[list[Path], dict[int, Run]]] = []
    for path in map(Path, paths):
        run = _shard_at(path)
        if run is not None:
            number = run.parameters["shard"][0]
            for group, headers in shards:
                if number not in headers and not shard_differences(next(iter(headers.values())).header, run.header):
                    headers[number] = run
                    group.append(path)
                    break
            else:
                shards.append(([path], {number: run}))
                groups.append(shards[-1][0])
        else:
            groups.append([path])
    return groups


def merge_shards(paths: Sequence[str | os.PathLike[str]]) -> Run:
    """Merge shards of one sweep, as `group_shards` returns them; some may be missing."""
    runs = [Run(path) for path in paths]
    return runs[0] if len(runs) == 1 else _MergedRun(runs)


def _shard_at(path: Path) -> Run | None:
    """Return the run in a file if it is a shard; None for other files, whose faults are reported when they are read."""
    try:
        if not is_run(path):
            return None
        run = Run(path)
    except PyrobustError:
        return None
    return None if run.parameters["shard"] is None else run


def shard_differences(
    first: Header, second: Header, wording: tuple[str, str] = ("in the first", "in the second")
) -> list[str]:
    """Describe the differences that show that two shards belong to different sweeps."""
    grid = first.guarantee == "grid"
    differences = first.differences(second, wording, first.type.execution(grid=grid))
    machines = [header.identity.machine for header in (first, second) if header.identity is not None]
    if grid and len(set(machines)) > 1:
        named = ", ".join(f"{machine} {where}" for machine, where in zip(machines, wording, strict=True))
        differences.append(f"machine: {named} (on a grid, it is part of the certified classifier)")
    counts = [header.parameters["shard"][1] for header in (first, second)]
    if counts[0] != counts[1]:
        differences.append(f"shard: of {counts[0]} {wording[0]}, of {counts[1]} {wording[1]}")
    return differences


def _shard(run: Run) -> str:
    index, count = run.parameters["shard"]
    return f"{index}/{count}"
