"""Judgements of printed radii: attainable ones, piles, and likelier parameters."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from planted_logs import audited, joined, made_up, message, split
from scipy import stats

from pyrobust.auditing.fit import Fit
from pyrobust.auditing.formulas import Parameters
from pyrobust.auditing.judgement import judge
from pyrobust.auditing.printed_radii import PrintedRadii
from pyrobust.metrics.votes import attainable_radii

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
simulation = pytest.importorskip("audit_simulation", reason="bench is not beside the tests")

USUAL = Parameters(100_000, 0.001, 1.0)


def printed(values: dict[float, int], decimals: int) -> PrintedRadii:
    radius = np.repeat(list(values), list(values.values()))
    return PrintedRadii(radius, np.full(len(radius), decimals))


def test_a_few_equal_radii_just_below_the_maximum_are_no_fault() -> None:
    """As in published logs: six images with 99,999 votes, none with 100,000."""
    below = attainable_radii(100_000, 0.001, 1.0)[-2]
    radii = printed({float(f"{below:.4f}"): 6, 3.6896: 1, 3.5070: 1, 3.2845: 1, 3.2113: 1}, 4)
    judgement = judge(radii, USUAL)
    assert judgement.explanations == ()
    assert judgement.assumed.piles == []
    assert judgement.saturation is None or not judgement.saturation.agrees(USUAL.maximum)  # so that it implies no alpha


def test_a_large_pile_below_the_maximum_is_a_fault() -> None:
    below = attainable_radii(100_000, 0.001, 1.0)[-2]
    assert len(Fit(printed({float(f"{below:.4f}"): 60, 3.6896: 1}, 4), USUAL).piles) == 1
    assert Fit(printed({float(f"{USUAL.maximum:.4f}"): 600, 3.6896: 1}, 4), USUAL).piles == []


def test_binomial_votes_do_not_pile_up() -> None:
    random = np.random.default_rng(0)
    table = attainable_radii(10_000, 0.001, 0.5)
    parameters = Parameters(10_000, 0.001, 0.5)
    for p in (0.6, 0.9, 0.99, 0.999, 0.9999):
        for decimals in (2, 3, 4):
            radius = table[random.binomial(10_000, p, 5000)]
            radius = np.round(radius[radius > 0], decimals)
            assert Fit(PrintedRadii(radius, np.full(len(radius), decimals)), parameters).piles == []


def test_radii_beside_those_that_print_as_zero_are_no_pile() -> None:
    """Of n = 100, 66 votes give less than 0.01: the rows that print as 0.00 are missing below it."""
    parameters = Parameters(100, 0.001, 0.5)
    radius = np.floor(100 * attainable_radii(100, 0.001, 0.5)[67:]) / 100
    count = np.linspace(160, 300, len(radius)).astype(int)
    assert Fit(printed(dict(zip(radius, count, strict=True)), 2), parameters).piles == []
    count[3] = 600
    assert len(Fit(printed(dict(zip(radius, count, strict=True)), 2), parameters).piles) == 1


def test_two_digits_do_not_contradict_alpha(tmp_path: Path) -> None:
    for beta in ((4.0, 0.5), (200.0, 20.0), (2000.0, 20.0)):
        text = made_up(500, sigma=1.0, show=lambda radius: f"{radius:.2}", beta=beta)
        assert not audited(tmp_path, text, 1.0).faults


def test_alpha_is_named_and_rows_are_judged_with_it(tmp_path: Path) -> None:
    header, rows = split(made_up(1000, alpha=0.01))
    rows[7][1:5] = ["1", "1", "5.0", "1"]
    found = audited(tmp_path, joined(header, rows))
    assert [finding.kind for finding in found.faults] == ["above-maximum"]
    assert "1 row (line 9)" in found.faults[0].message
    assert "alpha 0.01 and sigma 0.25" in found.faults[0].message
    assert "alpha 0.01" in message(found, "parameters")


def test_without_sigma_radii_are_judged_against_the_largest_pile(tmp_path: Path) -> None:
    header, rows = split(made_up(2000, beta=(4.0, 0.3)))
    assert not audited(tmp_path, made_up(2000, beta=(4.0, 0.3)), None).faults
    rows[40][1:5] = ["1", "1", "5.0", "1"]
    (fault,) = audited(tmp_path, joined(header, rows), None).faults
    assert fault.kind == "above-maximum"
    assert fault.lines == (42,)


@pytest.mark.parametrize(
    ("column", "value", "kind", "words"),
    [
        (1, "99", "label", "label 99, outside the 10 classes of the other rows: 1 row"),
        (2, "99", "prediction", "prediction 99, outside the 10 classes of the other rows: 1 row"),
        (2, "10", "prediction", "prediction 10, outside the 10 classes"),
    ],
)
def test_classes_outside_those_seen_are_faults(tmp_path: Path, column: int, value: str, kind: str, words: str) -> None:
    header, rows = split(made_up(2000))
    rows[11][column], rows[11][4] = value, "0"
    (fault,) = audited(tmp_path, joined(header, rows)).faults
    assert fault.kind == kind
    assert words in fault.message


def test_rare_and_sparse_classes_are_no_faults(tmp_path: Path) -> None:
    """A few classes of many keep their numbers; a model may predict classes that the rows do not have."""
    header, rows = split(made_up(2000))
    subset = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
    for number, row in enumerate(rows):
        row[1] = str(subset[int(row[1])])
        row[2] = row[2] if row[2] == "-1" else str(subset[int(row[2])] if number % 3 else number % 1000)
        row[4] = str(int(row[1] == row[2]))
    assert not audited(tmp_path, joined(header, rows)).faults


@pytest.mark.parametrize(("size", "stride"), [(10_000, 1), (10_000, 20), (50_000, 100)])
def test_images_missing_at_the_end_of_a_known_size_are_faults(tmp_path: Path, size: int, stride: int) -> None:
    lines = made_up(size // stride, stride=stride).splitlines(keepends=True)
    assert not audited(tmp_path, "".join(lines)).faults
    (fault,) = audited(tmp_path, "".join(lines[:-3])).faults
    assert fault.kind == "missing"
    assert fault.message.startswith("3 missing images at the end")
    assert not audited(tmp_path, "".join(lines[: 1 + 8 * (len(lines) - 1) // 10])).faults  # a chosen part


@pytest.mark.parametrize("trial", range(0, len(simulation.COMBINATIONS), 123))
def test_simulated_clean_logs_have_no_fault(trial: int) -> None:
    assert list(simulation.clean_trials(1, range(trial, trial + 1))) == []


def test_significant_digits_tell_most_where_radii_are_small() -> None:
    """The largest radii have fewer decimals, and of 20,000 samples nearly all of them are attainable."""
    votes = np.arange(5190, 9900)
    radius = stats.norm.ppf(stats.beta.ppf(1e-4, votes, 10_000 - votes + 1))
    value = np.array([float(f"{r:.3g}") for r in radius])
    radii = PrintedRadii(value, 2 - np.floor(np.log10(value)).astype(int))
    few = radii.furthest_apart(30, 1.0)
    assert few.value.max() < 0.1 < 1 < radii.largest(30).value.min()
    judged = judge(radii, Parameters(100_000, 0.001, 1.0), ["n", "alpha"])
    assert [str(fit.parameters) for fit in judged.explanations[:1]] == [str(Parameters(10_000, 1e-4, 1.0))]
    assert judged.innocent.spoiled == 0


@pytest.mark.parametrize("name", sorted(simulation.FAULTS.keys() - {"bound with the rival class"}))
def test_each_kind_of_planted_fault_is_found(name: str) -> None:
    lines = simulation.planted_trials(3, name, range(1))
    assert [line for line in lines if not line.startswith("hidden")] == []
