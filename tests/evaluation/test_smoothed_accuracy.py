"""Certified accuracy of a test set: keys, comparisons, and the rule for right predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pyrobust import RandomizedSmoothing, compute_certified_accuracy
from pyrobust.errors import InputError, InputTypeError

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


def test_keys_of_the_result():
    result = compute_certified_accuracy(Scripted((1, 0.3)), torch.zeros(1, 2), [1])
    assert list(result) == KEYS
    assert {type(value) for value in result.values()} == {float}


def test_radii_are_keys_as_passed():
    radii = [0, 1, 0.5, 0.25, np.float64(0.1), np.float32(0.75), 1e-3, 2.0]
    result = summary([(0, 1.0)], [0], radii)
    texts = ("0", "1", "0.5", "0.25", "0.1", "0.75", "0.001", "2.0")
    assert list(result) == ["clean_accuracy", *(f"certified_r={text}" for text in texts), "avg_radius"]
    assert [result[f"certified_r={r}"] for r in radii] == [1, 1, 1, 1, 1, 1, 1, 0]
    assert list(summary([(0, 1.0)], [0], [])) == ["clean_accuracy", "avg_radius"]
    assert list(summary([(0, 1.0)], [0], np.array([0.5]))) == ["clean_accuracy", "certified_r=0.5", "avg_radius"]


def test_shares_worked_by_hand():
    certificates = [(0, 0.5), (1, 1.0), (2, 0.2), (-1, 0.0), (0, 2.0), (1, 0.7)]
    labels = [0, 1, 2, 0, 1, 1]  # right: 0.5, 1.0, 0.2, 0.7; wrong: the abstention and one class
    result = summary(certificates, labels)
    assert result["clean_accuracy"] == 4 / 6
    assert result["certified_r=0.0"] == 4 / 6
    assert result["certified_r=0.5"] == 3 / 6
    assert result["certified_r=1.0"] == 1 / 6
    assert result["avg_radius"] == pytest.approx((0.5 + 1.0 + 0.2 + 0.7) / 4)


def test_radius_is_inclusive_in_double():
    r = 0.1 + 0.2
    for radius, certified in ((r, 1.0), (np.nextafter(r, 0), 0.0), (np.nextafter(r, 1), 1.0), (0.3, 0.0)):
        assert summary([(0, radius)], [0], [r])[f"certified_r={r}"] == certified
    # The float32 next to 0.1 is larger; compared in float32 the two would be equal.
    assert list(summary([(0, 0.1)], [0], [np.float32(0.1)]).values()) == [1.0, 0.0, 0.1]


def test_a_label_of_minus_one_matches_nothing():
    result = summary([(-1, 9.0), (0, 2.0), (1, 0.5)], [-1, -1, 1])  # neither an abstention nor a class
    assert result["clean_accuracy"] == result["certified_r=0.5"] == 1 / 3
    assert (result["certified_r=1.0"], result["avg_radius"]) == (0.0, 0.5)
    smoother = RandomizedSmoothing(lambda x: x, 2, 0.5)
    assert compute_certified_accuracy(smoother, torch.eye(2), [-1, -1], n=10)["clean_accuracy"] == 0.0


@pytest.mark.parametrize(
    ("certificates", "radii", "expected"),
    [
        ([(1, 1.0), (2, 2.0)], [0.0], [0.0, 0.0, 0.0]),
        ([(0, math.inf), (0, 1.0), (1, math.inf), (-1, math.inf)], [2.0, math.inf], [0.5, 0.25, 0.25, math.inf]),
        ([(0, math.nan), (0, 1.0)], [0.0, 1.0], [1.0, 0.5, 0.5, 0.5]),
        ([(0, -math.inf), (0, 1.0)], [0.0, 1.0], [1.0, 0.5, 0.5, 0.5]),
    ],
)
def test_nothing_right_and_radii_that_are_not_finite(certificates, radii, expected):
    """An infinite radius is certified at every radius; NaN and minus infinity certify nothing."""
    assert list(summary(certificates, [0] * len(certificates), radii).values()) == expected


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
    compute_certified_accuracy(smoother, torch.eye(2), [0, 1], n=10, alpha=0.01)
    assert smoother.calls == 2
    scripted = Scripted((0, 0.5))
    scripted.certify_batch = None  # of another meaning than here
    assert compute_certified_accuracy(scripted, torch.zeros(1, 2), [0])["avg_radius"] == 0.5


def test_results_may_be_tensors_and_numpy_numbers():
    result = summary([(torch.tensor(1), torch.tensor(0.5)), (np.int64(0), np.float32(0.25))], [1, 0])
    assert result["clean_accuracy"] == 1.0
    assert result["avg_radius"] == 0.375


def test_labels_of_every_kind():
    for kind in (np.array, torch.tensor, lambda y: np.array(y, dtype=np.uint8)):
        assert summary([(0, 1.0), (3, 1.0)], kind([0, 3]))["clean_accuracy"] == 1.0


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


@pytest.mark.parametrize(
    ("images", "labels", "error", "match"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), InputError, "test_images: expected at least one image"),
        (torch.tensor(1.0), [0], InputError, "test_images: expected at least one image"),
        (torch.zeros(2, 2), [0], InputError, r"test_labels: expected shape \(2,\), one label per example"),
        (torch.zeros(2, 2), [0.0, 1.0], InputTypeError, "test_labels: expected integer labels, got torch.float32"),
        (torch.zeros(2, 2), [0, -2], InputError, "test_labels: expected labels of at least -1, got -2"),
    ],
)
def test_invalid_images_and_labels_are_refused(images, labels, error, match):
    with pytest.raises(error, match=match):
        compute_certified_accuracy(Scripted(), images, labels)


def test_other_invalid_arguments_are_refused():
    smoother, images = RandomizedSmoothing(lambda x: x, 2, 0.5), torch.zeros(2, 2)
    for label in (-2, 2):
        with pytest.raises(InputError, match=f"test_labels: expected labels -1 to 1, got {label}"):
            compute_certified_accuracy(smoother, images, [0, label])
    for radius in (-0.1, math.nan):
        with pytest.raises(InputError, match="radii: expected numbers of at least 0"):
            summary([(0, 1.0)], [0], [0.5, radius])
    with pytest.raises(InputTypeError, match=r"smoother: expected an object with certify\(x, n=, alpha=\), got object"):
        compute_certified_accuracy(object(), images, [0, 0])
    for keywords, match in (({"n": 0}, "n: expected"), ({"alpha": 2}, "alpha: expected")):
        with pytest.raises(InputError, match=match):
            compute_certified_accuracy(smoother, images, [0, 0], **keywords)


@pytest.mark.parametrize("answer", [(0.7, 1), ("0", 1.0), (10**30, 1.0), (math.nan, 1.0), (0, 1, 2), 3])
def test_a_smoother_that_returns_no_class_is_refused(answer: object) -> None:
    class Odd:
        def certify(self, x: torch.Tensor, *, n: int, alpha: float) -> object:
            return answer

    with pytest.raises(
        InputTypeError, match="smoother: expected certify to return a class of at least -1 and a radius"
    ):
        compute_certified_accuracy(Odd(), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))
