"""Confidence sequences against ball arithmetic: sound, tight, and consistent with their boundaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError
from pyrobust.stats import looks, sequence, sequence_boundary, sequence_lower, sequence_upper

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx


@pytest.fixture(autouse=True)
def _precision():
    with ctx.workprec(300):
        yield


def log_wealth(a, n, p):
    """Compute ln W(p) in balls from its definition, independently of the divergence that the code uses."""
    f, half = n - a, arb(1) / 2
    value = (a + half).lgamma() + (f + half).lgamma() - arb.pi().log() - arb(n + 1).lgamma()
    return value - (a * p.log() if a else 0) - (f * (1 - p).log() if f else 0)


def tightness(p, alpha):
    return 2.0 ** (-40 if alpha >= 1e-7 else -35) * min(p, 1 - p) + 2.0**-49 * p


def check(a, n, alpha, lower, upper):
    """Prove that both limits are sound and tight for a successes in n trials."""
    goal = -arb(alpha).log()
    if a == 0:
        assert lower == 0.0
    elif lower > 0.0 or alpha > 1e-250:  # for smaller alpha a limit may underflow to 0
        assert lower < a / n
        assert log_wealth(a, n, arb(lower)) >= goal, f"unsound lower limit {lower!r} for {a} of {n}, alpha {alpha}"
        p = lower + tightness(lower, alpha)
        assert p >= 1.0 or log_wealth(a, n, arb(p)) < goal, f"loose lower limit {lower!r} for {a} of {n}, alpha {alpha}"
    if a == n:
        assert upper == 1.0
    else:
        if upper < 1.0:
            assert log_wealth(a, n, arb(upper)) >= goal, f"unsound upper limit {upper!r} for {a} of {n}, alpha {alpha}"
        p = upper - tightness(upper, alpha)
        assert log_wealth(a, n, arb(p)) < goal, f"loose upper limit {upper!r} for {a} of {n}, alpha {alpha}"


@pytest.mark.parametrize("alpha", [0.5, 0.001, 1e-100, 1e-299, 1 - 2.0**-53])
@pytest.mark.parametrize("n", [1, 2, 3, 15, 16, 17, 33, 64, 65, 1000, 131_072, 10**9])
def test_limits_at_every_or_sampled_counts(n, alpha):
    if n <= 65:
        a = np.arange(n + 1)
    else:
        rng = np.random.default_rng(n)
        spread = np.exp(rng.uniform(0, math.log(n), size=6)).astype(int)
        a = np.array([0, 1, 2, n // 2, n - 2, n - 1, n, *spread, *(n - spread), *rng.integers(0, n + 1, size=8)])
    for row in zip(a.tolist(), sequence_lower(a, n, alpha), sequence_upper(a, n, alpha), strict=True):
        check(row[0], n, alpha, float(row[1]), float(row[2]))


def test_numpy_logarithms_are_as_accurate_as_the_proof_assumes():
    rng = np.random.default_rng(0)
    numbers = np.concatenate([1 + rng.exponential(size=400), np.exp(rng.uniform(-700, 700, 400))])
    near = np.concatenate([np.exp(rng.uniform(-50, 30, 400)), -np.exp(rng.uniform(-50, -1, 400)), -rng.random(400) / 2])
    for computed, exact, values in ((np.log, arb.log, numbers), (np.log1p, arb.log1p, near)):
        for x in values.tolist():
            assert abs(arb(float(computed(x))) - exact(arb(x))) <= 2.0**-50 * abs(exact(arb(x)))


def test_stirling_remainders_are_rounded_up_and_tight():
    (half, whole), root = sequence._small_remainders(), (2 * arb.pi()).log() / 2
    for x in (*range(70), 1000, 10**6, 10**9):
        d = arb(x)
        power = d * d.log() - d if x else d
        cases = [(power + root - (d + arb(0.5)).lgamma(), half, sequence._HALF)]
        if x:
            cases.append(((d + 1).lgamma() - power - root - d.log() / 2, whole, sequence._WHOLE))
        for exact, small, series in cases:
            bound = arb(float(sequence._remainder(np.array([x]), small, series)[0]))
            assert exact * (1 - 2.0**-50) <= bound <= exact * (1 + 2.0**-49), x


def test_unproved_limits_are_trivial(monkeypatch):
    monkeypatch.setattr(sequence, "_divergence", lambda wins, losses, a, d: (0.0 * wins, 0.0 * wins))
    assert sequence_lower([5, 10], 10, 0.05).tolist() == [0.0, 0.0]
    assert sequence_upper([5, 0], 10, 0.05).tolist() == [1.0, 1.0]


counts = st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.floats(1e-9, 0.9))
def test_limits_at_any_count_and_alpha(count, alpha):
    a, n = count
    lower, upper = sequence_lower(a, n, alpha), sequence_upper(a, n, alpha)
    assert lower.dtype == np.float64
    assert lower.shape == ()
    assert lower <= a / n <= upper
    check(a, n, alpha, float(lower), float(upper))


def test_limits_do_not_depend_on_other_array_elements():
    rng = np.random.default_rng(1)
    n = rng.integers(1, 10**5, 500)
    a = (n * rng.uniform(size=500)).astype(int)
    for limit in (sequence_lower, sequence_upper):
        together = limit(a, n, 0.001)
        for i in range(0, 500, 7):
            assert together[i] == limit(int(a[i]), int(n[i]), 0.001)


@pytest.mark.parametrize("p0", [1e-9, 0.3, 0.5, 0.84, 0.999, 1 - 1e-9])
@pytest.mark.parametrize("alpha", [0.5, 0.001])
def test_boundary_agrees_with_the_limits(p0, alpha):
    n = np.array([*range(1, 40), 100, 1000, 100_000, 131_072, 10**6])
    above, below = sequence_boundary(n, p0, alpha)
    for m, a, b in zip(n.tolist(), above.tolist(), below.tolist(), strict=True):
        assert -1 <= b < a <= m + 1
        assert a == m + 1 or sequence_lower(a, m, alpha) >= p0
        assert a == 0 or sequence_lower(a - 1, m, alpha) < p0
        assert b == -1 or sequence_upper(b, m, alpha) < p0
        assert b == m or sequence_upper(b + 1, m, alpha) >= p0


@pytest.mark.parametrize("n_max", [1, 2, 16, 17, 31, 100, 256, 257, 5000, 100_000, 131_072, 10**9])
def test_looks_reach_n_max_in_small_steps(n_max):
    sizes = np.array(looks(n_max))
    assert sizes[-1] == n_max
    assert sizes[0] == min(16, n_max)
    steps = np.diff(sizes)
    assert (steps > 0).all()
    assert (steps <= np.maximum(16, sizes[:-1] // 16)).all()
    assert looks(n_max)[: len(sizes) - 1] == looks(10**9)[: len(sizes) - 1]


def test_invalid_arguments_are_rejected():
    for function, arguments, error, match in [
        (looks, (0,), InputError, "n_max: expected"),
        (looks, (10**9 + 1,), InputError, "n_max: expected"),
        (sequence_boundary, (10, 0.0, 0.05), InputError, "p0: expected one number"),
        (sequence_boundary, (10, math.nan, 0.05), InputError, "p0: expected one number"),
        (sequence_boundary, (10, [0.5, 0.6], 0.05), InputError, "p0: expected one number"),
        (sequence_lower, (11, 10, 0.05), InputError, "successes: expected 0 <= .*, got successes=11 with trials=10"),
        (sequence_upper, (11, 10, 0.05), InputError, "successes: expected 0 <= .*, got successes=11 with trials=10"),
        (sequence_lower, (0, 0, 0.05), InputError, "trials: expected at least 1"),
        (sequence_lower, (1, 10, math.nan), InputError, r"alpha: expected a number in \(0, 1\), got nan"),
    ]:
        with pytest.raises(error, match=match):
            function(*arguments)
