"""Normal quantiles against ball arithmetic: sound, and a slightly larger value would not be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import MARGIN, normal, normal_quantile_lower

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx


@pytest.fixture(autouse=True)
def _precision():
    """Set ball arithmetic to 160 bits, and restore its precision afterwards."""
    before, ctx.prec = ctx.prec, 160
    yield
    ctx.prec = before


def normal_cdf(z):
    """Standard normal distribution function in balls."""
    return (-arb(z) / arb(2).sqrt()).erfc() / 2


def check_quantile(p, z):
    """Prove that z is at most the quantile of p, and that z plus the documented tightness is above it."""
    assert math.isfinite(z)
    if p == 0.5:
        assert z == 0.0
        return
    assert normal_cdf(z) <= arb(p), f"unsound quantile {z!r} of {p!r}"
    assert normal_cdf(z + 4 * MARGIN * abs(z) + 8 * math.ulp(z)) > arb(p), f"loose quantile {z!r} of {p!r}"


def test_normal_quantile_on_a_grid():
    grid = np.concatenate([np.linspace(0, 1, 1501)[1:-1], 10.0 ** -np.arange(1, 308, 3), 1 - 10.0 ** -np.arange(1, 16)])
    for p, z in zip(grid.tolist(), normal_quantile_lower(grid).tolist(), strict=True):
        check_quantile(p, z)


@pytest.mark.parametrize("start", [5e-324, 1e-308, 0.02425, 0.25, 0.5, 0.75, 1 - math.exp(-2), 0.97575, 0.999, 1.0])
def test_normal_quantile_at_neighbouring_doubles(start):
    ctx.prec = 250
    near = [start]
    for _ in range(8):
        near = [math.nextafter(near[0], 0.0), *near, math.nextafter(near[-1], 1.0)]
    values = [(p, normal_quantile_lower(p)) for p in sorted(set(near)) if 0.0 < p < 1.0]
    assert len(values) >= 8
    for p, z in values:
        check_quantile(p, z)


@pytest.mark.parametrize("wrong", [1e-9, -1e-9, 0.1, -0.1, math.nan, math.inf])
def test_wrong_first_guess_is_never_returned(monkeypatch, wrong):
    right = normal.special.ndtri
    monkeypatch.setattr(normal.special, "ndtri", lambda p: right(p) + wrong)
    for p in (1e-9, 0.51, 0.999999):
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
    for p in ("0.05", None, True, 0.05 + 0j):
        with pytest.raises(InputTypeError, match="p: expected float64"):
            normal_quantile_lower(p)
