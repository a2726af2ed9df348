"""Damaged or tampered verification runs: one clear error, never a wrong certificate."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from damage import change, refused_when_cut_or_flipped
from example_parameters import example
from verify_models import EPSILONS, IMAGES, verify

from pyrobust.errors import FileFormatError
from pyrobust.evaluation import Run
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.schema import VERSION

#: Selects an image that is verified at the first two epsilons.
VERIFIED = "idx = (SELECT min(idx) FROM result WHERE verdicts LIKE 'verified,verified,%')"


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("runs")
    verify(attack="pgd", out=folder / "verdicts.db")
    verify(epsilons=None, radius=True, method="crown", out=folder / "radii.db")
    return {name: (folder / f"{name}.db").read_bytes() for name in ("verdicts", "radii")}


def read_all(path: Path) -> None:
    run = Run(path)
    _ = run.table
    if run.parameters["examples"]:
        run.examples()
    for epsilon in run.parameters["epsilons"] or []:
        run.verdicts(epsilon)


@pytest.mark.parametrize(
    "assignment",
    [
        "radius = 0.08",
        "radius = 0.0",
        "radius = 9e999",
        "verdicts = 'verified'",
        "verdicts = 'verified,verified,verified,verified'",
        "verdicts = 'verified,verified,proved'",
        "verdicts = 'unknown,verified,' || substr(verdicts, 19)",
        "stages = 'forward,' || substr(stages, 1 + instr(stages, ','))",
        "stages = 'attack,' || substr(stages, 1 + instr(stages, ','))",
        "stages = ',' || substr(stages, 1 + instr(stages, ','))",
        "margins = '0.0,' || substr(margins, 1 + instr(margins, ','))",
        "margins = 'nan,' || substr(margins, 1 + instr(margins, ','))",
        "margins = 'much,' || substr(margins, 1 + instr(margins, ','))",
        "margins = ''",
        "status = 'abstain'",
        "prediction = (label + 1) % 10",
        "prediction = 10",
        "seconds = -1",
        "idx = 400",
    ],
)
def test_tampered_verdicts_are_refused(tmp_path: Path, contents: dict[str, bytes], assignment: str) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents["verdicts"])
    read_all(path)
    change(path, f"UPDATE result SET {assignment} WHERE {VERIFIED}")
    with pytest.raises(FileFormatError, match=r"run\.db: damaged"):
        read_all(path)


@pytest.mark.parametrize(
    "assignment", ["radius = -0.1", "radius = 1.01", "radius = 0", "stages = ''", "stages = 'attack'", "verdicts = 'x'"]
)
def test_tampered_radii_are_refused(tmp_path: Path, contents: dict[str, bytes], assignment: str) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents["radii"])
    read_all(path)
    change(path, f"UPDATE result SET {assignment} WHERE idx = 0")
    with pytest.raises(FileFormatError, match=r"run\.db: damaged"):
        read_all(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilons", []),
        ("epsilons", [0.05, 0.02, 0.08]),
        ("epsilons", [-0.02, 0.05, 0.08]),
        ("epsilons", [0.02, 0.05, "0.08"]),
        ("epsilons", [0.02, 0.05, True]),
        ("epsilons", 0.1),
        ("largest", -1),
        ("method", "magic"),
        ("norm", "l3"),
        ("clip", [1, 0]),
        ("sound", 1),
        ("semantics", "ideal"),
        ("attack", "two\tcolumns"),
        ("shape", [1, 8]),
        ("examples", None),
    ],
)
def test_tampered_parameters_are_refused(tmp_path: Path, contents: dict[str, bytes], name: str, value: object) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents["verdicts"])
    changed = json.dumps({**Run(path).parameters, name: value})
    change(path, "UPDATE run SET parameters = ?", changed)
    with pytest.raises(FileFormatError, match=f"parameter {name}"):
        Run(path)


@pytest.mark.parametrize(("name", "value"), [("attack", None), ("epsilons", [0.02, 0.05])])
def test_parameters_that_contradict_the_rows_are_refused(
    tmp_path: Path, contents: dict[str, bytes], name: str, value: object
) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents["verdicts"])
    change(path, "UPDATE run SET parameters = ?", json.dumps({**Run(path).parameters, name: value}))
    with pytest.raises(FileFormatError, match=r"run\.db: damaged"):
        read_all(path)


def test_the_schema_version(tmp_path: Path, contents: dict[str, bytes]) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents["verdicts"])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        connection.execute("PRAGMA user_version = 13")
        connection.commit()
    with pytest.raises(FileFormatError, match="schema version 13, expected 12"):
        Run(path)
    before = path.read_bytes()
    with pytest.raises(FileFormatError, match="use the version of pyrobust that wrote it"):
        verify(attack="pgd", out=path)
    assert path.read_bytes() == before


def test_the_example_is_valid() -> None:
    Verify().check(example("verify"))
    assert len(EPSILONS) < IMAGES


def test_truncated_and_flipped_files_raise_only_our_errors(contents: dict[str, bytes], tmp_path: Path) -> None:
    refused_when_cut_or_flipped(contents["verdicts"], tmp_path / "broken.db", read_all, 100, 30)
