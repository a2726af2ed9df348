"""The exact paired test against scipy; stats/test_holm.py has the sign test in rationals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import paired_test

ALTERNATIVES = ["greater", "less", "two-sided"]


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_against_scipy(alternative: str) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 5, 60, 1000):
        first, second = rng.random(n) < 0.6, rng.random(n) < 0.5
        result = paired_test(torch.from_numpy(first), second, alternative)
        b, c = int((first & ~second).sum()), int((second & ~first).sum())
        assert (result.only_first, result.only_second) == (b, c)
        assert (result.both, result.neither, result.n) == (int((first & second).sum()), n - b - c - result.both, n)
        assert result.difference == pytest.approx(first.mean() - second.mean())
        expected = stats.binomtest(b, b + c, alternative=alternative).pvalue if b + c else 1.0
        assert result.p_value == pytest.approx(expected, rel=1e-9)
        assert result.to_dict()["p_value"] == result.p_value
        assert paired_test(first, first, alternative).p_value == 1.0  # no example differs


def test_bad_input() -> None:
    right = torch.tensor([True, False])
    with pytest.raises(InputError, match=r"^second: expected one for each of the 2 examples, got 3"):
        paired_test(right, torch.tensor([True, False, True]))
    with pytest.raises(InputTypeError, match=r"^first: expected bool, got int64"):
        paired_test(torch.tensor([1, 0]), right)
    with pytest.raises(InputError, match=r"^first: expected at least one example"):
        paired_test(right[:0], right[:0])
    with pytest.raises(InputError, match=r"^alternative: expected one of"):
        paired_test(right, right, "larger")
