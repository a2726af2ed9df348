"""Certified accuracy of a test set: by smoothing, with its keys and its rule for right predictions; by intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.verify_models import Brightness, grey, net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pyrobust import RandomizedSmoothing, certified_accuracy_ibp, compute_certified_accuracy, compute_ibp_bounds
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo import load_data

KEYS = ["clean_accuracy", *(f"certified_r={r}" for r in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)), "avg_radius"]


class Scripted:
    """Returns given certificates in turn, and records its calls."""

    def __init__(self, *certificates):
        self.certificates, self.calls = list(certificates), []

    def certify(self, x, **keywords):
        self.calls.append((x, keywords))
        return self.certificates[len(self.calls) - 1]


def summary(certificates, labels, radii=(0.0, 0.5, 1.0), **keywords):
    images = torch.arange(float(len(labels)))[:, None]
    return compute_certified_accuracy(Scripted(*certificates), images, labels, radii, **keywords)


def test_radii_are_keys_as_passed():
    default = compute_certified_accuracy(Scripted((1, 0.3)), torch.zeros(1, 2), [1])
    assert list(default) == KEYS
    assert {type(value) for value in default.values()} == {float}
    radii = [0, 1, 0.5, 0.25, np.float64(0.1), np.float32(0.75), 1e-3, 2.0]
    result = summary([(0, 1.0)], [0], radii)
    texts = ("0", "1", "0.5", "0.25", "0.1", "0.75", "0.001", "2.0")
    assert list(result) == ["clean_accuracy", *(f"certified_r={text}" for text in texts), "avg_radius"]
    assert [result[f"certified_r={r}"] for r in radii] == [1, 1, 1, 1, 1, 1, 1, 0]
    assert list(summary([(0, 1.0)], [0], [])) == ["clean_accuracy", "avg_radius"]
    assert list(summary([(0, 1.0)], [0], np.array([0.5]))) == ["clean_accuracy", "certified_r=0.5", "avg_radius"]


@pytest.mark.parametrize(
    ("certificates", "labels", "radii", "expected"),
    [
        # Right: 0.5, 1.0, 0.2, 0.7; wrong: the abstention and one class.
        (
            [(0, 0.5), (1, 1.0), (2, 0.2), (-1, 0.0), (0, 2.0), (1, 0.7)],
            [0, 1, 2, 0, 1, 1],
            [0.0, 0.5, 1.0],
            [4 / 6, 4 / 6, 3 / 6, 1 / 6, 2.4 / 4],
        ),
        # A label of -1 is neither an abstention nor a class.
        ([(-1, 9.0), (0, 2.0), (1, 0.5)], [-1, -1, 1], [0.5, 1.0], [1 / 3, 1 / 3, 0.0, 0.5]),
        ([(1, 1.0), (2, 2.0)], [0, 0], [0.0], [0.0, 0.0, 0.0]),
        # An infinite radius is certified at every radius; NaN and minus infinity certify nothing.
        (
            [(0, math.inf), (0, 1.0), (1, math.inf), (-1, math.inf)],
            [0, 0, 0, 0],
            [2.0, math.inf],
            [0.5, 0.25, 0.25, math.inf],
        ),
        ([(0, math.nan), (0, 1.0)], [0, 0], [0.0, 1.0], [1.0, 0.5, 0.5, 0.5]),
        ([(0, -math.inf), (0, 1.0)], [0, 0], [0.0, 1.0], [1.0, 0.5, 0.5, 0.5]),
        ([(torch.tensor(1), torch.tensor(0.5)), (np.int64(0), np.float32(0.25))], [1, 0], [], [1.0, 0.375]),
    ],
)
def test_shares_worked_by_hand(certificates, labels, radii, expected):
    for kind in (list, np.array, torch.tensor):
        assert list(summary(certificates, kind(labels), radii).values()) == pytest.approx(expected, rel=1e-14, abs=0)


def test_radius_is_inclusive_in_double():
    r = 0.1 + 0.2
    for radius, certified in ((r, 1.0), (np.nextafter(r, 0), 0.0), (np.nextafter(r, 1), 1.0), (0.3, 0.0)):
        assert summary([(0, radius)], [0], [r])[f"certified_r={r}"] == certified
    # The float32 next to 0.1 is larger; compared in float32 the two would be equal.
    assert list(summary([(0, 0.1)], [0], [np.float32(0.1)]).values()) == [1.0, 0.0, 0.1]


def test_other_smoothers_are_called_for_each_image_with_these_keywords():
    smoother = Scripted((0, 0.5), (1, 0.5), (0, 0.1))
    images = torch.rand(3, 2, 4)
    compute_certified_accuracy(smoother, images, torch.tensor([0, 1, 1]), n=77, alpha=0.02)
    assert [keywords for _, keywords in smoother.calls] == [{"n": 77, "alpha": 0.02}] * 3
    for (x, _), image in zip(smoother.calls, images, strict=True):
        assert torch.equal(x, image)
    smoother = Scripted((0, 0.5))
    compute_certified_accuracy(smoother, images[:1], [0])
    assert smoother.calls[0][1] == {"n": 10_000, "alpha": 0.001}


class Counting(RandomizedSmoothing):
    """A smoother with a certify of its own."""

    calls = 0

    def certify(self, x, n0=100, n=100_000, alpha=0.001, batch_size=None, *, index=None):
        self.calls += 1
        assert x.shape == (2,)
        return super().certify(x, n0, n, alpha, batch_size, index=index)


def test_a_certify_of_a_subclass_and_other_batch_methods():
    smoother = Counting(lambda x: x, 2, 0.5)
    compute_certified_accuracy(smoother, torch.eye(2), np.array([0, 1], dtype=np.uint8), n=10, alpha=0.01)
    assert smoother.calls == 2
    scripted = Scripted((0, 0.5))
    scripted.certify_batch = None  # of another meaning than here
    assert compute_certified_accuracy(scripted, torch.zeros(1, 2), [0])["avg_radius"] == 0.5
    assert compute_certified_accuracy(smoother, torch.eye(2), [-1, -1], n=10)["clean_accuracy"] == 0.0


def test_a_smoother_agrees_with_its_own_certificates():
    def model(batch):
        return torch.cat([batch, -batch], 1)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1300, 1, generator=generator)  # more than are handed over at once
    y = (x[:, 0] < torch.randn(1300, generator=generator) / 4).long()
    smoother = RandomizedSmoothing(model, 2, 0.5, seed=5, batch_size=10_000)
    result = compute_certified_accuracy(smoother, x, y, [0.0, 0.25, 1.0], n=100, alpha=0.01)
    certificates = smoother.certify_batch(x, n=100, alpha=0.01, indices=range(len(x)))
    right = certificates.prediction == y.numpy()
    assert 0.5 < right.mean() < 0.95
    assert result["clean_accuracy"] == right.mean()
    for r in (0.0, 0.25, 1.0):
        assert result[f"certified_r={r}"] == (right & (certificates.radius >= r)).mean()
    assert result["avg_radius"] == pytest.approx(certificates.radius[right].mean(), rel=1e-12)


SMOOTHER, TWO = RandomizedSmoothing(lambda x: x, 2, 0.5), torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("smoother", "images", "labels", "options", "error", "match"),
    [
        (Scripted(), TWO[:0], [], {}, InputError, "test_images: expected at least one image"),
        (Scripted(), torch.tensor(1.0), [0], {}, InputError, "test_images: expected at least one image"),
        (Scripted(), TWO, [0], {}, InputError, r"test_labels: expected shape \(2,\), one label per example"),
        (Scripted(), TWO, [0.0, 1.0], {}, InputTypeError, "test_labels: expected integer labels, got torch.float32"),
        (Scripted(), TWO, [0, -2], {}, InputError, "test_labels: expected labels of at least -1, got -2"),
        (SMOOTHER, TWO, [0, -2], {}, InputError, "test_labels: expected labels -1 to 1, got -2"),
        (SMOOTHER, TWO, [0, 2], {}, InputError, "test_labels: expected labels -1 to 1, got 2"),
        (SMOOTHER, TWO, [0, 0], {"n": 0}, InputError, "n: expected"),
        (SMOOTHER, TWO, [0, 0], {"alpha": 2}, InputError, "alpha: expected"),
        (SMOOTHER, TWO, [0, 0], {"radii": [0.5, -0.1]}, InputError, "radii: expected numbers of at least 0"),
        (SMOOTHER, TWO, [0, 0], {"radii": [0.5, math.nan]}, InputError, "radii: expected numbers of at least 0"),
        (object(), TWO, [0, 0], {}, InputTypeError, r"smoother: expected .* certify\(x, n=, alpha=\), got object"),
    ],
)
def test_invalid_arguments_are_refused(smoother, images, labels, options, error, match):
    with pytest.raises(error, match=match):
        compute_certified_accuracy(smoother, images, labels, **options)


@pytest.mark.parametrize("answer", [(0.7, 1), ("0", 1.0), (10**30, 1.0), (math.nan, 1.0), (0, 1, 2), 3])
def test_a_smoother_that_returns_no_class_is_refused(answer):
    with pytest.raises(InputTypeError, match="smoother: expected certify to return a class of at least -1 and a r"):
        summary([answer], [0])


# -- by intervals


def test_it_matches_the_bounds() -> None:
    data, model = load_data("digits"), net().eval()
    x, y = data.x, data.y
    for epsilon in (0.0, 0.004):
        lower, upper = compute_ibp_bounds(model, x, epsilon)
        others = upper.clone().scatter_(1, y[:, None], -torch.inf).amax(1)
        right = model(x).argmax(1) == y
        certified = right & (lower.gather(1, y[:, None])[:, 0] > others)
        accuracies = certified_accuracy_ibp(model, DataLoader(TensorDataset(x, y), batch_size=37), epsilon)
        assert accuracies == {
            "clean_accuracy": float(right.double().mean()),
            "certified_accuracy": float(certified.double().mean()),
        }
    assert 0.1 < accuracies["certified_accuracy"] < 0.9


def test_shares_of_proofs_worked_by_hand() -> None:
    # The logits ±(level − 1/2) each move by epsilon: proved where 2·|level − 1/2| > 2·epsilon.
    x, y = grey(0.9, 0.7, 0.55, 0.2, 0.1)
    y[4] = 1  # wrong, however certain
    for epsilon, expected in ((0.04, 0.8), (0.06, 0.6), (0.25, 0.4), (0.45, 0.0)):
        accuracies = certified_accuracy_ibp(Brightness(), [(x, y)], epsilon)
        assert accuracies == {"clean_accuracy": pytest.approx(0.8), "certified_accuracy": pytest.approx(expected)}
    # Not clipped: 0.9 + 0.45 is beyond 1, and counts.
    one_by_one = [(x[i], int(y[i])) for i in range(5)]
    assert certified_accuracy_ibp(Brightness(), one_by_one, 0.06)["certified_accuracy"] == pytest.approx(0.6)


def test_dropout_is_off_and_the_mode_restored() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(4, 2)).train()
    x, y = grey(0.9, 0.2)
    first, second = (certified_accuracy_ibp(model, [(x, y)], 0.01) for _ in range(2))
    assert first == second
    assert all(module.training for module in model.modules())
    assert certified_accuracy_ibp(Brightness().double(), [(x, y)], 0.01)["certified_accuracy"] == 1.0


def test_a_missing_cuda_device_becomes_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    batch = grey(0.9, 0.2)
    expected = certified_accuracy_ibp(Brightness(), [batch], 0.01)
    assert list(expected) == ["clean_accuracy", "certified_accuracy"]
    assert not [record for record in caplog.records if record.name.startswith("pyrobust")]
    assert certified_accuracy_ibp(Brightness(), [batch], 0.01, "cuda") == expected
    assert "no CUDA device is available; computing on the CPU" in caplog.text


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": lambda x: x}, InputTypeError, "model: expected a torch.nn.Module"),
        ({"test_loader": []}, InputError, "test_loader: expected at least one example, got none"),
        ({"test_loader": 3}, InputTypeError, "test_loader: expected an iterable of pairs"),
        ({"test_loader": [(torch.zeros(2, 4), torch.tensor([0]))]}, InputError, "test_loader: expected x"),
        ({"test_loader": [(torch.zeros(1, 4), torch.tensor([2]))]}, InputError, "test_loader: expected labels 0 to 1"),
        ({"test_loader": [(torch.zeros(1, 4), torch.tensor([0.5]))]}, InputTypeError, "test_loader: expected y"),
        (
            {"test_loader": [(torch.full((1, 4), torch.nan), torch.tensor([0]))]},
            InputError,
            r"test_loader: x: expected finite values, got nan at \[0, 0\]",
        ),
        ({"test_loader": [(torch.zeros(4), 0), (torch.zeros(2, 2), 0)]}, InputError, "examples of one shape"),
        ({"epsilon": -0.1}, InputError, "epsilon: expected a finite number"),
    ],
)
def test_invalid_arguments_of_proofs_are_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"model": Brightness(), "test_loader": [grey(0.9)], "epsilon": 0.1}
    with pytest.raises(error, match=words):
        certified_accuracy_ibp(**(arguments | changes))
