"""Damaged run files of attacks give one clear error."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from attack_runs import IMAGES, digits, pgd
from damage import change, refused_when_cut_or_flipped
from example_parameters import example
from store_rows import IDENTITY

from pyrobust.errors import FileFormatError
from pyrobust.evaluation import Run, attack_dataset
from pyrobust.runs.reader import Header
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
