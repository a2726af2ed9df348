"""Audits of runs, whose derived columns they recompute, and of logs exported from them; shards are one log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.damage import change

from pyrobust.attacks import FAB, FGSM, AutoAttack
from pyrobust.auditing.audit import audit_run
from pyrobust.auditing.certification_log import read_shards
from pyrobust.auditing.check_run import check_run
from pyrobust.errors import FileFormatError, InputError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    audit,
    certify_dataset,
    merge_runs,
    predict_dataset,
    read_certification_log,
    read_log,
    verify_dataset,
    write_log,
)
from pyrobust.metrics.survival import survival_curve
from pyrobust.runs.merge import group_shards
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind and noise, and the three shards of one."""
    folder = tmp_path_factory.mktemp("runs")
    net, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")

    def smoother(**options: Any) -> RandomizedSmoothing:
        return RandomizedSmoothing(net, 10, sigma=0.5, **options)

    shared: dict[str, Any] = {"n": 400, "skip": 20}
    certify_dataset(smoother(), data, alpha=0.01, out=folder / "fixed.db", **shared)
    for i in (1, 2, 3):
        certify_dataset(smoother(), data, shard=(i, 3), out=folder / f"part-{i}.db", **shared)
    shared["skip"] = 40
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


@pytest.mark.parametrize(("name", "noise"), [("fixed", "gaussian"), ("laplace", "laplace")])
def test_runs_have_no_faults_and_exact_votes(runs: Path, name: str, noise: str) -> None:
    path = runs / f"{name}.db"
    run, log = Run(path), read_certification_log(path)
    report = audit(log)
    assert not report.faults
    assert (log.n, log.alpha, log.sigma, log.noise) == (400, 0.01 if name == "fixed" else 0.001, 0.5, noise)
    assert log.decimals is None
    assert log.lines is None
    counts = run.histogram("counts")[np.arange(len(run)), run.histogram("counts0")[:, :-1].argmax(axis=1)]
    assert log.votes is not None
    assert np.array_equal(log.votes, np.where(run.table["prediction"] < 0, 0, counts))
    expected = survival_curve(log.votes, 400, run.correct)
    assert report.metrics.survival is not None
    assert np.array_equal(report.metrics.survival.share, expected.share)
    assert np.array_equal(report.metrics.survival.lower, report.metrics.survival.upper)
    assert [float(rate) for rate in report.metrics.certified] == run.certified_accuracy(report.metrics.radii).tolist()
    assert {"stride", "votes", "subset", "guarantee"} == {note.kind for note in report.notes}


def test_verifications_have_no_metrics_of_votes(runs: Path) -> None:
    log = read_certification_log(runs / "verify.db")
    report = audit(log)
    assert not report.faults
    assert (log.kind, log.n, log.alpha, log.sigma, log.votes, log.norm) == ("verify", None, None, None, None, "linf")
    assert report.metrics.survival is None
    assert not report.metrics.bounds
    notes = {note.kind: note.message for note in report.notes}
    assert "bound propagation gives radii without votes" in notes["no-votes"]
    # A verification with radius 0 proves nothing, not even at radius 0.
    run = Run(runs / "verify.db")
    assert float(report.metrics.certified[0]) == run.certified_accuracy([0.0])[0]


def test_a_raised_radius_contradicts_the_votes(runs: Path, tmp_path: Path) -> None:
    for name in ("fixed", "laplace"):
        path = tmp_path / f"{name}.db"
        path.write_bytes((runs / path.name).read_bytes())
        table = Run(path).table
        index = int(table["index"][table["radius"] > 0][0])
        change(path, f"UPDATE result SET radius = 1.05 * radius WHERE idx = {index}")
        report = audit(read_certification_log(path))
        assert [fault.kind for fault in report.faults] == ["above-votes"]
        assert report.faults[0].lines == (index,)
        assert f"index {index}" in report.faults[0].message


def test_unfinished_runs_and_shards_are_notes(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    path.write_bytes((runs / "part-1.db").read_bytes())
    change(path, "DELETE FROM result WHERE idx = 60")
    report = audit(read_certification_log(path))
    assert not report.faults
    notes = {note.kind: note.message for note in report.notes}
    assert notes["unfinished"] == "unfinished run: 6 of 7 images"
    assert notes["shard"] == "shard 1 of 3; merge all shards for the sweep"


def test_attacks_and_damaged_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="expected a run of kind certify or verify, got attack"):
        read_certification_log(runs / "attack.db")
    content = (runs / "fixed.db").read_bytes()
    for damaged in (content[: len(content) // 2], content[:20], content[:16] + bytes(len(content) - 16)):
        (tmp_path / "b.db").write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"b\.db"):
            read_certification_log(tmp_path / "b.db")


@pytest.mark.parametrize("name", ["fixed", "laplace", "sequential", "verify"])
def test_an_exported_log_states_what_its_run_states(runs: Path, tmp_path: Path, name: str) -> None:
    run = Run(runs / f"{name}.db")
    write_log(run, tmp_path / "log.tsv")
    log, stored = read_certification_log(tmp_path / "log.tsv"), read_certification_log(runs / f"{name}.db")
    assert log.header is not None
    assert log.header.parameters == run.parameters
    for field in ("kind", "n", "alpha", "sigma", "noise", "norm"):
        assert getattr(log, field) == getattr(stored, field)
    report, exact = audit(log), audit(stored)
    assert not report.faults
    assert (report.metrics.survival is None) == (name != "fixed")
    assert report.metrics.accuracy == exact.metrics.accuracy
    assert report.metrics.certified == exact.metrics.certified
    if report.metrics.survival is not None:  # six decimals determine the votes
        assert exact.metrics.survival is not None
        assert np.array_equal(report.metrics.survival.share, exact.metrics.survival.share)
    assert log.decimals is not None
    assert (log.decimals == 6).all()
    assert read_log(tmp_path / "log.tsv")["idx"].tolist() == log.index.tolist() == run.table["index"].tolist()
    assert np.array_equal(log.is_correct, run.correct)


@pytest.mark.parametrize("name", ["laplace", "sequential"])
def test_radii_above_the_maximum_of_other_methods_are_faults(runs: Path, tmp_path: Path, name: str) -> None:
    log = read_certification_log(_exported(runs, tmp_path, name))
    radius = log.radius.copy()
    radius[np.flatnonzero(radius > 0)[0]] = 9.0
    (fault,) = audit(type(log)(**{**vars(log), "radius": radius})).faults
    assert fault.kind == "above-maximum"


def _exported(runs: Path, to: Path, name: str = "fixed") -> Path:
    write_log(Run(runs / f"{name}.db"), to / "log.tsv")
    return to / "log.tsv"


def test_a_header_of_another_log_is_reported_and_not_used(runs: Path, tmp_path: Path) -> None:
    path = _exported(runs, tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    log = read_certification_log(path)
    assert (log.header, log.sigma) == (None, None)
    fault = next(fault for fault in audit(log).faults if fault.kind == "header")
    assert "log.tsv.json is not used: it belongs to another log, of 20 rows, or the log was changed" in fault.message


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored["run"].update(kind="other"),
        lambda stored: stored["run"]["parameters"].update(sigma=-1),
        lambda stored: stored["run"].pop("parameters"),
        lambda stored: stored.pop("log"),
        lambda stored: stored["run"].update(versions=3),
        lambda stored: stored["run"].update(identity="x"),
    ],
)
def test_damaged_headers_are_reported(runs: Path, tmp_path: Path, change: Any) -> None:
    path = _exported(runs, tmp_path)
    side = tmp_path / "log.tsv.json"
    stored = json.loads(side.read_text())
    change(stored)
    side.write_text(json.dumps(stored, indent=1))
    assert "damaged" in next(fault.message for fault in read_certification_log(path).findings if fault.kind == "header")


def test_files_of_other_programs_are_neither_read_nor_overwritten(runs: Path, tmp_path: Path) -> None:
    side = tmp_path / "log.tsv.json"
    side.write_text('{"mine": 1}')
    with pytest.raises(InputError, match=r"log\.tsv\.json"):
        _exported(runs, tmp_path)
    assert not (tmp_path / "log.tsv").exists()
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t1\t1\t0.25\t1\n")
    log = read_certification_log(tmp_path / "log.tsv")
    assert (log.header, log.findings) == (None, ())
    write_log(Run(runs / "fixed.db"), tmp_path / "log.tsv", replace=True)
    write_log(Run(runs / "fixed.db"), tmp_path / "log.tsv")  # the same kind
    assert read_certification_log(tmp_path / "log.tsv").alpha == 0.01


def test_given_values_override_neither_a_run_nor_its_header(runs: Path, tmp_path: Path) -> None:
    for path, origin in ((runs / "fixed.db", "the run"), (_exported(runs, tmp_path), "log.tsv.json")):
        log = read_certification_log(path, n=400, alpha=0.001)
        assert log.alpha == 0.01
        messages = [note.message for note in audit(log).notes if note.kind == "given"]
        assert messages == [f"alpha 0.001 ignored; alpha of {origin} is 0.01"]


def test_shards_are_one_log(runs: Path) -> None:
    shards = [runs / f"part-{i}.db" for i in (3, 1, 2)]
    merged, other = map(read_shards, group_shards([*shards, runs / "fixed.db"]))
    whole = merge_runs(shards)
    assert merged.name == "part"
    assert other.name == "fixed"
    assert merged.index.tolist() == whole.table["index"].tolist()
    assert not audit(merged).faults
    (two,) = map(read_shards, group_shards(shards[:2]))
    notes = {note.kind: note.message for note in audit(two).notes}
    assert notes["unfinished"] == f"unfinished run: {len(two)} of {len(merged)} images"
    # The same shard twice is no sweep.
    assert [len(read_shards(group)) for group in group_shards([shards[0], shards[0]])] == [6, 6]


# --- derived columns


def changed(runs: Path, to: Path, kind: str, assignments: str, table: str = "result") -> Run:
    """Copy a run and change it; at least one row must change."""
    path = to / f"{kind}.db"
    shutil.copy(runs / path.name, path)
    change(path, f"UPDATE {table} SET {assignments}")
    return Run(path)


def test_runs_as_written_have_no_fault(runs: Path) -> None:
    paths = sorted(runs.glob("*.db"))
    assert len(paths) == 15
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
def test_changed_columns_are_faults(runs: Path, tmp_path: Path, kind: str, assignments: str, words: str) -> None:
    run = changed(runs, tmp_path, kind, assignments)
    assert any(words in finding.message and finding.severity == "fault" for finding in check_run(run))
    if kind in ("predict", "attack", "minimum", "certified-first"):
        assert audit_run(run)["exit_status"] == 1
    else:
        assert audit(read_certification_log(tmp_path / f"{kind}.db")).exit_status == 1


def test_the_fault_names_the_rows(runs: Path, tmp_path: Path) -> None:
    run = changed(runs, tmp_path, "grid", "p_lower = 0.0 WHERE idx = 80")
    (finding,) = check_run(run)
    assert finding.kind == "derived"
    assert finding.message == "p_lower differs from the bound that the votes give: 1 row (index 80)"
    assert finding.lines == (80,)


def test_a_run_of_another_alpha_is_not_believed(runs: Path, tmp_path: Path) -> None:
    """Parameters in the header are what all columns are computed from."""
    run = changed(runs, tmp_path, "grid", "parameters = replace(parameters, '0.001', '0.01')", "run")
    assert {finding.kind for finding in check_run(run)} == {"derived"}
