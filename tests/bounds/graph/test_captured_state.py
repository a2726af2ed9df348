"""Calls after a change of the model are refused, until ``refresh``, and modules whose graph could miss what they do."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from support.bounds.layers import Called
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.captured_state import CapturedState
from pyrobust.errors import InputError, ModelError

X = torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2])


class Shifted(nn.Module):
    """A net with a plain tensor attribute, and a parameter in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
        self.body[0].to(memory_format=torch.channels_last)
        self.shift = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.shift


def net() -> Shifted:
    torch.manual_seed(0)
    return Shifted().eval()


def in_place(model: Shifted) -> None:
    with torch.no_grad():
        model.body[4].weight[2, 5] += 1


CHANGES: list[tuple[Callable[[Shifted], object], str]] = [
    (lambda m: setattr(m.body[4], "weight", nn.Parameter(m.body[4].weight + 1)), r"body\.4\.weight has changed"),
    (lambda m: setattr(m.body[4].weight, "data", m.body[4].weight.data + 1), r"body\.4\.weight has changed"),
    (
        lambda m: m.load_state_dict({name: value + 1 for name, value in m.state_dict().items()}),
        r"body\.0\.weight, .* and 4 more have changed",
    ),
    (in_place, r"body\.4\.weight has changed"),
    (lambda m: m.body[0].weight.data.mul_(1.5), r"body\.0\.weight has changed"),
    (lambda m: m.body[4].bias.detach().numpy().fill(7), r"body\.4\.bias has changed"),
    (lambda m: m.body[1].running_mean.add_(1), r"body\.1\.running_mean has changed"),
    (lambda m: m.shift.add_(1), "model: shift has changed"),
    (lambda m: setattr(m, "shift", torch.zeros(3)), "model: shift has changed"),
    (lambda m: m.double(), r"body\.0\.weight \(now torch\.float64\)"),
    (lambda m: setattr(m.body[1], "running_var", None), r"body\.1\.running_var \(removed\)"),
    (
        lambda m: setattr(m, "body", nn.Sequential(*m.body, nn.ReLU())),
        "the list of submodules of the model has changed",
    ),
    (lambda m: m.body.append(nn.ReLU()), "the list of submodules of body has changed"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_changed_model_is_noticed(change: Callable[[Shifted], object], words: str) -> None:
    model = net()
    state = CapturedState(model)
    state.check()
    change(model)
    for _ in range(2):
        with pytest.raises(ModelError, match=words):
            state.check()


def test_every_call_refuses_a_changed_model() -> None:
    model = net()
    bounded = BoundedModel(model, X)
    before = bounded.bounds(X, 0.1)
    in_place(model)
    for call in (
        lambda: bounded.bounds(X, 0.1),
        lambda: bounded.bounds(x_lower=X, x_upper=X),
        lambda: bounded.margins(X, Y, 0.1),
        lambda: bounded.certify(X, Y, 0.1),
        lambda: bounded.certified_radius(X, Y),
        lambda: bounded.verify(X, Y, 0.1),
    ):
        with pytest.raises(ModelError, match=r"body\.4\.weight has changed since its capture; call refresh\(\)"):
            call()
    bounded.refresh()
    after = bounded.bounds(X, 0.1)
    assert not torch.equal(before.lower, after.lower)
    assert torch.equal(BoundedModel(model, X).bounds(X, 0.1).lower, after.lower)


def test_refresh_follows_the_dtype() -> None:
    model = net()
    bounded = BoundedModel(model, X)
    model.shift = model.shift.double()
    model.double()
    bounded.refresh()
    assert torch.equal(bounded.bounds(X, 0.1).lower, BoundedModel(model, X.double()).bounds(X, 0.1).lower)


def test_the_mode_is_no_change() -> None:
    model = net()
    bounded = BoundedModel(model, X)
    before = bounded.bounds(X, 0.1)
    model.train()
    assert torch.equal(bounded.bounds(X, 0.1).lower, before.lower)
    model(X)  # updates the statistics of batch norm
    with pytest.raises(ModelError, match="running_mean"):
        bounded.bounds(X, 0.1)


def test_the_same_values_are_no_change() -> None:
    model = net()
    bounded = BoundedModel(model, X)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    model.body[4].weight = nn.Parameter(model.body[4].weight.detach().clone())
    model.to(memory_format=torch.channels_last).requires_grad_(False)
    model(X)
    bounded.bounds(X, 0.1)
    in_place(model)
    with pytest.raises(ModelError, match="has changed"):
        bounded.bounds(X, 0.1)


def test_pickle_and_writes_that_no_call_notices() -> None:
    model = net()
    bounded = BoundedModel(model, X)
    again = pickle.loads(pickle.dumps(bounded))
    again.bounds(X, 0.1)
    in_place(again.model)
    with pytest.raises(ModelError, match="has changed"):
        again.bounds(X, 0.1)
    model.body[4].weight.data[2, 5] += 1  # between the elements compared
    bounded.bounds(X, 0.1)
    with pytest.raises(InputError, match=r"got others; call refresh\(\) to pickle it"):
        pickle.dumps(bounded)


def test_tensors_of_every_kind() -> None:
    with torch.inference_mode():
        frozen = nn.Linear(2, 2).eval()
    state = CapturedState(frozen)
    state.check()
    with torch.inference_mode():
        frozen.weight.add_(1)
    with pytest.raises(ModelError, match="weight has changed"):
        state.check()
    for dtype in (torch.bfloat16, torch.float64, torch.complex128, torch.bool):
        model = nn.Module()
        model.eval().register_buffer("values", torch.zeros(9, 4, dtype=dtype)[::2])
        model.register_buffer("empty", torch.zeros(0, 3, dtype=dtype))
        model.register_buffer("single", torch.zeros((), dtype=dtype))
        state = CapturedState(model)
        state.check()
        model.single.fill_(1)
        with pytest.raises(ModelError, match="single has changed"):
            state.check()


def _stored(x: Tensor) -> Tensor:
    levels = torch.zeros(x.shape, dtype=torch.uint8)
    levels[:] = (x * 255).clamp(0, 255)
    return levels.float() / 255


def _selected(x: Tensor) -> Tensor:
    integers = torch.zeros(x.shape, dtype=torch.int64)
    integers = torch.select_scatter(torch.select_scatter(integers, x[:, 0] * 99, 1, 0), x[:, 1] * 99, 1, 1)
    return x * 99 - integers.float()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (_stored, "uint8"),
        (_selected, "int64"),
        (lambda x: x - torch.zeros(x.shape, dtype=torch.int64).copy_(x).float(), "int64"),
        (lambda x: x - torch.slice_scatter(torch.zeros(x.shape, dtype=torch.int32), x, 1, 0, 2).float(), "int32"),
        (lambda x: x - torch.cumsum(x[:, :, None], 2, dtype=torch.int64)[:, :, 0].float(), "int64"),
        (lambda x: torch.log_softmax(x, 1, dtype=torch.bfloat16).float(), "bfloat16"),
        (lambda x: torch.softmax(x, 1, dtype=torch.float16).float(), "float16"),
    ],
)
def test_values_of_the_input_are_not_rounded_to_another_dtype(function: Callable[[Tensor], Tensor], dtype: str) -> None:
    with pytest.raises(ModelError, match=rf"rounds values of torch\.float32 to torch\.{dtype}"):
        BoundedModel(Called(function), torch.zeros(1, 2))


def test_a_wider_dtype_inside_keeps_bounds() -> None:
    def widened(x: Tensor) -> Tensor:
        return torch.cumsum(x, 1, dtype=torch.float64).float()

    bounds = BoundedModel(Called(widened), torch.zeros(1, 2)).bounds(torch.tensor([[0.5, 0.25]]), 0.125)
    for side, sign, exact in ((bounds.lower, -1, [[0.375, 0.5]]), (bounds.upper, 1, [[0.625, 1.0]])):
        slack = sign * (side - torch.tensor(exact, dtype=torch.float64))
        assert ((slack >= 0) & (slack < 1e-6)).all()


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_random_numbers_in_a_forward_pass_are_refused(draw: Callable[..., Tensor]) -> None:
    with pytest.raises(ModelError, match="gives random numbers"):
        BoundedModel(Called(lambda x: x + 1e-9 * draw(x.shape[1:])), torch.zeros(1, 2))


class Counter(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 1e-5 * self.calls


def _eager_branch(x: Tensor) -> Tensor:
    if not torch.compiler.is_compiling() and bool((x > 1.5).any()):
        return torch.where(x > 1.5, -x, x)
    return x


@pytest.mark.parametrize(
    "module",
    [
        Counter(),
        Called(_eager_branch),
        Called(lambda x: x if x.shape[0] <= 16 else -x),
        Called(lambda x: x if x.shape[0] < 8 else x - x.mean(0)),
        Called(lambda x: 2 * x if x.shape[0] == 1 else x),
        Called(lambda x: 2 * x if torch.is_grad_enabled() else x),
        Called(lambda x: 2 * x if x.requires_grad else x),
    ],
    ids=["a counter", "outside of traces", "large batches", "statistics", "one row", "gradients", "of the input"],
)
def test_other_outputs_than_the_graph_s_are_noticed(module: nn.Module) -> None:
    with pytest.raises(ModelError, match="other outputs than the module"):
        BoundedModel(module.eval(), torch.zeros(3, 2))


def test_the_example_is_tried() -> None:
    def far(x: Tensor) -> Tensor:
        return -x if not torch.compiler.is_compiling() and bool((x > 200).any()) else x

    margin = BoundedModel(Called(far), torch.zeros(1, 2)).margins(torch.ones(1, 2), [0], 0.5).lower.item()
    assert margin == pytest.approx(-1.0)
    with pytest.raises(ModelError, match="other outputs than the module"):
        BoundedModel(Called(far), torch.tensor([[255.0, 0.0]]))
    BoundedModel(Called(far), torch.zeros(0, 2))
