"""Audits: planted faults are reported, and clean logs have none."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from support.planted_logs import (
    ALPHA,
    N,
    Planted,
    audited,
    joined,
    made_up,
    message,
    plant,
    six_down,
    split,
    three_digits,
)

from pyrobust.auditing import Audit, audit, read_certification_log
from pyrobust.auditing.log_reader import _COLUMNS
from pyrobust.errors import FileFormatError

SYNTHETIC = made_up(2000)
PLANTED = plant(SYNTHETIC, 0.25)
ALONE = ("duplicate", "above-maximum", "nan", "negative", "order")  # kinds of faults that imply no other


def published(name: str) -> Path:
    folder = os.environ.get("PYROBUST_DATA")
    if folder is None:
        pytest.skip("PYROBUST_DATA is not set")
    return Path(folder, "logs", f"{name}.tsv")


def four(radius: float) -> str:
    return f"{radius:.4f}"


def kinds(report: Audit) -> list[str]:
    return [finding.kind for finding in report.faults]


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_planted_faults_are_reported(tmp_path: Path, planted: Planted) -> None:
    if not planted.kind:
        with pytest.raises(FileFormatError, match=planted.words):
            audited(tmp_path, planted.content)
        return
    report = audited(tmp_path, planted.content, **planted.options)
    assert report.exit_status == 1
    assert planted.kind in kinds(report) if planted.kind not in ALONE else [planted.kind] == kinds(report)
    assert planted.words in message(report, planted.kind)


CIFAR = [f"cifar10/{name}" for name in ("cohen_sigma0.25", "cohen_sigma0.50", "smoothadv_sigma0.25")]
IMAGENET = [f"imagenet/{name}" for name in ("cohen_sigma0.50", "smoothadv_sigma0.50")]


@pytest.mark.parametrize("name", CIFAR + IMAGENET)
def test_published_logs_are_clean_and_their_accuracies_are_counts(name: str) -> None:
    report = audit(read_certification_log(published(name)))
    assert report.exit_status == 0
    assert not report.faults
    kinds_of_notes = ["sigma", "rounded-up", "saturation", "assumed", "votes"]
    if name in IMAGENET:
        kinds_of_notes = ["stride", "sigma", "saturation", "assumed", "votes", "subset"]
        assert report.notes[0].message == "every 100th image: 500 of about 50,000"
    assert [finding.kind for finding in report.notes] == kinds_of_notes
    _, rows = split(published(name).read_text())
    metrics = report.metrics
    for radius, rate in zip(metrics.radii, metrics.certified, strict=True):
        assert rate.successes == sum(row[4] == "1" and float(row[3]) >= radius for row in rows)
        assert rate.n == len(rows)
    assert metrics.images == len(rows)
    assert metrics.abstained == sum(row[2] == "-1" for row in rows)
    assert metrics.survival is not None
    assert (np.diff(metrics.survival.share) <= 0).all()
    assert (metrics.survival.lower <= metrics.survival.share).all()
    assert (metrics.survival.share <= metrics.survival.upper).all()
    assert metrics.average_certified_radius.value == pytest.approx(
        sum(float(row[3]) for row in rows if row[4] == "1") / len(rows), rel=1e-12
    )


def how_to() -> str:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "auditing.md"
    if not page.exists():
        pytest.skip("not in a checkout")
    return page.read_text()


def test_the_how_to_shows_the_printed_findings() -> None:
    report = audit(read_certification_log(published("imagenet/cohen_sigma0.50")))
    shown = "\n".join(f"  {finding.severity:<5}  {finding.message}" for finding in report.findings)
    assert f"cohen_sigma0.50.tsv: 500 rows, no fault, 6 notes\n{shown}\n```" in how_to()


def test_planted_faults_and_columns_are_documented() -> None:
    checks, formats = how_to().partition("## What is checked")[2].split("## Log formats")
    for kind in {planted.kind for planted in PLANTED.values()} - {""}:
        assert f"`{kind}`" in checks
        assert f'"{kind}"' in (audit.__doc__ or "")
    for column in _COLUMNS:
        assert re.search(rf"\b{column}\b", formats)
        assert re.search(rf"\b{column}\b", read_certification_log.__doc__ or "")


@pytest.mark.parametrize(
    ("n", "alpha", "sigma", "show", "stride"),
    [
        (N, ALPHA, 0.25, three_digits, 1),
        (N, ALPHA, 0.12, six_down, 1),
        (N, ALPHA, 1.0, four, 100),
        (N, ALPHA, 0.5, repr, 20),
        (10_000, 0.01, 0.5, lambda radius: f"{radius:.5f}", 1),
        (1000, ALPHA, 0.25, six_down, 1),
        (100, 0.05, 0.25, three_digits, 1),
    ],
)
def test_clean_logs_are_clean(tmp_path: Path, n: int, alpha: float, sigma: float, show: object, stride: int) -> None:
    text = made_up(1000, n=n, alpha=alpha, sigma=sigma, show=show, stride=stride)  # type: ignore[arg-type]  # names of options from a table
    report = audited(tmp_path, text, sigma, n=n, alpha=alpha)
    assert not report.faults
    assert report.exit_status == 0
    _, rows = split(text)
    right = np.array([row[1] == row[2] for row in rows])
    assert report.metrics.accuracy.successes == right.sum()
    assert report.metrics.survival is not None


def test_a_wrong_n_is_found_without_saturated_radii(tmp_path: Path) -> None:
    """A small n has few attainable radii: a log with only those was made with that n."""
    text = made_up(400, n=1000, show=four, beta=(8, 4))
    report = audited(tmp_path, text, n=N, alpha=ALPHA)
    assert kinds(report) == ["parameters"]
    assert "all 310 radii are among the few that n 1,000 gives" in report.faults[0].message
    unstated = audited(tmp_path, text)
    assert not unstated.faults
    assert "n 1,000" in message(unstated, "parameters")
    assert unstated.metrics.survival is None
    assert not audited(tmp_path, text, n=1000).faults
    assert not audited(tmp_path, made_up(400, show=four, beta=(8, 4))).faults


def test_a_wrong_sigma_is_found(tmp_path: Path) -> None:
    text = made_up(400, sigma=0.3)
    report = audited(tmp_path, text, 0.25, n=N, alpha=ALPHA)
    assert "parameters" in kinds(report)
    assert "sigma 0.3 (392 of 392)" in report.faults[0].message
    assert not audited(tmp_path, text, 0.3).faults


def test_saturated_radii_imply_alpha(tmp_path: Path) -> None:
    report = audited(tmp_path, made_up(1000, alpha=0.0005, show=six_down, beta=(4, 0.2)))
    assert not report.faults  # nobody stated alpha
    assert "alpha 0.0005" in message(report, "parameters")
    assert (report.counted.n, report.counted.alpha) == (None, None)
    assert not report.metrics.bounds
    assert "in doubt" in message(report, "no-votes")


def test_rounding_above_the_maximum_is_a_note_and_more_is_a_fault(tmp_path: Path) -> None:
    """The maximum radius is 0.952864: 0.953 is its nearest value, 0.954 is above it."""
    header, rows = split(made_up(50))
    rows[7][1:5] = ["1", "1", "0.953", "1"]
    assert not audited(tmp_path, joined(header, rows)).faults
    rows[7][3] = "0.954"
    assert not audited(tmp_path, joined(header, rows)).faults  # another n explains it
    rows[8][1:5] = ["1", "1", "0.94", "1"]  # between the two largest radii, 0.9348 and 0.9529
    above, between = audited(tmp_path, joined(header, rows), n=N, alpha=ALPHA).faults
    assert (above.kind, above.lines) == ("above-maximum", (9,))
    assert (between.kind, between.lines) == ("unattainable", (10,))


def changed(row: int, **values: str) -> bytes:
    header, rows = split(SYNTHETIC)
    for name, value in values.items():
        rows[row][header.index(name)] = value
    return joined(header, rows)


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"predict": "-1", "radius": "0.0", "correct": "1"}, "abstained-correct", "marked correct: 1 row (line 7)"),
        ({"predict": "-1", "radius": "0.377", "correct": "0"}, "abstained-radius", "with a radius: 1 row (line 7)"),
        ({"predict": "-3", "radius": "0.0", "correct": "0"}, "prediction", "prediction below -1"),
        ({"label": "-2", "predict": "3", "correct": "0"}, "label", "negative label"),
        ({"label": "3", "predict": "3", "correct": "0"}, "correct", "contradicts predict == label: 1 row (line 7)"),
        ({"label": "3", "predict": "4", "correct": "1"}, "correct", "contradicts predict == label"),
        ({"label": "3", "predict": "3", "correct": "2"}, "correct-value", "neither 0 nor 1: 1 row"),
        ({"label": "3", "predict": "3", "correct": "nan"}, "correct-value", "neither 0 nor 1"),
        ({"radius": "inf", "predict": "1", "label": "1", "correct": "1"}, "infinite", "infinite or above 1e+90"),
        ({"radius": "1.7e308", "predict": "1", "label": "1", "correct": "1"}, "infinite", "infinite or above 1e+90"),
        ({"idx": "2500"}, "order", "rows out of order"),
        ({"idx": "2500"}, "missing", "missing images (indices 5, 2000"),
    ],
)
def test_faults_of_single_rows(tmp_path: Path, values: dict[str, str], kind: str, words: str) -> None:
    report = audited(tmp_path, changed(5, **values))
    assert kind in kinds(report)
    assert words in message(report, kind)


def test_metrics_ignore_the_column_correct(tmp_path: Path) -> None:
    clean, cumulative = audited(tmp_path, SYNTHETIC), audited(tmp_path, PLANTED["cumulative correct"].content)
    assert clean.metrics.to_dict() == cumulative.metrics.to_dict()


def test_running_counts_that_contradict_the_predictions_are_reported(tmp_path: Path) -> None:
    header, rows = split(SYNTHETIC)
    count = 0
    wrong = next(row for row in rows if row[1] != row[2])
    for row in rows:
        count += row[1] == row[2] or row is wrong
        row[4] = str(count)
    report = audited(tmp_path, joined(header, rows))
    assert kinds(report) == ["cumulative-correct"]
    assert "contradicts predict == label in 1 row" in report.faults[0].message


def test_invalid_radii_count_as_abstentions_and_duplicates_once(tmp_path: Path) -> None:
    header = "idx\tlabel\tpredict\tradius\tcorrect\n"
    report = audited(
        tmp_path, header + "0\t1\t1\tnan\t1\n1\t1\t1\t-1\t1\n2\t1\t1\t0.5\t1\n2\t1\t1\t0.6\t1\n3\t1\t1\t0.7\t1\n"
    )
    assert kinds(report) == ["duplicate", "nan", "negative"]
    assert report.counted.index.tolist() == [0, 1, 2, 3]
    assert report.counted.prediction.tolist() == [-1, -1, 1, 1]
    assert report.counted.radius.tolist() == [0.0, 0.0, 0.5, 0.7]
    assert report.metrics.radii == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    assert [float(rate) for rate in report.metrics.certified] == [0.5] * 6 + [0.25] * 2
    assert report.log.radius[4] == 0.7  # the log as read is unchanged


def test_strides_are_notes_and_gaps_are_faults(tmp_path: Path) -> None:
    header, rows = split(made_up(60, stride=20))
    report = audited(tmp_path, joined(header, rows))
    assert [note.message for note in report.notes if note.kind == "stride"] == ["every 20th image: 60 of about 1,200"]
    del rows[30:33]
    report = audited(tmp_path, joined(header, rows))
    assert kinds(report) == ["missing"]
    assert report.faults[0].message == "3 missing images (indices 600 and 2 more) at a stride of 20"
    rows[4][0] = "81"
    assert "missing" in kinds(audited(tmp_path, joined(header, rows)))


def test_a_random_subset_is_a_note(tmp_path: Path) -> None:
    header, rows = split(made_up(100))
    chosen = np.sort(np.random.default_rng(3).choice(10_000, 100, replace=False))
    for row, index in zip(rows, chosen.tolist(), strict=True):
        row[0] = str(index)
    report = audited(tmp_path, joined(header, rows))
    assert not report.faults
    assert "irregular" in [note.kind for note in report.notes]


@pytest.mark.parametrize(("rows", "stride", "noted"), [(300, 1, True), (500, 20, True), (10_000, 1, False)])
def test_subsets_are_noted_with_a_confidence_interval(tmp_path: Path, rows: int, stride: int, noted: bool) -> None:
    report = audited(tmp_path, made_up(rows, stride=stride))
    notes = [note.message for note in report.notes if note.kind == "subset"]
    assert bool(notes) == noted
    if noted:
        rate = report.metrics.accuracy
        assert f"{100 * rate.lower:.1f} to {100 * rate.upper:.1f} % on all images (95 % confidence)" in notes[0]


def test_without_sigma_there_are_no_metrics_of_votes(tmp_path: Path) -> None:
    report = audited(tmp_path, SYNTHETIC, None)
    assert not report.faults
    assert report.metrics.survival is None
    assert "imply sigma 0.25 at n 100,000" in message(report, "sigma-unknown")
    assert "sigma" in message(report, "no-votes")
    assert audit(read_certification_log(report.log.path, sigma=0.25)).metrics.survival is not None


def test_to_dict_is_complete(tmp_path: Path) -> None:
    said = audited(tmp_path, PLANTED["NaN"].content).to_dict()
    assert (said["exit_status"], said["n"], said["alpha"], said["sigma"]) == (1, N, ALPHA, 0.25)
    assert said["findings"][0]["kind"] == "nan"
    assert said["metrics"]["survival"]["thresholds"][0] == 0.5
    assert len(said["metrics"]["certified_accuracy"]) == len(said["metrics"]["certified_accuracy_with_confidence"])
    assert {row["label"] for row in said["metrics"]["classes"]} == set(range(10))
