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
    certify_dataset,
    read_certification_log,
    verify_dataset,
    write_log,
)
from pyrobust.metrics.survival import survival_curve
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    net, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    certify_dataset(RandomizedSmoothing(net, 10, sigma=0.25), data, n=500, skip=10, out=folder / "gaussian.db")
    laplace = RandomizedSmoothing(net, 10, sigma=0.25, noise="laplace", norm="l1")
    certify_dataset(laplace, data, n=500, skip=10, out=folder / "laplace.db")
    verify_dataset(net, data, epsilons=[0.01, 0.02], skip=20, out=folder / "verify.db")
    return folder


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_runs_have_no_faults_and_exact_votes(folder: Path, name: str) -> None:
    path = folder / f"{name}.db"
    run, log = Run(path), read_certification_log(path)
    found = audit(log)
    assert not found.faults
    assert (log.n, log.alpha, log.sigma, log.noise) == (500, 0.001, 0.25, name)
    assert log.decimals is None
    assert log.lines is None
    counts = run.histogram("counts")[np.arange(len(run)), run.histogram("counts0")[:, :-1].argmax(axis=1)]
    assert log.votes is not None
    assert np.array_equal(log.votes, np.where(run.table["prediction"] < 0, 0, counts))
    expected = survival_curve(log.votes, 500, run.correct)
    assert found.metrics.survival is not None
    assert np.array_equal(found.metrics.survival.share, expected.share)
    assert np.array_equal(found.metrics.survival.lower, found.metrics.survival.upper)
    assert [float(rate) for rate in found.metrics.certified] == run.certified_accuracy(found.metrics.radii).tolist()
    assert {"stride", "votes", "subset", "guarantee"} == {note.kind for note in found.notes}


def test_a_text_log_agrees_with_its_run(folder: Path, tmp_path: Path) -> None:
    """Radii with six decimals determine the votes up to the band; all other metrics are equal."""
    run = Run(folder / "gaussian.db")
    write_log(run, tmp_path / "sigma0.25.tsv")
    exact = audit(read_certification_log(folder / "gaussian.db")).metrics
    printed = audit(read_certification_log(tmp_path / "sigma0.25.tsv", n=500))
    assert not printed.faults
    assert exact.survival is not None
    assert printed.metrics.survival is not None
    assert np.array_equal(printed.metrics.survival.share, exact.survival.share)
    assert printed.metrics.accuracy == exact.accuracy
    assert printed.metrics.certified == exact.certified


def test_given_parameters_do_not_override_a_run(folder: Path) -> None:
    found = audit(read_certification_log(folder / "gaussian.db", n=1000, alpha=0.001))
    assert found.log.n == 500
    assert [note.message for note in found.notes if note.kind == "given"] == ["n 1,000 ignored; n of the run is 500"]
    assert found.exit_status == 0


def test_verifications_have_no_metrics_of_votes(folder: Path) -> None:
    log = read_certification_log(folder / "verify.db")
    found = audit(log)
    assert not found.faults
    assert (log.kind, log.n, log.alpha, log.sigma, log.votes, log.norm) == ("verify", None, None, None, None, "linf")
    assert found.metrics.survival is None
    assert not found.metrics.bounds
    notes = {note.kind: note.message for note in found.notes}
    assert "bound propagation gives radii without votes" in notes["no-votes"]
    # A verification with radius 0 proves nothing, not even at radius 0.
    run = Run(folder / "verify.db")
    assert float(found.metrics.certified[0]) == run.certified_accuracy([0.0])[0]


def test_a_raised_radius_contradicts_the_votes(folder: Path, tmp_path: Path) -> None:
    for name in ("gaussian", "laplace"):
        path = tmp_path / f"{name}.db"
        path.write_bytes((folder / path.name).read_bytes())
        change(path, "UPDATE result SET radius = 1.05 * radius WHERE idx = 20")
        found = audit(read_certification_log(path))
        assert [fault.kind for fault in found.faults] == ["above-votes"]
        assert found.faults[0].lines == (20,)
        assert "index 20" in found.faults[0].message


def test_unfinished_runs_and_shards_are_notes(tmp_path: Path) -> None:
    smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    path = tmp_path / "shard.db"
    certify_dataset(smoother, load_data("digits"), n=100, max_images=8, shard=(1, 2), out=path)
    change(path, "DELETE FROM result WHERE idx = 6")
    found = audit(read_certification_log(path))
    assert not found.faults
    notes = {note.kind: note.message for note in found.notes}
    assert notes["unfinished"] == "unfinished run: 3 of 4 images"
    assert notes["shard"] == "shard 1 of 2; merge all shards for the sweep"


def test_attacks_and_damaged_runs_are_refused(folder: Path, tmp_path: Path) -> None:
    from pyrobust.attacks import FGSM

    attack_dataset(
        FGSM(load_model("zoo:digits-smooth-0.25"), epsilon=0.1), load_data("digits"), skip=50, out=tmp_path / "a.db"
    )
    with pytest.raises(FileFormatError, match="expected a run of kind certify or verify, got attack"):
        read_certification_log(tmp_path / "a.db")
    content = (folder / "gaussian.db").read_bytes()
    for damaged in (content[: len(content) // 2], content[:20], content[:16] + bytes(len(content) - 16)):
        (tmp_path / "b.db").write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"b\.db"):
            read_certification_log(tmp_path / "b.db")
