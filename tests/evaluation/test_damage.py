"""Tampered runs of networks: one clear error, never a wrong result."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from attack_runs import IMAGES, Threshold, digits, pgd, pixels
from damage import change
from example_parameters import example
from store_rows import IDENTITY
from verify_models import verify

from pyrobust.attacks import FAB
from pyrobust.errors import FileFormatError
from pyrobust.evaluation import Run, attack_dataset
from pyrobust.runs.kinds.attack import Attack
from pyrobust.runs.kinds.kind import Kind
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.reader import Header
from pyrobust.runs.writer import RunWriter

LENGTH = 4 * 64
#: Selects an image that is verified at the first two epsilons.
VERIFIED = "WHERE idx = (SELECT min(idx) FROM result WHERE verdicts LIKE 'verified,verified,%')"


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("runs")
    run = attack_dataset(pgd(), digits(), out=folder / "attack.db")
    assert {"", "PGD"} == set(run.table["broken_by"])
    attack_dataset(FAB(Threshold()), pixels(0.25, 0.0, 0.75), minimum=True, out=folder / "minimum.db")
    verify(attack="pgd", skip=4, out=folder / "verdicts.db")
    verify(epsilons=None, radius=True, method="lipschitz", norm="l2", skip=4, out=folder / "radii.db")
    return {path.stem: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def run_file(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    path = tmp_path / "run.db"
    path.write_bytes(contents["attack"])
    return path


ROWS = {
    "attack": [
        "adversarial = -2",
        "adversarial = 10",
        "distance = -0.1 WHERE broken_by = 'PGD'",
        "distance = 0.1500001 WHERE broken_by = 'PGD'",
        "distance = 9e999 WHERE broken_by = 'PGD'",
        "distance = 0.1 WHERE broken_by = ''",
        "distance = NULL WHERE broken_by = 'PGD'",
        "status = 'abstain'",
        "broken_by = ''",
        "broken_by = 'clean' WHERE broken_by = 'PGD'",
        "broken_by = 'a' || char(9) || 'b'",
        "broken_by = x'00'",
        "adversarial = label",
        "prediction = (label + 1) % 10",
        "x_adv = 0 WHERE idx = 5",
    ],
    "minimum": [
        "distance = 0.1 WHERE broken_by = 'clean'",
        "distance = NULL WHERE broken_by = 'FAB'",
        "distance = -0.1 WHERE broken_by = 'FAB'",
        "distance = 1.001 WHERE broken_by = 'FAB'",
        "distance = 9e999 WHERE broken_by = 'FAB'",
        "broken_by = '' WHERE broken_by = 'FAB'",
    ],
    "verdicts": [
        f"radius = 0.08 {VERIFIED}",
        f"radius = 0.0 {VERIFIED}",
        f"verdicts = 'verified,verified,verified,verified' {VERIFIED}",
        f"verdicts = 'verified,verified,proved' {VERIFIED}",
        f"verdicts = 'unknown,verified,' || substr(verdicts, 19) {VERIFIED}",
        f"stages = 'forward,' || substr(stages, 1 + instr(stages, ',')) {VERIFIED}",
        f"stages = 'attack,' || substr(stages, 1 + instr(stages, ',')) {VERIFIED}",
        f"stages = ',' || substr(stages, 1 + instr(stages, ',')) {VERIFIED}",
        f"margins = '0.0,' || substr(margins, 1 + instr(margins, ',')) {VERIFIED}",
        f"margins = 'nan,' || substr(margins, 1 + instr(margins, ',')) {VERIFIED}",
        f"margins = 'much,' || substr(margins, 1 + instr(margins, ',')) {VERIFIED}",
        f"prediction = (label + 1) % 10 {VERIFIED}",
    ],
    "radii": [
        "radius = -0.1",
        "radius = 1.01",
        "radius = 0",
        "stages = ''",
        "stages = 'attack'",
        "stages = 'newton' WHERE stages = 'lipschitz'",
        "verdicts = 'x'",
    ],
}


@pytest.mark.parametrize(("name", "assignment"), [(name, each) for name, some in ROWS.items() for each in some])
def test_tampered_rows_are_refused(tmp_path: Path, contents: dict[str, bytes], name: str, assignment: str) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents[name])
    assert Run(path).table
    change(path, f"UPDATE result SET {assignment}")
    with pytest.raises(FileFormatError, match=r"run\.db: damaged"):
        _ = Run(path).table


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Attack(), "epsilon", -1),
        (Attack(), "norm", "l3"),
        (Attack(), "clip", [1, 0]),
        (Attack(), "clip", [0, None]),
        (Attack(), "shape", [1, 8]),
        (Attack(), "shape", [2**20, 2**20, 2**20]),
        (Attack(), "example_dtype", "float64"),
        (Attack(), "examples", 1),
        (Attack(), "targeted", True),
        (Attack(), "seed", 2**64),
        (Attack(), "settings", [1]),
        (Attack(), "settings", {"steps": [1]}),
        (Attack(), "settings", {"steps": "x" * 300}),
        (Attack(), "attack", "two\tcolumns"),
        (Verify(), "epsilons", []),
        (Verify(), "epsilons", [0.05, 0.02, 0.08]),
        (Verify(), "epsilons", [-0.02, 0.05, 0.08]),
        (Verify(), "epsilons", [0.02, 0.05, "0.08"]),
        (Verify(), "epsilons", [0.02, 0.05, True]),
        (Verify(), "epsilons", 0.1),
        (Verify(), "largest", -1),
        (Verify(), "method", "magic"),
        (Verify(), "norm", "l3"),
        (Verify(), "sound", 1),
        (Verify(), "semantics", "ideal"),
    ],
)
def test_tampered_parameters_are_refused(kind: Kind, name: str, value: object) -> None:
    parameters = example(kind.name)
    kind.check(parameters)
    with pytest.raises(ValueError, match=f"parameter {name}"):
        kind.check(parameters | {name: value})


@pytest.mark.parametrize(("name", "value"), [("attack", None), ("epsilons", [0.02, 0.05])])
def test_parameters_that_contradict_the_rows_are_refused(
    tmp_path: Path, contents: dict[str, bytes], name: str, value: object
) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(contents["verdicts"])
    change(path, "UPDATE run SET parameters = ?", json.dumps({**Run(path).parameters, name: value}))
    with pytest.raises(FileFormatError, match=r"run\.db: damaged"):
        _ = Run(path).table


def test_examples_are_read_bit_for_bit_or_refused(run_file: Path) -> None:
    values = np.linspace(0, 1, 64, dtype="<f4")
    change(run_file, "UPDATE result SET x_adv = ? WHERE idx = 5", values.tobytes())
    assert np.array_equal(Run(run_file).examples([5]).numpy(), values.reshape(1, 1, 8, 8))
    last = [struct.pack("<f", value) for value in (float("nan"), -1e-9, 1.0000001)]
    for blob in (b"", bytes(LENGTH + 1), *(bytes(LENGTH - 4) + value for value in last)):
        change(run_file, "UPDATE result SET x_adv = ? WHERE idx = 5", blob)
        run = Run(run_file)
        assert len(run.table["index"]) == IMAGES
        with pytest.raises(FileFormatError, match=r"run\.db: damaged, or not a run of pyrobust \(column x_adv"):
            run.examples()


def test_a_shape_larger_than_the_examples_is_refused_before_allocation(run_file: Path) -> None:
    changed = json.dumps({**Run(run_file).parameters, "shape": [1, 2**13, 2**13]})
    change(run_file, "UPDATE run SET parameters = ?", changed)
    with pytest.raises(FileFormatError, match=f"expected {2**28} bytes an image, got another length for {IMAGES}"):
        Run(run_file).examples()


def test_the_clip_range_is_checked_in_float64() -> None:
    parameters = example("attack") | {"clip": [0.0, 0.1]}
    columns = {"label": [1], "prediction": [1], "status": ["ok"], "seconds": [0.1], "adversarial": [0]}
    columns |= {"distance": [0.1], "broken_by": ["FGSM"]}
    with RunWriter(None, Header("attack", parameters, "net", "", "digits", "", "empirical", {}, IDENTITY)) as writer:
        for index, value in enumerate((0.1, 0.09)):  # the float32 number next to 0.1 is above it
            writer.append(columns | {"idx": [index], "x_adv": [struct.pack("<4f", 0, 0, 0, value)]})
        run = Run(writer.connection)
        assert run.examples([1])[0, 0, 1, 1] == np.float32(0.09)
        with pytest.raises(FileFormatError, match="image 0 has a value that is NaN or outside the clip range"):
            run.examples()
