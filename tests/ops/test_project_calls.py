"""Calls of the five projections: shapes, radii, results to write to, refusals, GPUs; their gradients."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from support.op_inputs import same_bits
from support.projection_inputs import OPS, PLAIN, REALS, arguments, call, check_on, into, normal_values, raw
from torch import Tensor

from pyrobust import ops
from pyrobust.errors import InputError, InputTypeError

BOX = "project_l1_ball_box"


@pytest.mark.parametrize("op", OPS)
def test_radii_broadcast_and_rows_are_projected_as_alone(op: str) -> None:
    more: list[Tensor | int]
    if op == BOX:  # one radius for each example
        v, each = normal_values(3, 2, 5), torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
        more = [each[1]]
    else:
        v, each = normal_values(2, 3, 5), torch.tensor([[0.5, 1.0, 2.0], [0.25, 0.0, 4.0]], dtype=torch.float64)
        more = [each[:, :1], each[0], each[0, 0], each[:1, :1], each.T.contiguous().T, 1]
    for radius in (each, each[:1], each.float(), each.half(), *more):
        whole, one = call(op, v, radius), torch.as_tensor(radius).double().expand(each.shape)
        assert whole.shape == v.shape
        for index in itertools.product(*map(range, each.shape)):
            row = v[index][None] if op == BOX else v[index]
            assert same_bits(whole[index], call(op, row, one[index].item()).view_as(whole[index]))
    assert op != "project_simplex" or same_bits(ops.project_simplex(v), call(op, v, 1.0))


@pytest.mark.parametrize("op", OPS)
def test_not_contiguous_and_expanded(op: str) -> None:
    base = normal_values(12, 20)
    for v in (base.T, base[::2, 1::3], base[:1].expand(12, 20), base[:, 3:17], base.reshape(3, 4, 20).transpose(0, 1)):
        assert same_bits(call(op, v, 0.5), call(op, v.contiguous(), 0.5))
        before = v.clone()
        call(op, v, 0.5)
        assert same_bits(v, before)  # input unchanged
    v = base * 1e-3
    z = call(op, v, 1000.0)
    assert z.data_ptr() != v.data_ptr()
    assert op == "project_simplex" or same_bits(z, v)  # inside


@pytest.mark.parametrize("op", OPS)
def test_empty(op: str) -> None:
    for shape in ((0, 5), (2, 0, 5), (3, 0), (0, 0)):
        v = torch.empty(shape, dtype=torch.bfloat16)
        if op == "project_simplex" and shape[-1] == 0:
            with pytest.raises(InputError, match=r"^project_simplex: v: expected \[..., D\] with D >= 1, got"):
                call(op, v, 1.0)
        else:
            assert (call(op, v, 1.0).shape, call(op, v, 1.0).dtype) == (shape, torch.bfloat16)
    with pytest.raises(InputError, match="radius"):
        call(op, torch.empty(0, 5), -1.0)


# --- out


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(5,), (4, 30), (2, 3, 5), (0, 5)])
def test_out(op: str, shape: tuple[int, ...]) -> None:
    if op == BOX and len(shape) == 1:
        shape = (5, 1)
    v = normal_values(*shape)
    want = call(op, v, 0.5)
    out = torch.full(shape, math.nan)
    assert into(op, v, out) is out
    assert same_bits(out, want)
    transposed = torch.full((*shape[:-2], *shape[:-3:-1]), math.nan).mT if len(shape) > 1 else out
    assert same_bits(into(op, v, transposed), want)
    strided = torch.full((*shape, 2), math.nan)[..., 0]
    assert same_bits(into(op, v, strided), want)
    for in_place in (v.clone(), torch.stack([v, v], -1)[..., 1]):
        assert same_bits(into(op, in_place, in_place), want)
    both = torch.cat([v.flatten(), v.flatten()[:1]])  # overlapping by all but one element
    assert same_bits(into(op, both[: v.numel()].view(shape), both[-v.numel() :].view(shape)), want) or not v.numel()


def test_out_of_the_box_in_channels_last() -> None:
    delta = normal_values(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    for out in (torch.empty_like(delta), torch.empty(2, 3, 4, 4)):
        assert same_bits(into(BOX, delta, out), call(BOX, delta, 0.5))


@pytest.mark.parametrize("op", OPS)
def test_out_that_does_not_fit(op: str) -> None:
    v = normal_values(3, 5)
    for out, message in (
        (torch.empty(5, 3), r"out: expected v's shape, \(3, 5\), got \(5, 3\)"),
        (torch.empty(3, 5, dtype=torch.float64), "out: expected v's dtype, torch.float32, got torch.float64"),
        (torch.empty(3, 5, requires_grad=True), "out: expected no gradient"),
    ):
        with pytest.raises(InputError, match=f"^{op}: {message}"):
            into(op, v, out)
    with pytest.raises(InputTypeError, match=f"^{op}: out: expected a tensor, got list"):
        into(op, v, [0.0])
    with pytest.raises(InputError, match="out= has none"):
        into(op, v.clone().requires_grad_(), torch.empty(3, 5))
    with pytest.raises(InputError, match="out= has none"):
        torch.func.jvp(lambda w: into(op, w, torch.empty(3, 5)), (v,), (v,))
    with torch.no_grad():
        assert same_bits(into(op, v.clone().requires_grad_(), torch.empty(3, 5)), call(op, v, 0.5))


# --- refusals


@pytest.mark.parametrize("op", OPS)
def test_a_bad_radius(op: str) -> None:
    v = torch.zeros(2, 3)
    for value in (-1.0, -1e-300, *(math.nan, math.inf, -math.inf)):
        for radius in (value, *(torch.tensor(values, dtype=torch.float64) for values in (value, [1.0, value]))):
            with pytest.raises(InputError, match=rf"^{op}: radius: expected .* got"):
                call(op, v, radius)
    for shape in ((3,), (1, 2), (2, 1), (0,), (2, 2)):
        with pytest.raises(InputError, match=rf"^{op}: radius: expected a shape that broadcasts to \(2,\), got"):
            call(op, v, torch.ones(shape))
    for wrong in ("1", None, [1.0], torch.tensor(1), torch.tensor([1, 2]), 1j):
        with pytest.raises(InputTypeError, match=rf"^{op}: radius: expected .* got"):
            call(op, v, wrong)
    with pytest.raises(InputError, match=rf"^{op}: radius: expected it on cpu, got meta"):
        call(op, v, torch.ones(2, device="meta"))


@pytest.mark.parametrize("op", OPS)
def test_a_bad_v(op: str) -> None:
    name = "delta" if op == BOX else "v"
    for size, value, dtype in itertools.product((1, 8, 19, 300), (math.nan, math.inf, -math.inf), REALS):
        for column in {0, size // 2, size - 1}:
            v = normal_values(5, size, dtype=dtype)
            v[3, column] = value
            with pytest.raises(InputError, match=rf"^{op}: {name}: expected finite numbers, got {value} in row 3$"):
                call(op, v, 0.5)
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.cfloat):
        with pytest.raises(InputTypeError, match=rf"^{op}: {name}: expected a float tensor, got torch"):
            call(op, torch.zeros(2, 3, dtype=dtype), 1.0)
    with pytest.raises(InputError, match=rf"^{op}: {name}: expected .*, got a scalar"):
        call(op, torch.tensor(1.0), 1.0)
    with pytest.raises(InputTypeError, match=rf"^{op}: {name}: expected a tensor, got list"):
        getattr(ops, op)([1.0], *[torch.zeros(1)] * (op == BOX), 1.0)


X = torch.full((2, 3), 0.5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": X[:, :2]}, InputError, r"delta: expected the shape of x, \(2, 2\), got \(2, 3\)"),
        ({"x": X.to("meta")}, InputError, "delta: expected x's device, meta, got cpu"),
        ({"x": X.double()}, InputTypeError, "delta: expected x's dtype, torch.float64, got torch.float32"),
        ({"x": X.long()}, InputTypeError, "x: expected a float tensor, got torch.int64"),
        ({"x": None}, InputTypeError, "x: expected a tensor, got NoneType"),
        ({"x": X * torch.tensor([[1], [2 + 2**-22]])}, InputError, r"x: .* in \[0, 1\], got 1.00000012 in row 1"),
        ({"x": X * torch.tensor([[1], [-2.8e-45]])}, InputError, r"x: .* in \[0, 1\], got -1.4.*e-45 in row 1"),
        ({"x": X / X.new_tensor([[1], [0]])}, InputError, r"x: expected values in \[0, 1\], got inf in row 1"),
        ({"x": X * torch.nan}, InputError, r"x: expected values in \[0, 1\], got nan in row 0"),
        ({"lower": math.nan}, InputError, "lower, upper: expected finite numbers, lower <= upper, got nan, 1.0"),
        ({"upper": -0.5}, InputError, "lower, upper: expected finite numbers, lower <= upper, got 0.0, -0.5"),
        ({"lower": "0"}, InputTypeError, "lower: expected .*, got '0'"),
        # The float32 nearest to 0.3 lies above it.
        ({"x": X * 0.6, "upper": 0.3}, InputError, r"x: expected values in \[0, 0.3\], got 0.300000012 in row 0"),
    ],
)
def test_bad_arguments_of_the_box(change: dict[str, object], error: type[Exception], message: str) -> None:
    arguments = {"delta": torch.full((2, 3), 7.0), "x": X, "radius": 1.0, "lower": 0.0, "upper": 1.0}
    with pytest.raises(error, match=rf"^project_l1_ball_box: {message}$"):
        ops.project_l1_ball_box(**arguments | change)


@pytest.mark.parametrize("op", OPS)
def test_the_raw_op_refuses_too(op: str) -> None:
    good, unit_radius = torch.zeros(2, 3), torch.ones(1, dtype=torch.float64)
    bad_v = [torch.zeros(3), torch.zeros(2, 3, 1), torch.zeros(3, 2).T, torch.zeros(2, 3).long()]
    bad_radius = [
        unit_radius.float(),
        unit_radius[0],
        torch.ones(3, dtype=torch.float64),
        torch.ones(4, dtype=torch.float64)[::2],
        *(unit_radius * value for value in (-1.0, math.nan, math.inf)),
    ]
    for v, radius in [*((v, unit_radius) for v in bad_v), *((good, radius) for radius in bad_radius)]:
        function, arguments = raw(op, v, radius)
        with pytest.raises(RuntimeError, match=rf"^{op}: \w+.*: expected"):
            function(*arguments)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_on_a_gpu(cuda: torch.device, op: str, dtype: torch.dtype) -> None:
    """Repeat a part of test_project_cuda.py, all of which would take the memory checker (bench/gpu.sh) too long."""
    for kind, size in itertools.product(("normal", "ties", "geometric", "sphere", "tiny"), (1, 7, 33, 1000, 3072)):
        check_on(cuda, op, arguments(op, kind, size, dtype))


# --- gradients


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


def test_an_upper_end_that_float32_does_not_have_still_clips() -> None:
    x, delta = torch.tensor([[0.0999, 0.05]]), torch.tensor([[1.0, 0.01]], requires_grad=True)
    ops.project_l1_ball_box(delta, x, torch.ones(1), 0.0, 0.1).sum().backward()
    assert delta.grad is not None
    assert delta.grad.tolist() == [[0, 1]]


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
        constants = [other.detach() for other in arguments]

        def alone(value: Tensor, i: int = i, constants: list[Tensor] = constants) -> Tensor:
            return ops.project_l1_ball_box(*constants[:i], value, *constants[i + 1 :])

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
