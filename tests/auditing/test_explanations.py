"""Judgements of printed radii: attainable ones, piles, likelier parameters, and every explanation that fits."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.planted_logs import HEADER, audited, joined, made_up, message, split

from pyrobust.auditing import read_certification_log
from pyrobust.auditing.candidates import usual_candidates
from pyrobust.auditing.check_abstentions import _no_abstentions
from pyrobust.auditing.check_copies import _same_times
from pyrobust.auditing.fit import Fit, Fits
from pyrobust.auditing.formulas import OTHER_FORMULAS, USUAL, Parameters, votes_between
from pyrobust.auditing.judgement import _FULLY_JUDGED, _screened, judge
from pyrobust.auditing.printed_radii import PrintedRadii
from pyrobust.metrics.votes import attainable_radii


def test_an_odd_n_is_among_the_explanations(tmp_path: Path) -> None:
    text = made_up(1000, n=1500, show=lambda radius: f"{radius:.4f}")
    report = audited(tmp_path, text, n=100_000, alpha=0.001)
    assert report.exit_status == 1
    assert "n 1,500 " in message(report, "parameters")


def test_what_nobody_stated_is_no_fault_and_all_explanations_are_listed(tmp_path: Path) -> None:
    """The published log of CIFAR-10 at sigma 0.5 was made with alpha 0.01, which its text does not say."""
    report = audited(tmp_path, made_up(500, alpha=0.01, sigma=0.5, beta=(4.0, 0.5)), 0.5)
    assert report.exit_status == 0
    note = message(report, "parameters")
    assert "alpha 0.01" in note
    assert "sigma 1.25" not in note
    assert report.metrics.survival is None
    listed = re.findall(r"\(([\d,]+) of ([\d,]+)\)", note.partition("radii explained: ")[2])
    assert len(listed) > 1
    assert all(explained == rows for explained, rows in listed)


def test_a_change_within_the_file_names_its_rows(tmp_path: Path) -> None:
    header, first = split(made_up(1000, show=lambda radius: f"{radius:.4f}"))
    _, second = split(made_up(1000, n=10_000, show=lambda radius: f"{radius:.4f}", seed=1))
    for number, row in enumerate(second):
        row[0] = str(1000 + number)
    report = audited(tmp_path, joined(header, first + second))
    change = message(report, "change")
    assert report.exit_status == 1
    lines = re.search(r"lines ([\d,]+) to ([\d,]+)", change)
    assert lines is not None
    start, stop = (int(number.replace(",", "")) for number in lines.groups())
    assert abs(start - 1002) < 40 or abs(stop - 1001) < 40
    assert "n 10,000" in change


def test_saturation_below_the_maximum_is_a_note(tmp_path: Path) -> None:
    text = made_up(1000, alpha=1e-4, show=lambda radius: f"{radius:.2f}", beta=(4.0, 0.2))
    report = audited(tmp_path, text, n=100_000, alpha=0.001)
    assert not report.faults


@pytest.mark.parametrize("formula", [USUAL, *OTHER_FORMULAS], ids=lambda formula: formula.name)
def test_formulas_invert_their_bounds(formula: object) -> None:
    """Votes are recovered from the radii that scipy's bounds give."""
    n, alpha, k = 10_000, 0.001, np.array([5300, 7000, 9000, 9900, 9990])
    share, z = k / n, stats.norm.isf(alpha)
    bounds = {
        "": stats.beta.ppf(alpha, k, n - k + 1),
        "upper bound in place of the lower bound": stats.beta.ppf(1 - alpha, k + 1, n - k),
        "share of votes in place of the lower bound": share,
        "Hoeffding's bound": share - np.sqrt(np.log(1 / alpha) / (2 * n)),
        "normal approximation in place of the lower bound": share - z * np.sqrt(share * (1 - share) / n),
        "Wilson's bound": (share + z**2 / (2 * n) - z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2))
        / (1 + z**2 / n),
        "Jeffreys' bound": stats.beta.ppf(alpha, k + 0.5, n - k + 0.5),
    }
    parameters = Parameters(n, alpha, 0.5, formula)  # type: ignore[arg-type]  # a formula from a table
    lower = bounds.get(parameters.formula.name, bounds[""])
    radius = np.array([parameters.scale * parameters.formula.radius(1 - p) for p in lower])
    kept = radius > 0
    low, high = votes_between([parameters], radius[kept] * (1 - 1e-9), radius[kept] * (1 + 1e-9))
    np.testing.assert_allclose((low[0] + high[0]) / 2, k[kept], atol=1e-3)


@pytest.mark.parametrize(("n", "alpha"), [(100, 0.05), (10_000, 0.001), (100_000, 1e-5)])
def test_jeffreys_bound_is_inverted_up_to_the_last_vote(n: int, alpha: float) -> None:
    """As many radii as a table would be read for, and all votes of the largest."""
    k = np.unique(np.append(np.linspace(0.7 * n, n, n // 20).astype(int), np.arange(n - 30, n + 1)))
    jeffreys = next(formula for formula in OTHER_FORMULAS if formula.name == "Jeffreys' bound")
    radius = 0.5 * stats.norm.ppf(stats.beta.ppf(alpha, k + 0.5, n - k + 0.5))
    low, high = votes_between([Parameters(n, alpha, 0.5, jeffreys)], radius, radius)
    np.testing.assert_allclose(low[0], k, rtol=0, atol=1e-6 + 1e-10 * n)
    np.testing.assert_array_equal(low, high)


def test_abstentions_written_as_a_class(tmp_path: Path) -> None:
    header, rows = split(made_up(2000, beta=(2.0, 1.0)))
    for row in rows:
        if row[2] == "-1":
            row[2], row[4] = "0", str(int(row[1] == "0"))
    report = audited(tmp_path, joined(header, rows))
    assert [fault.kind for fault in report.faults] == ["abstained-class"]
    assert "all of class 0" in report.faults[0].message


@pytest.mark.parametrize("zeros", [False, True])
def test_abstentions_written_as_small_radii(tmp_path: Path, zeros: bool) -> None:
    """They are judged besides those that print as zero."""
    random = np.random.default_rng(0)
    header, rows = split(made_up(4000, beta=(1.5, 1.0), n=10_000, show=lambda radius: f"{radius:.3f}"))
    for row in rows:
        if row[2] == "-1":
            row[2], row[3], row[4] = row[1], f"{random.uniform(0.003, 0.03):.3f}", "1"
    if zeros:
        rows[0][2:5] = [rows[0][1], "0.000", "1"]
    assert "abstentions" in {f.kind for f in audited(tmp_path, joined(header, rows), n=10_000, alpha=0.001).faults}


def test_as_many_small_radii_as_above_them_are_a_fault(tmp_path: Path) -> None:
    """Radii of up to four standard deviations of the votes, evenly spread."""
    radii = np.linspace(0.0001, 4 * 0.25 * math.sqrt(2 * math.pi) / (2 * math.sqrt(10_000)), 480)
    rows = [[str(row), "1", "1", f"{radius:.5f}", "1", "0:00:14"] for row, radius in enumerate(radii)]
    path = tmp_path / "log_sigma0.25.tsv"
    path.write_bytes(joined(HEADER.split("\t"), rows))
    [finding] = _no_abstentions(read_certification_log(path), Parameters(10_000, 0.001, 0.25))
    assert (finding.kind, finding.severity) == ("abstentions", "fault")


@pytest.mark.parametrize("times", [True, False])
def test_copied_rows(tmp_path: Path, times: bool) -> None:
    header, rows = split(made_up(900))
    for target, source in zip(rows[600:], rows[:300], strict=True):
        target[1:5] = source[1:5]
        if times:
            target[5] = source[5]
    report = audited(tmp_path, joined(header, rows))
    assert [fault.kind for fault in report.faults] == ["copied"]
    assert "300 rows" in report.faults[0].message


@pytest.mark.parametrize(("copies", "flagged"), [(6, False), (7, True)])
def test_copies_that_chance_does_not_explain(copies: int, flagged: bool) -> None:
    """Of 100 contents and two rows of a time, all pairs agree with probability 0.02^copies: e^-23.5, e^-27.4."""
    content = np.arange(200) // 2
    seconds = np.arange(200.0)
    seconds[1 : 2 * copies : 2] = seconds[: 2 * copies : 2]
    assert _same_times(content, seconds).any() == flagged


def test_labels_numbered_from_one(tmp_path: Path) -> None:
    header, rows = split(made_up(1000))
    for row in rows:
        row[1] = str(int(row[1]) + 1)
        row[4] = str(int(row[1] == row[2]))
    report = audited(tmp_path, joined(header, rows))
    assert "labels 1 to 10 beside predictions 0 to 9" in message(report, "numbering")
    assert report.exit_status == 1


def test_scattered_rows_of_another_sigma_are_explained_apart(tmp_path: Path) -> None:
    header, rows = split(made_up(1000, n=10_000, show=lambda radius: f"{radius:.6f}"))
    _, halved = split(made_up(1000, n=10_000, sigma=0.125, show=lambda radius: f"{radius:.6f}"))
    rows[::5] = halved[::5]
    report = audited(tmp_path, joined(header, rows), n=10_000, alpha=0.001)
    assert report.exit_status == 1
    assert re.search(
        r"rows of two kinds: .* sigma 0.25, the other .* sigma 0\.125 \((\d+) of \1\)", message(report, "parameters")
    )
    lines = next(finding.lines for finding in report.findings if finding.kind == "parameters")
    assert lines
    assert set(lines) <= set(range(2, 1002, 5))


def test_a_bound_of_two_counts_is_named_as_not_tried(tmp_path: Path) -> None:
    header, rows = split(made_up(1000, n=10_000, show=lambda radius: f"{radius:.5f}"))
    random = np.random.default_rng(0)
    for row in rows:
        row[3] = row[3] if row[2] == "-1" else f"{float(row[3]) * (1 - 1e-3 * random.random()):.5f}"
    report = audited(tmp_path, joined(header, rows), n=10_000, alpha=0.001)
    assert report.exit_status == 1
    assert "two-class bound" in message(report, "parameters")


# --- printed radii


simulation = pytest.importorskip("studies.audit.simulation", reason="bench is not beside the tests")

COMMON = Parameters(100_000, 0.001, 1.0)


def printed(values: dict[float, int], decimals: int) -> PrintedRadii:
    radius = np.repeat(list(values), list(values.values()))
    return PrintedRadii(radius, np.full(len(radius), decimals))


def test_a_few_equal_radii_just_below_the_maximum_are_no_fault() -> None:
    """As in published logs: six images with 99,999 votes, none with 100,000."""
    below = attainable_radii(100_000, 0.001, 1.0)[-2]
    radii = printed({float(f"{below:.4f}"): 6, 3.6896: 1, 3.5070: 1, 3.2845: 1, 3.2113: 1}, 4)
    judgement = judge(radii, COMMON)
    assert judgement.explanations == ()
    assert judgement.assumed.piles == []
    assert judgement.saturation is None or not judgement.saturation.agrees(
        COMMON.maximum
    )  # so that it implies no alpha


def test_a_large_pile_below_the_maximum_is_a_fault() -> None:
    below = attainable_radii(100_000, 0.001, 1.0)[-2]
    assert len(Fit(printed({float(f"{below:.4f}"): 60, 3.6896: 1}, 4), COMMON).piles) == 1
    assert [pile.beside for pile in Fit(printed({float(f"{below:.4f}"): 60}, 4), COMMON).piles] == [0]
    assert Fit(printed({float(f"{COMMON.maximum:.4f}"): 600, 3.6896: 1}, 4), COMMON).piles == []


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
    report = audited(tmp_path, joined(header, rows))
    assert [finding.kind for finding in report.faults] == ["above-maximum"]
    assert "1 row (line 9)" in report.faults[0].message
    assert "alpha 0.01 and sigma 0.25" in report.faults[0].message
    assert "alpha 0.01" in message(report, "parameters")


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


# --- candidates in arrays


@pytest.mark.parametrize("formula", [USUAL, *OTHER_FORMULAS], ids=lambda formula: formula.name or "usual")
def test_candidates_in_arrays_are_those_one_by_one(formula) -> None:
    value = np.round(attainable_radii(300, 0.01, 0.5)[200::9], 3)
    radii = PrintedRadii(value, np.full(len(value), 3))
    candidates = [Parameters(n, a, s, formula) for n in (50, 300, 10**5) for a in (0.01, 1e-3) for s in (0.25, 0.5)]
    fits = Fits(radii, candidates)
    for i, candidate in enumerate(candidates):
        fit = Fit(radii, candidate)
        assert fits.scores_without_piles[i] == fit.score_without_piles
        assert fits.attainable[i].tolist() == fit.attainable.tolist()


@pytest.mark.parametrize(("n", "digits"), [(1000, 3), (10_000, 2)])
def test_the_likeliest_of_the_usual_candidates_is_judged(n: int, digits: int) -> None:
    """With significant digits, small radii tell most, and the largest few can mislead."""
    radius = attainable_radii(n, 0.01, 0.25)
    radius = np.random.default_rng(0).choice(radius[radius > 1e-3], 80)
    decimals = digits - 1 - np.floor(np.log10(radius)).astype(int)
    radii = PrintedRadii(np.array([*map(round, radius, decimals.tolist())]), decimals)
    assumed = Parameters(10**5, 1e-3, 0.25)
    candidates = [*usual_candidates(assumed, None, ("n", "alpha"))]
    judged = _screened(radii, assumed, ("n", "alpha"), candidates)
    assert max(fit.score for fit in judged) == max(Fit(radii, candidate).score for candidate in candidates)
    assert len(judged) == 2 * _FULLY_JUDGED
    telling = radii.furthest_apart(30, assumed.sigma)
    likeliest = sorted(candidates, key=lambda candidate: Fit(telling, candidate).score_without_piles)[-5:]
    assert set(likeliest) <= {fit.parameters for fit in judged}
