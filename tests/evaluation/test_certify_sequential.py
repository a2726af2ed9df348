"""Sequential runs: the same results as batches in any schedule, and resuming in the middle of an image."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import change
from rich.console import Console
from sweep_models import CLASSES, Bands, Failing, images

from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError
from pyrobust.evaluation import (
    Run,
    audit,
    certify,
    certify_dataset,
    certify_sequential,
    compute_certified_accuracy,
    format_log,
    merge_runs,
    read_certification_log,
)
from pyrobust.report import certified_accuracy_table
from pyrobust.runs.schema import VERSION
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing, packing
from pyrobust.smoothing.sampling import Sampler
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


def assert_same(one: Run, other: Run) -> None:
    assert one.complete
    for name in other.table:
        if name != "seconds":
            np.testing.assert_array_equal(one.table[name], other.table[name], err_msg=name)
    for name in ("counts0", "counts"):
        np.testing.assert_array_equal(one.histogram(name), other.histogram(name))


@pytest.fixture(scope="module")
def whole() -> Run:
    return certify_dataset(smoother(), shades(), **SMALL)


def test_a_run_matches_a_batch(whole: Run) -> None:
    found = smoother().certify_batch(shades().x, indices=range(len(shades())), **SMALL)
    for name, column in (("prediction", "prediction"), ("radius", "radius"), ("p_lower", "p_lower")):
        np.testing.assert_array_equal(whole.table[column], getattr(found, name))
    np.testing.assert_array_equal(whole.table["samples"], found.samples)
    np.testing.assert_array_equal(whole.histogram("counts0"), found.counts0)
    np.testing.assert_array_equal(whole.histogram(), found.counts)
    digits = [[digit == "1" for digit in row] for row in whole.table["undecided"].tolist()]
    np.testing.assert_array_equal(digits, found.undecided)
    assert found.undecided.any()
    assert (whole.table["samples"] < 2010).any()
    assert whole.kind == "certify"
    assert whole.header.layout == "sequential"
    assert ((whole.table["status"] == "abstain") == (found.prediction == ABSTAIN)).all()
    np.testing.assert_array_equal(
        whole.certified_accuracy(SMALL["radii"]), (found.certified & (whole.correct[:, None])).mean(axis=0)
    )


@pytest.mark.parametrize("batch_size", [7, 33, 500])
def test_results_do_not_depend_on_the_batch_size(batch_size: int, whole: Run) -> None:
    assert_same(certify_dataset(smoother(batch_size=batch_size), shades(), **SMALL), whole)


def test_shards_merge_to_the_whole_run(whole: Run, tmp_path: Path) -> None:
    for part in (1, 2, 3):
        certify_dataset(smoother(), shades(), out=tmp_path / f"{part}.db", shard=(part, 3), **SMALL)
    assert_same(merge_runs([tmp_path / f"{part}.db" for part in (3, 1, 2)]), whole)
    # More shards than images: one of them is empty.
    assert len(certify_dataset(smoother(), shades(3), shard=(4, 5), **SMALL)) == 0


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
@pytest.mark.parametrize("step", [1, 17])
def test_runs_resume_in_the_middle_of_images(step: int, tmp_path: Path) -> None:
    """In the same batches: the model would show any other place of a row."""
    expected = certify_dataset(smoother(Placed(10**9, KeyboardInterrupt())), shades(), **SMALL)
    path, half_done, stopped = tmp_path / "run.db", 0, 0
    for start in range(1000):
        model = Placed(step + 3 * start, KeyboardInterrupt())
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
    assert_same(Run(path), expected)
    assert pending(path) == []
    # In batches of all 40 images, rows have other places.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(certify, "_LEAST_SEQUENTIAL", 40)
        together = certify_dataset(smoother(Placed(10**9, KeyboardInterrupt())), shades(), **SMALL)
    assert (together.histogram() != expected.histogram()).any()


@pytest.mark.usefixtures("chunks_of_16")
@pytest.mark.parametrize("grid", [None, "1/64"])
def test_a_run_killed_after_a_round_makes_the_same_batches(
    grid: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, list[tuple[int, ...]]]] = []
    count = Sampler.count
    left = 10**9  # rounds until the kill

    def counted(self: Sampler, x: Any, runs: Any, stage: str, *rest: Any, **options: Any) -> None:
        nonlocal left
        if stage in ("select", "estimate"):
            if not left:
                raise KeyboardInterrupt
            left -= 1
            drawn.append((stage, [packed[1:] for packed in runs]))
        count(self, x, runs, stage, *rest, **options)

    monkeypatch.setattr(Sampler, "count", counted)
    data = shades()
    data = ImageSet("shades", (64 * data.x).round() / 64, data.y)
    expected = certify_dataset(smoother(grid=grid), data, **SMALL)
    whole, rounds = list(drawn), len(drawn)
    assert rounds > 15
    for stop in (1, rounds // 2):
        drawn.clear()
        left, path = stop, tmp_path / f"{stop}.db"
        with pytest.raises(KeyboardInterrupt):
            certify_dataset(smoother(grid=grid), data, out=path, **SMALL)
        assert drawn == whole[:stop]
        left = 10**9
        resumed = certify_dataset(smoother(grid=grid), data, out=path, **SMALL)
        assert drawn == whole
        assert_same(resumed, expected)


@pytest.mark.usefixtures("unprobed")
def test_a_failure_before_the_first_result_keeps_the_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify_sequential, "_PART_S", 0.0)
    path = tmp_path / "run.db"
    with pytest.raises(KeyboardInterrupt):
        certify_dataset(smoother(Failing(12, KeyboardInterrupt())), shades(), out=path, **SMALL)
    run = Run(path)
    assert len(run) == 0
    assert not run.complete
    assert len(pending(path)) == 40


def test_a_complete_run_is_only_read(whole: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    certify_dataset(smoother(), shades(), out=path, **SMALL)
    before = path.read_bytes()
    assert_same(certify_dataset(smoother(), shades(), out=path, **SMALL), whole)
    assert path.read_bytes() == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_other_parameters_are_refused_but_another_order_of_the_radii(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    certify_dataset(smoother(), shades(4), out=path, **SMALL)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"radii": [0.05, 0.2]}, r"radii: \[0.05, 0.2, 0.5\] stored, \[0.05, 0.2\] given"),
        ({"hybrid": 0.5}, "hybrid: 0.01 stored, 0.5 given"),
        ({"two_class": True}, "two_class: False stored, True given"),
        ({"n": 3000}, "n: 2000 stored, 3000 given"),
        ({"method": "fixed", "radii": None}, "method: 'sequential' stored, 'fixed' given"),
    ]
    for other, match in changes:
        with pytest.raises(StoreError, match=match):
            certify_dataset(smoother(), shades(4), out=path, **SMALL | other)
    run = certify_dataset(smoother(), shades(4), out=path, **SMALL | {"radii": (0.5, 0.05, 0.2, 0.05)})
    assert run.parameters["radii"] == [0.05, 0.2, 0.5]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"radii": None}, InputError, "radii: expected at least one radius"),
        ({"radii": [float("inf")]}, InputError, "radii: expected at most 1024 finite numbers"),
        ({"hybrid": 1}, InputError, "hybrid: expected a share"),
        ({"hybrid": "all"}, InputTypeError, "hybrid: expected a number"),
        ({"two_class": None}, InputTypeError, "two_class: expected True or False"),
        ({"method": "fixed"}, InputError, 'radii: expected none with method "fixed", got '),
        ({"method": "adaptive"}, InputError, "method: expected"),
    ],
)
def test_bad_input_leaves_no_file(changes: dict[str, Any], error: type, match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        certify_dataset(smoother(), shades(4), out=tmp_path / "run.db", **SMALL | changes)
    assert list(tmp_path.iterdir()) == []


def test_hybrid_and_two_class_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    mixed = SMALL | {"hybrid": 0.5, "two_class": True}
    run = certify_dataset(smoother(), shades(), out=path, **mixed)
    found = smoother().certify_batch(shades().x, indices=range(len(shades())), **mixed)
    np.testing.assert_array_equal(run.table["radius"], found.radius)
    np.testing.assert_array_equal(run.table["rival_upper"], found.rival_upper)
    assert (run.parameters["hybrid"], run.parameters["two_class"]) == (0.5, True)
    assert audit(read_certification_log(path)).exit_status == 0


def test_progress_counts_images(tmp_path: Path) -> None:
    seen: list[Any] = []
    certify_dataset(smoother(), shades(), progress=seen.append, **SMALL)
    assert seen[0].done == 0
    assert (seen[-1].done, seen[-1].total) == (40, 40)
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    assert all(0 <= now.images <= 40 for now in seen)
    assert seen[-1].radius == 0.05


# -- log, table and audit ----------------------------------------------------------------------------------------------


def test_log_table_and_audit(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), shades(), out=path, **SMALL)
    lines = format_log(run).splitlines()
    assert lines[0].split("\t") == ["idx", "label", "predict", "radius", "correct", "time"]
    assert len(lines) == 41
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(certified_accuracy_table(run))
    text = console.export_text()
    assert f"{run.table['samples'].mean():,.0f}" in text
    undecided = sum("1" in digits for digits in run.table["undecided"].tolist())
    assert undecided
    assert any("undecided at n samples" in line and f" {undecided} " in line for line in text.splitlines())
    assert all(f"certified at radius {radius:g}" in text for radius in SMALL["radii"])
    assert "n at most 2000 samples" in text
    log = read_certification_log(path)
    assert log.votes is None
    found = audit(log)
    assert found.exit_status == 0
    assert any("a different number of samples for each image" in note.message for note in found.notes)


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("UPDATE result SET radius = radius * 1.00001 WHERE idx = 3", (3,)),
        ("UPDATE result SET radius = 0.7, p_lower = 0.9975 WHERE idx = 0", (0,)),
    ],
)
@pytest.mark.parametrize("two_class", [False, True])
def test_the_audit_finds_a_radius_larger_than_was_proved(
    statement: str, rows: tuple[int, ...], two_class: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run.db"
    certify_dataset(smoother(), shades(), out=path, two_class=two_class, **SMALL)
    assert audit(read_certification_log(path)).exit_status == 0
    change(path, statement)
    found = audit(read_certification_log(path))
    assert found.faults[0].kind == "above-votes"
    assert {fault.lines for fault in found.faults} == {rows}


def test_certified_accuracy_works_on_sequential_certificates() -> None:
    data, radii, indices = shades(), SMALL["radii"], iter(range(10**6))
    on_grid = smoother().on_grid_of(data)  # of all images, as a sweep's

    class Sequential:
        def certify(self, x: Any, *, n: int, alpha: float) -> tuple[int, float]:
            options: dict[str, Any] = {"method": "sequential", "radii": radii, "indices": [next(indices)]}
            result = on_grid.certify_batch(x[None], n0=10, n=n, alpha=alpha, **options)
            return int(result.prediction[0]), float(result.radius[0])

    found = compute_certified_accuracy(Sequential(), data.x, data.y, radii=radii, n=2000)
    run = certify_dataset(smoother(), data, **SMALL)
    assert [found[f"certified_r={r}"] for r in SMALL["radii"]] == run.certified_accuracy(SMALL["radii"]).tolist()


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE result SET samples = samples - 1 WHERE samples < 1000", "counts: expected as many votes as samples"),
        ("UPDATE result SET samples = 5 WHERE idx = 3", "numbers of samples out of range"),
        ("UPDATE result SET samples = 99999 WHERE idx = 3", "numbers of samples out of range"),
        ("UPDATE result SET undecided = '1' WHERE idx = 3", "undecided radii that contradict"),
        ("UPDATE result SET undecided = '00x' WHERE idx = 3", "undecided radii that contradict"),
        ("UPDATE result SET undecided = '100' WHERE samples < 500 AND radius < 0.05", "undecided radii before all"),
        ("UPDATE result SET undecided = '100' WHERE radius > 0.05", "undecided radii that contradict"),
        ("UPDATE result SET p_upper = 1.5 WHERE idx = 3", "p_upper out of range"),
        ("DROP TABLE pending", "table result has an unexpected schema"),
        ("PRAGMA user_version = 1", "schema version 12 contradicts the file's, 1"),
    ],
)
def test_damaged_results_are_refused(statement: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    certify_dataset(smoother(), shades(), out=path, **SMALL)
    change(path, statement)
    with pytest.raises(FileFormatError, match=match):  # noqa: PT012 - either may find it
        run = Run(path)
        len(run.table)
        run.histogram()


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE pending SET idx = 77 WHERE idx = 3", "has no digest"),
        ("UPDATE pending SET counts0 = '{}' WHERE idx = 3", "a selection that does not have n0 samples"),
        ("UPDATE pending SET counts = '{\"0\":2000}' WHERE idx = 3", "a finished sequence"),
        ("UPDATE pending SET counts = '[]' WHERE idx = 3", "not a histogram"),
        ("UPDATE pending SET p_lower = 1.0 WHERE idx = 3", "limits out of range"),
        ("UPDATE pending SET rival_upper = -1.0 WHERE idx = 3", "limits out of range"),
        ("UPDATE pending SET seconds = -1.0 WHERE idx = 3", "a negative time"),
        ("UPDATE pending SET p_upper = 'x' WHERE idx = 3", "p_upper"),
    ],
)
def test_damaged_unfinished_images_are_refused(
    statement: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certify_sequential, "_PART_S", 0.0)
    path = tmp_path / "run.db"
    with pytest.raises(KeyboardInterrupt):
        certify_dataset(smoother(Failing(20, KeyboardInterrupt())), shades(), out=path, **SMALL)
    change(path, statement)
    with pytest.raises(FileFormatError, match=match):
        certify_dataset(smoother(Failing(10**9, KeyboardInterrupt())), shades(), out=path, **SMALL)
