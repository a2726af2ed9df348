"""A flipped bit in a run file never changes what a command prints: it refuses the file, or prints the same."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.example_parameters import example
from support.store_rows import MAKERS, header, pending_rows, sequential_rows, write_rows

from pyrobust.cli import main
from pyrobust.errors import PyrobustError
from pyrobust.evaluation import certify_dataset, predict_dataset, sandwich_dataset
from pyrobust.report import describe_run, run_summary
from pyrobust.runs.merged_file import write_merged
from pyrobust.runs.reader import Header, read_columns
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet, load_data, load_model

REFUSED = "refused: "
# Written by the clock, not read from the file.
_CLOCK = ("idle_seconds", "seconds_left")


def make_runs(folder: Path) -> list[Path]:
    """Write a run of each layout, all of them shards 1 of 1, which can be merged as well; and an unfinished one."""
    whole = load_data("digits")
    assert isinstance(whole, ImageSet)
    data = ImageSet("digits", whole.x[::100], whole.y[::100])
    smoother, on_grid = (
        RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25, grid=grid) for grid in (None, "1/16")
    )
    shared: dict[str, Any] = {"n": 200, "shard": (1, 1), "batch_size": 800}
    paths = {name: folder / f"{name}.db" for name in (*MAKERS, "grid", "predict", "smoothed-sandwich", "unfinished")}
    for case in MAKERS:
        write_rows(paths[case], case, images=8, shard=[1, 1])
    certify_dataset(on_grid, data, out=paths["grid"], order="random", **shared)
    predict_dataset(smoother, data, out=paths["predict"], **shared)
    sandwich_dataset(smoother, data, steps=2, n_attack=200, out=paths["smoothed-sandwich"], **shared)
    made = replace(header(), parameters=example("sequential") | {"chunk": 4, "shard": [1, 1]})
    with RunWriter(paths["unfinished"], made) as writer:
        writer.append(sequential_rows(range(0, 4)), machines={0: "another machine"})
        writer.append(sequential_rows(range(4, 6)), pending_rows([7, 6]))
        writer.set_aside(8, "a worker died")
    return list(paths.values())


def read_by_all(path: Path, made: Header) -> dict[str, str]:
    """Return what every command and reader gives for a run, or why it refuses the run."""
    commands = {
        "log": ("log", path),
        "audit": ("audit", path, "--json", "-"),
        "watch": ("watch", path, "--once", "--json", "-"),
        "missing": ("missing", path, "--json", "-"),
    }
    readers: dict[str, Callable[[], object]] = {
        "summary": lambda: [describe_run(Run(path)), run_summary(Run(path))],
        "table": lambda: [Run(path).to_dict(), Run(path).machines, Run(path).set_aside],
        "merge": lambda: _merge(path),
        "resume": lambda: _resume(path, made),
    }
    if made.parameters.get("examples"):
        readers["examples"] = lambda: Run(path).examples().numpy().tobytes().hex()
    if histograms := list(made.type.histograms()):
        readers["votes"] = lambda: [Run(path).histogram(name).tolist() for name in histograms]
    return {name: _command(*arguments) for name, arguments in commands.items()} | {
        name: _call(reader) for name, reader in readers.items()
    }


def _command(*arguments: object) -> str:
    """Run a command in this process, and return what it prints, without times."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["pyrobust", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as exit_:
        if exit_.code == 2:
            return REFUSED + err.getvalue()
    finally:
        sys.argv = before
    lines = [line for line in out.getvalue().splitlines() if not any(f'"{name}"' in line for name in _CLOCK)]
    return "\n".join([*lines, err.getvalue() if "watch" not in arguments else ""])


def _call(reader: Callable[[], object]) -> str:
    try:
        return repr(reader())
    except PyrobustError as error:
        return REFUSED + str(error)


def _merge(path: Path) -> object:
    out = path.with_name("merged.db")
    try:
        merged = write_merged([path], out, partial=True)
        return [merged.to_dict(), merged.machines]
    finally:
        for file in path.parent.glob("merged.db*"):
            file.unlink()


def _resume(path: Path, made: Header) -> object:
    """Read a run as a resumed sweep does; the file is a copy."""
    copy = path.with_name("resumed.db")
    shutil.copy(path, copy)
    try:
        with RunWriter(copy, made) as writer:
            states: Any = None
            if made.type.pending:
                states = read_columns(writer.connection, copy, made.type, list(made.type.pending), "pending")
            return [sorted(writer.done), writer._marks, states, Run(writer.connection, copy).to_dict()]
    finally:
        for file in path.parent.glob("resumed.db*"):
            file.unlink()


def flip_bits(folder: Path, count: int) -> Counter[str]:
    """Flip single bits of bytes other than 0 in runs of all layouts; count what became of each reader's answer."""
    paths = make_runs(folder)
    headers = {path: Run(path).header for path in paths}
    copy = folder / "copy" / "run.db"
    copy.parent.mkdir()

    @cache
    def intact(path: Path) -> dict[str, str]:
        shutil.copy(path, copy)
        read = read_by_all(copy, headers[path])
        assert not [text for text in read.values() if text.startswith(REFUSED)]
        return read

    chance = random.Random(count)
    counts: Counter[str] = Counter()
    for _ in range(count):
        path = chance.choice(paths)
        expected = intact(path)
        for companion in copy.parent.iterdir():
            companion.unlink()
        content = bytearray(path.read_bytes())
        content[chance.choice([offset for offset, byte in enumerate(content) if byte])] ^= 1 << chance.randrange(8)
        copy.write_bytes(content)
        for reader, text in read_by_all(copy, headers[path]).items():
            same = "same" if text == expected[reader] else f"changed: {reader} of {path.name}"
            counts["refused" if text.startswith(REFUSED) else same] += 1
    return counts


@pytest.mark.parametrize("count", [10, pytest.param(2000, marks=pytest.mark.full)])
def test_no_flipped_bit_changes_what_is_printed(tmp_path: Path, count: int) -> None:
    with (
        mock.patch("pyrobust.evaluation.watch._PAUSE_S", 0.0),
        mock.patch("pyrobust.runs.shards._PAUSE_S", 0.0),
    ):
        counts = flip_bits(tmp_path, count)
    print(dict(counts))
    assert set(counts) <= {"refused", "same"}
    assert counts["refused"] > counts["same"]
