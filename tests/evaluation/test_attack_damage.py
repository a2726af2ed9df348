"""Damaged run files of attacks give one clear error; files of schema version 1 still open."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest
from attack_runs import IMAGES, digits, pgd
from damage import change, refused_when_cut_or_flipped
from store_rows import IDENTITY, header, rows

from pyrobust.errors import FileFormatError
from pyrobust.evaluation import Run, attack_dataset
from pyrobust.runs.parameters import example
from pyrobust.runs.reader import Header
from pyrobust.runs.schema import VERSION
from pyrobust.runs.writer import RunWriter

LENGTH = 4 * 64


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("run") / "run.db"
    run = attack_dataset(pgd(), digits(), out=path)
    assert {"", "PGD"} == set(run.table["broken_by"])
    return path.read_bytes()


@pytest.fixture
def run_file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "run.db"
    path.write_bytes(content)
    return path


def read_all(path: Path) -> None:
    run = Run(path)
    _ = run.table
    run.examples()


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        bytes(LENGTH - 1),
        bytes(LENGTH + 1),
        bytes(2 * LENGTH),
        bytes(LENGTH - 4) + struct.pack("<f", float("nan")),
        bytes(LENGTH - 4) + struct.pack("<f", float("inf")),
        bytes(LENGTH - 4) + struct.pack("<f", -1e-9),
        bytes(LENGTH - 4) + struct.pack("<f", 1.0000001),
        "x" * LENGTH,
        0,
    ],
)
def test_damaged_examples_are_refused(run_file: Path, blob: object) -> None:
    change(run_file, "UPDATE result SET x_adv = ? WHERE idx = 5", blob)
    run = Run(run_file)
    if not isinstance(blob, bytes):  # has no digest
        with pytest.raises(FileFormatError, match=r"run\.db: damaged: "):
            _ = run.table
        return
    assert len(run.table["index"]) == IMAGES
    with pytest.raises(FileFormatError, match=r"run\.db: damaged, or not a run of pyrobust \(column x_adv"):
        run.examples()


def test_examples_are_read_bit_for_bit(run_file: Path) -> None:
    values = np.linspace(0, 1, 64, dtype="<f4")
    change(run_file, "UPDATE result SET x_adv = ? WHERE idx = 5", values.tobytes())
    assert np.array_equal(Run(run_file).examples([5]).numpy(), values.reshape(1, 1, 8, 8))


@pytest.mark.parametrize(
    "assignment",
    [
        "adversarial = -2",
        "adversarial = 10",
        "distance = -0.1",
        "distance = 0.1500001",
        "distance = 9e999",
        "distance = 0.1 WHERE broken_by = ''",
        "distance = NULL WHERE broken_by = 'PGD'",
        "distance = x'00'",
        "status = 'abstain'",
        "broken_by = 'clean'",
        "broken_by = ''",
        "broken_by = 'clean' WHERE broken_by = 'PGD'",
        "broken_by = 'a' || char(9) || 'b'",
        "broken_by = x'00'",
        "adversarial = label",
        "prediction = (label + 1) % 10",
        "idx = 400 WHERE idx = 3",
    ],
)
def test_tampered_results_are_refused(run_file: Path, assignment: str) -> None:
    change(run_file, f"UPDATE result SET {assignment}")
    with pytest.raises(FileFormatError, match=r"run\.db: damaged"):
        _ = Run(run_file).table


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", -1),
        ("norm", "l3"),
        ("clip", [1, 0]),
        ("clip", [0, None]),
        ("shape", [1, 8]),
        ("shape", [2**20, 2**20, 2**20]),
        ("example_dtype", "float64"),
        ("examples", 1),
        ("targeted", True),
        ("seed", 2**64),
        ("settings", [1]),
        ("settings", {"steps": [1]}),
        ("settings", {"steps": "x" * 300}),
        ("attack", "two\tcolumns"),
    ],
)
def test_tampered_parameters_are_refused(run_file: Path, name: str, value: object) -> None:
    changed = json.dumps({**Run(run_file).parameters, name: value})
    change(run_file, "UPDATE run SET parameters = ?", changed)
    with pytest.raises(FileFormatError, match=f"parameter {name}"):
        Run(run_file)


def test_a_shape_larger_than_the_examples_is_refused_before_allocation(run_file: Path) -> None:
    changed = json.dumps({**Run(run_file).parameters, "shape": [1, 2**13, 2**13]})
    change(run_file, "UPDATE run SET parameters = ?", changed)
    with pytest.raises(FileFormatError, match=f"expected {2**28} bytes an image, got another length for {IMAGES}"):
        Run(run_file).examples()


def test_truncated_and_flipped_files_raise_only_documented_errors(content: bytes, tmp_path: Path) -> None:
    refused_when_cut_or_flipped(content, tmp_path / "broken.db", read_all, 150, 50)


# -- schema versions --------------------------------------------------------------------------------------------------

# Character for character as version 1 wrote them.
_RUN_1 = (
    "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), schema_version INTEGER NOT NULL, kind TEXT NOT NULL, "
    "parameters TEXT NOT NULL, model TEXT NOT NULL, model_sha256 TEXT NOT NULL, data TEXT NOT NULL, "
    "data_sha256 TEXT NOT NULL, guarantee TEXT NOT NULL, versions TEXT NOT NULL)"
)
_COMMON_1 = (
    "CREATE TABLE result (idx INTEGER PRIMARY KEY, label INTEGER NOT NULL, prediction INTEGER NOT NULL, "
    "status TEXT NOT NULL, seconds REAL NOT NULL, "
)
_RESULT_1 = {
    "certify": _COMMON_1 + "counts0 TEXT NOT NULL, counts TEXT NOT NULL, p_lower REAL NOT NULL, radius REAL NOT NULL)",
    "predict": _COMMON_1 + "counts TEXT NOT NULL, p_value REAL NOT NULL)",
}
_ROWS_1 = {
    "certify": """7, 3, 3, 'ok', 0.5, '{"3":99,"nan":1}', '{"3":990,"nan":10}', 0.9, 0.25""",
    "predict": """7, 3, 3, 'ok', 0.5, '{"3":990,"nan":10}', 0.001""",
}


@pytest.mark.parametrize("kind", ["certify", "predict"])
def test_runs_of_schema_version_1_can_be_read_and_resumed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "old.db"
    old = header(kind)
    parameters = {name: old.parameters[name] for name in sorted(old.parameters)}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {0x50795262}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute(_RUN_1)
        connection.execute(_RESULT_1[kind])
        texts = (kind, json.dumps(parameters), old.model, old.model_sha256, old.data, old.data_sha256, "real", "{}")
        connection.execute("INSERT INTO run VALUES (1, 1, ?, ?, ?, ?, ?, ?, ?, ?)", texts)
        connection.execute(f"INSERT INTO result VALUES ({_ROWS_1[kind]})")
        connection.commit()
    run = Run(path)
    assert run.table["index"].tolist() == [7]
    assert run.histogram()[0, 3] == 990
    assert run.right.all()
    with RunWriter(path, old) as writer:
        assert writer.done == {7}
        chunk = rows(range(2))
        if kind == "predict":
            chunk = {name: value for name, value in chunk.items() if name not in ("counts0", "p_lower", "radius")}
            chunk["p_value"] = [0.5, 0.5]
        writer.append(chunk)
    assert len(Run(path)) == 3


def test_each_kind_has_its_schema_versions(run_file: Path) -> None:
    def version(path: Path) -> int:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])

    assert version(run_file) == VERSION
    change(run_file, "PRAGMA user_version = 1")
    with pytest.raises(FileFormatError, match="schema version 1, expected 4, 6, 11 or 12"):
        Run(run_file)
    change(run_file, "PRAGMA user_version = 5")
    with pytest.raises(FileFormatError, match="schema version 5, expected 4, 6, 11 or 12"):
        Run(run_file)
    change(run_file, "PRAGMA user_version = 7")
    with pytest.raises(FileFormatError, match="schema version 7, expected 4, 6, 11 or 12"):
        Run(run_file)
    change(run_file, "PRAGMA user_version = 10")
    with pytest.raises(FileFormatError, match="expected another kind of run, got one on threats"):
        Run(run_file)
    for other in (2, 13):
        change(run_file, f"PRAGMA user_version = {other}")
        with pytest.raises(FileFormatError, match=f"schema version {other}, expected 1, 3, 4, 5, 6, 7, 8, 9, 11 or 12"):
            Run(run_file)


def test_the_clip_range_is_checked_in_float64() -> None:
    made = Header(
        "attack", example("attack") | {"clip": [0.0, 0.1]}, "net", "", "digits", "", "empirical", {}, IDENTITY
    )
    with RunWriter(None, made) as writer:
        columns = {"idx": [0], "label": [1], "prediction": [1], "status": ["ok"], "seconds": [0.1], "adversarial": [0]}
        # The float32 number next to 0.1 is above it.
        writer.append(
            {**columns, "distance": [0.1], "broken_by": ["FGSM"], "x_adv": [struct.pack("<4f", 0, 0, 0, 0.1)]}
        )
        writer.append(
            {
                **columns,
                "idx": [1],
                "distance": [0.1],
                "broken_by": ["FGSM"],
                "x_adv": [struct.pack("<4f", 0, 0, 0, 0.09)],
            }
        )
        run = Run(writer.connection)
        assert run.robust_accuracy().successes == 0
        assert run.examples([1])[0, 0, 1, 1] == np.float32(0.09)
        with pytest.raises(FileFormatError, match="image 0 has a value that is NaN or outside the clip range"):
            run.examples()
