"""Sequential certification against a loop over images and looks, and under different schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyrobust import ABSTAIN, RandomizedSmoothing
from pyrobust.errors import ModelError
from pyrobust.smoothing import blocks, certified_radius, packing
from pyrobust.stats import SequentialRule, looks

CLASSES, SIGMA, ALPHA, N0, N = 3, 0.5, 0.001, 20, 3000
RADII = (0.0, 0.25, 0.5, 1.0)


def model(x):
    """Three classes by the first coordinate, with arithmetic that does not depend on the batch."""
    first = x.flatten(1)[:, :1]
    return -(first - torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)).abs()


def images(count=12):
    return torch.linspace(-1.9, 1.9, count).view(-1, 1).repeat(1, 2)


def smoother(batch_size=64, seed=5, base=model, **options):
    return RandomizedSmoothing(base, CLASSES, SIGMA, seed=seed, batch_size=batch_size, **options)


def certify(x, *, by=None, **options):
    defaults = {"n0": N0, "n": N, "alpha": ALPHA, "radii": RADII, "method": "sequential", "indices": range(len(x))}
    return (by or smoother()).certify_batch(x, **defaults | options)


@pytest.fixture(scope="module")
def whole():
    """The results of all images in one call."""
    return certify(images())


def assert_same(actual, expected, rows=slice(None)):
    for name in ("prediction", "radius", "p_lower", "counts0", "counts", "samples", "undecided", "indices"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name)[rows], err_msg=name)


def log_wealth(votes, drawn, p):
    """Log wealth of the Krichevsky-Trofimov bets against probability p."""
    mixture = math.lgamma(votes + 0.5) + math.lgamma(drawn - votes + 0.5) - math.log(math.pi) - math.lgamma(drawn + 1)
    return mixture - votes * math.log(p) - (drawn - votes) * math.log1p(-p)


def decide_one_by_one(x, index):
    """(samples, certified, undecided, counts) of one image, from the wealth against p = Φ(r/sigma) at each look."""
    probabilities = {r: stats.norm.cdf(r / SIGMA) for r in RADII}
    given_up = {r: SequentialRule(N, ALPHA, 0.0).counts(p)[1] for r, p in probabilities.items()}
    base = smoother()
    top = int(base.votes(x, n=N0, stage="select", indices=[index])[0, :CLASSES].argmax())
    state = dict.fromkeys(RADII, "undecided")
    for look, drawn in enumerate(looks(N)):
        counts = base.votes(x, n=drawn, indices=[index])[0]
        votes = int(counts[top])
        for r, p in probabilities.items():
            if state[r] == "certified":
                continue
            # At n samples, images above the share of votes at which the look before gives up are undecided.
            futile = votes <= given_up[r][look] if drawn < N else votes / N <= given_up[r][-2] / looks(N)[-2]
            state[r] = "given up" if futile else "undecided"
            if votes > drawn * p and log_wealth(votes, drawn, p) >= math.log(1 / ALPHA):
                state[r] = "certified"
        if "undecided" not in state.values():
            break
    decided = [[state[r] == verdict for r in RADII] for verdict in ("certified", "undecided")]
    return N0 + drawn, *decided, counts.tolist()


def test_decisions_equal_a_loop_over_images_and_looks():
    x = images()
    result = certify(x, hybrid=0.0)
    assert result.certified.any(axis=0).all()
    assert not result.certified.all(axis=0).any()
    assert (result.samples < N0 + N).any()
    for row in range(len(x)):
        decided = result.certified[row].tolist(), result.undecided[row].tolist(), result.counts[row].tolist()
        assert (result.samples[row], *decided) == decide_one_by_one(x[row : row + 1], row)
    np.testing.assert_array_equal(result.counts0, smoother().votes(x, n=N0, stage="select", indices=range(len(x))))


@pytest.mark.parametrize(("batch_size", "most", "rounds"), [(7, 5, 32), (1001, 1, 1)])
def test_results_do_not_depend_on_the_schedule(batch_size, most, rounds, monkeypatch, whole):
    monkeypatch.setattr(packing, "_MAX_ACTIVE", most)
    monkeypatch.setattr(packing, "_ROUND_BATCHES", rounds)
    assert_same(certify(images(), by=smoother(batch_size)), whole)


def test_results_do_not_depend_on_order_and_split(whole):
    x = images()
    order = np.random.default_rng(0).permutation(len(x))
    assert_same(certify(x[order], indices=order.tolist()), whole, order)
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        assert_same(certify(x[begin:end], indices=range(begin, end)), whole, slice(begin, end))


@pytest.mark.usefixtures("unprobed")
def test_batches_are_full_until_too_few_images_are_left():
    sizes = []

    def watched(x):
        sizes.append(len(x))
        return model(x)

    result = certify(images(200), by=smoother(64, base=watched))
    assert sum(sizes) == result.samples.sum()
    partial = [size for size in sizes if size < 64]
    assert len(partial) <= 100
    assert sizes.index(partial[0]) > 50
    assert sum(sizes) / len(sizes) > 60


def test_progress_increases_to_the_total():
    seen = []
    certify(images(), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (12 * (N0 + N), 12 * (N0 + N))


def test_samples_without_a_winner_never_certify():
    result = certify(images(4), by=smoother(base=lambda x: torch.full((len(x), CLASSES), math.nan)))
    assert (result.prediction == ABSTAIN).all()
    assert (result.radius == 0).all()
    assert (result.counts[:, CLASSES] == result.samples - N0).all()
    assert not result.undecided.any()
    assert (result.samples < 200).all()


def test_missing_votes_raise_an_error(monkeypatch):
    count = blocks.count_votes
    monkeypatch.setattr(blocks, "count_votes", lambda logits, image, counts: count(logits[1:], image[1:], counts))
    with pytest.raises(ModelError, match="votes for image"):
        certify(images(4))


@pytest.mark.parametrize("noise", ["uniform", "laplace"])
def test_uniform_and_laplace_noise(noise):
    x, by = images(24), smoother(noise=noise, norm="l1")
    result, fixed = (certify(x, by=by, method=method) for method in ("sequential", "fixed"))
    assert result.certified.any(axis=0)[:3].all()
    assert not result.certified.all(axis=0)[1:].any()
    # The methods may differ only on the few images close to a radius.
    assert (result.certified != fixed.certified)[~result.undecided].mean() < 0.05
    assert result.samples.mean() < 0.7 * (N0 + N)
    np.testing.assert_array_equal(result.radius, certified_radius(result.p_lower, SIGMA, noise=noise, norm="l1"))


def test_results_state_their_method(whole):
    mixed, empty = certify(images(4), hybrid=0.25, two_class=True), certify(torch.zeros(0, 2))
    assert (whole.method, whole.hybrid, whole.rival_upper, whole.n) == ("sequential", 0.01, None, N)
    assert (mixed.method, mixed.hybrid, mixed.rival_upper.shape) == ("sequential", 0.25, (4,))
    assert (len(empty), empty.certified.shape, empty.undecided.shape) == (0, (0, 4), (0, 4))
    fixed = certify(images(4), method="fixed")
    assert fixed.method == "fixed"
    assert (fixed.samples == N0 + N).all()
    assert not fixed.undecided.any()
