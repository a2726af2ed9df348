"""Empirical robustness under any attack function: its calls, the counts, and accepted data sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.evaluation.empirical import calculate_empirical_robustness


def sign_model(batch: Tensor) -> Tensor:
    """Class 1 where the first coordinate is positive."""
    return torch.stack([-batch.flatten(1)[:, 0], batch.flatten(1)[:, 0]], 1)


def toward_zero(model, x, label, budget):
    return x - budget * x.sign()


# Right at margins 0.1 … 0.4, and one wrong.
X = torch.tensor([[0.1, 0.0], [-0.2, 0.0], [0.3, 0.0], [-0.4, 0.0], [0.5, 0.0]])
Y = torch.tensor([1, 0, 1, 0, 0])


@pytest.mark.parametrize(("epsilon", "held"), [(0.0, 4), (0.05, 4), (0.15, 3), (0.25, 2), (0.35, 1), (0.45, 0)])
def test_shares_worked_by_hand(epsilon, held):
    share = calculate_empirical_robustness(sign_model, TensorDataset(X, Y), toward_zero, epsilon)
    assert share == held / 4
    assert type(share) is float


class MapStyle(Dataset):
    """A map-style data set that never raises IndexError."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i % len(X)], int(Y[i % len(X)])


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(X, Y),
        (X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=2),
        DataLoader(MapStyle(), batch_size=None),
        MapStyle(),
        [(X, Y)],
        [(X[:3], Y[:3].int()), (X[3:], Y[3:].to(torch.uint8))],
        [(X[i], Y[i]) for i in range(5)],
        [[X[i], int(Y[i])] for i in range(5)],
        [(X[i].double(), np.int64(Y[i])) for i in range(5)],
        [(X[i : i + 1], Y[i : i + 1]) for i in range(5)],
    ],
    ids=["tensors", "two", "loader", "unbatched", "map", "batch", "batches", "pairs", "ints", "numpy", "ones"],
)
def test_data_sets_of_every_kind(dataset):
    assert calculate_empirical_robustness(sign_model, dataset, toward_zero, 0.15) == 3 / 4


def test_a_generator_is_consumed_once():
    assert calculate_empirical_robustness(sign_model, ((X[i], Y[i]) for i in range(5)), toward_zero, 0.15) == 3 / 4


def test_how_the_attack_is_called():
    calls = []

    def attack(model, input, true_label, *, budget):
        assert torch.is_grad_enabled()
        calls.append((model, input, true_label, budget))
        return input

    x = torch.rand(3, 1, 2, 2) + 0.1
    budget = np.float32(0.3)
    assert calculate_empirical_robustness(sign_model, [(x, torch.tensor([1, 0, 1]))], attack, budget) == 1.0
    assert [call[2].tolist() for call in calls] == [[1], [1]]  # the second is wrong without an attack
    for (model, input, true_label, given), image in zip(calls, (x[0], x[2]), strict=True):
        assert model is sign_model
        assert torch.equal(input, image[None])
        assert true_label.dtype == torch.int64
        assert given is budget


def test_an_attack_may_use_gradients_and_write_into_its_input():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = nn.Linear(2, 2), nn.Dropout(0.9)
            self.modes = []

        def forward(self, batch):
            self.modes.append(self.training)
            return self.linear(self.dropout(batch))

    model = Net().train()
    with torch.no_grad():
        model.linear.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model.linear.bias.zero_()

    def fgsm(model, x, label, budget):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), label), x)
        x.requires_grad_(False)
        model.train()  # careless
        return x.add_(budget * gradient.sign())

    before = X.clone()
    with torch.no_grad():
        assert calculate_empirical_robustness(model, TensorDataset(X, Y), fgsm, 0.25) == 2 / 4
    assert torch.equal(X, before)
    assert model.training
    assert model.dropout.training
    assert not any(model.modes)


def test_a_model_gets_its_own_dtype():
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model.bias.zero_()
    seen = []

    def attack(model, x, label, budget):
        seen.append(x.dtype)
        return toward_zero(model, x, label, budget)

    assert calculate_empirical_robustness(model, TensorDataset(X, Y), attack, 0.15) == 3 / 4
    assert set(seen) == {torch.float64}


def test_no_winner_is_not_robust():
    def attack(model, x, label, budget):
        return x + 100

    def model(batch):
        return torch.where(batch[:, :1] > 50, math.nan, sign_model(batch))

    assert calculate_empirical_robustness(model, [(X[0], 1)], attack, 1.0) == 0.0


def test_no_correct_example_and_no_example_are_errors():
    with pytest.raises(
        InputError, match="dataset: expected an example that the model classifies correctly, got none of 5"
    ):
        calculate_empirical_robustness(sign_model, TensorDataset(X, torch.tensor([0, 1, 0, 1, 0])), _never, 0.1)
    for empty in ([], TensorDataset(X[:0], Y[:0]), [(X[:0], Y[:0])]):
        with pytest.raises(InputError, match="dataset: expected at least one example, got none"):
            calculate_empirical_robustness(sign_model, empty, _never, 0.1)


def _never(model, x, label, budget):
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("dataset", "error", "match"),
    [
        (7, InputTypeError, "dataset: expected an iterable"),
        ((X, Y, Y), InputTypeError, "dataset: expected pairs"),
        ([X[0]], InputTypeError, "dataset: expected pairs"),
        ([{"x": X[0], "y": 1}], InputTypeError, "dataset: expected pairs"),
        ([(X[0].tolist(), 1)], InputTypeError, "dataset: expected pairs"),
        ([(X[0], 1, 2)], InputTypeError, "dataset: expected pairs"),
        ([(X[0].long(), 1)], InputTypeError, "dataset: expected x to be float, got torch.int64"),
        ([(X[0], 1.0)], InputTypeError, "dataset: expected y to be integers, got torch.float32"),
        ([(X[0], True)], InputTypeError, "dataset: expected y to be integers, got torch.bool"),
        ([(X[0], "1")], InputTypeError, "dataset: expected y to be integers, got '1'"),
        ([(X, Y[:3])], InputError, r"dataset: expected .* got x \(5, 2\) and y \(3,\)"),
        ([(X, Y[:, None])], InputError, r"got x \(5, 2\) and y \(5, 1\)"),
        ([(torch.tensor(1.0), 1)], InputError, r"got x \(\) and y \(1,\)"),
        ([(X[0], 2)], InputError, "dataset: expected labels 0 to 1, the model's classes, got 2"),
        ([(X[0], -1)], InputError, "dataset: expected labels 0 to 1, the model's classes, got -1"),
        ([(X[0] / 0, 1)], InputError, r"dataset: x: expected finite values, got (nan|inf) at "),
    ],
)
def test_invalid_data_sets_are_refused(dataset, error, match):
    with pytest.raises(error, match=match):
        calculate_empirical_robustness(sign_model, dataset, _never, 0.1)


@pytest.mark.parametrize(
    ("returned", "error", "match"),
    [
        (None, InputTypeError, "attack_fn: expected the function to return a float tensor, got NoneType"),
        (
            torch.zeros(1, 2).long(),
            InputTypeError,
            "attack_fn: expected the function to return a float tensor, got torch.int64",
        ),
        (torch.zeros(2), InputError, r"attack_fn: expected the function to return shape \(1, 2\), got \(2,\)"),
        (torch.zeros(2, 2), InputError, r"attack_fn: .* got \(2, 2\)"),
        (torch.tensor([[0.0, math.nan]]), InputError, "attack_fn: expected the function to return finite values"),
        (torch.tensor([[math.inf, 0.0]]), InputError, "attack_fn: expected the function to return finite values"),
    ],
)
def test_invalid_adversarial_inputs_are_refused(returned, error, match):
    with pytest.raises(error, match=match):
        calculate_empirical_robustness(sign_model, TensorDataset(X, Y), lambda *_, budget: returned, 0.1)


@pytest.mark.parametrize(
    ("epsilon", "error"),
    [
        (-0.1, InputError),
        (math.nan, InputError),
        (math.inf, InputError),
        ("much", InputTypeError),
        (None, InputTypeError),
    ],
)
def test_invalid_epsilons_are_refused(epsilon, error):
    with pytest.raises(error, match="epsilon: expected"):
        calculate_empirical_robustness(sign_model, TensorDataset(X, Y), _never, epsilon)


def test_invalid_attacks_and_models_are_refused():
    with pytest.raises(InputTypeError, match="attack_fn: expected a callable, got str"):
        calculate_empirical_robustness(sign_model, TensorDataset(X, Y), "pgd", 0.1)
    with pytest.raises(InputTypeError, match="model: expected"):
        calculate_empirical_robustness("net", TensorDataset(X, Y), _never, 0.1)
    with pytest.raises(ModelError, match="model: expected logits"):
        calculate_empirical_robustness(lambda x: x[:, :, None], TensorDataset(X, Y), _never, 0.1)
