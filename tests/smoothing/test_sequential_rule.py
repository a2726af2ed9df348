"""Rule for sequential certification: certificates from counts, error probabilities and giving up."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pyrobust import ABSTAIN
from pyrobust.errors import InputError
from pyrobust.smoothing import certified_radius
from pyrobust.smoothing.radius import two_class_radius
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

CLASSES, SIGMA, ALPHA, N = 3, 0.5, 0.001, 3000
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
    own = float(certified_radius(p, sigma, noise=noise, norm=norm))
    radii = (r * sigma, own, own * (1 - 1e-5), own * (1 + 1e-5))
    of = rule(radii=radii, sigma=sigma, noise=noise, norm=norm, two_class=two_class)
    limits = np.array([[p, 1.0, 0.0, q]])
    votes = np.array([5, 0, 0, 0])
    results = of.results([ImageSequence(0, votes, votes, limits[0])])
    certified = (results["prediction"] != ABSTAIN) & (results["radius"] >= np.asarray(radii))
    assert (certified | ~of.reached(limits)[0]).all()
    if own > 0.3 * sigma:
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
        for place, look in enumerate(of.looks):
            votes = np.arange(look + 1)
            counts = np.stack([votes, look - votes, 0 * votes, 0 * votes], axis=1)
            limits = of.look(0 * votes, counts, np.tile(START, (look + 1, 1)))
            reached = of.reached(limits)[:, column]
            rejected = of.rejected(limits, votes, np.full(look + 1, look))[:, column]
            np.testing.assert_array_equal(reached, votes >= certified[place])
            if look < of.n:
                np.testing.assert_array_equal(rejected & ~reached, votes <= given_up[place])
            else:  # the last look gives up at the share of votes of the look before
                share = given_up[-2] / of.looks[-2]
                np.testing.assert_array_equal(rejected & ~reached, votes <= share * look)
