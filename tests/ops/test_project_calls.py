"""Calls of the five projections: shapes, radii, torch's operator checks, GPUs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from op_inputs import same_bits
from projection_faults import arguments, check_on
from projection_inputs import OPS, PLAIN, REALS, call, normal_values, raw, rows_of
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError


@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 3, 5), (2, 1, 3, 4)])
def test_leading_shapes(op: str, shape: tuple[int, ...]) -> None:
    v = normal_values(*shape)
    z = call(op, v, 0.5)
    assert z.shape == shape
    rows = torch.stack([call(op, row, 0.5) for row in v.reshape(-1, shape[-1])]).reshape(shape)
    assert same_bits(z, rows)
    torch.testing.assert_close(z, call(op, v, 0.5, reference), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", PLAIN)
def test_radii_broadcast(op: str) -> None:
    v = normal_values(2, 3, 5)
    each = torch.tensor([[0.5, 1.0, 2.0], [0.25, 0.0, 4.0]], dtype=torch.float64)
    whole = call(op, v, each)
    for i in range(2):
        for j in range(3):
            assert same_bits(whole[i, j], call(op, v[i, j], each[i, j].item()))
    for radius in (each[:1], each[:, :1], each[0], each[0, 0], each[:1, :1], each.float(), each.half(), each.T.T[:, :]):
        assert same_bits(call(op, v, radius), call(op, v, radius.double().expand(2, 3).contiguous()))
    assert same_bits(call(op, v, each[0, 0]), call(op, v, 0.5))
    assert same_bits(call(op, v, 1), call(op, v, 1.0))
    assert op != "project_simplex" or same_bits(ops.project_simplex(v), call(op, v, 1.0))


def test_radii_of_the_box() -> None:
    v = normal_values(3, 2, 5)
    each = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    whole = call("project_l1_ball_box", v, each)
    for i in range(3):
        assert same_bits(whole[i : i + 1], call("project_l1_ball_box", v[i : i + 1], each[i].item()))
    for radius in (each[:1], each[1], each.float()):
        want = call("project_l1_ball_box", v, radius.double().expand(3).contiguous())
        assert same_bits(call("project_l1_ball_box", v, radius), want)


@pytest.mark.parametrize("op", OPS)
def test_not_contiguous_and_expanded(op: str) -> None:
    base = normal_values(12, 20)
    for v in (base.T, base[::2, 1::3], base[:1].expand(12, 20), base[:, 3:17], base.reshape(3, 4, 20).transpose(0, 1)):
        assert same_bits(call(op, v, 0.5), call(op, v.contiguous(), 0.5))
        before = v.clone()
        call(op, v, 0.5)
        assert same_bits(v, before)  # input unchanged


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


@pytest.mark.parametrize("op", OPS)
def test_a_result_never_aliases_its_argument(op: str) -> None:
    v = normal_values(3, 5) * 1e-3
    z = call(op, v, 100.0)
    assert z.data_ptr() != v.data_ptr()
    assert op == "project_simplex" or same_bits(z, v)


# --- out


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(5,), (4, 30), (2, 3, 5), (0, 5)])
def test_out(op: str, shape: tuple[int, ...]) -> None:
    if op == "project_l1_ball_box" and len(shape) == 1:
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


def into(op: str, v: Tensor, out: Tensor) -> Tensor:
    if op == "project_l1_ball_box":
        return ops.project_l1_ball_box(v, torch.full_like(v, 0.5), 0.5, -0.25, 1.0, out=out)
    return getattr(ops, op)(v, 0.5, out=out)


def test_out_of_the_box_in_channels_last() -> None:
    delta = normal_values(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    for out in (torch.empty_like(delta), torch.empty(2, 3, 4, 4)):
        assert same_bits(into("project_l1_ball_box", delta, out), call("project_l1_ball_box", delta, 0.5))


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


@pytest.mark.parametrize("op", OPS)
def test_out_under_compile(op: str) -> None:
    v, out = normal_values(3, 5), torch.zeros(3, 5)
    torch.compile(lambda w, z: into(op, w, z), fullgraph=True, backend="aot_eager")(v, out)
    assert same_bits(out, call(op, v, 0.5))


# --- torch


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_opcheck(device: torch.device, op: str, dtype: torch.dtype) -> None:
    v, radius = (t.to(device) for t in rows_of("normal", 4, 20, dtype))
    torch.library.opcheck(*raw(op, v, radius))
    torch.library.opcheck(*raw(op, v.clone().requires_grad_(), radius[:1].clone().requires_grad_()))
    _, arguments = raw(op, v, radius)
    torch.library.opcheck(getattr(torch.ops.pyrobust, op).into, (*arguments, torch.empty_like(v)))


@pytest.mark.parametrize("op", OPS)
def test_compiles_into_one_graph(op: str) -> None:
    def step(v: Tensor) -> Tensor:
        return call(op, v * 2, 0.5)

    v = normal_values(4, 30).requires_grad_()
    want = step(v)
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(v)
    assert same_bits(got, want)
    weight = normal_values(4, 30, seed=1)
    assert torch.equal(*(torch.autograd.grad((z * weight).sum(), v)[0] for z in (got, want)))


def test_the_box_compiles_in_channels_last() -> None:
    delta = normal_values(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    got = torch.compile(lambda d: call("project_l1_ball_box", d, 0.5), fullgraph=True, backend="aot_eager")(delta)
    assert same_bits(got, call("project_l1_ball_box", delta, 0.5))
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_on_a_gpu(cuda: torch.device, op: str, dtype: torch.dtype) -> None:
    """Repeat a part of test_project_cuda.py, all of which would take the memory checker (bench/gpu.sh) too long."""
    for kind, size in itertools.product(("normal", "ties", "geometric", "sphere", "tiny"), (1, 7, 33, 1000, 3072)):
        check_on(cuda, op, arguments(op, kind, size, dtype))
