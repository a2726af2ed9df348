"""The gradients of the five projections."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from projection_inputs import OPS, PLAIN, REALS, call, normal_values
from torch import Tensor

from pyrobust import ops
from pyrobust.errors import InputError


def jacobian_inputs(op: str, where: str, size: int) -> tuple[Tensor, Tensor]:
    """Return float64 rows away from kinks: inside the set, outside, or a mixture with one radius per row."""
    v = normal_values(3, size, dtype=torch.float64, seed=size)
    norm = {"project_l2_ball": 2, "project_linf_ball": math.inf}.get(op, 1)
    full = torch.linalg.vector_norm(v, norm, dim=1)
    scale = {"inside": [1.5] * 3, "outside": [0.4] * 3, "some of each": [1.5, 0.4, 0.05]}[where]
    return v, full * torch.tensor(scale).double()


@pytest.mark.parametrize("where", ["inside", "outside", "some of each"])
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("op", PLAIN)
def test_gradcheck(op: str, size: int, where: str) -> None:
    v, radius = jacobian_inputs(op, where, size)
    project = getattr(ops, op)
    check = functools.partial(torch.autograd.gradcheck, atol=1e-6, check_forward_ad=True)
    check(project, (v.clone().requires_grad_(), radius.clone().requires_grad_()))
    first_radius = radius[:1].clone()
    check(lambda w: project(w, first_radius[0].item()), (v.clone().requires_grad_(),))
    check(lambda r: project(v, r), (first_radius.requires_grad_(),))


@pytest.mark.parametrize(
    ("where", "radius"), [("inside", 50.0), ("clipped", 50.0), ("free", 0.9), ("both", 2.6), ("mixed", None)]
)
def test_gradcheck_of_the_box(where: str, radius: float | None) -> None:
    delta = normal_values(3, 12, dtype=torch.float64, seed=5)
    delta = {"inside": 0.05, "free": 0.3}.get(where, 1.0) * delta
    x = 0.2 + 0.6 * torch.rand(3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    each = torch.tensor([50.0, 0.9, 0.3]).double() if radius is None else torch.full((3,), radius).double()
    z = ops.project_l1_ball_box(delta, x, each)
    room = torch.where(delta > 0, 1 - x, x)
    assert (z.abs() >= room - 1e-12).any() == (where in ("clipped", "both", "mixed"))
    arguments = tuple(t.clone().requires_grad_() for t in (delta, x, each))
    torch.autograd.gradcheck(ops.project_l1_ball_box, arguments, atol=1e-6, check_forward_ad=True)
    for i, argument in enumerate(arguments):  # tangents of one argument alone
        given = [other.detach() for other in arguments]

        def alone(value: Tensor, i: int = i, given: list[Tensor] = given) -> Tensor:
            return ops.project_l1_ball_box(*given[:i], value, *given[i + 1 :])

        torch.autograd.gradcheck(alone, (argument,), atol=1e-6, check_forward_ad=True)


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
    for jacobian in (torch.func.jacfwd, torch.func.jacrev):
        pairs = zip(jacobian(functools.partial(call, op), argnums=(0, 1))(v, radius), want, strict=True)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in pairs)
    slopes = torch.func.grad(functools.partial(loss, op), argnums=(0, 1))(v, radius)
    for a, b in zip(slopes, torch.autograd.grad(loss(op, *leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)
    second = torch.autograd.functional.hessian(functools.partial(loss, op, radius=1.0), v)
    torch.testing.assert_close(torch.func.hessian(functools.partial(loss, op))(v, 1.0), second)


@pytest.mark.parametrize("op", OPS)
def test_forward_mode_levels(op: str) -> None:
    v, tangent = normal_values(3, 5, dtype=torch.float64), normal_values(3, 5, dtype=torch.float64, seed=1)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(v, tangent)
        got = torch.autograd.forward_ad.unpack_dual(call(op, dual, 0.7)).tangent
    assert torch.equal(got, torch.func.jvp(lambda w: call(op, w, 0.7), (v,), (tangent,))[1])


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


@pytest.mark.parametrize("op", OPS)
def test_forward_mode_under_compile(op: str) -> None:
    v, tangent = normal_values(3, 5), normal_values(3, 5, seed=1)

    def along(w: Tensor) -> Tensor:
        return torch.func.jvp(lambda u: call(op, u, 0.7), (w,), (tangent,))[1]

    assert torch.equal(torch.compile(along, backend="aot_eager")(v), along(v))


def test_ops_without_a_forward_mode_refuse_tangents() -> None:
    x, y, one = torch.full((2, 3), 0.5), torch.tensor([0, 1]), torch.tensor([0.1])
    counts, runs = torch.zeros(2, 4, dtype=torch.int64), [(0, 0, 0, 1)]
    rows = torch.ones(1, 2, 3)
    calls: dict[str, Callable[[Tensor], object]] = {
        "linf_step": lambda t: ops.linf_step(t, x, x, one, 0.1),
        "linf_momentum_step": lambda t: ops.linf_momentum_step(x, x, x, t, one, 0.1),
        "l1_step": lambda t: ops.l1_step(x, t, x, one, torch.tensor([1])),
        "l1_step_in_ball": lambda t: ops.l1_step_in_ball(x, x, t, one, torch.tensor([1]), 0.1),
        "hyperplane_step": lambda t: ops.hyperplane_step(t, x, x, torch.zeros(2), "l2"),
        "square_window": lambda t: ops.square_window(
            t, x, torch.ones(2, 6), torch.ones(2, 1).double(), 1, (1, 1), "l1"
        ),
        "count_votes": lambda t: ops.count_votes(t, y, counts),
        "put_rows": lambda t: ops.put_rows(torch.tensor([True, False]), t, x.clone()),
        "count_changed": lambda t: ops.count_changed(t, x),
        "logit_loss": lambda t: ops.logit_loss(t, y, y, "margin").value,
        "logit_verdict": lambda t: ops.logit_verdict(t, y, targeted=False),
        "sample_noise": lambda t: ops.sample_noise(t, runs, sigma=0.1),
        "relax_coefficients": lambda t: ops.relax_coefficients(rows, t[:1] - 1, t[:1]),
        "batch_last_concretize": lambda t: ops.batch_last_concretize(t[None], x[:1], x[:1]),
    }
    for op, function in calls.items():
        with pytest.raises(InputError, match=f"^{op}: expected inputs without a forward-mode derivative"):
            torch.func.jvp(function, (x,), (x,))
        function(x)
