"""Epsilon is used as the given float64 number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust.bounds import BoundedModel
from pyrobust.checks import radii

#: 0.02 and 8/255 lie above the nearest float32, 0.1 and 0.3 below.
NUMBERS = (0.02, 8 / 255, 0.1, 0.3)


@pytest.mark.parametrize("epsilon", NUMBERS)
def test_epsilon_is_not_rounded_to_float32(epsilon: float) -> None:
    for given in (epsilon, np.float64(epsilon), torch.tensor(epsilon, dtype=torch.float64), [epsilon, epsilon]):
        assert radii("epsilon", given, 2).tolist() == [epsilon, epsilon]
    assert radii("epsilon", torch.tensor(epsilon), 1).item() == torch.tensor(epsilon).item()


@pytest.mark.parametrize("epsilon", NUMBERS)
def test_the_ball_has_the_given_radius(epsilon: float) -> None:
    identity = nn.Linear(1, 1, bias=False).double().eval()
    nn.init.ones_(identity.weight)
    x = torch.zeros(1, 1, dtype=torch.float64)
    for method in ("ibp", "crown"):
        bounds = BoundedModel(identity, x).bounds(x, epsilon, method=method)
        assert bounds.upper.item() >= epsilon
        assert bounds.upper.item() == pytest.approx(epsilon, rel=1e-12)
