"""Radii to votes at every single count of n = 100,000, from radii that were proved."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

import numpy as np
import pytest

from pyrobust import metrics
from pyrobust.smoothing import certified_radius
from pyrobust.stats import clopper_pearson_lower

pytestmark = pytest.mark.full


def test_every_proved_radius_gives_its_votes_back():
    n, alpha, sigma = 100_000, 0.001, 0.12
    k = np.arange(n // 2 + 1, n + 1)
    radii = certified_radius(clopper_pearson_lower(k, n, alpha), sigma)
    assert metrics.attainable_radii(n, alpha, sigma)[k] == pytest.approx(radii, rel=1e-7, abs=1e-9)
    for decimals in (4, 6):
        unit = Decimal(1).scaleb(-decimals)
        shown = np.array([float(Decimal(radius).quantize(unit, ROUND_FLOOR)) for radius in radii.tolist()])
        there = shown > 0
        assert there.sum() > 49_000
        point, least, most = metrics.votes_for_radius(shown, n, alpha, sigma, decimals=decimals)
        assert ((least <= k) & (k <= most))[there].all()
        assert (point <= k)[there].all()
        assert (k - least)[there].max() <= (1 if decimals == 6 else 60)
