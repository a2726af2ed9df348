"""The command line in the header of a run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_rows import header, rows

from pyrobust.runs.command import stating_command
from pyrobust.runs.merged_file import write_merged
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter


def test_the_command_that_started_a_run_is_stored_beside_the_versions(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with stating_command(["certify", "--data", "my data"]), RunWriter(path, header()) as writer:
        writer.append(rows(range(4)))
    with stating_command(["certify", "--json", "-"]), RunWriter(path, header()) as writer:
        writer.append(rows(range(4, 8)))
    run = Run(path)
    assert run.header.command == "pyrobust certify --data 'my data'"
    assert run.header.versions == header().versions
    with closing(sqlite3.connect(path)) as connection:
        (stored,) = connection.execute("SELECT versions FROM run").fetchone()
    assert json.loads(stored) == {"pyrobust": "0.1.0", "command": "pyrobust certify --data 'my data'"}


def test_a_run_that_python_started_has_none(run_file: Path, tmp_path: Path) -> None:
    assert Run(run_file).header.command == ""
    shards = []
    for number in (1, 2):
        shards.append(tmp_path / f"{number}.db")
        with stating_command(["certify"]), RunWriter(shards[-1], header(shard=[number, 2])) as writer:
            writer.append(rows(range(number - 1, 20, 2)))
    assert write_merged(shards, tmp_path / "whole.db").header.command == ""


def test_a_resumed_run_does_not_warn_of_another_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for arguments in (["certify"], ["certify", "--json", "-"]):
        with stating_command(arguments):
            RunWriter(tmp_path / "run.db", header()).close()
    assert caplog.records == []
