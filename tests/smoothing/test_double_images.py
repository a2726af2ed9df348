"""float64 images that float32 cannot represent are rejected for a float32 model.

The noise would be added to the rounded image. A certificate or prediction there says nothing about the original image,
because a decision boundary may lie between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth
from pyrobust.errors import InputError

EDGE = 1e9 + 31


def sides(batch: Tensor) -> Tensor:
    """Class 0 below the edge, class 1 above, computed in float64 so that only the rounding of the image matters."""
    score = batch[:, 0].double() - EDGE
    return torch.stack([-score, score], 1)


def never(batch: Tensor) -> Tensor:
    raise AssertionError("the model must not run")


# 0.5 above the edge. Rounded to float32 it is 1e9, 31 below the edge and many sigmas away from it.
GIVEN = torch.tensor([[EDGE + 0.5]], dtype=torch.float64)
CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "certify_batch": lambda model, x: RandomizedSmoothing(model, 2, 0.25).certify_batch(x, n0=10, n=1000),
    "predict_batch": lambda model, x: RandomizedSmoothing(model, 2, 0.25).predict_batch(x, n=1000),
    "certify": lambda model, x: RandomizedSmoothing(model, 2, 0.25).certify(x[0], n0=10, n=1000),
    "predict": lambda model, x: RandomizedSmoothing(model, 2, 0.25).predict(x[0], 1000),
    "votes": lambda model, x: RandomizedSmoothing(model, 2, 0.25).votes(x, n=1000),
    "Smooth.certify": lambda model, x: Smooth(model, 2, 0.25).certify(x[0], 10, 1000, 0.001, 100),
    "Smooth.predict": lambda model, x: Smooth(model, 2, 0.25).predict(x[0], 1000, 0.001, 100),
}


def test_rounded_image_has_another_class() -> None:
    """The counterexample works: the rounded image has the other class, with a certificate of its own."""
    smoother = RandomizedSmoothing(sides, 2, 0.25)
    label, radius = smoother.certify(GIVEN[0].float(), n0=10, n=1000)
    assert label == 0
    assert 0.5 < radius < abs(float(GIVEN - GIVEN.float()))
    # In float64 the image is not moved, and is two sigmas above the edge.
    exact = RandomizedSmoothing(lambda batch: sides(batch), 2, 0.25, dtype=torch.float64)
    assert exact.certify(GIVEN[0], n0=100, n=1000)[0] == 1
    assert exact.predict(GIVEN[0], 1000) == 1


@pytest.mark.parametrize("call", list(CALLS))
def test_image_changed_by_rounding_is_rejected(call: str) -> None:
    match = r"^x: expected float32 values, which the model takes, got .*x\.to\(torch\.float32\)"
    for values in ([EDGE + 0.5], [0.1], [2.0**24 + 1], [0.5, 1e-300], [1e300], [0.5, 0.1]):
        with pytest.raises(InputError, match=match):
            CALLS[call](never, torch.tensor([values], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_noise_of_16_bit_models_is_added_in_float32(dtype: torch.dtype) -> None:
    """A float32 image is not rounded before the noise is added, whatever the model's dtype."""
    smoother = RandomizedSmoothing(lambda batch: batch[:, :2], 2, 0.25, dtype=dtype)
    x = torch.tensor([[0.1, 0.2]])
    assert smoother.votes(x, n=50).sum() == 50
    assert (smoother.votes(x.double(), n=50) == smoother.votes(x, n=50)).all()
    with pytest.raises(InputError, match="x: expected float32 values"):
        smoother.votes(torch.tensor([[0.1, 0.2]], dtype=torch.float64), n=50)
