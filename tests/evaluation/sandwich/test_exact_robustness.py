"""certified ≤ exact ≤ attacked, where the exact distance is found by enumeration of linear regions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from piecewise_linear import distance_to_other_class, random_net, regions
from torch import nn

from pyrobust.evaluation import sandwich


def check_enumerated(seed: int, points: int, norm: str, semantics: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare both bounds of the points of one net with their exact distances; return all three."""
    net = random_net(seed)
    x = torch.rand(points, 2, generator=torch.Generator().manual_seed(seed)).view(-1, 1, 1, 2)
    model = nn.Sequential(nn.Flatten(), *net).eval()
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # one that is misclassified
    both = sandwich(model, x, y, norm=norm, semantics=semantics)
    pieces = regions(net)
    exact = [
        distance_to_other_class(pieces, row, int(label), norm)
        for row, label in zip(x.flatten(1).double().numpy(), y, strict=True)
    ]
    exact[0] = 0.0
    distance = np.array(exact)
    assert both.crossings == ()
    assert both.lower[0] == both.upper[0] == 0
    # Enumeration computes in double precision, and the attacks are judged in the net's float32.
    assert (both.lower <= distance * (1 + 1e-9) + 1e-12).all()
    assert (distance <= both.upper * (1 + 1e-4) + 1e-5).all()
    return both.lower, distance, both.upper


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_exact_distance_lies_between_the_bounds(norm: str) -> None:
    lower, exact, upper = check_enumerated(11, 4, norm, "real")
    found = np.isfinite(upper)
    assert found.mean() > 0.8
    assert np.median(lower[found] / exact[found].clip(1e-12)) > 0.2
    assert np.median(upper[found] / exact[found].clip(1e-12)) < 1.05
    assert all(math.isinf(value) or value <= 2 for value in upper)


@pytest.mark.full
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("seed", range(67))
def test_the_exact_distance_lies_between_the_bounds_of_many_nets(seed: int, norm: str) -> None:
    check_enumerated(1000 + seed, 50, norm, ("float32", "real")[seed % 2])
