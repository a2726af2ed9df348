"""Error messages of the statistical bounds for invalid arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import (
    MAX_TRIALS,
    binomial_test,
    clopper_pearson_lower,
    clopper_pearson_upper,
    normal_quantile_lower,
)


@pytest.mark.parametrize(
    "function", [clopper_pearson_lower, clopper_pearson_upper, lambda k, n, alpha: binomial_test(k, n)]
)
@pytest.mark.parametrize(
    ("k", "n", "error", "match"),
    [
        (-1, 10, InputError, "k: expected 0 <= k <= n, got k=-1 with n=10"),
        (11, 10, InputError, "k: expected 0 <= k <= n, got k=11 with n=10"),
        (np.array([1, 11]), 10, InputError, "got k=11"),
        (0, 0, InputError, "n: expected at least 1, got 0"),
        (1, MAX_TRIALS + 1, InputError, "n: expected at most 1000000000"),
        (1, 2**63, InputError, "n: expected at most 1000000000"),
        (np.array([1, 2]), np.array([3, 4, 5]), InputError, "do not broadcast"),
        (5.0, 10, InputTypeError, "k: expected integers, got float"),
        (5, np.array([10.0]), InputTypeError, "n: expected integers, got ndarray of dtype float64"),
        (True, 10, InputTypeError, "k: expected integers, got bool"),
        ("5", 10, InputTypeError, "k: expected integers, got str"),
        (None, 10, InputTypeError, "k: expected integers, got NoneType"),
        (math.nan, 10, InputTypeError, "k: expected integers"),
    ],
)
def test_invalid_counts_are_rejected(function, k, n, error, match):
    with pytest.raises(error, match=match):
        function(k, n, 0.05)


@pytest.mark.parametrize("function", [clopper_pearson_lower, clopper_pearson_upper])
@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, 1.1, math.nan, math.inf, 0, 1, np.array([0.5, math.nan])])
def test_alpha_outside_the_open_interval_is_rejected(function, alpha):
    with pytest.raises(InputError, match=r"alpha: expected a number in \(0, 1\)"):
        function(5, 10, alpha)


@pytest.mark.parametrize("alpha", ["0.05", None, True, 0.05 + 0j])
def test_alpha_of_another_type_is_rejected(alpha):
    with pytest.raises(InputTypeError, match="alpha: expected float64"):
        clopper_pearson_lower(5, 10, alpha)
    with pytest.raises(InputTypeError, match="p: expected float64"):
        normal_quantile_lower(alpha)
