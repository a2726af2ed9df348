"""Binomial bounds against exact rationals and ball arithmetic.

A ball encloses the exact value of its expression, so ``ball <= alpha`` being true is a proof. Every bound is tested
from both sides: the returned value is sound, and a slightly tighter value would not be.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import MARGIN, MAX_TRIALS, binomial_test, clopper_pearson_lower, clopper_pearson_upper
from pyrobust.stats.binomial import _lower, _proved_bound
from pyrobust.stats.decimals import context, log_factorial
from pyrobust.stats.normal import _quantile

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx

ALPHAS = (0.5, 0.05, 0.001, 1e-6)


@pytest.fixture(autouse=True)
def _precision():
    """Set ball arithmetic to 160 bits, and restore its precision afterwards."""
    before, ctx.prec = ctx.prec, 160
    yield
    ctx.prec = before


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


def tighter(x, direction):
    """Move x in `direction` by the documented tightness: 4 margins plus 8 units in the last place."""
    return x + direction * (4 * MARGIN * min(x, 1 - x) + 8 * math.ulp(x))


def check_lower(k, n, alpha, p, tail=tail_beta):
    """Prove that p is a sound and tight lower bound for k successes in n trials."""
    assert 0.0 <= p < 1.0
    if k == 0:
        assert p == 0.0
        return
    assert p > 0.0
    assert tail(k, n, arb(p)) <= arb(alpha), f"unsound lower bound {p!r} for k={k}, n={n}, alpha={alpha}"
    q = tighter(p, +1)
    assert q >= 1.0 or tail(k, n, arb(q)) > arb(alpha), f"loose lower bound {p!r} for k={k}, n={n}, alpha={alpha}"


def check_upper(k, n, alpha, p, tail=tail_beta):
    """Prove that p is a sound and tight upper bound for k successes in n trials, by the tail of the failures."""
    assert 0.0 < p <= 1.0
    if k == n:
        assert p == 1.0
        return
    if p < 1.0:
        assert tail(n - k, n, 1 - arb(p)) <= arb(alpha), f"unsound upper bound {p!r} for k={k}, n={n}, alpha={alpha}"
    q = tighter(p, -1)
    assert q <= 0.0 or tail(n - k, n, 1 - arb(q)) > arb(alpha), f"loose upper bound {p!r}, k={k}, n={n}, {alpha}"


@pytest.mark.parametrize(("n", "alpha"), [*((n, alpha) for n in (1, 2, 3, 10, 100) for alpha in ALPHAS), (1000, 0.001)])
def test_clopper_pearson_at_every_count(n, alpha):
    k = np.arange(n + 1)
    lower, upper = clopper_pearson_lower(k, n, alpha), clopper_pearson_upper(k, n, alpha)
    for j in range(n + 1):
        check_lower(j, n, alpha, lower[j], tail_sum)
        # The mirrored tail differs from one already proved only in rounding, so every third count is enough.
        if j % 3 == 0 or n <= 100 or j > n - 10:
            check_upper(j, n, alpha, upper[j], tail_sum)


def sample_counts(n, size, seed):
    """Counts at both ends, in the middle, and random ones over all scales of k and n - k."""
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.uniform(0, math.log(n), size=size)).astype(int)
    counts = [0, 1, 2, n // 2, n - 2, n - 1, n, *spread, *(n - spread), *rng.integers(0, n + 1, size=size)]
    return sorted({int(k) for k in counts if 0 <= k <= n})


@pytest.mark.parametrize("n", [10_000, 100_000, 10**6, 10**9])
def test_clopper_pearson_at_sampled_counts_of_large_n(n):
    for i, k in enumerate(sample_counts(n, 5 if n < 10**9 else 2, seed=n)):
        alpha = ALPHAS[i % 4]
        check_lower(k, n, alpha, clopper_pearson_lower(k, n, alpha))
        check_upper(k, n, alpha, clopper_pearson_upper(k, n, alpha))


@pytest.mark.parametrize("alpha", [1e-299, 1e-100, 1e-17, 0.9, 1 - 1e-9, 1 - 2.0**-53])
@pytest.mark.parametrize("n", [1, 2, 7, 508, 29_055, pytest.param(10**9, marks=pytest.mark.full)])
def test_clopper_pearson_at_extreme_alpha(n, alpha):
    ctx.prec = 400  # 1 - p and 1 - alpha lose digits to cancellation
    for k in sample_counts(n, 0, seed=n):
        check_lower(k, n, alpha, clopper_pearson_lower(k, n, alpha))
        if n < 100 or k in (0, 1, n - 1, n):  # the others' tails are those of mirrored counts but for rounding
            check_upper(k, n, alpha, clopper_pearson_upper(k, n, alpha))


@pytest.mark.parametrize("alpha", [1e-299, 1 - 2.0**-53])
def test_clopper_pearson_at_extreme_alpha_of_large_n(alpha):
    ctx.prec, n = 400, 10**9
    for k in (1, n // 2, n - 1):
        check_lower(k, n, alpha, clopper_pearson_lower(k, n, alpha))
        check_upper(k, n, alpha, clopper_pearson_upper(k, n, alpha))


def test_clopper_pearson_where_library_routines_fail():
    # In scipy 1.17 the incomplete beta function is 30 times too small in the first case, and its inverse NaN in the
    # second.
    ctx.prec = 400
    for k, n, alpha in [(479, 508, 5.328387079157256e-282), (3, 1_339_206, 5.8434929526015255e-269)]:
        check_lower(k, n, alpha, clopper_pearson_lower(k, n, alpha))
        check_upper(n - k, n, alpha, clopper_pearson_upper(n - k, n, alpha))


@pytest.mark.parametrize("guess", [math.nan, 1e-9, 0.5, 0.989, 1.0 - 2.0**-53, 2.0, -1.0])
@pytest.mark.parametrize(
    ("k", "n", "alpha"),
    [
        (99_000, 100_000, 0.001),
        (100_000, 100_000, 1 - 1e-12),
        (1, 10, 0.001),
        (9, 10, 1 - 1e-12),
        (500, 1000, 1 - 1e-12),
    ],
)
def test_wrong_first_guess_is_corrected(guess, k, n, alpha):
    check_lower(k, n, alpha, _proved_bound(k, n, alpha, guess, upper=False))
    check_upper(n - k, n, alpha, _proved_bound(n - k, n, alpha, 1.0 - guess, upper=True))


@pytest.mark.parametrize("x", [0, 1, 2, 255, 256, 257, 1000, 12_345, 10**6, 10**9])
def test_log_factorial_is_within_its_error_budget(x):
    with decimal.localcontext(context()):
        value = str(log_factorial(x))
    ctx.prec = 300
    assert abs(arb(value) - arb(x + 1).lgamma()) < arb("1e-37")


def test_bounds_ignore_the_callers_decimal_context():
    expected = _lower.__wrapped__(990, 1000, 0.001), _quantile.__wrapped__(0.3)
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP, Emax=5, Emin=-5)):
        assert (_lower.__wrapped__(990, 1000, 0.001), _quantile.__wrapped__(0.3)) == expected
        assert decimal.getcontext().prec == 3


def pmf_rationals(n, p):
    """The n + 1 exact binomial probabilities, times p.denominator**n."""
    a, b = p.numerator, p.denominator - p.numerator
    return [comb(n, k) * a**k * b ** (n - k) for k in range(n + 1)]


@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_coverage_by_exact_enumeration(n, alpha):
    k = range(n + 1)
    lower = [Fraction(float(x)) for x in clopper_pearson_lower(np.arange(n + 1), n, alpha)]
    upper = [Fraction(float(x)) for x in clopper_pearson_upper(np.arange(n + 1), n, alpha)]
    grid = [Fraction(i, 200) for i in range(1, 200)]
    # Just inside each bound the miss probability is closest to alpha: it attains its supremum over p there.
    step = Fraction(1, 10**9)
    below = [x * (1 - step) for x in lower if x > 0]
    above = [1 - (1 - x) * (1 - step) for x in upper if x < 1]
    worst_lower, worst_upper = Fraction(0), Fraction(0)
    for p in grid + below + above:
        mass, whole = pmf_rationals(n, p), p.denominator**n
        missed_lower = Fraction(sum(mass[j] for j in k if lower[j] > p), whole)
        missed_upper = Fraction(sum(mass[j] for j in k if upper[j] < p), whole)
        assert missed_lower <= Fraction(alpha)
        assert missed_upper <= Fraction(alpha)
        worst_lower, worst_upper = max(worst_lower, missed_lower), max(worst_upper, missed_upper)
    assert worst_lower >= Fraction(alpha) * (1 - n * 2 * step)
    assert worst_upper >= Fraction(alpha) * (1 - n * 2 * step)


counts = st.integers(1, 10**4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.floats(1e-12, 0.999)


@given(counts, levels)
def test_bounds_at_any_count_and_alpha(kn, alpha):
    k, n = kn
    lower, upper = clopper_pearson_lower(k, n, alpha), clopper_pearson_upper(k, n, alpha)
    check_lower(k, n, alpha, lower)
    check_upper(k, n, alpha, upper)
    assert alpha > 0.5 or lower <= k / n <= upper
    assert MARGIN < 1e-12  # in which tightness is measured


@pytest.mark.parametrize(
    "sizes", [[*range(1, 61), *range(61, 301, 29)], pytest.param(range(61, 301), marks=pytest.mark.full)]
)
def test_binomial_test_at_every_count(sizes):
    for n in sizes:
        tail, half = 0, []
        for k in range(n, (n - 1) // 2, -1):
            tail += comb(n, k)
            half.append((k, tail))
        for k, value in half:
            exact = min(Fraction(1), Fraction(2 * value, 2**n))
            p = binomial_test(k, n)
            assert exact <= Fraction(p) <= min(Fraction(1), exact * (1 + Fraction(1, 2**51)))
            if n <= 50:
                assert binomial_test(n - k, n) == p


@pytest.mark.parametrize("n", [10_000, 99_999, 10**6, 10**9])
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
    assert binomial_test(n, n) == (2.0 ** (1 - n) if n < 1000 else 5e-324)


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


@pytest.mark.parametrize(
    "function", [clopper_pearson_lower, clopper_pearson_upper, lambda k, n, alpha: binomial_test(k, n)]
)
@pytest.mark.parametrize(
    ("k", "n", "error", "match"),
    [
        (-1, 10, InputError, "k: expected 0 <= k <= n, got k=-1 with n=10"),
        (np.array([1, 11]), 10, InputError, "got k=11"),
        (0, 0, InputError, "n: expected at least 1, got 0"),
        (1, MAX_TRIALS + 1, InputError, "n: expected at most 1000000000"),
        (1, 2**63, InputError, "n: expected at most 1000000000"),
        (np.array([1, 2]), np.array([3, 4, 5]), InputError, "do not broadcast"),
        (5.0, 10, InputTypeError, "k: expected integers, got float"),
        (5, np.array([10.0]), InputTypeError, "n: expected integers, got ndarray of dtype float64"),
        (True, 10, InputTypeError, "k: expected integers, got bool"),
        ("5", 10, InputTypeError, "k: expected integers, got str"),
    ],
)
def test_invalid_counts_are_rejected(function, k, n, error, match):
    with pytest.raises(error, match=match):
        function(k, n, 0.05)


def test_invalid_alphas_are_rejected():
    for function in (clopper_pearson_lower, clopper_pearson_upper):
        for alpha in (0.0, 1.0, math.nan, math.inf, np.array([0.5, math.nan])):
            with pytest.raises(InputError, match=r"alpha: expected a number in \(0, 1\)"):
                function(5, 10, alpha)
    for alpha in ("0.05", None, True, 0.05 + 0j):
        with pytest.raises(InputTypeError, match="alpha: expected float64"):
            clopper_pearson_lower(5, 10, alpha)
