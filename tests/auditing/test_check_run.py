"""Audits recompute the derived columns of runs of every kind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import change

from pyrobust.attacks import FAB, FGSM, AutoAttack
from pyrobust.auditing.audit import audit_run
from pyrobust.auditing.check_run import check_run
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    audit,
    certify_dataset,
    predict_dataset,
    read_certification_log,
    verify_dataset,
)
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    net, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")

    def smoother(**options: Any) -> RandomizedSmoothing:
        return RandomizedSmoothing(net, 10, sigma=0.5, **options)

    shared: dict[str, Any] = {"n": 400, "skip": 40}
    certify_dataset(smoother(grid="1/16"), data, out=folder / "grid.db", **shared)
    certify_dataset(smoother(noise="laplace", norm="l1"), data, out=folder / "laplace.db", **shared)
    predict_dataset(smoother(), data, out=folder / "predict.db", **shared)
    shared |= {"method": "sequential", "radii": [0.1, 0.3, 0.5]}
    certify_dataset(smoother(), data, out=folder / "sequential.db", **shared)
    certify_dataset(smoother(), data, out=folder / "hybrid.db", hybrid=0.5, **shared)
    certify_dataset(smoother(), data, out=folder / "two_class.db", two_class=True, **shared)
    certify_dataset(smoother(grid="1/16"), data, out=folder / "sequential_grid.db", **shared)
    attack_dataset(FGSM(net, epsilon=0.3), data, skip=60, out=folder / "attack.db")
    attack_dataset(FAB(net, norm="l2", steps=3), data, minimum=True, skip=60, out=folder / "minimum.db")
    first = AutoAttack(net, epsilon=0.3, certify_first=True, version="custom", attacks_to_run=["apgd-ce"])
    attack_dataset(first, data, skip=60, out=folder / "certified-first.db")
    verify_dataset(net, data, epsilons=[0.005, 0.02, 0.05], skip=60, attack="pgd", out=folder / "verify.db")
    return folder


def changed(folder: Path, to: Path, kind: str, assignments: str, table: str = "result") -> Run:
    """Copy a run and change it; at least one row must change."""
    path = to / f"{kind}.db"
    shutil.copy(folder / path.name, path)
    change(path, f"UPDATE {table} SET {assignments}")
    return Run(path)


def test_runs_as_written_have_no_fault(folder: Path) -> None:
    paths = sorted(folder.glob("*.db"))
    assert len(paths) == 11
    assert {path.name: list(check_run(Run(path))) for path in paths} == {path.name: [] for path in paths}


# Changes that keep every row valid by itself.
CHANGES = [
    ("grid", "prediction = (prediction + 1) % 10 WHERE prediction >= 0", "prediction differs"),
    ("grid", "radius = radius * 1.0001 WHERE radius > 0", "radius larger than its votes prove"),
    ("grid", "radius = radius * 0.9999 WHERE radius > 0", "radius smaller than its votes prove"),
    ("grid", "p_lower = p_lower * 0.9999 WHERE p_lower > 0", "p_lower differs"),
    ("grid", "p_lower = 1.0", "p_lower differs"),
    ("laplace", "radius = radius * 1.0001 WHERE radius > 0", "radius larger than its votes prove"),
    ("laplace", "prediction = -1, status = 'abstain', radius = 0.0", "prediction differs"),
    ("predict", "prediction = (prediction + 1) % 10 WHERE prediction >= 0", "prediction differs"),
    ("predict", "p_value = p_value / 2", "p_value differs"),
    *(
        (kind, "distance = 0.0 WHERE broken_by NOT IN ('', 'clean')", "broken at distance 0")
        for kind in ("attack", "minimum", "certified-first")
    ),
    ("verify", "stages = 'lipschitz' || substr(stages, 4) WHERE stages LIKE 'ibp,%'", "stage that the method does not"),
    (
        "verify",
        "verdicts = 'falsified,unknown,unknown', stages = 'attack,,', margins = '-1.0,-1.0,-1.0',"
        " radius = 0.0 WHERE prediction = label",
        "contradicts a counterexample at a smaller one",
    ),
    (
        "verify",
        "verdicts = 'unknown,unknown,unknown', stages = ',,', margins = '1.0,-1.0,-1.0', radius = 0.0"
        " WHERE prediction = label",
        "contradicts its proved margin",
    ),
]
for sequential in ("sequential", "hybrid", "two_class", "sequential_grid"):
    CHANGES += [
        (sequential, "radius = radius * 1.0001 WHERE radius > 0", "radius larger than its limits"),
        (sequential, "p_lower = p_lower * 0.99", "limits of the probabilities that differ"),
    ]
CHANGES += [
    ("sequential", "radius = radius * 0.9999 WHERE radius > 0", "radius smaller than its limits"),
    ("sequential", "prediction = (prediction + 1) % 10 WHERE radius > 0", "prediction differs"),
    ("sequential", "p_lower = 0.99999 WHERE radius > 0", "limits of the probabilities that its"),
    ("sequential", "p_upper = 1.0 WHERE p_upper < 1", "limits of the probabilities that differ"),
    ("sequential", "p_upper = p_upper * 0.5", "limits of the probabilities that differ"),
    ("sequential", "p_lower = 1.0", "cannot be computed again"),
    ("two_class", "rival_upper = 1e-6", "limits of the probabilities that its votes cannot give"),
    ("two_class", "rival_upper = 0.999", "limits of the probabilities that differ"),
    ("hybrid", "undecided = '001' WHERE samples = 500 AND radius < 0.5 AND undecided = '000'", "undecided radii that"),
]


@pytest.mark.parametrize(("kind", "assignments", "words"), CHANGES)
def test_changed_columns_are_faults(folder: Path, tmp_path: Path, kind: str, assignments: str, words: str) -> None:
    run = changed(folder, tmp_path, kind, assignments)
    assert any(words in finding.message and finding.severity == "fault" for finding in check_run(run))
    if kind in ("predict", "attack", "minimum", "certified-first"):
        assert audit_run(run)["exit_status"] == 1
    else:
        assert audit(read_certification_log(tmp_path / f"{kind}.db")).exit_status == 1


def test_the_fault_names_the_rows(folder: Path, tmp_path: Path) -> None:
    run = changed(folder, tmp_path, "grid", "p_lower = 0.0 WHERE idx = 80")
    (finding,) = check_run(run)
    assert finding.kind == "derived"
    assert finding.message == "p_lower differs from the bound that the votes give: 1 row (index 80)"
    assert finding.lines == (80,)


def test_a_run_of_another_alpha_is_not_believed(folder: Path, tmp_path: Path) -> None:
    """Parameters in the header are what all columns are computed from."""
    run = changed(folder, tmp_path, "grid", "parameters = replace(parameters, '0.001', '0.01')", "run")
    assert {finding.kind for finding in check_run(run)} == {"derived"}
