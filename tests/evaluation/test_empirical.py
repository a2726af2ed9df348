"""Empirical robustness under any attack function: its calls, the counts, and accepted data sets."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pyrobust.attacks import FGSM
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.evaluation.empirical import calculate_empirical_robustness


def sign_model(batch: Tensor) -> Tensor:
    """Class 1 where the first coordinate is positive."""
    return torch.stack([-batch.flatten(1)[:, 0], batch.flatten(1)[:, 0]], 1)


class Predicts:
    """A model as scikit-learn has them: only ``predict``."""

    def __init__(self, predict):
        self.predict = predict


def toward_zero(model, x, label, budget):
    return x - budget * x.sign()


# Right at margins 0.1 … 0.4, and one wrong.
X = torch.tensor([[0.1, 0.0], [-0.2, 0.0], [0.3, 0.0], [-0.4, 0.0], [0.5, 0.0]])
Y = torch.tensor([1, 0, 1, 0, 0])


@pytest.mark.parametrize(("epsilon", "held"), [(0.0, 4), (0.15, 3), (0.35, 1), (0.45, 0)])
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
        ((X[i], Y[i]) for i in range(5)),
    ],
    ids=["tensors", "two", "loader", "unbatched", "map", "batch", "batches", "pairs", "ints", "numpy", "ones", "once"],
)
def test_data_sets_of_every_kind(dataset):
    assert calculate_empirical_robustness(sign_model, dataset, toward_zero, 0.15) == 3 / 4


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
    for (model, input, true_label, argument), image in zip(calls, (x[0], x[2]), strict=True):
        assert model is sign_model
        assert torch.equal(input, image[None])
        assert true_label.dtype == torch.int64
        assert argument is budget


def test_an_attack_may_use_gradients_and_write_into_its_input_of_the_models_dtype():
    modes = []
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(2, 2)).double().train()
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model[1].bias.zero_()

    def fgsm(model, x, label, budget):
        assert x.dtype == torch.float64
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
    assert model[0].training
    assert not any(modes)


def test_no_winner_is_not_robust():
    def model(batch):
        return torch.where(batch[:, :1] > 50, math.nan, sign_model(batch))

    assert calculate_empirical_robustness(model, [(X[0], 1)], lambda model, x, y, budget: x + 100, 1.0) == 0.0


def _never(model, x, label, budget):
    raise AssertionError("called")


NO_ANSWER = r"model: expected logits .* for one example, got {}; wrap"


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"dataset": (X, torch.tensor([0, 1, 0, 1, 0]))}, InputError, "the model classifies correctly, got none of 5"),
        ({"dataset": []}, InputError, "dataset: expected at least one example, got none"),
        ({"dataset": TensorDataset(X[:0], Y[:0])}, InputError, "dataset: expected at least one example, got none"),
        ({"dataset": [(X[:0], Y[:0])]}, InputError, "dataset: expected at least one example, got none"),
        ({"dataset": 7}, InputTypeError, "dataset: expected an iterable"),
        ({"dataset": (X, Y, Y)}, InputTypeError, "dataset: expected pairs"),
        ({"dataset": [(X[0], 1, 2)]}, InputTypeError, "dataset: expected pairs"),
        (
            {"dataset": [(X[0], 1.0)]},
            InputTypeError,
            "y to be integers, because the model returns logits, got torch.fl",
        ),
        ({"dataset": [(X[0], "1")]}, InputTypeError, "y to be integers, because the model returns logits, got '1'"),
        ({"dataset": [({"x": X[:2]}, Y)]}, InputError, "expected x with one example for each of the 5 labels"),
        ({"dataset": [(X, Y[:3])]}, InputError, r"dataset: expected .* got x \(5, 2\) and y \(3,\)"),
        ({"dataset": [(X, Y[:, None])]}, InputError, r"got x \(5, 2\) and y \(5, 1\)"),
        ({"dataset": [(X[0], 2)]}, InputError, "dataset: expected labels 0 to 1, the model's classes, got 2"),
        ({"dataset": [(X[0] / 0, 1)]}, InputError, r"dataset: x: expected finite values, got (nan|inf) at "),
        ({"epsilon": -0.1}, InputError, "epsilon: expected"),
        ({"attack_fn": "pgd"}, InputTypeError, "attack_fn: expected a callable, got str"),
        ({"attack_fn": lambda model, x, y: x}, InputTypeError, r"attack_fn: .*budget=\), got one of \(model, x, y\)"),
        ({"attack_fn": FGSM(sign_model, 0.2)}, InputError, r"attack_fn: .* made with epsilon 0\.1, got one of 0\.2"),
        ({"model": "net"}, InputTypeError, "model: expected"),
        ({"model": Predicts(lambda x, n: 0)}, InputTypeError, r"an object with predict\(x\), got Predicts"),
        ({"model": lambda x: x[:, :, None]}, ModelError, NO_ANSWER.format(r"torch.float32 of shape \(1, 2, 1\)")),
        ({"model": lambda x: (sign_model(x), x)}, ModelError, NO_ANSWER.format("tuple of 2")),
        ({"model": lambda x: None}, ModelError, NO_ANSWER.format("None")),
        ({"model": lambda x: torch.tensor([0, 1])}, ModelError, NO_ANSWER.format(r"torch.int64 of shape \(2,\)")),
        ({"model": Predicts(lambda x: sign_model(x[None]))}, ModelError, NO_ANSWER.format(r".* of shape \(1, 2\)")),
    ],
)
def test_invalid_arguments_are_refused(changes, error, match):
    arguments = {"model": sign_model, "dataset": TensorDataset(X, Y), "attack_fn": _never, "epsilon": 0.1}
    with pytest.raises(error, match=match):
        calculate_empirical_robustness(**arguments | changes)


def test_the_error_of_a_model_is_its_own():
    with pytest.raises(KeyError, match="vocabulary"):
        calculate_empirical_robustness(lambda x: {}["vocabulary"], TensorDataset(X, Y), _never, 0.1)


# The same classifier in every form: its class of one example, and of a batch.
def one(x):
    return int(x[0] > 0)


def several(x):
    return (x[:, 0] > 0).long()


@pytest.mark.parametrize(
    "model",
    [
        Predicts(one),
        Predicts(several),
        Predicts(lambda x: several(x).numpy()),
        Predicts(lambda x: several(x).tolist()),
        Predicts(lambda x: np.int64(one(x))),
        Predicts(lambda x: torch.tensor(one(x))),
        Predicts(lambda x: float(one(x))),
        one,
        several,
        lambda x: (x[:, 0] > 0).float(),  # [1], a label though it is float
        lambda x: sign_model(x[None])[0],
        lambda x: sign_model(x).numpy(),
        lambda x: sign_model(x).tolist(),
        lambda x: SimpleNamespace(logits=sign_model(x)),
        lambda x: {"logits": sign_model(x[None])[0]},
    ],
)
@pytest.mark.parametrize("dataset", [[(X[i], int(Y[i])) for i in range(5)], [(X[:2], Y[:2]), (X[2:], Y[2:])]])
def test_models_of_every_form(model, dataset):
    assert calculate_empirical_robustness(model, dataset, toward_zero, 0.15) == 3 / 4


def test_numpy_inputs_and_labels():
    def attack(model, x, label, budget):
        return x - np.float32(budget) * np.sign(x)

    for dataset in ((X.numpy(), Y.numpy()), list(zip(X.numpy(), Y.numpy(), strict=True))):
        for predict in (one, lambda x: np.asarray(x[:, 0] > 0, dtype=int)):
            assert calculate_empirical_robustness(Predicts(predict), dataset, attack, 0.15) == 3 / 4


WORDS = [("a good film", "good"), ("good, so good", "good"), ("dull", "bad"), ("fine", "good")]


def sentiment(text):
    return "good" if "good" in text else "bad"


def swap(model, text, label, budget):
    assert isinstance(text, str), text
    assert isinstance(label, str), label
    return text.replace("good", "fine", budget)


@pytest.mark.parametrize("model", [sentiment, Predicts(sentiment), Predicts(lambda text: np.str_(sentiment(text)))])
def test_text_one_at_a_time(model):
    """Of three right ones, one swap breaks the first, two also the second; labels are strings from a loader too."""
    for words in (WORDS, DataLoader(WORDS, batch_size=3)):
        assert calculate_empirical_robustness(model, words, swap, 1) == 2 / 3
    assert calculate_empirical_robustness(model, WORDS, swap, 2) == 1 / 3


@pytest.mark.parametrize(
    "model",
    [
        lambda texts: [[1.0, 0.0] if "good" in text else [0.0, 1.0] for text in texts],
        lambda texts: torch.tensor([0 if "good" in text else 1 for text in texts]),
    ],
)
@pytest.mark.parametrize("batch", [None, 2])
def test_text_in_batches(model, batch):
    """A model of lists gets lists of one, from single examples and from a loader's batches."""
    words = [(text, int(label == "bad")) for text, label in WORDS]
    dataset = words if batch is None else DataLoader(words, batch_size=batch)

    def swap_each(model, texts, labels, budget):
        assert isinstance(texts, list)
        assert len(labels) == len(texts) == 1
        return [text.replace("good", "fine", budget) for text in texts]

    assert calculate_empirical_robustness(model, dataset, swap_each, 1) == 2 / 3


@pytest.mark.parametrize(
    "model", [lambda x: "pos" if x[0] > 0 else "neg", lambda x: ["pos" if row[0] > 0 else "neg" for row in x]]
)
def test_images_with_labels_of_strings_from_a_loader(model):
    data = [(X[i], "pos" if Y[i] else "neg") for i in range(5)]
    for dataset in (data, DataLoader(data, batch_size=2)):
        assert calculate_empirical_robustness(model, dataset, toward_zero, 0.15) == 3 / 4


def test_predict_that_needs_more_than_an_input_is_not_used():
    class Net:
        def predict(self, x, samples):
            raise AssertionError("called")

        def __call__(self, x):
            return sign_model(x)

    assert calculate_empirical_robustness(Net(), (X, Y), toward_zero, 0.15) == 3 / 4


def test_a_function_of_one_image_is_not_given_a_batch():
    """Its class depends on the first channel alone; x[0] of a batch of one would be the whole image."""
    x = torch.tensor([[1.0, -3.0], [-3.0, 5.0]])[:, :, None, None]  # the mean over all channels has the other sign
    model = lambda image: int(image[0].mean() > 0)
    for dataset in ([(x[0], 1), (x[1], 0)], (x, torch.tensor([1, 0]))):
        assert calculate_empirical_robustness(model, dataset, lambda m, x, y, budget: x - budget, 2.0) == 1 / 2


def test_dicts_and_tuples():
    """A dict of token ids and a mask, and a pair of texts with a tuple as its label."""

    class Bag(nn.Module):
        def forward(self, tokens):
            assert tokens["ids"].dim() == 2  # a batch of one
            assert not self.training
            score = (tokens["ids"] * tokens["mask"]).sum(1).float()
            return SimpleNamespace(logits=torch.stack([3.5 - score, score - 3.5], 1))

    ids, mask = torch.tensor([[1, 2, 9], [2, 2, 9], [5, 0, 9]]), torch.tensor([[1, 1, 0]] * 3)
    labels = torch.tensor([0, 1, 1])

    def less(model, tokens, label, budget):
        return {"ids": tokens["ids"] - budget, "mask": tokens["mask"]}

    for dataset in (
        [({"ids": ids, "mask": mask}, labels)],
        [({"ids": ids[i], "mask": mask[i]}, labels[i]) for i in range(3)],
        DataLoader([({"ids": ids[i], "mask": mask[i]}, labels[i]) for i in range(3)], batch_size=2),
    ):
        assert calculate_empirical_robustness(Bag().train(), dataset, less, 1) == 1 / 3
    assert ids[0].tolist() == [1, 2, 9]

    bag = Bag().eval()
    couples = DataLoader([((ids[i], mask[i]), labels[i]) for i in range(3)], batch_size=3)
    attack = lambda model, couple, label, budget: (couple[0] - budget, couple[1])
    model = lambda couple: bag({"ids": couple[0], "mask": couple[1]})
    assert calculate_empirical_robustness(model, couples, attack, 1) == 1 / 3

    def entails(pair):
        return ("entails", pair[0] in pair[1])

    pairs = [(("a", "a b"), ("entails", True)), (("c", "a b"), ("entails", False))]
    attack = lambda model, pair, label, budget: (pair[0], pair[1][: -int(budget)])
    assert calculate_empirical_robustness(entails, pairs, attack, 3) == 1 / 2


def test_token_ids_and_a_module_that_predicts_text():
    class Net(nn.Module):
        def forward(self, ids):
            assert ids.dtype == torch.int64
            return nn.functional.one_hot((ids.sum(-1) > 4).long(), 2).float()

        def predict(self, text):
            assert not self.training
            return sentiment(text)

    ids = torch.tensor([[1, 2], [4, 5]])
    assert calculate_empirical_robustness(Net(), (ids, torch.tensor([0, 1])), lambda m, x, y, budget: x + 2, 2) == 1 / 2
    assert calculate_empirical_robustness(Net(), WORDS, swap, 1) == 2 / 3


def test_attacks_of_the_package_and_names_of_the_budget():
    for attack in (FGSM, FGSM(sign_model, 0.15, clip=(-1, 1))):
        share = calculate_empirical_robustness(sign_model, (X.clamp(0), torch.ones(5).long()), attack, 0.15)
        assert share == sum(bool(x > 0.15) for x in X[:, 0]) / int((X[:, 0] > 0).sum())
    functions = [
        lambda model, x, label, epsilon: toward_zero(model, x, label, epsilon),
        lambda model, x, label, *, eps: toward_zero(model, x, label, eps),
        lambda model, x, label, **options: toward_zero(model, x, label, **options),
        lambda model, x, label, steps=1, budget=None: toward_zero(model, x, label, budget),
    ]
    for function in functions:
        assert calculate_empirical_robustness(sign_model, (X, Y), function, 0.15) == 3 / 4


@pytest.mark.parametrize(
    ("clean", "returned", "error", "match"),
    [
        (X[:1], torch.zeros(2), InputError, r"shape \(1, 2\), got \(2,\)"),
        (X[:1], torch.tensor([[0.0, math.nan]]), InputError, "finite values"),
        (X[0].numpy(), np.zeros(3), InputError, r"shape \(2,\), got \(3,\)"),
        (X[0].numpy(), np.array([0.0, np.nan]), InputError, "finite values, got nan"),
        (X[0].numpy(), None, InputTypeError, "an adversarial input, got None"),
        ({"a": torch.tensor([1.0])}, {"a": torch.tensor([math.nan])}, InputError, "finite values"),
        ({"a": torch.tensor([1.0])}, {"a": [math.inf, 1.0]}, InputError, "finite values"),
        (1.0, math.nan, InputError, "finite values"),
        (1.0, (np.float32("nan"),), InputError, "finite values"),
    ],
)
def test_invalid_adversarial_inputs_are_no_success(clean, returned, error, match):
    dataset = [(clean, torch.tensor([1]) if isinstance(clean, torch.Tensor) else 1)]
    model = sign_model if isinstance(clean, torch.Tensor) else lambda x: 1
    with pytest.raises(error, match=f"attack_fn: expected the function to return {match}"):
        calculate_empirical_robustness(model, dataset, lambda *_, budget: returned, 0.1)
