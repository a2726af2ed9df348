"""The gradients of the five projections."""

from __future__ import annotations

import math

import pytest
import torch
from projection_inputs import OPS, PLAIN, REALS, call, normal_values
from torch import Tensor

from pyrobust import ops


def jacobian_inputs(op: str, where: str, size: int) -> tuple[Tensor, Tensor]:
    """Return float64 rows away from kinks: inside the set, outside, or a mixture with one radius per row."""
    v = normal_values(3, size, dtype=torch.float64, seed=size)
    norm = {"project_l2_ball": 2, "project_linf_ball": math.inf}.get(op, 1)
    full = torch.linalg.vector_norm(v, norm, dim=1)
    scale = {"inside": [1.5] * 3, "outside": [0.4] * 3, "some of each": [1.5, 0.4, 0.05]}[where]
    return v, full * torch.tensor(scale).double()


@pytest.mark.parametrize("where", ["inside", "outside", "some of each"])
@pytest.mark.parametrize("size", [1, 2, 5, 12])
@pytest.mark.parametrize("op", PLAIN)
def test_gradcheck(op: str, size: int, where: str) -> None:
    v, radius = jacobian_inputs(op, where, size)
    project = getattr(ops, op)
    torch.autograd.gradcheck(project, (v.clone().requires_grad_(), radius.clone().requires_grad_()), atol=1e-6)
    first_radius = radius[:1].clone()
    torch.autograd.gradcheck(lambda w: project(w, first_radius[0].item()), (v.clone().requires_grad_(),), atol=1e-6)
    torch.autograd.gradcheck(lambda r: project(v, r), (first_radius.requires_grad_(),), atol=1e-6)


@pytest.mark.parametrize(
    ("where", "radius"), [("inside", 50.0), ("clipped", 50.0), ("free", 0.9), ("both", 2.6), ("mixed", None)]
)
@pytest.mark.parametrize("size", [2, 12])
def test_gradcheck_of_the_box(size: int, where: str, radius: float | None) -> None:
    delta = normal_values(3, size, dtype=torch.float64, seed=5)
    delta = {"inside": 0.05, "free": 0.3}.get(where, 1.0) * delta
    x = 0.2 + 0.6 * torch.rand(3, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    each = torch.tensor([50.0, 0.9, 0.3]).double() if radius is None else torch.full((3,), radius).double()
    z = ops.project_l1_ball_box(delta, x, each)
    room = torch.where(delta > 0, 1 - x, x)
    clipped = z.abs() >= room - 1e-12
    assert clipped.any() == (where in ("clipped", "both", "mixed") and (size == 12 or where == "clipped")) or size == 2
    arguments = tuple(t.clone().requires_grad_() for t in (delta, x, each))
    torch.autograd.gradcheck(ops.project_l1_ball_box, arguments, atol=1e-6)


@pytest.mark.parametrize("op", PLAIN)
def test_second_derivatives(op: str) -> None:
    v, radius = jacobian_inputs(op, "some of each", 6)
    torch.autograd.gradgradcheck(getattr(ops, op), (v.requires_grad_(), radius.requires_grad_()), atol=1e-6)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_gradients_have_the_dtypes_of_their_arguments(op: str, dtype: torch.dtype) -> None:
    v = normal_values(4, 30, dtype=dtype).requires_grad_()
    wide = v.detach().double().requires_grad_()
    radius = torch.tensor([0.5, 2.0, 100.0, 1.0], requires_grad=True)
    weight = normal_values(4, 30, dtype=dtype, seed=1)
    (call(op, v, radius) * weight).sum().backward()
    got = radius.grad
    radius.grad = None
    (call(op, wide, radius) * weight.double()).sum().backward()
    assert v.grad.dtype == dtype
    assert got.dtype == torch.float32
    close = {torch.bfloat16: 0.05, torch.float16: 0.01}.get(dtype, 1e-4)
    torch.testing.assert_close(v.grad.double(), wide.grad, rtol=close, atol=close)
    torch.testing.assert_close(got, radius.grad, rtol=close, atol=20 * close)


@pytest.mark.parametrize("op", OPS)
def test_gradient_at_the_center_and_of_extreme_rows(op: str) -> None:
    """Check for NaN where a naive formula divides by zero or overflows."""
    for v, radius in ((torch.zeros(2, 3), 0.0), (torch.ones(2, 3), 0.0), (torch.full((2, 3), 1e30), 1.0)):
        v = v.requires_grad_()
        r = torch.tensor(radius, dtype=torch.float64, requires_grad=True)
        call(op, v, r).sum().backward()
        assert v.grad.isfinite().all()
        assert r.grad.isfinite()
