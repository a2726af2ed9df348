"""Registration of each op with torch: schema, fake tensors, gradients, one compiled graph; errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops import test_batch_last as batch_last
from ops import test_logits, test_perturbation, test_relax_coefficients, test_relax_rows, test_square_window
from support.op_inputs import BYTE, images, integers, same_bits, votes
from support.projection_inputs import OPS, call, inputs, into, normal_values, per_row, raw, rows_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from pyrobust import ops
from pyrobust.attacks.black_box.square_windows import pattern
from pyrobust.errors import InputError
from pyrobust.ops import native

RAW = torch.ops.pyrobust
BOX = "project_l1_ball_box"
RUNS = [(1, 5, 0, 3), (0, 2**32 - 1, 9, 2), (1, 4, 2, 0)]
CHANNELS = ([0.1, 0.2, 0.3], [0.3, 0.2, 0.4])
Checked = list[tuple[Any, tuple[Any, ...]]]


def graded(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.clone().requires_grad_() for tensor in tensors)


def projection(op: str) -> Checked:
    v, radius = rows_of("normal", 4, 20, torch.bfloat16)
    return [raw(op, *graded(v, radius[:1])), (getattr(RAW, op).into, (*raw(op, v, radius)[1], torch.empty_like(v)))]


def perturbation() -> Checked:
    x = test_perturbation.examples((3, 20), torch.float16, 0.0, 1.0)
    z = test_perturbation.perturbations(x).nan_to_num(posinf=1.0, neginf=-1.0)
    return [(RAW.add_perturbation.default, (*graded(x, z), 0.0, 1.0))]


def steps() -> Checked:
    x_adv, gradient, x = inputs(3, 20, torch.bfloat16)
    step, epsilon, keep = per_row(3, 0, 1, 1), per_row(3, 0, 1, 2), torch.tensor([1, 5, 20])
    return [
        (RAW.linf_step.default, (x_adv, gradient, x, step, epsilon, 0.0, 1.0)),
        (RAW.linf_momentum_step.default, (x_adv, gradient, x, x_adv, step, epsilon, 0.75, 0.0, 1.0)),
        (RAW.l1_step.default, (x_adv, gradient, x, step, keep, 0.0, 1.0)),
        (RAW.l1_step_in_ball.default, (x_adv, gradient, x, step, keep, epsilon, 0.0, 1.0)),
    ]


def proposals() -> Checked:
    x, *plane = test_square_window.planes(3, 20, torch.bfloat16, 0.3)
    rows = [t.flatten(1) for t in test_square_window.proposal((3, 12, 10), torch.float64)]
    radius = torch.ones(6, dtype=torch.float64)
    window = (*rows, pattern((5, 5), "l2"), radius, True, 3, 12, 10, False, 5, 5, 0.0, 1.0)
    return [(RAW.hyperplane_step, (x.view(6, 20), *plane, 1, 0.0, 1.0)), (RAW.square_window, window)]


def noise() -> Checked:
    numbers = [number for run in RUNS for number in run]
    mean, std = (torch.tensor(values) for values in CHANNELS)
    out = torch.empty(5, 3, 4, 5, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    wide, table, tail = torch.empty(5, 3, 4, 5).double(), ops.grid_noise(0.25, BYTE), torch.zeros(5, dtype=torch.bool)
    grid = (integers(2, 3, 4, 5), numbers, -1, 256 + 3, table.guide, table.words, 1, 255)
    return [
        (RAW.sample_noise.default, (out, images(2, 3, 4, 5), numbers, -1, 0.25, 256, mean, std)),
        (RAW.sample_noise.default, (wide, images(2, 3, 4, 5).double(), numbers, -1, 0.25, 256, None, None)),
        (RAW.sample_grid_noise.default, (out, tail, *grid, mean, std)),
        (RAW.sample_grid_noise.default, (wide, tail, *grid, None, None)),
    ]


def logits() -> Checked:
    values, y, target = test_logits.inputs(5, 6, "plain", torch.float64)
    counted, image = votes(7, 5, 3, "plain")
    return [
        (RAW.count_votes.default, (counted.half(), image, torch.zeros(3, 6, dtype=torch.int64))),
        (RAW.logit_loss, (values, y, target, list(ops.logits.LOSSES).index("dlr"))),
        (RAW.logit_verdict, (values, y, True, 1e-3, False)),
    ]


def rows() -> Checked:
    source, chosen = images(5, 6).double(), torch.tensor([True, False, True, True, False])
    a, image, *lines = test_relax_rows.inputs(4, 2, 20, torch.float32)
    return [
        (RAW.put_rows, (chosen, source, source + 1)),
        (RAW.count_changed, (source, source.flip(0))),
        (RAW.relax_rows.default, (a.clone(), image, *lines)),
        (RAW.concretize_rows.default, (a, image, *lines[:2])),
    ]


def relaxation() -> Checked:
    a, lower, upper = test_relax_coefficients.inputs(2, 3, 20)
    backward = RAW.relax_coefficients_backward.default
    return [
        (RAW.relax_coefficients.default, (*graded(a, lower, upper), 0.1)),
        (backward, (a.clone(), a.sum(2), a, lower, upper, 0.1)),
    ]


def batch_last_bounds() -> Checked:
    a, center, radius = tensors = batch_last.inputs(4, 3, 20, torch.float32, shared=True)
    box = (center, radius, 0.1)
    return [
        *((getattr(RAW, name).default, batch_last.arguments(name, graded(*tensors), 0.1)) for name in batch_last.NAMES),
        (RAW.batch_last_relu_intervals_backward.default, (center.clone(), center.clone(), *box)),
        (RAW.batch_last_relax_backward.default, (a.clone(), a.sum(0), a, *box)),
        (RAW.batch_last_concretize_backward.default, (a.sum(0), a, center, radius, False)),
        (RAW.batch_last_concretize_backward.default, (a.sum(0), a, center, radius, True)),
    ]


def batch_last_conv() -> Checked:
    x, weight, bias, scale, options = batch_last.case(20, torch.float32)
    move = ([*options["stride"]], [*options["padding"]], [*options["dilation"]], options["groups"])
    y = RAW.batch_last_conv(x, weight, None, None, *move)
    return [
        (RAW.batch_last_conv.default, (x, weight, bias, scale, *move)),
        (RAW.batch_last_conv.default, (x, weight, None, None, *move)),
        (RAW.batch_last_conv_transposed.default, (y, weight, [*x.shape[1:3]], *move)),
        (RAW.batch_last_conv_weight.default, (x, y, [*weight.shape[2:]], *move)),
    ]


SUBJECTS: dict[str, Callable[[], Checked]] = {
    **{op: functools.partial(projection, op) for op in OPS},
    "add_perturbation": perturbation,
    "steps": steps,
    "proposals": proposals,
    "noise": noise,
    "logits": logits,
    "rows": rows,
    "relaxation": relaxation,
    "batch-last bounds": batch_last_bounds,
    "batch-last convolutions": batch_last_conv,
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_opcheck(device: torch.device, subject: str) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    traced = set()
    for op, arguments in SUBJECTS[subject]():
        here = tree_map_only(Tensor, lambda t: t.detach().to(device).requires_grad_(t.requires_grad), arguments)
        torch.library.opcheck(op, here, test_utils=checks[: 3 if op in traced else 4])  # most time goes into the last
        traced.add(op)


# --- the functions around the ops

CHANNELS_LAST = normal_values(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
UNIT = CHANNELS_LAST.sigmoid()
TANGENT = normal_values(3, 5, seed=1)
VOTED, IMAGE = votes(50, 5, 3, "special")


def noisy(x: Tensor) -> Tensor:
    how: dict[str, Any] = {"memory_format": torch.channels_last, "dtype": torch.bfloat16}
    return 2 * ops.sample_noise(x, RUNS, sigma=0.25, normalize=CHANNELS, **how)


def noisy_into(x: Tensor) -> Tensor:
    out = torch.zeros(5, 3, 4, 5)
    return ops.sample_noise(x, RUNS, sigma=0.25, seed=2**64 - 1, out=out).sum(0) + out[0]


def projected_into(op: str, v: Tensor) -> Tensor:
    out = torch.zeros_like(v)
    into(op, v * 2, out)
    return out


def counted(logits: Tensor) -> Tensor:
    return ops.count_votes(logits * 2, IMAGE, torch.zeros(3, 6, dtype=torch.int64))


def moved(v: Tensor) -> Tensor:
    """The derivatives of two projections in forward mode."""
    both = ("project_simplex", BOX)
    return torch.cat([torch.func.jvp(lambda w, op=op: call(op, w, 0.7), (v,), (TANGENT,))[1] for op in both])


GRAPHS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "projection": (lambda v: call("project_l2_ball", v * 2, 0.5), normal_values(4, 30).requires_grad_()),
    "projection in the box": (lambda v: call(BOX, v * 2, 0.5), normal_values(4, 30).requires_grad_()),
    "channels last": (lambda v: call(BOX, v, 0.5), CHANNELS_LAST),
    "projection to out": (functools.partial(projected_into, "project_l1_ball"), normal_values(3, 5)),
    "projection in the box to out": (functools.partial(projected_into, BOX), normal_values(3, 5)),
    "forward mode": (moved, normal_values(3, 5)),
    "perturbation": (lambda x: ops.add_perturbation(x, CHANNELS_LAST * 2), UNIT.contiguous().requires_grad_()),
    "perturbation in channels last": (
        lambda x: ops.add_perturbation(x, CHANNELS_LAST),
        UNIT.clone().requires_grad_(),
    ),
    "noise": (noisy, images(2, 3, 4, 5)),
    "noise to out": (noisy_into, images(2, 3, 4, 5)),
    "votes": (counted, VOTED),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_compiles_into_one_graph(name: str) -> None:
    step, x = GRAPHS[name]
    full = name != "forward mode"  # for which torch.compile has no autograd.Function
    got, want = torch.compile(step, fullgraph=full, backend="aot_eager")(x), step(x)
    assert torch.equal(got, want) if want.dtype == torch.int64 else same_bits(got, want)
    assert got.stride() == want.stride()
    if x.requires_grad:
        weight = normal_values(*want.shape, seed=1)
        assert torch.equal(*(torch.autograd.grad((z * weight).sum(), x)[0] for z in (got, want)))


def test_fake_tensors() -> None:
    how: dict[str, Any] = {"sigma": 0.25, "step": BYTE, "memory_format": torch.channels_last}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        k, x = (mode.from_tensor(t) for t in (integers(2, 3, 4, 5), UNIT))
        batch, tail = ops.sample_grid_noise(k, RUNS, dtype=torch.float16, **how)
        assert (batch.shape, batch.dtype, tail.shape, tail.dtype) == ((5, 3, 4, 5), torch.float16, (5,), torch.bool)
        assert batch.is_contiguous(memory_format=torch.channels_last)
        assert ops.linf_step(x, x, x, mode.from_tensor(torch.ones(2)), 0.1).shape == x.shape
        assert ops.put_rows(torch.empty(2, dtype=torch.bool), x, x) is x
        count = ops.count_changed(x, x)
        assert (count.shape, count.dtype) == ((2,), torch.int64)
        y = torch.zeros(5, dtype=torch.int64)
        value, slope, size = ops.logit_loss(torch.empty(5, 6), y, y, "margin")
        assert (value.shape, slope.shape, size.shape) == ((5,), (5, 6), (5,))
        assert (value.dtype, slope.dtype, size.dtype) == (torch.float64, torch.float32, torch.float64)
        verdict = ops.logit_verdict(torch.empty(5, 6), y)
        assert (verdict.shape, verdict.dtype) == ((5,), torch.uint8)


def test_ops_without_a_forward_mode_refuse_tangents() -> None:
    x, y, one = torch.full((2, 3), 0.5), torch.tensor([0, 1]), torch.tensor([0.1])
    keep, tangent_error = torch.tensor([1]), "expected inputs without a forward-mode derivative"
    window = (torch.ones(2, 6), torch.ones(2, 1).double(), 1, (1, 1), "l1")
    calls: dict[str, Callable[[Tensor], object]] = {
        "linf_step": lambda t: ops.linf_step(t, x, x, one, 0.1),
        "linf_momentum_step": lambda t: ops.linf_momentum_step(x, x, x, t, one, 0.1),
        "l1_step": lambda t: ops.l1_step(x, t, x, one, keep),
        "l1_step_in_ball": lambda t: ops.l1_step_in_ball(x, x, t, one, keep, 0.1),
        "hyperplane_step": lambda t: ops.hyperplane_step(t, x, x, torch.zeros(2), "l2"),
        "square_window": lambda t: ops.square_window(t, x, *window),
        "count_votes": lambda t: ops.count_votes(t, y, torch.zeros(2, 4, dtype=torch.int64)),
        "put_rows": lambda t: ops.put_rows(torch.tensor([True, False]), t, x.clone()),
        "count_changed": lambda t: ops.count_changed(t, x),
        "logit_loss": lambda t: ops.logit_loss(t, y, y, "margin").value,
        "logit_verdict": lambda t: ops.logit_verdict(t, y, targeted=False),
        "sample_noise": lambda t: ops.sample_noise(t, [(0, 0, 0, 1)], sigma=0.1),
        "relax_coefficients": lambda t: ops.relax_coefficients(torch.ones(1, 2, 3), t[:1] - 1, t[:1]),
        "batch_last_concretize": lambda t: ops.batch_last_concretize(t[None], x[:1], x[:1]),
    }
    for op, function in calls.items():
        with pytest.raises(InputError, match=f"^{op}: {tangent_error}"):
            torch.func.jvp(function, (x,), (x,))
        function(x)


# --- errors

REFUSAL = "sample_noise: image: expected rows of counts, 0 to 3, got 7 at 2"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(REFUSAL),
        RuntimeError("CUDA: sample_noise: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("Could not run 'pyrobust::sample_noise' with arguments from the 'XPU' backend"),
        RuntimeError("something else: sample_noise: x"),
        RuntimeError(""),
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        KeyboardInterrupt(),
        TypeError("x"),
    ],
)
def test_only_a_refused_argument_becomes_an_input_error(error: BaseException) -> None:
    def op(*args: object) -> None:
        assert args == (1, "two")
        raise error

    with pytest.raises(BaseException) as raised:  # noqa: PT011 (of every kind)
        native.call(op, 1, "two")
    if str(error) == REFUSAL:
        assert (type(raised.value), str(raised.value)) == (InputError, REFUSAL)
    else:
        assert raised.value is error
