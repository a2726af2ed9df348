"""add_perturbation: x + z moves x by at most |z| and stays in the box, in exact arithmetic."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.projection_inputs import REALS, examples, inward, moved_at_most, smallest
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError

RAW = torch.ops.pyrobust.add_perturbation
BOXES = [(0.0, 1.0), (-0.1, 0.3), (-2.5, 7.0), (0.1, 0.1001), (-1e30, 1e30)]
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 1000, 40_000)


def perturbations(x: Tensor, seed: int = 0) -> Tensor:
    """Draw perturbations relative to x: far below its last bit, about half of it, ordinary, far above, special."""
    draw = torch.Generator().manual_seed(seed)
    exponent = torch.randint(-70, 6, x.shape, generator=draw).double()
    z = torch.randn(x.shape, generator=draw, dtype=torch.float64) * 2.0**exponent
    half = x.double() * torch.finfo(x.dtype).eps * torch.randint(-4, 5, x.shape, generator=draw) / 4
    special = torch.tensor([0.0, -0.0, smallest(x.dtype), -smallest(x.dtype), 1e30, -1e30, math.inf, -math.inf])
    special = special.double()[torch.randint(len(special), x.shape, generator=draw)]
    kind = torch.randint(8, x.shape, generator=draw)
    z = torch.where(kind < 2, half, torch.where(kind == 2, special, torch.where(kind == 3, -x.double(), z)))
    return z.to(x.dtype)


def in_box(dtype: torch.dtype, box: tuple[float, float]) -> tuple[float, float]:
    """Return the box, widened where the dtype has no number in it or overflows."""
    low, high = inward(box[0], dtype, -1), inward(box[1], dtype, 1)
    return box if low <= high and math.isfinite(low) and math.isfinite(high) else (0.0, 1.0)


def check(x: Tensor, z: Tensor, lower: float, upper: float, x_adv: Tensor) -> None:
    assert moved_at_most(x_adv, x, z).all()
    assert ((x_adv.double() >= lower) & (x_adv.double() <= upper)).all()
    want = reference.add_perturbation(x, z, lower, upper)
    assert x_adv.dtype == want.dtype
    assert torch.equal(x_adv, want)  # the nearest allowed number


@functools.cache
def case(size: int, dtype: torch.dtype, box: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, z and the exact result."""
    x = examples((size,), dtype, *box, seed=size)
    z = perturbations(x, seed=size)
    want = reference.add_perturbation(x, z, *box)
    check(x, z, *box, want)
    return x, z, want


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("box", BOXES)
def test_exact(box: tuple[float, float], dtype: torch.dtype, simd_level: str, threads: int) -> None:
    sizes = SIZES[(BOXES.index(box) + REALS.index(dtype)) % 3 :: 3]  # each dtype has every size in some boxes
    box = in_box(dtype, box)
    for size in sizes:
        x, z, want = case(size, dtype, box)
        got = ops.add_perturbation(x, z, *box)
        assert got.dtype == dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", REALS)
def test_the_check_detects_faults(dtype: torch.dtype) -> None:
    x = examples((40_000,), dtype, 0.0, 1.0)
    z = perturbations(x)
    wrong = (x + z).clamp(0, 1)
    assert not moved_at_most(wrong, x, z).all()  # sum rounded to nearest
    assert not moved_at_most(torch.where(z > 0, x - z, x), x, z).all()  # wrong direction
    assert moved_at_most(x, x, z).all()


@given(
    st.floats(0, 1),
    st.floats(width=32, allow_nan=False),
    st.sampled_from(REALS),
    st.sampled_from([(0.0, 1.0), (-1.0, 3.0), (0.1, 0.2)]),
)
def test_any_pair_in_rational_arithmetic(share: float, z: float, dtype: torch.dtype, box: tuple[float, float]) -> None:
    lower, upper = box
    low, high = inward(lower, dtype, -1), inward(upper, dtype, 1)
    p, q = torch.tensor(lower + share * (upper - lower)).to(dtype).clamp(low, high), torch.tensor(z).to(dtype)
    got = ops.add_perturbation(p, q, lower, upper)
    check(p, q, lower, upper, got)
    a, b = Fraction(p.item()), Fraction(got.item())
    if q.isinf() or not lower <= a + Fraction(q.item()) <= upper:
        assert b == Fraction(high if q > 0 else low)
        return
    exact = a + Fraction(q.item())
    assert min(a, exact) <= b <= max(a, exact)
    if b != exact:  # the next number is beyond
        beyond = Fraction(got.nextafter(torch.tensor(math.inf if exact > a else -math.inf, dtype=dtype)).item())
        assert min(b, beyond) < exact < max(b, beyond)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (4, 3, 8, 8), (2, 1, 4, 4), (3, 2, 2, 2, 2)])
def test_layouts(shape: tuple[int, ...]) -> None:
    x = examples(shape, torch.float32, 0.0, 1.0)
    z = perturbations(x)
    want = reference.add_perturbation(x, z)
    formats = [torch.channels_last] if len(shape) == 4 else []
    for ours, theirs in itertools.product([torch.contiguous_format, *formats], repeat=2):
        p, q = x.contiguous(memory_format=ours), z.contiguous(memory_format=theirs)
        got = ops.add_perturbation(p, q)
        assert torch.equal(got, want)
        assert got.stride() == (p.stride() if ours == theirs else want.contiguous().stride())
    strided = torch.stack([x, x], -1)[..., 0]
    assert torch.equal(ops.add_perturbation(strided, z), want)
    if shape:
        assert torch.equal(
            ops.add_perturbation(x[:1].expand(shape), z), reference.add_perturbation(x[:1].expand(shape), z)
        )


# --- torch


def test_gradients() -> None:
    x = torch.tensor([0.2, 0.9, 0.1, 0.5, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([0.3, 0.4, -0.3, -0.1, 0.25, -0.5], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda p, q: ops.add_perturbation(p, q, -0.5, 1.5), (x, z), check_forward_ad=True)
    ops.add_perturbation(x, z).backward(torch.arange(1.0, 7.0).double())
    assert x.grad.tolist() == z.grad.tolist() == [1.0, 0.0, 0.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("dtype", REALS)
def test_no_gradient_at_an_end_between_two_floats(dtype: torch.dtype) -> None:
    x = torch.tensor([0.15, 0.15, 0.15], dtype=dtype, requires_grad=True)
    z = torch.tensor([1.0, -1.0, 0.01], dtype=dtype)
    ops.add_perturbation(x, z, 0.1, 0.2).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]


def test_transforms() -> None:
    x, z = torch.rand(3, 2, 4, 5), torch.randn(3, 2, 4, 5)
    want, inside = ops.add_perturbation(x, z), (x + z > 0) & (x + z < 1)
    assert torch.equal(torch.vmap(ops.add_perturbation)(x, z), want)
    assert torch.equal(torch.vmap(ops.add_perturbation, in_dims=(1, 1), out_dims=1)(x, z), want)
    shared = torch.vmap(ops.add_perturbation, in_dims=(None, 0))(x[0], z)
    assert torch.equal(shared, ops.add_perturbation(x[:1].expand(3, -1, -1, -1), z))
    tangents = torch.ones_like(x), torch.full_like(x, 2.0)
    assert torch.equal(torch.func.jvp(ops.add_perturbation, (x, z), tangents)[1], 3.0 * inside)
    assert torch.equal(torch.func.grad(lambda p: ops.add_perturbation(p, z).sum())(x), inside.float())


# --- wrong arguments

GOOD = {"x": torch.full((2, 3), 0.5), "z": torch.zeros(2, 3), "lower": 0.0, "upper": 1.0}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("z", torch.zeros(2, 4)),
        ("z", torch.zeros(3)),
        ("z", torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0]])),
        ("x", torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0]])),
        ("x", torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0000001, 0.0]])),
        ("x", torch.tensor([[0.0, -1e-45, 0.0], [0.0, 0.0, 0.0]])),
        ("x", torch.full((2, 3), math.inf)),
        ("lower", math.nan),
        ("upper", math.inf),
        ("lower", 1.5),
    ],
)
def test_a_bad_value_is_named(argument: str, value: Tensor | float) -> None:
    text = rf"^add_perturbation: [a-z, ]*{argument}[a-z, ]*: expected .* got"
    with pytest.raises(InputError, match=text):
        ops.add_perturbation(**GOOD | {argument: value})
    with pytest.raises(RuntimeError, match=text):
        RAW(*(GOOD | {argument: value}).values())


def test_a_bad_type_or_device_is_named() -> None:
    whole = torch.zeros(2, 3, dtype=torch.int64)
    for argument, value in (("x", [0.5]), ("x", whole), ("z", whole), ("z", None), ("lower", "0"), ("upper", [1.0])):
        with pytest.raises(InputTypeError, match=rf"^add_perturbation: {argument}: expected .* got"):
            ops.add_perturbation(**GOOD | {argument: value})
    with pytest.raises(InputTypeError, match=r"^add_perturbation: z: expected x's dtype, .* got"):
        ops.add_perturbation(GOOD["x"], GOOD["z"].double())
    with pytest.raises(InputError, match=r"^add_perturbation: z: expected x's device, cpu, got meta"):
        ops.add_perturbation(GOOD["x"], GOOD["z"].to("meta"))


@pytest.mark.parametrize("dtype", REALS)
def test_on_a_gpu_bits_match_the_cpu(cuda: torch.device, dtype: torch.dtype) -> None:
    for box in BOXES:
        x = examples((100_000,), dtype, *in_box(dtype, box))
        z = perturbations(x)
        got = ops.add_perturbation(x.to(cuda), z.to(cuda), *in_box(dtype, box)).cpu()
        check(x, z, *in_box(dtype, box), got)
