"""Sequential runs: the same results as batches in any schedule, and resuming in the middle of an image."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.damage import change
from support.sweep_models import CLASSES, Bands, Failing, images, same

from pyrobust.evaluation import (
    Run,
    audit,
    certify,
    certify_dataset,
    certify_sequential,
    format_log,
    read_certification_log,
)
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing, packing
from pyrobust.zoo import ImageSet

SIGMA = 0.25
SMALL: dict[str, Any] = {"n0": 10, "n": 2000, "method": "sequential", "radii": [0.05, 0.2, 0.5]}


def shades(count: int = 40) -> ImageSet:
    """Images of every brightness, so that some are close to every decision."""
    whole = images(count)
    x = torch.linspace(0, 1, count).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return ImageSet("shades", x.contiguous(), whole.y)


def smoother(model: Any = None, batch_size: int = 64, **options: Any) -> RandomizedSmoothing:
    return RandomizedSmoothing(model or Bands(), CLASSES, SIGMA, batch_size=batch_size, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return certify_dataset(smoother(), shades(), out=tmp_path_factory.mktemp("whole") / "run.db", **SMALL)


@pytest.fixture
def run_file(whole: Run, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole.files[0], tmp_path / "run.db"))


@pytest.mark.parametrize("options", [{}, {"hybrid": 0.5, "two_class": True}])
def test_a_run_matches_a_batch_which_is_cut_elsewhere(options: dict[str, Any], whole: Run) -> None:
    run = certify_dataset(smoother(batch_size=500), shades(), **SMALL | options) if options else whole
    batch = smoother().certify_batch(shades().x, indices=range(len(shades())), **SMALL | options)
    for name in ("prediction", "radius", "p_lower", "samples", *(["rival_upper"] if options else [])):
        np.testing.assert_array_equal(run.table[name], getattr(batch, name))
    np.testing.assert_array_equal(run.histogram("counts0"), batch.counts0)
    np.testing.assert_array_equal(run.histogram(), batch.counts)
    digits = [[digit == "1" for digit in row] for row in run.table["undecided"].tolist()]
    np.testing.assert_array_equal(digits, batch.undecided)
    assert batch.undecided.any()
    assert (run.table["samples"] < 2010).any()
    assert (run.kind, run.header.layout) == ("certify", "sequential")
    assert (run.parameters["hybrid"], run.parameters["two_class"]) == ((0.5, True) if options else (0.01, False))
    assert ((run.table["status"] == "abstain") == (batch.prediction == ABSTAIN)).all()
    np.testing.assert_array_equal(
        run.certified_accuracy(SMALL["radii"]), (batch.certified & run.correct[:, None]).mean(axis=0)
    )


def pending(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM pending ORDER BY idx").fetchall()


class Placed(Failing):
    """Decides ties by the place of a row in its batch, and meets many: a stand-in for rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(len(x), device=x.device)
        return super().forward((8 * x).round() / 8) + 1e-6 * ((places[:, None] + torch.arange(CLASSES)) % 3)


@pytest.fixture
def chunks_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 images, and states of unfinished images stored after every round of four batches."""
    monkeypatch.setattr(certify, "_LEAST_SEQUENTIAL", 16)
    monkeypatch.setattr(certify_sequential, "_PART_S", 0.0)
    monkeypatch.setattr(packing, "_ROUND_BATCHES", 4)


@pytest.mark.usefixtures("unprobed", "chunks_of_16")
def test_runs_resume_in_the_middle_of_images(tmp_path: Path) -> None:
    """In the same batches: the model would show any other place of a row."""
    expected = certify_dataset(smoother(Placed(10**9, KeyboardInterrupt())), shades(), **SMALL)
    path, half_done, stopped = tmp_path / "run.db", 0, 0
    for start in range(1000):
        model = Placed(17 + 5 * start, KeyboardInterrupt())
        try:
            certify_dataset(smoother(model), shades(), out=path, **SMALL)
            break
        except KeyboardInterrupt:
            stopped += 1
        if path.exists():
            half_done += sum(0 < sum(json.loads(row[2]).values()) < SMALL["n"] for row in pending(path))
    assert stopped > 2
    assert half_done > 10
    assert Run(path).parameters["chunk"] == 16
    assert same(Run(path), expected)
    assert pending(path) == []
    # In batches of all 40 images, rows have other places.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(certify, "_LEAST_SEQUENTIAL", 40)
        together = certify_dataset(smoother(Placed(10**9, KeyboardInterrupt())), shades(), **SMALL)
    assert (together.histogram() != expected.histogram()).any()


def test_the_order_of_the_radii_does_not_matter(tmp_path: Path) -> None:
    for radii in (SMALL["radii"], (0.5, 0.05, 0.2, 0.05)):
        run = certify_dataset(smoother(), shades(4), out=tmp_path / "run.db", **SMALL | {"radii": radii})
        assert run.parameters["radii"] == [0.05, 0.2, 0.5]
    assert certify_dataset(smoother(), shades(4), **SMALL | {"radii": (0.2, 0.0)}).parameters["radii"] == [0.0, 0.2]


# -- log and audit ----------------------------------------------------------------------------------------------------


def test_log_and_audit(whole: Run) -> None:
    lines = format_log(whole).splitlines()
    assert lines[0].split("\t") == ["idx", "label", "predict", "radius", "correct", "time"]
    assert len(lines) == 41
    log = read_certification_log(whole.files[0])
    assert log.votes is None
    report = audit(log)
    assert report.exit_status == 0
    assert any("a different number of samples for each image" in note.message for note in report.notes)


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("UPDATE result SET radius = radius * 1.00001 WHERE idx = 3", (3,)),
        ("UPDATE result SET radius = 0.7, p_lower = 0.9975 WHERE idx = 0", (0,)),
    ],
)
def test_the_audit_finds_a_radius_larger_than_was_proved(statement: str, rows: tuple[int, ...], run_file: Path) -> None:
    change(run_file, statement)
    report = audit(read_certification_log(run_file))
    assert report.faults[0].kind == "above-votes"
    assert {fault.lines for fault in report.faults} == {rows}
