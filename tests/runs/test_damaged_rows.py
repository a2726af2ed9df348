"""Tampered rows and parameters, with digests to match: one clear error, never a wrong result."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.damage import change
from support.example_parameters import example
from support.store_rows import IDENTITY, MAKERS, header, pending_rows, sequential_rows, write_rows

from pyrobust.errors import FileFormatError, InputError
from pyrobust.evaluation.certify_sequential import read_pending
from pyrobust.runs.kinds import KINDS
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter

#: By layout, or case of one: assignments, and the fault of the rows that they make.
ROWS = {
    "certify": {
        "idx = 4294967296 WHERE idx = 7": "a chunk that has no digest",
        "label = 10": "a label out of range",
        "label = 'x'": "",
        "prediction = 10": "a prediction out of range",
        "prediction = -2": "a prediction out of range",
        "seconds = -0.5": "a negative time",
        "p_lower = 1.5": "a p_lower out of range",
        "radius = -0.5": "a radius out of range",
        "radius = 9e999": "",
        "radius = 'NaN'": "",
        "status = x'ff'": "",
        "status = 'abstained'": "an unknown status",
        "status = 'abstain'": "a status that contradicts the prediction",
        "prediction = -1, status = 'abstain'": "a radius out of range",
    },
    "sequential": {
        "samples = samples - 1": "counts: expected as many votes as samples",
        "samples = 5": "numbers of samples out of range",
        "samples = 99999": "numbers of samples out of range",
        "undecided = '1'": "undecided radii that contradict",
        "undecided = '0x'": "undecided radii that contradict",
        "undecided = '01'": "undecided radii that contradict",
        "radius = 0.3, samples = 1000, undecided = '01'": "undecided radii before all",
        "p_upper = 1.5": "p_upper out of range",
    },
    "attack": {
        "adversarial = -2": "an adversarial prediction out of range",
        "adversarial = 10": "an adversarial prediction out of range",
        "distance = -0.1 WHERE broken_by = 'FGSM'": "a distance out of range",
        "distance = 0.2500001 WHERE broken_by = 'FGSM'": "a distance out of range",
        "distance = NULL WHERE broken_by = 'FGSM'": "a distance out of range",
        "distance = 9e999 WHERE broken_by = 'FGSM'": "",
        "distance = 0.1 WHERE broken_by = ''": "a distance for a robust image",
        "status = 'abstain'": "an unknown status",
        "broken_by = ''": "a broken_by that contradicts the predictions",
        "broken_by = 'clean' WHERE broken_by = 'FGSM'": "a broken_by that contradicts the predictions",
        "adversarial = label": "a broken_by that contradicts the predictions",
        "prediction = (label + 1) % 10": "a broken_by that contradicts the predictions",
        "broken_by = 'a' || char(9) || 'b'": "an invalid attack name",
        "broken_by = x'00'": "",
        "x_adv = 0 WHERE idx = 5": "",
    },
    "minimum": {
        "prediction = 4, broken_by = 'clean', distance = 0.1 WHERE idx = 0": "of a misclassified image other than 0",
        "distance = NULL WHERE broken_by = 'FGSM'": "a distance out of range",
        "distance = -0.1 WHERE broken_by = 'FGSM'": "a distance out of range",
        "distance = 1.001 WHERE broken_by = 'FGSM'": "a distance out of range",
        "distance = 9e999 WHERE broken_by = 'FGSM'": "",
        "distance = 0.1 WHERE broken_by = ''": "a distance where no adversarial example was found",
        "broken_by = '' WHERE broken_by = 'FGSM'": "a broken_by that contradicts the predictions",
    },
    "certified-first": {
        "proved = 2 WHERE proved = 1": "a proof that is neither there nor missing",
        "proved = 1, rows_saved = 5 WHERE broken_by != ''": "a proved image that an attack broke",
        "rows_saved = 0 WHERE proved = 1": "rows saved without a proof, or none with one",
        "rows_saved = 3 WHERE proved = 0": "rows saved without a proof, or none with one",
        "proof_seconds = -1.0": "a negative time of a proof",
    },
    "verify": {
        "radius = 0.2": "a radius that contradicts the verdicts",
        "radius = 0.0": "a radius that contradicts the verdicts",
        "verdicts = 'verified'": "verdicts that do not match the 2 epsilons",
        "verdicts = 'verified,proved'": "a verdict that its stage cannot give",
        "verdicts = 'unknown,verified'": "a verdict that its stage cannot give",
        "stages = 'forward,'": "a verdict that its stage cannot give",
        "stages = 'attack,'": "a verdict that its stage cannot give",
        "stages = ','": "a verdict that its stage cannot give",
        "verdicts = 'verified,falsified', stages = 'crown,attack'": "a counterexample without an attack",
        "verdicts = 'verified,falsified', stages = 'crown,forward'": "a verdict that contradicts the prediction",
        "margins = '0.0,-0.25'": "a verified margin that is not positive",
        "margins = 'nan,-0.25'": "a verified margin that is not positive",
        "margins = 'much,-0.25'": "",
        "prediction = (label + 1) % 10": "a certified image that the model gets wrong",
    },
    "search": {
        "radius = -0.1": "a radius out of range",
        "radius = 1.01": "a radius out of range",
        "radius = 0": "",
        "stages = ''": "a stage that contradicts the radius",
        "stages = 'attack'": "a stage that contradicts the radius",
        "stages = 'newton'": "a stage that contradicts the radius",
        "verdicts = 'x'": "verdicts in a search for radii",
    },
    "sandwich": {
        "lower = 0.5 WHERE idx = 1": "a margin that contradicts the bounds",
        "margin = -1": "a margin that contradicts the bounds",
        "lower = 2 * upper, margin = 5 WHERE idx = 1": "a positive margin of a misclassified example",
        "lower = -1": "a lower bound out of range",
        "upper = -1": "an upper bound out of range",
        "upper = NULL": "an upper bound that contradicts upper_by",
        "upper_by = ''": "an upper bound that contradicts upper_by",
        "upper_by = 'clean'": "an upper_by that contradicts the prediction",
        "lower_by = 'magic'": "a lower_by that contradicts the lower bound",
        "adversarial = label": "an adversarial prediction that is the label",
        "confidence = 1.5": "a confidence out of range",
    },
}


def refused(path: Path, fault: str) -> None:
    """Assert that the rows of a run are refused, for a fault of their types alone if it is not named."""
    run = Run(path)
    with pytest.raises(FileFormatError, match=rf"run\.db: damaged.*{fault}"):
        _ = run.table, run.histogram()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """The file of a run of each layout, which is valid."""

    @functools.cache
    def write(case: str) -> bytes:
        changes = {"semantics": "float32"} if case == "sandwich" else {}
        path = write_rows(tmp_path_factory.mktemp(case) / "run.db", case, **changes)
        assert len(Run(path).table["index"]) == 8
        return path.read_bytes()

    return write


@pytest.mark.parametrize(("case", "assignment", "fault"), [(case, *row) for case in ROWS for row in ROWS[case].items()])
def test_tampered_rows_are_refused(
    tmp_path: Path, written: Callable[[str], bytes], case: str, assignment: str, fault: str
) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(written(case))
    change(path, f"UPDATE result SET {assignment}")
    refused(path, fault)


@pytest.mark.parametrize("text", ['{"3":999}', '{"3":990,"x":10}', "{", '{"3":990,"nan":10,"nan":10,"4":1}'])
def test_tampered_histograms_are_refused(run_file: Path, text: str) -> None:
    with pytest.raises(InputError, match="expected one of counts0, counts"):
        Run(run_file).histogram("votes")
    change(run_file, "UPDATE result SET counts = ? WHERE idx = 5", text)
    refused(run_file, "")


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE pending SET idx = 77 WHERE idx = 7", "has no digest"),
        ("UPDATE pending SET counts0 = '{}' WHERE idx = 7", "a selection that does not have n0 samples"),
        ("UPDATE pending SET counts = '{\"0\":1000}' WHERE idx = 7", "a finished sequence"),
        ("UPDATE pending SET p_lower = 1.0 WHERE idx = 7", "limits out of range"),
        ("UPDATE pending SET rival_upper = -1.0 WHERE idx = 7", "limits out of range"),
        ("UPDATE pending SET seconds = -1.0 WHERE idx = 7", "a negative time"),
        ("DROP TABLE pending", "table result has an unexpected schema"),
    ],
)
def test_damaged_unfinished_images_are_refused(tmp_path: Path, statement: str, fault: str) -> None:
    made = replace(header(), parameters=example("sequential") | {"chunk": 4})
    with RunWriter(tmp_path / "run.db", made) as writer:
        writer.append(sequential_rows(range(4, 6)), pending_rows([7, 6]))
    change(tmp_path / "run.db", statement)
    with pytest.raises(FileFormatError, match=fault), RunWriter(tmp_path / "run.db", made) as writer:
        read_pending(writer.connection, "run.db", made.parameters, writer.done)


SMOOTH, ATTACK, VERIFY = "certify", "attack", "verify"


@pytest.mark.parametrize(
    ("layout", "name", "values"),
    [
        (SMOOTH, "sigma", [0, float("nan"), True]),
        (SMOOTH, "alpha", [1.0]),
        (SMOOTH, "n", [0, 2**32 + 1, 1.0]),
        (SMOOTH, "seed", [-1, 2**64]),
        (SMOOTH, "shard", [[2, 1], [1], "1/2"]),
        (SMOOTH, "normalize", [[[0.5]], [["x"], [0.5]]]),
        (SMOOTH, "noise", ["", 3]),
        (SMOOTH, "max", [0]),
        (SMOOTH, "chunk", [None]),
        (SMOOTH, "threads", [0, 65537, 2.0, True, None]),
        (ATTACK, "epsilon", [-1]),
        (ATTACK, "norm", ["l3"]),
        (ATTACK, "clip", [[1, 0], [0, None], [[0.0], 1.0], [[1.0], [0.0]], [[0.0], [float("inf")]], [["a"], ["b"]]]),
        (ATTACK, "clip", [[[[0.0], [1.0, 2.0]], [[1.0], [2.0]]]]),
        (ATTACK, "box", [[0.1, 0.1], [[[0.1, -0.1]]], [0.0] * 4, [0.1, float("inf")], "x"]),
        (ATTACK, "grid", ["0.2", "auto", "1/0", None, "2/510"]),
        (ATTACK, "shape", [[1, 8], [2**20, 2**20, 2**20]]),
        (ATTACK, "example_dtype", ["float64"]),
        (ATTACK, "examples", [1]),
        (ATTACK, "targeted", [True]),
        (ATTACK, "seed", [2**64]),
        (ATTACK, "settings", [[1], {"steps": [1]}, {"steps": "x" * 300}]),
        (ATTACK, "attack", ["two\tcolumns"]),
        (VERIFY, "epsilons", [[], [0.05, 0.02, 0.08], [-0.02, 0.05], [0.02, "0.08"], [0.02, True], 0.1]),
        (VERIFY, "largest", [-1]),
        (VERIFY, "method", ["magic"]),
        (VERIFY, "norm", ["l3"]),
        (VERIFY, "sound", [1]),
        (VERIFY, "semantics", ["ideal"]),
    ],
)
def test_parameters_out_of_range_are_refused(layout: str, name: str, values: list[Any]) -> None:
    kind, parameters = KINDS[layout], example(layout)
    kind.check(parameters)
    for value in values:
        with pytest.raises(ValueError, match=f"parameter {name}"):
            kind.check(parameters | {name: value})


@pytest.mark.parametrize(("name", "value"), [("examples", True), ("epsilons", [0.1])])
def test_parameters_that_contradict_the_rows_are_refused(tmp_path: Path, name: str, value: object) -> None:
    path = write_rows(tmp_path / "run.db", "verify")
    change(path, "UPDATE run SET parameters = ?", json.dumps({**Run(path).parameters, name: value}))
    refused(path, "")


# -- examples


def test_examples_are_read_bit_for_bit_or_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "run.db", "attack")
    values = np.array([0, 0.1, 0.5, 1], dtype="<f4")
    change(path, "UPDATE result SET x_adv = ? WHERE idx = 5", values.tobytes())
    assert np.array_equal(Run(path).examples([5]).numpy(), values.reshape(1, 1, 2, 2))
    last = [struct.pack("<f", value) for value in (float("nan"), -1e-9, 1.0000001)]
    for blob in (b"", bytes(17), *(bytes(12) + value for value in last)):
        change(path, "UPDATE result SET x_adv = ? WHERE idx = 5", blob)
        run = Run(path)
        assert len(run.table["index"]) == 8
        with pytest.raises(FileFormatError, match=r"run\.db: damaged, or not a run of pyrobust \(column x_adv"):
            run.examples()


def test_a_shape_larger_than_the_examples_is_refused_before_allocation(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "run.db", "attack")
    changed = json.dumps({**Run(path).parameters, "shape": [1, 2**13, 2**13]})
    change(path, "UPDATE run SET parameters = ?", changed)
    with pytest.raises(FileFormatError, match=f"expected {2**28} bytes an image, got another length for 8"):
        Run(path).examples()


def test_the_clip_range_is_checked_in_float64() -> None:
    made = replace(header("attack"), parameters=example("attack") | {"clip": [0.0, 0.1]}, identity=IDENTITY)
    with RunWriter(None, made) as writer:
        for index, value in enumerate((0.1, 0.09)):  # the float32 number next to 0.1 is above it
            writer.append(MAKERS["attack"]([index]) | {"x_adv": [struct.pack("<4f", 0, 0, 0, value)]})
        run = Run(writer.connection)
        assert run.examples([1])[0, 0, 1, 1] == np.float32(0.09)
        with pytest.raises(FileFormatError, match="image 0 has a value that is NaN or outside the clip range"):
            run.examples()
