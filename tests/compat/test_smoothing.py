"""Scripts for the reference implementation of randomized smoothing run with only the import changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth
from pyrobust.errors import InputError, InputTypeError, ModelError, PyrobustError
from pyrobust.smoothing.image_noise import value_key
from pyrobust.zoo import load_data, load_model


def test_the_loops_of_certify_and_predict_scripts():
    model, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    smoothed = Smooth(model, 10, 0.25)
    correct, predicted, radii = 0, 0, []
    for i in range(0, 200, 20):
        x, label = data.x[i], int(data.y[i])
        prediction, radius = smoothed.certify(x, 50, 500, 0.001, 250)
        assert (type(prediction), type(radius)) == (int, float)
        correct += prediction == label
        radii.append(radius)
        predicted += smoothed.predict(x, 500, 0.001, 250) == label
    assert min(correct, predicted) >= 6
    assert max(radii) == pytest.approx(0.25 * stats.norm.ppf(stats.beta.ppf(0.001, 500, 1)), rel=1e-9)


def halves(batch):
    score = batch.flatten(1).sum(1)
    return torch.stack([score, -score], 1)


X = torch.full((1, 2, 2), 0.1)


def test_certificate_matches_the_smoothers_bound():
    n0, n, alpha, sigma = 20, 500, 0.01, 0.5
    label, radius = Smooth(halves, 2, sigma, seed=4).certify(X, n0, n, alpha, 64)
    # The first draw is image 0 of the key of X, the second image 1.
    smoother = RandomizedSmoothing(halves, 2, sigma, seed=value_key(4, X))
    top = int(smoother.votes(X[None], n=n0, indices=[0])[0, :2].argmax())
    k = int(smoother.votes(X[None], n=n, indices=[1])[0, top])
    assert label == top
    assert radius == pytest.approx(sigma * stats.norm.ppf(stats.beta.ppf(alpha, k, n - k + 1)), rel=1e-9)


def noise_of(smooth, image):
    """The noise [20, D] of a certificate."""
    rows = []

    def recording(batch):
        rows.append(batch.clone())
        return halves(batch)

    smooth.base_classifier = recording
    smooth.certify(image, 5, 15, 0.01, 20)
    return (torch.cat(rows) - image).flatten(1)


@pytest.mark.usefixtures("unprobed")
def test_no_two_draws_share_noise():
    """Not those of one image in later calls, of other images, and of other seeds."""
    images = [X, X + 0.5, X.nextafter(torch.ones(())), X[0], X.reshape(4, 1, 1), torch.zeros(1, 2, 2)]
    draws = [noise_of(Smooth(halves, 2, 0.5), image) for image in images]
    again = Smooth(halves, 2, 0.5)
    assert torch.equal(noise_of(again, X), draws[0]), "the same image in another object repeats its noise"
    draws += [noise_of(again, X), noise_of(again, X), noise_of(Smooth(halves, 2, 0.5, seed=1), X)]
    noise = torch.cat([draw.double() for draw in draws])
    assert len(noise) == 180
    # Rows that shared noise would differ by the rounding of x + noise alone.
    assert torch.cdist(noise, noise).fill_diagonal_(1).min() > 1e-3


def test_counts_depend_on_the_image_and_its_calls_alone():
    """Not on the order of the images, their layout, and the batches."""
    images = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.2 - 0.1
    channels_last = images.contiguous(memory_format=torch.channels_last)
    one, other = Smooth(halves, 2, 0.5), Smooth(halves, 2, 0.5)
    forward = [one._sample_noise(x, 500, 100) for x in images]
    assert all(counts.dtype == np.int64 and counts.sum() == 500 for counts in forward)
    backward = [other._sample_noise(x, 500, 7)[:2].tolist() for x in channels_last.flip(0)]
    assert [counts.tolist() for counts in forward] == backward[::-1]
    assert len({tuple(counts) for counts in [*forward, one._sample_noise(images[0], 500, 100)]}) == 4


def test_votes_of_many_objects_scatter_like_independent_draws():
    n, images = 100, 60
    votes = [Smooth(halves, 2, 0.5)._sample_noise(X + 1e-6 * i, n, n)[0] for i in range(images)]
    p = stats.norm.cdf(0.4 / (2 * 0.5))  # of a sum of four of 0.1, with noise of standard deviation 2 * 0.5
    scatter = np.sum((np.array(votes) - n * p) ** 2) / (n * p * (1 - p))
    assert stats.chi2.ppf(1e-4, images) < scatter < stats.chi2.isf(1e-4, images)


def test_a_batch_of_one_is_its_image():
    x = torch.full((3, 2, 2), 0.05)
    expected = Smooth(halves, 2, 0.5).certify(x, 10, 500, 0.001, 50)
    smooth = Smooth(halves, 2, 0.5)
    assert smooth.certify(x[None], 10, 500, 0.001, 50) == expected
    assert smooth.certify(x, 10, 500, 0.001, 50) != expected, "the same image gets fresh noise"


def test_confidences():
    smooth = Smooth(halves, 2, 0.5)
    shares = smooth.confidence_all(X, 200, 64)
    assert shares.dtype == np.float64
    assert shares.sum() == 1
    assert shares[0] > 0.5
    top2, (first, second), again = smooth.confidence_top2(-X, 200, 64)
    assert top2.tolist() == [1, 0]
    assert (first, second) == (again[1], again[0])
    with pytest.raises(InputError, match="n: expected at least 1"):
        smooth.confidence_all(X, 0, 64)


def test_modes_of_forks():
    expected = Smooth(halves, 2, 0.5).certify(X, 10, 1000, 0.001, 50)
    assert Smooth(halves, 2, 0.5, torch.device("cpu"), "hard", 16.0).certify(X, 10, 1000, 0.001, 50) == expected
    assert Smooth(halves, 2, 0.5, mode="gaussian").certify(X, 10, 1000, 0.001, 50) == expected
    for mode in ("soft", "both", "cauchy", None):
        with pytest.raises(InputError, match="mode: expected one of hard, gaussian, got"):
            Smooth(halves, 2, 0.5, mode=mode)
    smooth = Smooth(halves, 2, 0.5)
    smooth.mode = "soft"
    with pytest.raises(InputError, match='mode="hard"'):
        smooth.predict(X, 100, 0.001, 50)


class WithFeatures(nn.Module):
    def __init__(self, *order):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.order = order

    def forward(self, batch):
        parts = {"logits": self.linear(batch.flatten(1)), "features": batch.flatten(1), "loss": None}
        return tuple(parts[name] for name in self.order)


def test_logits_first_in_a_tuple():
    model = WithFeatures("logits", "features", "loss").train()
    expected = Smooth(lambda batch: model.linear(batch.flatten(1)), 2, 0.5).certify(X, 10, 500, 0.001, 50)
    assert Smooth(model, 2, 0.5).certify(X, 10, 500, 0.001, 50) == expected
    assert Smooth(lambda batch: list(model(batch)), 2, 0.5).certify(X, 10, 500, 0.001, 50) == expected
    assert model.training
    for order in (("features", "logits"), ("logits", "logits"), ("loss", "logits"), ()):
        with pytest.raises(ModelError, match=r"expected logits \(50, 2\), alone or first in a tuple"):
            Smooth(WithFeatures(*order), 2, 0.5).certify(X, 50, 50, 0.001, 50)


class Counted(Smooth):
    """A subclass whose votes are those that it is told."""

    votes: tuple[int, ...] = ()
    calls: tuple[tuple[int, int], ...] = ()

    def _sample_noise(self, x, num, batch_size):
        self.calls += ((num, batch_size),)
        return np.array(self.votes)


def test_subclass_with_its_own_noise():
    smooth = Counted(halves, 3, 0.5)
    smooth.votes = (0, 10, 990)
    label, radius = smooth.certify(X, 10, 1000, 0.001, 64)
    assert label == 2
    assert radius == pytest.approx(0.5 * stats.norm.ppf(stats.beta.ppf(0.001, 990, 11)), rel=1e-9)
    assert smooth.predict(X, 1000, 0.001, 32) == 2
    assert smooth.calls == ((10, 64), (1000, 64), (1000, 32))


def test_prediction_near_a_tie():
    smooth = Counted(halves, 2, 0.5)
    # Of 100 votes 40 are without a winner: 60 against 40 has p-value 0.057.
    for votes, alpha, label in (((50, 50), 0.999, -1), ((60, 0), 0.05, -1), ((60, 0), 0.06, 0), ((10, 30), 0.999, -1)):
        smooth.votes = votes
        assert smooth.predict(X, 100, alpha, 10) == label
    assert Smooth(lambda batch: batch.flatten(1)[:, :1], 1, 0.5).predict(X, 100, 0.001, 50) == 0  # a single class


def test_methods_that_forks_call_and_override():
    class Own(Smooth):
        bound = 0.5

        def _lower_confidence_bound(self, NA, N, alpha):
            assert (type(NA), N, alpha) == (int, 1000, 0.001)
            return self.bound

    smooth = Own(halves, 2, 0.1)
    assert smooth.certify(X, 10, 1000, 0.001, 64) == (-1, 0.0)
    smooth.bound = 0.75
    assert smooth.certify(X, 10, 1000, 0.001, 64) == (0, pytest.approx(0.1 * stats.norm.ppf(0.75), rel=1e-9))
    plain = Smooth(halves, 4, 0.5)
    for k, n, alpha in ((990, 1000, 0.001), (np.int64(55), np.int64(100), 0.05), (10, 10, 0.001)):
        assert plain._lower_confidence_bound(NA=k, N=n, alpha=alpha) == pytest.approx(
            stats.beta.ppf(alpha, k, n - k + 1)
        )
    assert plain._lower_confidence_bound(0, 100, 0.001) == 0.0
    assert plain._count_arr(np.array([0, 2, 2, 3, 0, 2]), 4).tolist() == [2, 0, 3, 1]
    assert plain._count_arr(np.array([], dtype=int), 3).tolist() == [0, 0, 0]


def test_changed_attributes_take_effect():
    """In the reference, sigma, the classifier and its device are read at every call."""
    smooth = Smooth(halves, 2, 0.1)
    smooth.sigma = 5.0
    # The true distance to the boundary is 0.2 (the sum of four 0.1, over the norm 2); a bound from sigma 0.1 would be
    # close to 1, and a radius with sigma 5 would then be far above 0.2.
    x = X.clone()
    for _ in range(20):
        assert smooth.certify(x, 20, 500, 0.001, 500)[1] <= 0.2
    smooth.sigma = 0.1
    smooth.base_classifier = lambda batch: -halves(batch)
    assert smooth.certify(x, 20, 500, 0.001, 500)[0] == 1
    smooth.sigma = -1.0
    with pytest.raises(InputError, match="sigma"):
        smooth.certify(x, 20, 500, 0.001, 500)


def test_rows_are_probed_once_for_many_images():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.rows = 0

        def forward(self, batch):
            self.rows += len(batch)
            return halves(batch * self.weight)

    model = Counting()
    smooth = Smooth(model, 2, 0.5)
    rows = []
    for _ in range(3):
        smooth.certify(X, 10, 100, 0.001, 50)
        rows.append(model.rows)
    first, *later = np.diff([0, *rows]).tolist()
    assert first >= 110 + 6 * 10 + 64
    assert all(count < first for count in later)
    with torch.no_grad():
        model.weight.neg_()  # other weights are another model, which is probed and certified anew
    assert smooth.certify(X, 10, 1000, 0.001, 50)[0] == 1
    assert model.rows >= rows[-1] + 1010 + 6 * 10 + 64
    with torch.inference_mode():
        model.weight = nn.Parameter(torch.ones(1))
    assert smooth.certify(X, 10, 1000, 0.001, 50)[0] == 0


def test_coupled_rows_are_refused():
    with pytest.raises(ModelError, match="depend on their own row alone"):
        Smooth(lambda batch: halves(batch - batch.mean(0)), 2, 0.5).certify(X, 10, 100, 0.001, 50)
    model = nn.Sequential(nn.Identity(), nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"base_classifier\.1 \(BatchNorm2d\), which normalises with the statistics"):
        Smooth(model, 2, 0.5).certify(X, 10, 100, 0.001, 50)


def test_rows_without_a_winner_count_against_the_class():
    def model(batch):
        logits = halves(batch).clone()
        logits[batch.flatten(1)[:, 0] > 0.1] = math.nan
        return logits

    smooth = Smooth(model, 2, 0.01)
    assert 400 < smooth._sample_noise(X, 1000, 100).sum() < 600
    nothing = Smooth(lambda batch: torch.full((len(batch), 2), math.nan), 2, 0.5)
    assert nothing.confidence_all(X, 10, 10).tolist() == [0, 0]
    assert Smooth.ABSTAIN == -1
    for abstaining in (smooth, nothing):
        assert abstaining.certify(X, 10, 1000, 0.001, 100) == (-1, 0.0)
        assert abstaining.predict(X, 1000, 0.001, 100) == -1


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"n0": 0}, InputError, "n0: expected at least 1"),
        ({"n": 10.0}, InputTypeError, "n: expected an integer"),
        ({"alpha": 0.0}, InputError, "alpha: expected"),
        ({"batch_size": 0}, InputError, "batch_size: expected at least 1"),
        ({"x": torch.full((1, 2, 2), math.nan)}, InputError, "x: expected finite"),
        ({"x": torch.zeros(1, 2, 2, dtype=torch.uint8)}, InputTypeError, "x: expected a float tensor"),
        ({"x": torch.tensor(0.0)}, InputError, "x: expected an example"),
    ],
)
def test_bad_input(change, error, match):
    smooth = Smooth(halves, 2, 0.5)
    arguments = {"x": X, "n0": 10, "n": 50, "alpha": 0.01, "batch_size": 20} | change
    with pytest.raises(error, match=match):
        smooth.certify(**arguments)
    del arguments["n0"]
    if "n0" not in change:
        with pytest.raises(error, match=match):
            smooth.predict(**arguments)


def test_bad_construction():
    for arguments in ((halves, 0, 0.5), (halves, 2, 0.0), (None, 2, 0.5)):
        with pytest.raises(PyrobustError):
            Smooth(*arguments)


# --- devices


class Halves(nn.Module):
    """Classifies by the side of a plane and records the devices of its batches."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen = set()

    def forward(self, batch):
        self.seen.add(batch.device)
        # A single element: a sum would depend on the order of its terms, and so on the device.
        score = batch.flatten(1)[:, 0] * self.weight
        return torch.stack([score, -score], 1)


IMAGE = torch.linspace(0.3, 1, 12).reshape(3, 2, 2)


def test_classifier_and_images_on_any_device(device):
    on_cpu = Smooth(Halves(), 2, 0.5, seed=3)
    counts = on_cpu._sample_noise(IMAGE, 500, 64)
    label, radius = on_cpu.certify(IMAGE, 20, 400, 0.01, 64)
    assert label == on_cpu.predict(IMAGE, 400, 0.01, 64) == 0
    assert radius > 0.1
    model = Halves().to(device)
    # The last bits of a normal variable may change a vote, which changes the radius by less than 0.01.
    votes, error = (4, 0.01) if device.type == "cuda" else (0, 0.0)
    for x in (IMAGE, IMAGE.to(device).double()):
        smooth = Smooth(model, 2, 0.5, seed=3)
        theirs = smooth._sample_noise(x, 500, 64)
        assert (type(theirs), theirs.dtype) == (np.ndarray, np.int64)
        assert np.abs(theirs - counts).sum() <= votes
        answer = smooth.certify(x, 20, 400, 0.01, 64)
        assert answer == (0, pytest.approx(radius, abs=error))
        prediction = smooth.predict(x, 400, 0.01, 64)
        assert (*map(type, answer), type(prediction), prediction) == (int, float, int, 0)
    assert model.seen == {device}


def test_functions_run_where_the_images_are_and_moved_classifiers_where_they_are(device):
    seen = set()

    def recording(batch):
        seen.add(batch.device)
        return batch.flatten(1)[:, :2]

    Smooth(recording, 2, 0.5).predict(IMAGE.to(device), 50, 0.01, 100)
    assert seen == {device}
    model = Halves()
    smooth = Smooth(model, 2, 0.5)
    assert smooth.predict(IMAGE, 400, 0.01, 100) == 0
    model.to(device)
    assert smooth.predict(IMAGE, 400, 0.01, 100) == 0
    assert model.seen == {torch.device("cpu"), device}
