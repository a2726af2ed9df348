"""Boxes in the dtype of their corners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust import _C
from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError

LOW = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))
HIGH = LOW + 0.1
# Subnormal corners must survive the widening to another dtype.
LOW[0, 0], HIGH[0, 0] = 1e-40, 3e-40


def bounds(lower: Tensor, upper: Tensor, method: str, engine: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)).eval()
    result = BoundedModel(model, LOW[:1], engine=engine).bounds(x_lower=lower, x_upper=upper, method=method)
    return result.lower, result.upper


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown"])
def test_narrow_boxes_have_the_bits_of_wide_ones(method: str, engine: str) -> None:
    wide = bounds(LOW.double(), HIGH.double(), method, engine)
    pairs = [(LOW, HIGH), (LOW.double(), HIGH)]
    if engine == "native":  # its bits do not depend on the memory layout of a box
        pairs.append((LOW.t().contiguous().t(), HIGH))
    for lower, upper in pairs:
        result = bounds(lower, upper, method, engine)
        assert torch.equal(result[0], wide[0])
        assert torch.equal(result[1], wide[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_boxes_in_16_bits(dtype: torch.dtype) -> None:
    lower, upper = LOW.to(dtype), (HIGH + 0.1).to(dtype)
    result, wide = bounds(lower, upper, "crown", "native"), bounds(lower.double(), upper.double(), "crown", "native")
    assert torch.equal(result[0], wide[0])
    assert torch.equal(result[1], wide[1])


def test_wide_boxes_are_not_rounded_wherever_they_lie() -> None:
    network = _C.BoundNetwork64()
    network.input([1, 1, 1])
    network.linear(0, np.full((1, 1), 2.0**20, np.float64), np.full(1, -(2.0**20)), 0.0, 0.0)
    network.finish([1, 0], [0, 0], [1, 1], [0, 1], [[], [1]])
    # Strided corners; rounded to float32 the box would be the point 1.
    corners = np.full((3, 2), 1 + 2.0**-30)[:, :1]
    lower, upper, *_ = network.propagate(
        corners, corners, None, None, None, False, False, "linf", True, 0.0, float(np.finfo(np.float64).max), True, 8
    )
    assert (lower <= 2.0**-10).all()
    assert (upper >= 2.0**-10).all()
    assert (upper >= lower).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_element_is_refused(value: float, dtype: torch.dtype) -> None:
    bad = LOW.to(dtype, copy=True)
    bad[-1, -1] = value
    bounded = BoundedModel(nn.Linear(6, 2).to(dtype).eval(), LOW[:1].to(dtype))
    for name, call, allowed in (
        ("x", lambda: bounded.bounds(bad, 0.1), None),
        ("x_lower", lambda: bounded.bounds(x_lower=bad, x_upper=HIGH.to(dtype)), -torch.inf),
        ("x_upper", lambda: bounded.bounds(x_lower=LOW.to(dtype), x_upper=bad), torch.inf),
    ):
        if value == allowed:
            call()
            continue
        with pytest.raises(InputError, match=f"^{name}: expected finite values"):
            call()
