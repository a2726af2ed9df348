"""Binomial bounds and tests, Holm's correction and normal quantiles, against exact rationals and ball arithmetic.

A ball encloses the exact value of its expression, so ``ball <= alpha`` being true is a proof. Every bound is tested
from both sides: the returned value is sound, and a slightly tighter value would not be.
"""

from __future__ import annotations

import decimal
import itertools
import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import (
    MARGIN,
    MAX_TRIALS,
    binomial_test,
    clopper_pearson_lower,
    clopper_pearson_upper,
    holm,
    normal,
    normal_quantile_lower,
)
from pyrobust.stats.binomial import _lower, _proved_bound
from pyrobust.stats.decimals import context, log_factorial

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx

ALPHAS = (0.5, 0.05, 0.001, 1e-6)


@pytest.fixture(autouse=True)
def _precision():
    with ctx.workprec(160):
        yield


def tail_beta(k, n, p):
    """P(Bin(n, p) >= k) in balls, for k >= 1, as the regularised incomplete beta function I_p(k, n-k+1)."""
    return p.beta_lower(arb(k), arb(n - k + 1), regularized=True)


def tail_sum(k, n, p):
    """P(Bin(n, p) >= k) summed from k upwards, the remainder enclosed by a geometric series; faster for moderate n."""
    odds = p / (1 - p)
    log_mass = arb(n + 1).lgamma() - arb(k + 1).lgamma() - arb(n - k + 1).lgamma() + k * p.log()
    term = (log_mass + (n - k) * (1 - p).log()).exp()
    total = term
    for j in range(k, n):
        ratio = odds * (n - j) / (j + 1)
        if ratio < 0.999999 and term < total * 1e-20:
            return total + (term * ratio / (1 - ratio)).union(arb(0))
        term = term * ratio
        total += term
    return total


def check(k, n, alpha, p, tail=tail_beta, *, upper=False):
    """Prove that p is a sound and tight bound for k successes in n trials; an upper one by the tail of the failures."""
    m, sign, trivial = (n - k, -1, 1.0) if upper else (k, 1, 0.0)
    assert 0.0 <= p <= 1.0
    assert p != 1.0 - trivial
    if m == 0 or (upper and p == 1.0):  # a lower bound of some successes is above 0
        assert p == trivial
    else:
        assert p > 0.0
        assert tail(m, n, 1 - arb(p) if upper else arb(p)) <= arb(alpha), (
            f"unsound {p!r}: {k=}, {n=}, {alpha=}, {upper=}"
        )
    q = p + sign * (4 * MARGIN * min(p, 1 - p) + 8 * math.ulp(p))  # by the documented tightness
    tight = m == 0 or not 0.0 < q < 1.0 or tail(m, n, 1 - arb(q) if upper else arb(q)) > arb(alpha)
    assert tight, f"loose {p!r}: {k=}, {n=}, {alpha=}, {upper=}"


def check_both(k, n, alpha):
    check(k, n, alpha, clopper_pearson_lower(k, n, alpha))
    check(k, n, alpha, clopper_pearson_upper(k, n, alpha), upper=True)


@pytest.mark.parametrize(("n", "alpha"), [*((n, alpha) for n in (1, 2, 3, 10, 100) for alpha in ALPHAS), (1000, 0.001)])
def test_clopper_pearson_at_every_count(n, alpha):
    k = np.arange(n + 1)
    lower, upper = clopper_pearson_lower(k, n, alpha), clopper_pearson_upper(k, n, alpha)
    for j in range(n + 1):
        check(j, n, alpha, lower[j], tail_sum)
        # The mirrored tail differs from one already proved only in rounding, so every third count is enough.
        if j % 3 == 0 or n <= 100 or j > n - 10:
            check(j, n, alpha, upper[j], tail_sum, upper=True)


def sample_counts(n, size, seed):
    """Counts at both ends, in the middle, and random ones over all scales of k and n - k."""
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.uniform(0, math.log(n), size=size)).astype(int)
    counts = [0, 1, 2, n // 2, n - 2, n - 1, n, *spread, *(n - spread), *rng.integers(0, n + 1, size=size)]
    return sorted({int(k) for k in counts if 0 <= k <= n})


@pytest.mark.parametrize("n", [10_000, 10**6, 10**9])
def test_clopper_pearson_at_sampled_counts_of_large_n(n):
    ctx.prec = 400  # 1 - p and 1 - alpha lose digits to cancellation
    extreme = 1e-299, 1 - 2.0**-53
    counts = zip(sample_counts(n, 2 if n < 10**9 else 0, seed=n), itertools.cycle((*ALPHAS, *extreme)), strict=False)
    for k, alpha in (*counts, (1, extreme[1]), (n // 2, extreme[0]), (n - 1, extreme[0])):
        check_both(k, n, alpha)


@pytest.mark.parametrize("alpha", [1e-299, 1e-17, 0.9, 1 - 2.0**-53])
@pytest.mark.parametrize("n", [1, 2, 508, 29_055, pytest.param(10**9, marks=pytest.mark.full)])
def test_clopper_pearson_at_extreme_alpha(n, alpha):
    ctx.prec = 400
    for k in sample_counts(n, 0, seed=n):
        check(k, n, alpha, clopper_pearson_lower(k, n, alpha))
        if n < 100 or k in (0, 1, n - 1, n):  # the others' tails are those of mirrored counts but for rounding
            check(k, n, alpha, clopper_pearson_upper(k, n, alpha), upper=True)


def test_clopper_pearson_where_library_routines_fail():
    # In scipy 1.17 the incomplete beta function is 30 times too small in the first case, and its inverse NaN in the
    # second.
    ctx.prec = 400
    for k, n, alpha in [(479, 508, 5.328387079157256e-282), (3, 1_339_206, 5.8434929526015255e-269)]:
        check_both(k, n, alpha)
        check_both(n - k, n, alpha)


@pytest.mark.parametrize(
    ("k", "n", "alpha"),
    [(99_000, 100_000, 0.001), (100_000, 100_000, 1 - 1e-12), (1, 10, 0.001), (500, 1000, 1 - 1e-12)],
)
def test_wrong_first_guess_is_corrected(k, n, alpha):
    for guess in (math.nan, 1e-9, 0.989, 1.0 - 2.0**-53, 2.0):
        check(k, n, alpha, _proved_bound(k, n, alpha, guess, upper=False))
        check(n - k, n, alpha, _proved_bound(n - k, n, alpha, 1.0 - guess, upper=True), upper=True)


@pytest.mark.parametrize("x", [0, 1, 2, 255, 256, 257, 1000, 12_345, 10**6, 10**9])
def test_log_factorial_is_within_its_error_budget(x):
    with decimal.localcontext(context()):
        value = str(log_factorial(x))
    ctx.prec = 300
    assert abs(arb(value) - arb(x + 1).lgamma()) < arb("1e-37")


def test_bounds_ignore_the_callers_decimal_context():
    expected = _lower.__wrapped__(990, 1000, 0.001), normal._quantile.__wrapped__(0.3)
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP, Emax=5, Emin=-5)):
        assert (_lower.__wrapped__(990, 1000, 0.001), normal._quantile.__wrapped__(0.3)) == expected
        assert decimal.getcontext().prec == 3


counts = st.integers(1, 10**4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.floats(1e-12, 0.999)


@given(counts, levels)
def test_bounds_at_any_count_and_alpha(kn, alpha):
    k, n = kn
    check_both(k, n, alpha)
    assert alpha > 0.5 or clopper_pearson_lower(k, n, alpha) <= k / n <= clopper_pearson_upper(k, n, alpha)
    assert MARGIN < 1e-12  # in which tightness is measured


@pytest.mark.parametrize("sizes", [[*range(1, 31), 61, 100, 299], pytest.param(range(31, 301), marks=pytest.mark.full)])
def test_binomial_test_at_every_count(sizes):
    for n in sizes:
        tails = [Fraction(tail, 2**n) for tail in itertools.accumulate(comb(n, k) for k in range(n, -1, -1))][::-1]
        for k in range(n + 1):
            exact = {"greater": tails[k], "less": tails[n - k], "two-sided": min(1, 2 * min(tails[k], tails[n - k]))}
            for alternative, value in exact.items():
                p = binomial_test(k, n, alternative)
                assert value <= Fraction(p) <= min(1, value * (1 + Fraction(1, 2**51)))


@pytest.mark.parametrize("n", [99_999, 10**9])
def test_binomial_test_at_larger_n(n):
    ctx.prec = 400
    for z in (0.0, 0.01, 3.0, 30.0):
        k = (n + 1) // 2 + int(z * math.sqrt(n) / 2)
        exact = 2 * tail_beta(k, n, arb(0.5))
        p = binomial_test(n - k, n)
        if p == 1.0:
            assert exact > 1 - 2.0**-53
        else:
            assert exact <= arb(p)
            assert arb(p) <= exact * (1 + 2.0**-51)
    assert binomial_test(n, n) == 5e-324


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(1, 200))
def test_rejections_are_those_of_holm_s_steps(p_values, level):
    alpha, rejected = Fraction(level, 200), [False] * len(p_values)
    # As Holm wrote it: reject in order while p ≤ alpha over the number of tests that remain.
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if Fraction(p_values[index]) > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    adjusted = holm(p_values)
    for value, reject in zip(adjusted, rejected, strict=True):
        # Rounded up: never rejected where the exact procedure does not, and only a rounding error apart.
        assert not (Fraction(value) <= alpha and not reject and alpha < 1)
        if reject:
            assert value <= float(alpha) * (1 + 1e-12)
    assert all(p <= value <= 1 for p, value in zip(p_values, adjusted, strict=True))


def test_scalars_return_floats_and_arrays_return_arrays():
    assert type(clopper_pearson_lower(np.int64(5), 10, np.float64(0.05))) is float
    assert type(binomial_test(5, 10)) is float
    k, n, alpha = np.array([[3], [9]], dtype=np.uint8), np.array([10, 300]), 0.05
    for function in (clopper_pearson_lower, clopper_pearson_upper):
        values = function(k, n, alpha)
        assert values.shape == (2, 2)
        assert values.dtype == np.float64
        assert values[1, 0] == function(9, 10, alpha)
        assert values[0, 1] == function(3, 300, alpha)
    assert clopper_pearson_lower(np.array([], dtype=int), 10, 0.05).shape == (0,)
    assert binomial_test([0, 5], [5, 5]).tolist() == [0.0625000000000000138777878, binomial_test(5, 5)]


def test_invalid_arguments_are_rejected():
    for k, n, error, match in [
        (-1, 10, InputError, "k: expected 0 <= k <= n, got k=-1 with n=10"),
        (np.array([1, 11]), 10, InputError, "got k=11"),
        (0, 0, InputError, "n: expected at least 1, got 0"),
        (1, MAX_TRIALS + 1, InputError, "n: expected at most 1000000000"),
        (1, 2**63, InputError, "n: expected at most 1000000000"),
        (np.array([1, 2]), np.array([3, 4, 5]), InputError, "do not broadcast"),
        (5.0, 10, InputTypeError, "k: expected integers, got float"),
        (5, np.array([10.0]), InputTypeError, "n: expected integers, got ndarray of dtype float64"),
        (True, 10, InputTypeError, "k: expected integers, got bool"),
    ]:
        for call in (clopper_pearson_lower, clopper_pearson_upper, lambda k, n, alpha: binomial_test(k, n)):
            with pytest.raises(error, match=match):
                call(k, n, 0.05)
    with pytest.raises(InputError, match=r"^alternative: expected one of two-sided, greater, less, got 'more'"):
        binomial_test(1, 2, "more")
    for value in (-0.1, math.nan):
        with pytest.raises(InputError, match=r"^p_values: expected numbers in \[0, 1\], got .* at index 1"):
            holm([0.5, value])
    with pytest.raises(InputTypeError, match=r"^p_values: expected a sequence of numbers"):
        holm(["a"])
    for alpha in (0.0, 1.0, math.nan, math.inf, np.array([0.5, math.nan])):
        for call in (clopper_pearson_lower, clopper_pearson_upper):
            with pytest.raises(InputError, match=r"alpha: expected a number in \(0, 1\)"):
                call(5, 10, alpha)
    for wrong in ("0.05", None, True, 0.05 + 0j):
        with pytest.raises(InputTypeError, match="alpha: expected float64"):
            clopper_pearson_lower(5, 10, wrong)
        with pytest.raises(InputTypeError, match="p: expected float64"):
            normal_quantile_lower(wrong)


# --- normal quantiles


def normal_cdf(z):
    return (-arb(z) / arb(2).sqrt()).erfc() / 2


def check_quantile(p, z):
    """Prove that z is at most the quantile of p, and that z plus the documented tightness is above it."""
    assert math.isfinite(z)
    if p == 0.5:
        assert z == 0.0
        return
    assert normal_cdf(z) <= arb(p), f"unsound quantile {z!r} of {p!r}"
    assert normal_cdf(z + 4 * MARGIN * abs(z) + 8 * math.ulp(z)) > arb(p), f"loose quantile {z!r} of {p!r}"


def test_normal_quantile_on_a_grid_and_at_neighbouring_doubles():
    ctx.prec = 250
    grid = [*np.linspace(0, 1, 1501)[1:-1], *10.0 ** -np.arange(1, 308, 3), *1 - 10.0 ** -np.arange(1, 16)]
    for start in (5e-324, 1e-308, 0.02425, 0.25, 0.5, 0.75, 1 - math.exp(-2), 0.97575, 0.999, 1.0):
        for towards in (0.0, 1.0):
            p = start
            for _ in range(8):
                grid.append(p)
                p = math.nextafter(p, towards)
    grid = np.array([p for p in grid if 0.0 < p < 1.0])
    for p, z in zip(grid.tolist(), normal_quantile_lower(grid).tolist(), strict=True):
        check_quantile(p, z)


@pytest.mark.parametrize("wrong", [1e-9, 0.1, -0.1, math.nan])
def test_wrong_first_guess_is_never_returned(monkeypatch, wrong):
    right = normal.special.ndtri
    monkeypatch.setattr(normal.special, "ndtri", lambda p: right(p) + wrong)
    for p in (1e-9, 0.999999):
        z = normal._quantile.__wrapped__(p)
        if math.isfinite(wrong):
            check_quantile(p, z)
        else:
            assert z == -math.inf or normal_cdf(z) <= arb(p)


def test_normal_quantile_outside_the_unit_interval():
    for p in (0.0, -0.5, math.nan, -math.inf):
        assert normal_quantile_lower(p) == -math.inf
    assert type(normal_quantile_lower(0.7)) is float
    assert normal_quantile_lower(np.array([[math.nan, 0.5]])).tolist() == [[-math.inf, 0.0]]
    for p in (1.0, 1.5, math.inf, np.array([0.5, 1.0])):
        with pytest.raises(InputError, match="p: expected probabilities below 1"):
            normal_quantile_lower(p)
