"""Sequential certification: its rule, a loop over images and looks, and different schedules."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pyrobust import ABSTAIN, RandomizedSmoothing
from pyrobust.errors import InputError, ModelError
from pyrobust.smoothing import blocks, certified_radius, packing
from pyrobust.smoothing.radius import two_class_radius
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence
from pyrobust.stats import SequentialRule, looks

CLASSES, SIGMA, ALPHA, N0, N = 3, 0.5, 0.001, 20, 3000
RADII = (0.0, 0.25, 0.5, 1.0)
START = np.array([[0.0, 1.0, 0.0, 1.0]])  # the limits before the first look


def rule(**changes):
    values = {"radii": RADII, "num_classes": CLASSES, "sigma": SIGMA, "noise": "gaussian", "norm": "l2"}
    return CertificationRule(**values | {"n": N, "alpha": ALPHA} | changes)


def run_counts(of, p, rng, size):
    """Simulate images with class probabilities p, the selected class first; return limits and counts once decided."""
    done = np.zeros(size, dtype=bool)
    counts = np.zeros((size, of.num_classes + 1), dtype=np.int64)
    limits = np.tile(START, (size, 1))
    drawn = 0
    for look in of.looks:
        rows = np.flatnonzero(~done)
        counts[rows] += rng.multinomial(look - drawn, p, size=len(rows))
        drawn = look
        limits[rows] = of.look(np.zeros(len(rows), dtype=np.int64), counts[rows], limits[rows])
        done[rows] = of.done(limits[rows], counts[rows, 0], np.full(len(rows), look))
    return limits, counts


@pytest.mark.parametrize(
    ("r", "changes"),
    [(0.0, {}), (0.5, {"hybrid": 0.5}), (0.0, {"two_class": True}), (0.5, {"two_class": True, "hybrid": 0.9})],
)
def test_false_certificates_of_known_probabilities_are_within_alpha(r, changes):
    """The true radius lies just below the radius to decide; alpha is large so that a broken bound would be noticed."""
    alpha, size = 0.1, 1500
    p = special.ndtr((r - 1e-4) / SIGMA)
    of = rule(radii=(r, r + 0.5), alpha=alpha, n=5000, **changes)
    limits, counts = run_counts(of, [p, (1 - p), 0.0, 0.0], np.random.default_rng(1), size)
    false = int(of.reached(limits)[:, 0].sum())
    assert stats.binomtest(false, size, alpha, alternative="greater").pvalue > 1e-4
    assert false > 0  # otherwise nothing is tested
    assert of.rejected(limits, counts[:, 0], counts.sum(axis=1))[:, 1].mean() > 0.99


def test_shares_of_two_classes_sum_to_at_most_alpha():
    for alpha, hybrid in itertools.product((0.001, 1e-9, 0.1 + 0.2), (0.0, 1 / 3, 0.5, 0.999)):
        both = rule(alpha=alpha, hybrid=hybrid, two_class=True)
        shares = [share for share in (both.decisions.alpha_sequence, both.decisions.alpha_fixed) if share]
        # CLASSES rivals: the other classes, and the samples without a winner.
        shares += CLASSES * [both._alpha_per_rival(share) for share in shares]
        assert sum(map(Fraction, shares)) <= Fraction(alpha)
        assert sum(shares) == pytest.approx(alpha, rel=1e-12)
    for changes in ({"alpha": 1e-321, "hybrid": 0.0}, {"hybrid": 4e-320}):
        assert rule(**changes).decisions.alpha_sequence > 0
        with pytest.raises(InputError, match=r"two_class: expected an alpha large enough to be split"):
            rule(**changes, num_classes=100, two_class=True)


def test_two_class_certifies_more_where_other_votes_are_spread():
    counts = np.array([[1800, 400, 400, 400]])
    one, two = (rule(two_class=flag).look(np.array([0]), counts, START) for flag in (False, True))
    assert two[0, 0] < one[0, 0]  # half of alpha
    assert rule().reached(one)[0].tolist() == [True, False, False, False]
    assert rule(two_class=True).reached(two)[0].tolist() == [True, True, False, False]
    results = rule(two_class=True).results([ImageSequence(0, counts[0], counts[0], two[0])])
    assert results["radius"][0] == two_class_radius(two[0, 0], two[0, 3], SIGMA) > 0.25


def test_two_class_certifies_below_one_half():
    counts = np.array([[1350, 500, 600, 550]])
    limits = rule(two_class=True).look(np.array([0]), counts, START)
    image = ImageSequence(0, counts[0], counts[0], limits[0])
    results = rule(two_class=True).results([image])
    assert results["p_lower"][0] < 0.5
    assert results["prediction"][0] == 0
    assert results["radius"][0] > 0.1
    assert rule().results([image])["prediction"][0] == ABSTAIN


@settings(max_examples=25)
@given(
    p=st.floats(1e-9, 1 - 1e-12),
    q=st.floats(1e-12, 1.0),
    sigma=st.floats(1e-3, 100.0),
    r=st.floats(0.0, 3.0),
    family=st.sampled_from([("gaussian", "l2", False), ("gaussian", "l2", True), ("laplace", "l1", False)]),
)
def test_reached_radii_are_certified(p, q, sigma, r, family):
    """Includes the radius of p itself, where rounding decides."""
    noise, norm, two_class = family
    radius = float(certified_radius(p, sigma, noise=noise, norm=norm))
    radii = (r * sigma, radius, radius * (1 - 1e-5), radius * (1 + 1e-5))
    of = rule(radii=radii, sigma=sigma, noise=noise, norm=norm, two_class=two_class)
    limits = np.array([[p, 1.0, 0.0, q]])
    votes = np.array([5, 0, 0, 0])
    results = of.results([ImageSequence(0, votes, votes, limits[0])])
    certified = (results["prediction"] != ABSTAIN) & (results["radius"] >= np.asarray(radii))
    assert (certified | ~of.reached(limits)[0]).all()
    if radius > 0.3 * sigma:
        assert of.reached(limits)[0, 2]
    if two_class:  # upper limits equal to p must not give up a radius that p certifies
        assert not (certified & of.rejected(np.array([[0.0, p, q, 1.0]]), votes[:1], votes[:1])[0]).any()


@settings(max_examples=8)
@given(data=st.data())
def test_limits_only_tighten(data):
    of = rule(two_class=data.draw(st.booleans()), hybrid=data.draw(st.sampled_from([0.0, 0.5])))
    p = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=4, max_size=4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    counts, limits, drawn = np.zeros((1, 4), dtype=np.int64), START, 0
    for look in of.looks:
        counts = counts + rng.multinomial(look - drawn, p / p.sum(), size=1)
        drawn = look
        new = of.look(np.array([0]), counts, limits)
        assert (new[0, [0, 2]] >= limits[0, [0, 2]]).all()
        assert (new[0, [1, 3]] <= limits[0, [1, 3]]).all()
        assert ((new >= 0) & (new <= 1)).all()
        limits = new
    assert of.done(limits, counts[:, 0], np.array([N])).all()


@pytest.mark.parametrize("hybrid", [0.0, 0.5])
def test_limits_agree_with_the_tables_of_counts(hybrid):
    """`pyrobust plan` decides by counts, a run by limits."""
    of = rule(n=300, hybrid=hybrid, radii=(0.0, 0.3, 0.9, 1.5))
    for column, p in enumerate(of.required):
        certified, given_up = of.decisions.counts(float(p))
        for number, look in enumerate(of.looks):
            votes = np.arange(look + 1)
            counts = np.stack([votes, look - votes, 0 * votes, 0 * votes], axis=1)
            limits = of.look(0 * votes, counts, np.tile(START, (look + 1, 1)))
            reached = of.reached(limits)[:, column]
            rejected = of.rejected(limits, votes, np.full(look + 1, look))[:, column]
            np.testing.assert_array_equal(reached, votes >= certified[number])
            if look < of.n:
                np.testing.assert_array_equal(rejected & ~reached, votes <= given_up[number])
            else:  # the last look gives up at the share of votes of the look before
                share = given_up[-2] / of.looks[-2]
                np.testing.assert_array_equal(rejected & ~reached, votes <= share * look)


# --- sampling


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


@pytest.mark.parametrize(("batch_size", "active", "rounds"), [(7, 5, 32), (1001, 1, 1)])
def test_results_do_not_depend_on_the_schedule(batch_size, active, rounds, monkeypatch, whole):
    monkeypatch.setattr(packing, "_MAX_ACTIVE", active)
    monkeypatch.setattr(packing, "_ROUND_BATCHES", rounds)
    assert_same(certify(images(), by=smoother(batch_size)), whole)


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
