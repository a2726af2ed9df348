"""Explanations of radii: every one that fits is listed, and nothing is a fact while another fits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from planted_logs import audited, joined, made_up, message, split
from scipy import stats

from pyrobust.auditing.formulas import OTHER_FORMULAS, USUAL, Parameters


@pytest.mark.parametrize("n", [1500, 25_000])
def test_an_odd_n_is_among_the_explanations(tmp_path: Path, n: int) -> None:
    text = made_up(1000, n=n, show=lambda radius: f"{radius:.4f}")
    found = audited(tmp_path, text, n=100_000, alpha=0.001)
    assert found.exit_status == 1
    assert f"n {n:,} " in message(found, "parameters")


def test_what_nobody_stated_is_no_fault_and_all_explanations_are_listed(tmp_path: Path) -> None:
    """The published log of CIFAR-10 at sigma 0.5 was made with alpha 0.01, which its text does not say."""
    found = audited(tmp_path, made_up(500, alpha=0.01, sigma=0.5, beta=(4.0, 0.5)), 0.5)
    assert found.exit_status == 0
    note = message(found, "parameters")
    assert "alpha 0.01" in note
    assert "sigma 1.25" not in note
    assert found.metrics.survival is None
    listed = re.findall(r"\(([\d,]+) of ([\d,]+)\)", note.partition("radii explained: ")[2])
    assert len(listed) > 1
    assert all(explained == rows for explained, rows in listed)


def test_a_change_within_the_file_names_its_rows(tmp_path: Path) -> None:
    header, first = split(made_up(1000, show=lambda radius: f"{radius:.4f}"))
    _, second = split(made_up(1000, n=10_000, show=lambda radius: f"{radius:.4f}", seed=1))
    for number, row in enumerate(second):
        row[0] = str(1000 + number)
    found = audited(tmp_path, joined(header, first + second))
    change = message(found, "change")
    assert found.exit_status == 1
    lines = re.search(r"lines ([\d,]+) to ([\d,]+)", change)
    assert lines is not None
    start, stop = (int(number.replace(",", "")) for number in lines.groups())
    assert abs(start - 1002) < 40 or abs(stop - 1001) < 40
    assert "n 10,000" in change


def test_saturation_below_the_maximum_is_a_note(tmp_path: Path) -> None:
    text = made_up(1000, alpha=1e-4, show=lambda radius: f"{radius:.2f}", beta=(4.0, 0.2))
    found = audited(tmp_path, text, n=100_000, alpha=0.001)
    assert not found.faults


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
    parameters = Parameters(n, alpha, 0.5, formula)  # type: ignore[arg-type]
    lower = bounds.get(parameters.formula.name, bounds[""])
    radius = np.array([parameters.scale * parameters.formula.radius(1 - p) for p in lower])
    kept = radius > 0
    low, high = parameters.votes(radius[kept] * (1 - 1e-9), radius[kept] * (1 + 1e-9))
    np.testing.assert_allclose((low + high) / 2, k[kept], atol=1e-3)


@pytest.mark.parametrize(("n", "alpha"), [(100, 0.05), (10_000, 0.001), (100_000, 1e-5)])
def test_jeffreys_bound_is_inverted_up_to_the_last_vote(n: int, alpha: float) -> None:
    """As many radii as a table would be read for, and all votes of the largest."""
    k = np.unique(np.append(np.linspace(0.7 * n, n, n // 20).astype(int), np.arange(n - 30, n + 1)))
    jeffreys = next(formula for formula in OTHER_FORMULAS if formula.name == "Jeffreys' bound")
    radius = 0.5 * stats.norm.ppf(stats.beta.ppf(alpha, k + 0.5, n - k + 0.5))
    low, high = Parameters(n, alpha, 0.5, jeffreys).votes(radius, radius)
    np.testing.assert_allclose(low, k, rtol=0, atol=1e-6 + 1e-10 * n)
    np.testing.assert_array_equal(low, high)


def test_abstentions_written_as_a_class(tmp_path: Path) -> None:
    header, rows = split(made_up(2000, beta=(2.0, 1.0)))
    for row in rows:
        if row[2] == "-1":
            row[2], row[4] = "0", str(int(row[1] == "0"))
    found = audited(tmp_path, joined(header, rows))
    assert [fault.kind for fault in found.faults] == ["abstained-class"]
    assert "all of class 0" in found.faults[0].message


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


@pytest.mark.parametrize("times", [True, False])
def test_copied_rows(tmp_path: Path, times: bool) -> None:
    header, rows = split(made_up(900))
    for target, source in zip(rows[600:], rows[:300], strict=True):
        target[1:5] = source[1:5]
        if times:
            target[5] = source[5]
    found = audited(tmp_path, joined(header, rows))
    assert [fault.kind for fault in found.faults] == ["copied"]
    assert "300 rows" in found.faults[0].message


def test_labels_numbered_from_one(tmp_path: Path) -> None:
    header, rows = split(made_up(1000))
    for row in rows:
        row[1] = str(int(row[1]) + 1)
        row[4] = str(int(row[1] == row[2]))
    found = audited(tmp_path, joined(header, rows))
    assert "labels 1 to 10 beside predictions 0 to 9" in message(found, "numbering")
    assert found.exit_status == 1


def test_scattered_rows_of_another_sigma_are_explained_apart(tmp_path: Path) -> None:
    header, rows = split(made_up(1000, n=10_000, show=lambda radius: f"{radius:.6f}"))
    _, halved = split(made_up(1000, n=10_000, sigma=0.125, show=lambda radius: f"{radius:.6f}"))
    rows[::5] = halved[::5]
    found = audited(tmp_path, joined(header, rows), n=10_000, alpha=0.001)
    assert found.exit_status == 1
    assert re.search(
        r"rows of two kinds: .* sigma 0.25, the other .* sigma 0\.125 \((\d+) of \1\)", message(found, "parameters")
    )
    lines = next(finding.lines for finding in found.findings if finding.kind == "parameters")
    assert lines
    assert set(lines) <= set(range(2, 1002, 5))


def test_a_bound_of_two_counts_is_named_as_not_tried(tmp_path: Path) -> None:
    header, rows = split(made_up(1000, n=10_000, show=lambda radius: f"{radius:.5f}"))
    random = np.random.default_rng(0)
    for row in rows:
        row[3] = row[3] if row[2] == "-1" else f"{float(row[3]) * (1 - 1e-3 * random.random()):.5f}"
    found = audited(tmp_path, joined(header, rows), n=10_000, alpha=0.001)
    assert found.exit_status == 1
    assert "two-class bound" in message(found, "parameters")
