"""Modules whose graph could miss what they compute: narrower dtypes inside, chance, and code that no trace reaches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bound_layers import Called
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.errors import ModelError


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
