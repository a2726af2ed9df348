"""Recovery of votes from certified radii at every count of n = 100,000."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

import numpy as np
import pytest

from pyrobust import metrics
from pyrobust.smoothing import certified_radius
from pyrobust.stats import clopper_pearson_lower

pytestmark = pytest.mark.full


def test_votes_are_recovered_from_every_radius():
    n, alpha, sigma = 100_000, 0.001, 0.12
    k = np.arange(n // 2 + 1, n + 1)
    radii = certified_radius(clopper_pearson_lower(k, n, alpha), sigma)
    assert metrics.attainable_radii(n, alpha, sigma)[k] == pytest.approx(radii, rel=1e-7, abs=1e-9)
    for decimals in (4, 6):
        unit = Decimal(1).scaleb(-decimals)
        shown = np.array([float(Decimal(radius).quantize(unit, ROUND_FLOOR)) for radius in radii.tolist()])
        positive = shown > 0
        assert positive.sum() > 49_000
        point, least, most = metrics.votes_for_radius(shown, n, alpha, sigma, decimals=decimals)
        assert ((least <= k) & (k <= most))[positive].all()
        assert (point <= k)[positive].all()
        assert (k - least)[positive].max() <= (1 if decimals == 6 else 60)
