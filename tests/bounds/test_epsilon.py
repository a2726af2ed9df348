"""Epsilon is used as the given float64 number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust.attacks.certified_first import proved_robust
from pyrobust.bounds import BoundedModel
from pyrobust.bounds.input_set import ball
from pyrobust.checks import radii
from pyrobust.errors import InputError

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
    for given in (epsilon, [epsilon]):
        assert epsilon <= float(ball(x.float(), given, "linf", None, (1,)).upper) <= math.nextafter(epsilon, math.inf)


def test_radii_of_vectors_that_may_be_of_examples_or_elements() -> None:
    net, x = nn.Sequential(nn.Linear(3, 3)).eval(), torch.rand(3, 3)
    bounded, radius, y = BoundedModel(net, x), torch.tensor([0.0, 0.1, 0.2]), torch.tensor([0, 1, 2])
    for call in (
        lambda: bounded.bounds(x, radius),
        lambda: bounded.certify(x, y, radius.tolist()),
        lambda: bounded.verify(x, y, radius.numpy()),
    ):
        with pytest.raises(InputError, match=r"expected shape \(3, 1\) for one radius for each example or \(1, 3\)"):
            call()
    examples, elements = bounded.bounds(x, radius[:, None]), bounded.bounds(x, radius[None])
    for i in range(3):
        alone = bounded.bounds(x[i : i + 1], float(radius[i]))
        assert torch.equal(examples.lower[i], alone.lower[0])
    boxes = bounded.bounds(x_lower=x - radius, x_upper=x + radius)
    assert torch.allclose(elements.lower, boxes.lower, atol=1e-6)
    # The other ways to give radii: only the length tells, or there is nothing to tell.
    assert torch.equal(bounded.bounds(x, radius, norm="l2").lower[0], examples.lower[0])
    assert torch.equal(bounded.bounds(x, [0.1]).lower, bounded.bounds(x, 0.1).lower)
    assert torch.equal(bounded.bounds(x[:2], radius[:2]).lower, examples.lower[:2])
    with pytest.raises(
        InputError, match=r"each of the 2 examples \(radii of elements have the shape \(1, 3\)\), got 3"
    ):
        bounded.bounds(x[:2], radius)
    # Searches and cascades take radii apart themselves.
    found = bounded.certified_radius(x, y, largest=torch.tensor([0.1, 0.2, 0.3]))
    assert found.shape == (3,)
    assert bounded.verify(x, y, radius[:, None]).status == bounded.verify(x, y, radius[:, None].expand(3, 3)).status
    assert len(proved_robust(net, x, y, radius).proved) == 3
