"""Scripts for the reference implementation of randomized smoothing run with only the import changed."""

from __future__ import annotations

import csv
import math
import runpy
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth
from pyrobust.errors import InputError, InputTypeError, ModelError, PyrobustError
from pyrobust.smoothing.image_noise import value_key

# Modeled on the reference's certify.py and predict.py.
SCRIPT = """
import argparse
import datetime
import time

import torch

from pyrobust.compat.smoothing import Smooth
from pyrobust.zoo import load_data, load_model

parser = argparse.ArgumentParser(description="certify and predict with a smoothed classifier")
parser.add_argument("base_classifier", type=str)
parser.add_argument("sigma", type=float)
parser.add_argument("outfile", type=str)
parser.add_argument("--batch", type=int, default=1000)
parser.add_argument("--skip", type=int, default=1)
parser.add_argument("--max", type=int, default=-1)
parser.add_argument("--N0", type=int, default=100)
parser.add_argument("--N", type=int, default=100000)
parser.add_argument("--alpha", type=float, default=0.001)
args = parser.parse_args()

torch.manual_seed(0)
model = load_model(args.base_classifier)
smoothed = Smooth(model, 10, args.sigma)
data = load_data("digits")

for task in ("certify", "predict"):
    with open(args.outfile + "." + task, "w") as out:
        columns = ["idx", "label", "predict", "radius", "correct", "time"]
        if task == "predict":
            columns.remove("radius")
        print(*columns, sep="\\t", file=out)
        for i in range(len(data.x)):
            if i % args.skip != 0:
                continue
            if i == args.max:
                break
            x, label = data.x[i], int(data.y[i])
            start = time.time()
            if task == "certify":
                prediction, radius = smoothed.certify(x, args.N0, args.N, args.alpha, args.batch)
                fields = [prediction, "{:.3}".format(radius)]
            else:
                prediction = smoothed.predict(x, args.N, args.alpha, args.batch)
                fields = [prediction]
            correct = int(prediction == label)
            elapsed = datetime.timedelta(seconds=time.time() - start)
            print(i, label, *fields, correct, elapsed, sep="\\t", file=out, flush=True)
"""


def test_the_script_writes_its_rows(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["--skip", "20", "--max", "200", "--N0", "50", "--N", "500", "--batch", "250"]
    monkeypatch.setattr(sys, "argv", ["script.py", "zoo:digits-smooth-0.25", "0.25", str(tmp_path / "log"), *options])
    runpy.run_path(str(tmp_path / "script.py"))
    for task, columns in (
        ("certify", "idx label predict radius correct time"),
        ("predict", "idx label predict correct time"),
    ):
        with open(tmp_path / f"log.{task}", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert [list(row) for row in rows] == [columns.split()] * 10
        assert all(row["predict"] in ("-1", row["label"]) for row in rows if row["correct"] == "1")
        assert sum(row["correct"] == "1" for row in rows) >= 6
        if task == "certify":
            largest = 0.25 * stats.norm.ppf(stats.beta.ppf(0.001, 500, 1))
            assert max(float(row["radius"]) for row in rows) == pytest.approx(largest, abs=5e-4)


def halves(batch):
    score = batch.flatten(1).sum(1)
    return torch.stack([score, -score], 1)


X = torch.full((1, 2, 2), 0.1)


def test_abstain():
    smooth = Smooth(halves, 2, 0.5)
    assert smooth.ABSTAIN == Smooth.ABSTAIN == -1
    assert smooth.certify(torch.zeros(1, 2, 2), 10, 100, 0.001, 50) == (-1, 0.0)
    assert smooth.predict(torch.zeros(1, 2, 2), 100, 0.001, 50) == -1


def test_certificate_matches_the_smoothers_bound():
    n0, n, alpha, sigma = 20, 500, 0.01, 0.5
    label, radius = Smooth(halves, 2, sigma, seed=4).certify(X, n0, n, alpha, 64)
    # The first draw is image 0 of the key of X, the second image 1.
    smoother = RandomizedSmoothing(halves, 2, sigma, seed=value_key(4, X))
    top = int(smoother.votes(X[None], n=n0, indices=[0])[0, :2].argmax())
    k = int(smoother.votes(X[None], n=n, indices=[1])[0, top])
    assert label == top
    assert radius == pytest.approx(sigma * stats.norm.ppf(stats.beta.ppf(alpha, k, n - k + 1)), rel=1e-9)


def test_sample_noise_counts_votes():
    smooth = Smooth(halves, 2, 0.5)
    first, second = smooth._sample_noise(X, 300, 64), smooth._sample_noise(X, 300, 64)
    for counts in (first, second):
        assert counts.shape == (2,)
        assert counts.dtype == np.int64
        assert counts.sum() == 300
    assert (first != second).any(), "a second call must use fresh noise"
    again = Smooth(halves, 2, 0.5)
    assert (again._sample_noise(X, 300, 7) == first).all()
    assert (Smooth(halves, 2, 0.5, seed=2)._sample_noise(X, 300, 64) != first).any()


@pytest.mark.usefixtures("unprobed")
def test_calls_never_share_noise():
    seen = []

    def model(batch):
        seen.append(batch.clone())
        return halves(batch)

    smooth = Smooth(model, 2, 0.5)
    smooth.certify(X, 20, 50, 0.001, 100)
    smooth.predict(X, 40, 0.001, 100)
    smooth.certify(X, 20, 50, 0.001, 100)
    rows = torch.cat(seen).flatten(1)
    assert len(rows) == 180
    assert len(rows.unique(dim=0)) == 180


def noise_of(image, **options):
    """The noise [20, D] of a certificate by an object of its own."""
    rows = []

    def model(batch):
        rows.append(batch.clone())
        return halves(batch)

    Smooth(model, 2, 0.5, **options).certify(image, 5, 15, 0.01, 20)
    return (torch.cat(rows) - image).flatten(1)


@pytest.mark.usefixtures("unprobed")
def test_objects_share_no_noise_for_different_images():
    images = [X, X + 0.5, X.nextafter(torch.ones(())), X[0], X.reshape(4, 1, 1), torch.zeros(1, 2, 2)]
    draws = [noise_of(image) for image in images] + [noise_of(X, seed=1)]
    noise = torch.cat([draw.double() for draw in draws])
    assert len(noise) == 140
    # Rows that shared noise would differ by the rounding of x + noise alone.
    distance = torch.cdist(noise, noise).fill_diagonal_(1)
    assert distance.min() > 1e-3
    assert torch.equal(noise_of(X), draws[0]), "the same image in another object repeats its noise"


def test_votes_of_many_objects_scatter_like_independent_draws():
    n, images = 100, 100
    votes = [Smooth(halves, 2, 0.5)._sample_noise(X + 1e-6 * i, n, n)[0] for i in range(images)]
    p = stats.norm.cdf(0.4 / (2 * 0.5))  # of a sum of four of 0.1, with noise of standard deviation 2 * 0.5
    scatter = np.sum((np.array(votes) - n * p) ** 2) / (n * p * (1 - p))
    assert stats.chi2.ppf(1e-4, images) < scatter < stats.chi2.isf(1e-4, images)


def test_noise_does_not_depend_on_order_or_layout():
    images = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.2 - 0.1
    channels_last = images.contiguous(memory_format=torch.channels_last)
    one, other = Smooth(halves, 2, 0.5), Smooth(halves, 2, 0.5)
    forward = [one._sample_noise(x, 500, 100).tolist() for x in images]
    backward = [other._sample_noise(x, 500, 70).tolist() for x in channels_last.flip(0)]
    assert forward == backward[::-1]
    assert len({tuple(counts) for counts in forward}) == 3


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
    assert smooth.confidence_all(-X, 200, 64).tolist() != again.tolist(), "a second call must use fresh noise"
    nothing = Smooth(lambda b: torch.full((len(b), 2), math.nan), 2, 0.5)
    assert nothing.confidence_all(X, 10, 10).tolist() == [0, 0]
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


def test_count_arr():
    smooth = Smooth(halves, 4, 0.5)
    assert smooth._count_arr(np.array([0, 2, 2, 3, 0, 2]), 4).tolist() == [2, 0, 3, 1]
    assert smooth._count_arr(np.array([], dtype=int), 3).tolist() == [0, 0, 0]


def test_lower_confidence_bound():
    smooth = Smooth(halves, 2, 0.5)
    for k, n, alpha in ((990, 1000, 0.001), (np.int64(55), np.int64(100), 0.05), (10, 10, 0.001)):
        assert smooth._lower_confidence_bound(k, n, alpha) == pytest.approx(stats.beta.ppf(alpha, k, n - k + 1))
    assert smooth._lower_confidence_bound(0, 100, 0.001) == 0.0
    assert smooth._lower_confidence_bound(NA=9, N=10, alpha=0.05) < 0.9


def test_subclass_with_its_own_noise():
    class Fixed(Smooth):
        calls: tuple = ()

        def _sample_noise(self, x, num, batch_size):
            self.calls += ((num, batch_size),)
            counts = np.zeros(self.num_classes, dtype=int)
            counts[2] = num - num // 100
            counts[1] = num // 100
            return counts

    smooth = Fixed(halves, 3, 0.5)
    label, radius = smooth.certify(X, 10, 1000, 0.001, 64)
    assert label == 2
    assert radius == pytest.approx(0.5 * stats.norm.ppf(stats.beta.ppf(0.001, 990, 11)), rel=1e-9)
    assert smooth.predict(X, 1000, 0.001, 32) == 2
    assert smooth.calls == ((10, 64), (1000, 64), (1000, 32))


def test_subclass_with_its_own_bound():
    class Own(Smooth):
        bound = 0.5

        def _lower_confidence_bound(self, NA, N, alpha):
            assert (type(NA), N, alpha) == (int, 1000, 0.001)
            return self.bound

    smooth = Own(halves, 2, 0.1)
    assert Smooth(halves, 2, 0.1).certify(X, 10, 1000, 0.001, 64)[0] == 0
    assert smooth.certify(X, 10, 1000, 0.001, 64) == (-1, 0.0)
    smooth.bound = 0.75
    assert smooth.certify(X, 10, 1000, 0.001, 64) == (0, pytest.approx(0.1 * stats.norm.ppf(0.75), rel=1e-9))


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
    counts = smooth._sample_noise(X, 1000, 100)
    assert 400 < counts.sum() < 600
    assert smooth.certify(X, 10, 1000, 0.001, 100) == (-1, 0.0)
    assert smooth.predict(X, 1000, 0.001, 100) == -1
    nothing = Smooth(lambda b: torch.full((len(b), 2), math.nan), 2, 0.5)
    assert nothing.predict(X, 100, 0.001, 50) == -1
    assert nothing.certify(X, 10, 100, 0.001, 50) == (-1, 0.0)


def test_single_class():
    smooth = Smooth(lambda b: b.flatten(1)[:, :1], 1, 0.5)
    assert smooth.predict(X, 100, 0.001, 50) == 0
    assert smooth.certify(X, 10, 100, 0.001, 50)[0] == 0


def test_prediction_near_a_tie():
    class Tied(Smooth):
        votes = (50, 50)

        def _sample_noise(self, x, num, batch_size):
            return np.array(self.votes)

    smooth = Tied(halves, 2, 0.5)
    assert smooth.predict(X, 100, 0.999, 10) == -1
    smooth.votes = (60, 0)  # 40 votes without a winner: 60 against 40 has p-value 0.057
    assert smooth.predict(X, 100, 0.05, 10) == -1
    assert smooth.predict(X, 100, 0.06, 10) == 0
    smooth.votes = (10, 30)
    assert smooth.predict(X, 100, 0.999, 10) == -1


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"n0": 0}, InputError, "n0: expected at least 1"),
        ({"n": 0}, InputError, "n: expected at least 1"),
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
    if "n0" not in change:
        del arguments["n0"]
        with pytest.raises(error, match=match):
            smooth.predict(**arguments)


@pytest.mark.parametrize("arguments", [(halves, 0, 0.5), (halves, 2, 0.0), (halves, 2, math.nan), (None, 2, 0.5)])
def test_bad_construction(arguments):
    with pytest.raises(PyrobustError):
        Smooth(*arguments)
