"""Audits of runs of this project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from damage import change

from pyrobust.errors import FileFormatError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    audit,
    read_certification_log,
)
from pyrobust.metrics.survival import survival_curve
from pyrobust.zoo import load_data, load_model


@pytest.mark.parametrize(("name", "noise"), [("fixed", "gaussian"), ("laplace", "laplace")])
def test_runs_have_no_faults_and_exact_votes(runs: Path, name: str, noise: str) -> None:
    path = runs / f"{name}.db"
    run, log = Run(path), read_certification_log(path)
    found = audit(log)
    assert not found.faults
    assert (log.n, log.alpha, log.sigma, log.noise) == (300, 0.01 if name == "fixed" else 0.001, 0.5, noise)
    assert log.decimals is None
    assert log.lines is None
    counts = run.histogram("counts")[np.arange(len(run)), run.histogram("counts0")[:, :-1].argmax(axis=1)]
    assert log.votes is not None
    assert np.array_equal(log.votes, np.where(run.table["prediction"] < 0, 0, counts))
    expected = survival_curve(log.votes, 300, run.correct)
    assert found.metrics.survival is not None
    assert np.array_equal(found.metrics.survival.share, expected.share)
    assert np.array_equal(found.metrics.survival.lower, found.metrics.survival.upper)
    assert [float(rate) for rate in found.metrics.certified] == run.certified_accuracy(found.metrics.radii).tolist()
    assert {"stride", "votes", "subset", "guarantee"} == {note.kind for note in found.notes}


def test_verifications_have_no_metrics_of_votes(runs: Path) -> None:
    log = read_certification_log(runs / "verify.db")
    found = audit(log)
    assert not found.faults
    assert (log.kind, log.n, log.alpha, log.sigma, log.votes, log.norm) == ("verify", None, None, None, None, "linf")
    assert found.metrics.survival is None
    assert not found.metrics.bounds
    notes = {note.kind: note.message for note in found.notes}
    assert "bound propagation gives radii without votes" in notes["no-votes"]
    # A verification with radius 0 proves nothing, not even at radius 0.
    run = Run(runs / "verify.db")
    assert float(found.metrics.certified[0]) == run.certified_accuracy([0.0])[0]


def test_a_raised_radius_contradicts_the_votes(runs: Path, tmp_path: Path) -> None:
    for name in ("fixed", "laplace"):
        path = tmp_path / f"{name}.db"
        path.write_bytes((runs / path.name).read_bytes())
        change(path, "UPDATE result SET radius = 1.05 * radius WHERE idx = 20")
        found = audit(read_certification_log(path))
        assert [fault.kind for fault in found.faults] == ["above-votes"]
        assert found.faults[0].lines == (20,)
        assert "index 20" in found.faults[0].message


def test_unfinished_runs_and_shards_are_notes(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    path.write_bytes((runs / "part-1.db").read_bytes())
    change(path, "DELETE FROM result WHERE idx = 60")
    found = audit(read_certification_log(path))
    assert not found.faults
    notes = {note.kind: note.message for note in found.notes}
    assert notes["unfinished"] == "unfinished run: 6 of 7 images"
    assert notes["shard"] == "shard 1 of 3; merge all shards for the sweep"


def test_attacks_and_damaged_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    from pyrobust.attacks import FGSM

    attack_dataset(
        FGSM(load_model("zoo:digits-smooth-0.25"), epsilon=0.1), load_data("digits"), skip=50, out=tmp_path / "a.db"
    )
    with pytest.raises(FileFormatError, match="expected a run of kind certify or verify, got attack"):
        read_certification_log(tmp_path / "a.db")
    content = (runs / "fixed.db").read_bytes()
    for damaged in (content[: len(content) // 2], content[:20], content[:16] + bytes(len(content) - 16)):
        (tmp_path / "b.db").write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"b\.db"):
            read_certification_log(tmp_path / "b.db")
