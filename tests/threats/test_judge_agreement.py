"""Kappa, AC1 and Fleiss' kappa: published values, degenerate tables, coverage of their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pyrobust.errors import InputError
from pyrobust.threats.judges import cohen_kappa, fleiss_kappa, gwet_ac1


def pair(table):
    """Two judges' categories with this table of counts."""
    cells = [(i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)]
    return [i for i, _ in cells], [j for _, j in cells]


def test_worked_example_of_fleiss_cohen_and_everitt():
    """Three categories, 200 examples: kappa 0.429 with standard error 0.054 (Fleiss, Cohen and Everitt, 1969)."""
    kappa = cohen_kappa(*pair([[106, 10, 4], [22, 28, 10], [2, 12, 6]]), method="asymptotic")
    assert kappa.value == pytest.approx(0.429, abs=5e-4)
    assert (kappa.upper - kappa.lower) / (2 * 1.959964) == pytest.approx(0.054, abs=1e-3)
    assert (kappa.observed, kappa.n) == (pytest.approx(0.7), 200)


def test_kappa_and_ac1_of_a_rare_category():
    """The paradox: 118 of 125 agree, and kappa is near 0 (Gwet, 2008: AC1 is 0.94)."""
    first, second = pair([[118, 5], [2, 0]])
    assert cohen_kappa(first, second).value == pytest.approx(-0.0234, abs=5e-5)
    assert gwet_ac1(first, second).value == pytest.approx(0.9408, abs=1e-3)


def test_worked_example_of_fleiss():
    """Ten examples, 14 judges, five categories: kappa 0.210, with the counts of the usual worked example."""
    counts = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    by_example = [[c for c, count in enumerate(row) for _ in range(count)] for row in counts]
    kappa = fleiss_kappa(list(zip(*by_example, strict=True)), method="asymptotic")
    assert kappa.value == pytest.approx(0.210, abs=5e-4)
    assert (kappa.observed, kappa.expected) == (pytest.approx(0.378, abs=5e-4), pytest.approx(0.213, abs=5e-4))
    proved = fleiss_kappa(list(zip(*by_example, strict=True)))
    assert proved.lower < kappa.lower < kappa.upper < proved.upper


def test_ac1_error_is_that_of_the_delta_method():
    first, second = pair([[40, 7], [5, 48]])
    ac1 = gwet_ac1(first, second, method="asymptotic")
    rng = np.random.default_rng(0)
    a, b = np.array(first), np.array(second)
    values = []
    for _ in range(1000):
        rows = rng.integers(0, 100, 100)
        pi = 0.5 * (a[rows].mean() + b[rows].mean())
        chance = 2 * pi * (1 - pi)
        values.append(((a[rows] == b[rows]).mean() - chance) / (1 - chance))
    assert (ac1.upper - ac1.lower) / (2 * 1.96) == pytest.approx(np.std(values), rel=0.1)


@pytest.mark.parametrize("coefficient", [cohen_kappa, gwet_ac1])
def test_judges_that_always_agree_get_no_empty_interval(coefficient):
    first = [True] * 20 + [False] * 30
    agreement = coefficient(first, first, method="asymptotic")
    assert (agreement.value, agreement.method) == (1.0, "proved")
    assert 0.5 < agreement.lower < 0.95
    assert agreement.upper == 1.0


def test_one_category_only():
    first = ["refused"] * 40
    kappa = cohen_kappa(first, first)
    assert math.isnan(kappa.value)
    assert (kappa.lower, kappa.upper, kappa.observed, kappa.expected) == (-1.0, 1.0, 1.0, 1.0)
    assert math.isnan(fleiss_kappa([first] * 3, method="asymptotic").value)
    ac1 = gwet_ac1(first, first)
    assert ac1.value == 1.0
    assert 0.7 < ac1.lower < 1.0
    opposite = cohen_kappa([True] * 10 + [False] * 10, [False] * 10 + [True] * 10)
    assert opposite.value == -1.0
    assert opposite.lower == -1.0


@pytest.mark.parametrize("coefficient", [cohen_kappa, gwet_ac1])
@pytest.mark.parametrize(("share", "error"), [(0.5, 0.1), (0.05, 0.05), (0.02, 0.0)])
def test_coverage_of_proved_intervals(coefficient, share, error):
    rng = np.random.default_rng(4)
    # Each judge is wrong independently: observed agreement and shares of the distribution.
    agree = (1 - error) ** 2 + error**2
    pi = share * (1 - error) + (1 - share) * error
    chance = pi**2 + (1 - pi) ** 2 if coefficient is cohen_kappa else 2 * pi * (1 - pi)
    truth, missed, replicates = (agree - chance) / (1 - chance), 0, 60
    for _ in range(replicates):
        outcome = rng.random(60) < share
        judges = [outcome ^ (rng.random(60) < error) for _ in range(2)]
        agreement = coefficient(*(judge.tolist() for judge in judges))
        missed += not agreement.lower <= truth <= agreement.upper
    assert stats.binomtest(missed, replicates, 0.05, alternative="greater").pvalue > 0.001


def test_three_judges_coverage():
    rng = np.random.default_rng(5)
    share, error, replicates, missed = 0.3, 0.1, 20, 0
    agree, pi = (1 - error) ** 2 + error**2, share * (1 - error) + (1 - share) * error
    chance = pi**2 + (1 - pi) ** 2
    truth = (agree - chance) / (1 - chance)
    for _ in range(replicates):
        outcome = rng.random(150) < share
        judges = [(outcome ^ (rng.random(150) < error)).tolist() for _ in range(3)]
        agreement = fleiss_kappa(judges)
        missed += not agreement.lower <= truth <= agreement.upper
    assert missed <= 5


def test_more_categories_are_proved_too():
    first, second = pair([[30, 2, 1], [3, 25, 2], [1, 2, 34]])
    for coefficient in (cohen_kappa, gwet_ac1):
        proved, asymptotic = coefficient(first, second), coefficient(first, second, method="asymptotic")
        assert -1 <= proved.lower < asymptotic.lower < asymptotic.upper < proved.upper <= 1
    listed = gwet_ac1([1, 1, 1], [1, 1, 1], categories=[0, 1, 2])
    assert listed.value == 1.0
    assert listed.to_dict()["coefficient"] == "Gwet's AC1"


def test_bad_input():
    with pytest.raises(InputError, match=r"^ratings: expected at least two judges, got 1"):
        fleiss_kappa([[1, 2]])
    with pytest.raises(InputError, match=r"^ratings: expected one category of each example, got \[2, 1\] by judge"):
        cohen_kappa([1, 2], [1])
    with pytest.raises(InputError, match=r"^ratings: expected one of the categories \[1\], got 2 at index 1"):
        cohen_kappa([1, 2], [1, 1], categories=[1])
    for value in (None, math.nan):
        with pytest.raises(InputError, match=rf"^ratings: expected a category of each example, got {value} at index 1"):
            cohen_kappa([True, True], [True, value])
    assert cohen_kappa([True, None], [True, None], categories=[True, False, None]).value == 1
    with pytest.raises(InputError, match=r"^method: expected"):
        cohen_kappa([1], [1], method="exact")
