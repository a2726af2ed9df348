"""Tables and plots of runs: their numbers, their captions, and their export in every form."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from pyrobust.attacks import DDN, FGSM
from pyrobust.errors import InputError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    certify_dataset,
    minimum_norm_curve,
    predict_dataset,
    robustness_curve,
    verify_dataset,
)
from pyrobust.metrics import average_certified_radius, estimate_rate
from pyrobust.report import (
    ReportTable,
    attack_table,
    certified_accuracy_table,
    curve_table,
    default_radii,
    describe_run,
    format_table,
    plot_certified_accuracy,
    prediction_table,
    rates_table,
    run_summary,
    verification_table,
)
from pyrobust.report.formats import Interval, Quantity
from pyrobust.report.page.adapters import subjects_of
from pyrobust.runs.kinds.kind import NamedRate
from pyrobust.runs.kinds.predict import Predict
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

NAME = "zoo:digits-smooth-0.25"


def smoother() -> RandomizedSmoothing:
    return RandomizedSmoothing(load_model(NAME), 10, 0.25)


@pytest.fixture(scope="module")
def run() -> Run:
    return certify_dataset(smoother(), load_data("digits"), n=500, skip=10, model_name=NAME)


@pytest.fixture(scope="module")
def predictions() -> Run:
    return predict_dataset(smoother(), load_data("digits"), n=50, max_images=8)


def rendered(table: ReportTable) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_tables_of_every_kind_are_exported(run: Run, predictions: Run) -> None:
    model, data = load_model(NAME), load_data("digits")
    attacked = attack_dataset(FGSM(model, 0.05), data, skip=20)
    verified = verify_dataset(model, data, epsilons=[0.01, 0.02], max_images=4)
    curve = robustness_curve(FGSM, model, data.x[:9], data.y[:9], [0.0, 0.05])
    tables = [certified_accuracy_table(run), prediction_table(predictions), attack_table(attacked)]
    tables += [verification_table(verified), curve_table(curve, ["Data digits"])]
    for table in tables:
        assert table.notes[0] in format_table(table, "json").replace("\\\\", "\\")
        assert len(format_table(table, "csv").splitlines()) == 1 + len(table.rows)
        assert table.title in format_table(table, "md")
        assert table.title in format_table(table, "tex")
    clean, robust = (json.loads(format_table(attack_table(attacked), "json"))["rows"][i] for i in (1, 2))
    assert clean[1]["value"] == float(attacked.clean_accuracy())
    assert robust[1]["value"] == float(attacked.robust_accuracy())
    assert robust[3] == {"lower": attacked.robust_accuracy().lower, "upper": attacked.robust_accuracy().upper}


def test_tables_say_what_their_rates_depend_on(run: Run, predictions: Run) -> None:
    for text in ("\n".join(describe_run(run)), rendered(certified_accuracy_table(run))):
        for words in (
            *("method fixed", "l2", "gaussian", "sigma 0.25", "n0 100", "n 500", "alpha 0.001", "guarantee grid"),
            *(NAME, run.header.model_sha256[:12], run.header.data_sha256[:12], "39 of 382 images", "one in 10"),
        ):
            assert words in text
    text = rendered(prediction_table(predictions))
    for words in ("n 50", "alpha 0.001", predictions.header.data_sha256[:12], "the first 8"):
        assert words in text


def test_default_radii_reach_the_largest(run: Run) -> None:
    radii = default_radii(run)
    assert radii[0] == 0.0
    assert radii[-1] <= run.table["radius"].max() < radii[-1] + 0.25
    wide = certify_dataset(
        RandomizedSmoothing(lambda x: torch.stack([x.flatten(1)[:, 0] + 99, x.flatten(1)[:, 1]], 1), 2, 8.0),
        (torch.zeros(1, 1, 2, 2), torch.zeros(1).long()),
        n=1000,
    )
    assert len(default_radii(wide)) <= 12
    assert default_radii(wide)[1] > 0.25
    small = certify_dataset(RandomizedSmoothing(load_model(NAME), 10, 0.12), load_data("digits"), n=500, max_images=4)
    radii = default_radii(small)
    assert 0.2 < small.table["radius"].max() < 0.5
    assert len(radii) >= 6
    assert radii[-1] <= small.table["radius"].max()


def test_radii_must_be_numbers_from_zero_on(run: Run, predictions: Run) -> None:
    for radius in (-0.1, math.nan):
        with pytest.raises(InputError, match="radii"):
            certified_accuracy_table(run, [radius])
    with pytest.raises(InputError, match="kind certify"):
        certified_accuracy_table(predictions, [0.0])
    with pytest.raises(InputError, match="kind certify"):
        plot_certified_accuracy(predictions, "never.png")


def test_nothing_right_is_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot")
    data = load_data("digits")
    wrong = certify_dataset(smoother(), (data.x[:3], (data.y[:3] + 1) % 10), n=50)
    plot_certified_accuracy(wrong, tmp_path / "curve.png")
    assert "0.0 %" in rendered(certified_accuracy_table(wrong))


def test_the_table_of_a_certification_has_intervals_and_both_mean_radii(run: Run) -> None:
    table = certified_accuracy_table(run, [0.0, 0.25], alpha=0.1)
    assert table.columns[-1].name == "90 % interval"
    rows = {str(row[0]): row for row in table.rows}
    count = int((run.table["radius"][run.correct] >= 0.25).sum())
    rate = estimate_rate(count, len(run), 0.1)
    assert str(rows["certified at radius 0.25"][1]) == f"{100 * rate.value:.1f} %"
    assert rows["certified at radius 0.25"][2:] == (count, Interval(rate.lower, rate.upper))
    assert rows["abstained"][2] == (run.table["prediction"] == -1).sum()
    average = average_certified_radius(run.table["radius"], run.correct, 0.1)
    assert rows["average certified radius"][1] == Quantity(average.value)
    assert rows["average certified radius"][3] == Interval(average.lower, average.upper, percent=False)
    mean = float(run.table["radius"][run.correct].mean())
    assert rows["mean radius (correct only)"][1] == Quantity(mean)
    assert average.value == pytest.approx(mean * run.correct.mean())
    assert not run.correct.all(), "the test needs a wrong prediction"


def test_the_table_of_a_certification_begins_with_p_a_and_ends_with_the_average_radius(run: Run) -> None:
    table = certified_accuracy_table(run)
    totals, p_a, certified, radii = table.sections
    votes = run.histogram("counts")[np.arange(len(run)), np.maximum(run.table["prediction"], 0)]
    shares = np.sort(np.where(run.correct, votes / 500, 0.0))
    assert not run.correct.all(), "the test needs an image that counts as 0"
    quartiles = [shares[math.ceil(q * len(run)) - 1] for q in (0.25, 0.5, 0.75)]
    assert [row[1].value for row in p_a[1:4]] == quartiles
    assert p_a[0][1].value == pytest.approx(np.maximum(2 * shares - 1, 0).mean())
    assert [row[0] for row in p_a[4:]] == [
        "p_A above 1/2",
        "p_A at least 0.75",
        "p_A at least 0.9",
        "p_A at least 0.99",
    ]
    assert [row[2] for row in p_a[4:]] == [int((shares > 0.5).sum())] + [
        int((shares >= at).sum()) for at in (0.75, 0.9, 0.99)
    ]
    assert len(totals) == 3
    assert all(str(row[0]).startswith("certified at radius") for row in certified)
    assert [row[0] for row in radii] == ["average certified radius", "mean radius (correct only)"]
    assert "0 where the smoothed prediction is wrong or abstains" in table.notes[-2]
    assert table.notes[-1].startswith("The average certified radius ranks nothing here")
    summary = run_summary(run)
    names = list(summary)
    assert names.index("p_a") < names.index("certified_accuracy") < names.index("average_certified_radius")
    assert names[-1] == "average_certified_radius"
    assert list(summary["p_a"]["quantiles"].values()) == quartiles
    assert [entry["successes"] for entry in summary["p_a"]["survival"]] == [row[2] for row in p_a[4:]]


def test_epsilons_are_shown_as_fractions() -> None:
    model, data = load_model(NAME), load_data("digits")
    attacked = attack_dataset(FGSM(model, 8 / 255), data, max_images=2)
    verified = verify_dataset(model, data, epsilons=[1 / 255, 0.02], max_images=2)
    curve = robustness_curve(FGSM, model, data.x[:2], data.y[:2], [0.0, 1 / 255])
    assert "linf epsilon 8/255; " in describe_run(attacked)[0]
    assert "epsilon 1/255, 0.02" in describe_run(verified)[0]
    assert "verified at linf epsilon 1/255" in [row[0] for row in verification_table(verified).rows]
    assert [row[0] for row in curve_table(curve, []).rows] == ["linf epsilon 0", "linf epsilon 1/255"]


def test_rates_of_a_kind_are_in_its_table_and_summary(predictions: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = [estimate_rate(6, 8, 0.1), estimate_rate(3, 8, 0.1)]
    rates = [NamedRate("under noise", rate, {"sigma": sigma}) for rate, sigma in zip(right, (0.1, 0.5), strict=True)]
    monkeypatch.setattr(Predict, "rates", lambda *arguments: iter([*rates, NamedRate("both ways", right[0])]))
    rows = rates_table(predictions, alpha=0.1).rows
    expected = ["images", "clean accuracy", "under noise at sigma 0.1", "under noise at sigma 0.5", "both ways"]
    assert [row[0] for row in rows] == expected
    assert [row[2] for row in rows[2:]] == [6, 3, 6]
    summary = run_summary(predictions, alpha=0.1)
    lists = [{"sigma": sigma} | rate.to_dict() for rate, sigma in zip(right, (0.1, 0.5), strict=True)]
    assert (summary["under_noise"], summary["both_ways"]) == (lists, right[0].to_dict())
    assert "abstained" not in summary


def test_a_run_without_bounds_is_a_subject_of_its_own(predictions: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Predict, "smoothed", False)
    [subject] = subjects_of(predictions)
    assert (subject.smoothed, subject.lower, subject.upper) == (False, None, None)


def test_intervals_of_a_curve_have_its_alpha() -> None:
    run = attack_dataset(DDN(load_model(NAME), epsilon=0.5, steps=4), load_data("digits"), max_images=8, minimum=True)
    narrow, wide = (attack_table(run, curve=minimum_norm_curve(run, alpha=alpha)) for alpha in (0.05, 0.01))
    assert "99 % interval" in str(wide.columns)
    texts = [[[str(cell) for cell in row] for row in table.rows[:4]] for table in (narrow, wide)]
    assert texts[0] != texts[1]
    assert [[str(cell) for cell in row] for row in attack_table(run, alpha=0.01).rows[:4]] == texts[1]
    with pytest.raises(InputError, match="run: expected a run with certified radii"):
        certified_accuracy_table(run)
