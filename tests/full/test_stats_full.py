"""Clopper-Pearson bounds at every count of n = 10,000 and n = 100,000, and normal quantiles on a dense grid.

All checks use ball arithmetic, so ``ball <= alpha`` being true is a proof. Takes minutes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyrobust.stats import MARGIN, clopper_pearson_lower, clopper_pearson_upper, normal_quantile_lower

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx

pytestmark = pytest.mark.full

ALPHA = 0.001


@pytest.fixture(autouse=True)
def _precision():
    """Set ball arithmetic to 128 bits, and restore its precision afterwards."""
    before, ctx.prec = ctx.prec, 128
    yield
    ctx.prec = before


def tail(k, n, p, log_choose):
    """P(Bin(n, p) >= k) in balls, summed from k upwards, the remainder enclosed by a geometric series."""
    odds = p / (1 - p)
    term = (log_choose + k * p.log() + (n - k) * (1 - p).log()).exp()
    total = term
    negligible = float(term.mid()) * 1e-16
    for j in range(k, n):
        ratio = odds * (n - j) / (j + 1)
        if ratio < 0.999999 and term < negligible:
            return total + (term * ratio / (1 - ratio)).union(arb(0))
        term = term * ratio
        total += term
    return total


@pytest.mark.parametrize("n", [10_000, 100_000])
def test_clopper_pearson_at_every_count(n):
    k = np.arange(n + 1)
    lower, upper = clopper_pearson_lower(k, n, ALPHA).tolist(), clopper_pearson_upper(k, n, ALPHA).tolist()
    assert lower[0] == 0.0
    assert upper[n] == 1.0
    alpha, step = arb(ALPHA), arb(n + 1).lgamma()
    for j in range(1, n + 1):
        log_choose = step - arb(j + 1).lgamma() - arb(n - j + 1).lgamma()
        p = lower[j]
        assert 0.0 < p < 1.0
        assert tail(j, n, arb(p), log_choose) <= alpha, f"unsound lower bound {p!r} for k={j}, n={n}"
        # The upper bound for n - j successes is the mirror image, proved by the same tail of j failures.
        u = upper[n - j]
        assert 0.0 < u < 1.0
        if arb(u) + p < 1:
            assert tail(j, n, 1 - arb(u), log_choose) <= alpha, f"unsound upper bound {u!r} for k={n - j}, n={n}"
        if j % 10 == 0 or j > n - 20 or j < 20:
            q = p + 4 * MARGIN * min(p, 1 - p) + 8 * math.ulp(p)
            assert q >= 1 or tail(j, n, arb(q), log_choose) > alpha, f"loose lower bound {p!r} for k={j}, n={n}"
            q = u - 4 * MARGIN * min(u, 1 - u) - 8 * math.ulp(u)
            assert q <= 0 or tail(j, n, 1 - arb(q), log_choose) > alpha, f"loose upper bound {u!r}, k={n - j}, n={n}"


def test_normal_quantile_on_a_dense_grid():
    rng = np.random.default_rng(0)
    near_half = 0.5 + rng.choice([-1, 1], 20_000) * 2.0 ** rng.uniform(-53, -2, 20_000)
    grid = np.concatenate([np.linspace(0, 1, 60_001)[1:-1], 10.0 ** rng.uniform(-307, 0, 3_000), near_half])
    grid = np.concatenate([grid, 1 - 10.0 ** rng.uniform(-15.9, -1, 20_000)])
    for p, z in zip(grid.tolist(), normal_quantile_lower(grid).tolist(), strict=True):
        assert (-arb(z) / arb(2).sqrt()).erfc() / 2 <= arb(p), f"unsound quantile {z!r} of {p!r}"
        q = z + 4 * MARGIN * abs(z) + 8 * math.ulp(z)
        assert p == 0.5 or (-arb(q) / arb(2).sqrt()).erfc() / 2 > arb(p), f"loose quantile {z!r} of {p!r}"
