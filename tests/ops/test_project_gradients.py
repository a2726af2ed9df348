"""The gradients of the five projections."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from projection_inputs import OPS, PLAIN, REALS, call, normal_values
from torch import Tensor

from pyrobust import ops


def jacobian_inputs(op: str, size: int) -> tuple[Tensor, Tensor]:
    """Return float64 rows away from kinks, one inside the set of its radius and two outside."""
    v = normal_values(3, size, dtype=torch.float64, seed=size)
    norm = {"project_l2_ball": 2, "project_linf_ball": math.inf}.get(op, 1)
    return v, torch.linalg.vector_norm(v, norm, dim=1) * torch.tensor([1.5, 0.4, 0.05]).double()


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("op", PLAIN)
def test_gradcheck(op: str, size: int) -> None:
    v, radius = jacobian_inputs(op, size)
    project = getattr(ops, op)
    check = functools.partial(torch.autograd.gradcheck, atol=1e-6, check_forward_ad=True)
    check(project, (v.clone().requires_grad_(), radius.clone().requires_grad_()))
    for one in radius.split(1):
        check(lambda w, one=one: project(w, one.item()), (v.clone().requires_grad_(),))
        check(lambda r: project(v, r), (one.clone().requires_grad_(),))


@pytest.mark.parametrize(("scale", "radius"), [(0.3, 0.9), (1.0, [50.0, 0.9, 0.3])], ids=["free", "mixed"])
def test_gradcheck_of_the_box(scale: float, radius: float | list[float]) -> None:
    delta = scale * normal_values(3, 12, dtype=torch.float64, seed=5)
    x = 0.2 + 0.6 * torch.rand(3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    each = torch.tensor(radius).double().expand(3).clone()
    z = ops.project_l1_ball_box(delta, x, each)
    clipped = z.abs() >= torch.where(delta > 0, 1 - x, x) - 1e-12
    assert clipped.any() == (scale == 1.0)
    arguments = tuple(t.clone().requires_grad_() for t in (delta, x, each))
    torch.autograd.gradcheck(ops.project_l1_ball_box, arguments, atol=1e-6, check_forward_ad=True)
    for i, argument in enumerate(arguments):  # tangents of one argument alone
        given = [other.detach() for other in arguments]

        def alone(value: Tensor, i: int = i, given: list[Tensor] = given) -> Tensor:
            return ops.project_l1_ball_box(*given[:i], value, *given[i + 1 :])

        torch.autograd.gradcheck(alone, (argument,), atol=1e-6, check_forward_ad=True)


@pytest.mark.parametrize("op", PLAIN)
def test_second_derivatives(op: str) -> None:
    v, radius = jacobian_inputs(op, 6)
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


# --- torch.func and forward mode


def loss(op: str, v: Tensor, radius: Tensor | float) -> Tensor:
    return (call(op, v, radius) ** 3).sum()


@pytest.mark.parametrize("op", OPS)
def test_transforms_agree_with_reverse_mode(op: str) -> None:
    """Forward mode, torch.func.grad, Jacobians and forward over reverse give what plain reverse mode gives."""
    v = normal_values(3, 5, dtype=torch.float64)
    radius = torch.tensor([0.4, 1.0, 20.0]).double()
    leaves = v.clone().requires_grad_(), radius.clone().requires_grad_()
    z = call(op, *leaves)
    want = torch.autograd.functional.jacobian(functools.partial(call, op), (v, radius))
    tangents = normal_values(3, 5, dtype=torch.float64, seed=1), torch.tensor([0.5, -2.0, 1.0]).double()
    got, moved = torch.func.jvp(functools.partial(call, op), (v, radius), tangents)
    assert torch.equal(got, z)
    expected = (want[0] * tangents[0]).sum((2, 3)) + (want[1] * tangents[1]).sum(2)
    torch.testing.assert_close(moved, expected)
    assert moved.abs().sum() > 1
    with torch.autograd.forward_ad.dual_level():
        dual = call(op, *map(torch.autograd.forward_ad.make_dual, (v, radius), tangents))
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(dual).tangent, moved)
    for jacobian in (torch.func.jacfwd, torch.func.jacrev):
        pairs = zip(jacobian(functools.partial(call, op), argnums=(0, 1))(v, radius), want, strict=True)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in pairs)
    slopes = torch.func.grad(functools.partial(loss, op), argnums=(0, 1))(v, radius)
    for a, b in zip(slopes, torch.autograd.grad(loss(op, *leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)
    second = torch.autograd.functional.hessian(functools.partial(loss, op, radius=1.0), v)
    torch.testing.assert_close(torch.func.hessian(functools.partial(loss, op))(v, 1.0), second)


@pytest.mark.parametrize("op", OPS)
def test_vmap(op: str) -> None:
    v = normal_values(4, 3, 5)
    each = torch.tensor([0.3, 1.0, 2.0, 50.0])
    want = torch.stack([call(op, w, r.item()) for w, r in zip(v, each, strict=True)])
    assert torch.equal(torch.vmap(functools.partial(call, op))(v, each), want)
    assert torch.equal(torch.vmap(functools.partial(call, op), in_dims=(1, 0))(v.transpose(0, 1), each), want)
    over_radii = torch.vmap(functools.partial(call, op, v[0]))(each)
    assert torch.equal(over_radii, torch.stack([call(op, v[0], r.item()) for r in each]))
    per_example = torch.vmap(torch.func.grad(functools.partial(loss, op)))(v, each)
    leaf = v.clone().requires_grad_()
    sum(loss(op, w, r.item()) for w, r in zip(leaf, each, strict=True)).backward()
    torch.testing.assert_close(per_example, leaf.grad)


def test_vmap_of_the_box_in_channels_last() -> None:
    x = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    deltas = torch.stack([x - 0.3, 2 * x - 1])
    want = torch.stack([ops.project_l1_ball_box(delta, x, 0.5) for delta in deltas])
    assert torch.equal(torch.vmap(lambda delta: ops.project_l1_ball_box(delta, x, 0.5))(deltas), want)
