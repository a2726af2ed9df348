"""Holm's correction against rationals, and its level by enumeration of all outcomes."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import binomial_test, holm


def by_steps(p_values: list[float], alpha: Fraction) -> list[bool]:
    """The step-down procedure as Holm wrote it: reject in order while p ≤ alpha over the number of tests left."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if Fraction(p_values[index]) > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(1, 200))
def test_rejections_are_those_of_the_procedure(p_values: list[float], level: int) -> None:
    alpha = Fraction(level, 200)
    adjusted = holm(p_values)
    exact = by_steps(p_values, alpha)
    for value, reject in zip(adjusted, exact, strict=True):
        # rounded up: never rejected where the exact procedure does not, and only a rounding error apart
        assert not (Fraction(value) <= alpha and not reject and alpha < 1)
        if reject:
            assert value <= float(alpha) * (1 + 1e-12)
    assert all(given <= value <= 1 for given, value in zip(p_values, adjusted, strict=True))


def test_the_level_holds_by_enumeration() -> None:
    """Two sign tests of 8 examples whose hypotheses are true and a third that is false and always rejected."""
    alpha, n = 0.1, 8
    wrong = Fraction(0)
    for first, second in itertools.product(range(n + 1), repeat=2):
        weight = Fraction(comb(n, first) * comb(n, second), 4**n)
        adjusted = holm([binomial_test(first, n, "greater"), binomial_test(second, n, "greater"), 1e-9])
        if min(adjusted[:2]) <= alpha:
            wrong += weight
    assert 0 < wrong <= Fraction(alpha)


@pytest.mark.parametrize("n", [1, 2, 9, 40])
@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_the_sign_test(n: int, alternative: str) -> None:
    for k in range(n + 1):
        tails = {
            "greater": Fraction(sum(comb(n, j) for j in range(k, n + 1)), 2**n),
            "less": Fraction(sum(comb(n, j) for j in range(k + 1)), 2**n),
        }
        exact = tails.get(alternative, min(Fraction(1), 2 * min(tails.values())))
        assert exact <= Fraction(binomial_test(k, n, alternative)) <= exact * (1 + Fraction(1, 10**14))


def test_bad_input() -> None:
    assert holm([]) == []
    for value in (-0.1, float("nan")):
        with pytest.raises(InputError, match=r"^p_values: expected numbers in \[0, 1\], got .* at index 1"):
            holm([0.5, value])
    with pytest.raises(InputTypeError, match=r"^p_values: expected a sequence of numbers"):
        holm(["a"])
    with pytest.raises(InputError, match=r"^alternative: expected one of two-sided, greater, less, got 'more'"):
        binomial_test(1, 2, "more")
