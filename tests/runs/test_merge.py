"""Merging shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_parameters import example
from store_rows import IDENTITY, header
from sweep_models import FEW, images, smoother

from pyrobust.errors import InputError
from pyrobust.evaluation import certify_dataset, merge_runs
from pyrobust.runs.merge import group_shards
from pyrobust.runs.writer import RunWriter


def shard_files(folder: Path, count: int = 3, **options: Any) -> list[Path]:
    paths = [folder / f"shard{index}.db" for index in range(1, count + 1)]
    for index, path in enumerate(paths, start=1):
        certify_dataset(smoother(), images(), out=path, shard=(index, count), **(FEW | options))
    return paths


def test_missing_and_repeated_shards_are_reported(tmp_path: Path) -> None:
    first, second, third = shard_files(tmp_path)
    with pytest.raises(InputError, match=r"missing shards: 2/3;"):
        merge_runs([first, third])
    with pytest.raises(InputError, match=r"shard 2/3 given twice: .*shard2\.db and .*shard2\.db"):
        merge_runs([first, second, second, third])
    assert merge_runs([second]).parameters["shard"] == [2, 3]


def test_shards_on_a_grid_are_of_one_machine(tmp_path: Path) -> None:
    parameters = example("certify") | {"grid": "1/16", "delta": 1e-6}
    paths = [tmp_path / f"{number}.db" for number in (1, 2)]
    for number, (path, machine) in enumerate(zip(paths, ("cpu", "gpu"), strict=True), start=1):
        identity = replace(IDENTITY, machine=machine)
        made = replace(header(), parameters=parameters | {"shard": [number, 2]}, guarantee="grid", identity=identity)
        RunWriter(path, made).close()
    words = r"machine: cpu in the first, gpu in the second \(on a grid, it is part of the certified classifier\)"
    with pytest.raises(InputError, match=words):
        merge_runs(paths)
    assert [path.name for [path] in group_shards(paths)] == ["1.db", "2.db"]


def test_shards_of_other_sweeps_are_refused(tmp_path: Path) -> None:
    for name in ("other", "more"):
        (tmp_path / name).mkdir()
    first, second, _ = shard_files(tmp_path)
    other = shard_files(tmp_path / "other", n=50)
    with pytest.raises(InputError, match=r"n: 100 in the first, 50 in the second"):
        merge_runs([first, second, other[2]])
    more = shard_files(tmp_path / "more", count=4)
    with pytest.raises(InputError, match=r"shard: of 3 in the first, of 4 in the second"):
        merge_runs([first, second, more[2]])
    whole = tmp_path / "whole.db"
    certify_dataset(smoother(), images(), out=whole, **FEW)
    with pytest.raises(InputError, match="not a shard"):
        merge_runs([first, whole])
    assert merge_runs([whole]).complete
