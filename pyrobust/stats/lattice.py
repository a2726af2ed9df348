"""Exact outcome probabilities of a sequential rule, by dynamic programming over the number of successes.

The distribution of the number of successes is propagated from look to look, that is, from one sample size at which the
image is judged to the next. At each look, the counts that certify the image or give it up are removed from the
distribution. No probability is subtracted from another. Every value is a sum of products of positive doubles, so
relative errors only add up. These errors grow by less than 2^-48 per sample. Mass in the far tails is dropped, and its
amount is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pyrobust.errors import InputError
from pyrobust.stats.arguments import FloatArray, as_counts, as_real
from pyrobust.stats.rule import SequentialRule

# Relative rounding error per sample, with u = 2^-53: the binomial distribution of k trials, made by doubling,
# contributes k u (1 + log2(k) / 2), at most 15 k u for k <= MAX_TRIALS; its convolution with the current distribution
# contributes k u, and the sums of decided mass contribute 2 k u. The total is below 2^-48 per sample.
_ROUNDING: Final = 2.0**-48
# Probabilities below this at the edges of a distribution are dropped.
_NEGLIGIBLE: Final = 1e-30


@dataclass(frozen=True)
class LatticeOutcome:
    """Probabilities of the three outcomes for an image with a given success probability, with error bounds.

    Attributes:
        certified: probability that the image is certified.
        given_up: probability that the image is given up.
        undecided: probability that the image is neither certified nor given up by the last look.
        samples: expected number of samples.
        dropped: probability mass dropped in the tails.
        rounding: bound on the relative rounding error of the probabilities and of ``samples``.

    >>> outcome = LatticeOutcome(0.0009, 0.9, 0.0991, 5000.0, 1e-28, 1e-10)
    >>> outcome.certified_at_most > outcome.certified
    True
    """

    certified: float
    given_up: float
    undecided: float
    samples: float
    dropped: float
    rounding: float

    @property
    def certified_at_most(self) -> float:
        """Upper bound on the exact probability that the image is certified."""
        return (self.certified + self.dropped) * (1 + self.rounding)

    @property
    def given_up_at_most(self) -> float:
        """Upper bound on the exact probability that the image is given up."""
        return (self.given_up + self.dropped) * (1 + self.rounding)


@dataclass(frozen=True)
class _Distribution:
    """Probabilities of the counts ``first``, ``first`` + 1, ..., and the probability mass dropped from them."""

    first: int
    mass: FloatArray
    dropped: float

    def trimmed(self) -> _Distribution:
        kept = np.flatnonzero(self.mass >= _NEGLIGIBLE)
        if not len(kept):
            return _Distribution(self.first, self.mass[:0], self.dropped + float(self.mass.sum()))
        low, high = kept[0], kept[-1] + 1
        cut = float(self.mass[:low].sum() + self.mass[high:].sum())
        return _Distribution(self.first + int(low), self.mass[low:high], self.dropped + cut)

    def convolved(self, other: _Distribution) -> _Distribution:
        """Distribution of the sum of two independent counts."""
        mass = np.convolve(self.mass, other.mass) if len(self.mass) and len(other.mass) else self.mass[:0]
        return _Distribution(self.first + other.first, mass, self.dropped + other.dropped).trimmed()


class _Binomials:
    """Binomial distributions with success probability p, computed by doubling and cached by number of trials."""

    def __init__(self, p: float) -> None:
        self._cache = {
            0: _Distribution(0, np.ones(1), 0.0),
            1: _Distribution(0, np.array([1.0 - p, p]), 0.0).trimmed(),
        }

    def __getitem__(self, trials: int) -> _Distribution:
        if trials not in self._cache:
            half = self[trials // 2]
            self._cache[trials] = half.convolved(half) if trials % 2 == 0 else self[trials - 1].convolved(self[1])
        return self._cache[trials]


def lattice_outcome(
    p: float, looks: npt.ArrayLike, certified: npt.ArrayLike, given_up: npt.ArrayLike
) -> LatticeOutcome:
    """Outcome probabilities of a sequential rule when each sample succeeds with probability p.

    Args:
        p: success probability, in [0, 1].
        looks: increasing sample sizes at which the count is judged.
        certified: smallest count that certifies at each look, as in SequentialRule.counts.
        given_up: largest count at which the image is given up at each look; below ``certified``.

    Returns:
        The probabilities and the expected number of samples, with their error bounds.

    Raises:
        InputError: p is out of range, ``looks`` is not strictly increasing or begins below 1, a count of ``given_up``
            is not below that of ``certified``, or the arrays differ in length.
        InputTypeError: counts are not integers (an empty list holds none), or p is not a number.

    >>> rule = SequentialRule(10_000)
    >>> outcome = lattice_outcome(0.9, rule.looks, *rule.counts(0.84))
    >>> f"{outcome.certified:.6f} certified after {outcome.samples:.0f} samples"
    '0.999632 certified after 698 samples'
    """
    probability = as_real("p", p)
    if probability.ndim or not 0.0 <= probability <= 1.0:
        raise InputError("p", "one probability in [0, 1]", p)
    sizes, upper, lower = as_counts("looks", looks), as_counts("certified", certified), as_counts("given_up", given_up)
    if sizes.ndim != 1 or not len(sizes) or not sizes.shape == upper.shape == lower.shape:
        shapes = f"{sizes.shape}, {upper.shape} and {lower.shape}"
        raise InputError("looks, certified, given_up", "three lists of the same length", f"shapes {shapes}")
    steps = np.diff(sizes, prepend=0)
    if (steps < 1).any():
        position = int(np.argmax(steps < 1))
        raise InputError("looks", "increasing sample sizes of at least 1", f"{sizes[position]} at position {position}")
    if (lower >= upper).any():
        look = int(np.argmax(lower >= upper))
        raise InputError(
            "given_up",
            "counts below the certifying ones",
            f"{lower[look]} given up and {upper[look]} certified at look {sizes[look]}",
        )

    binomials, undecided = _Binomials(float(probability)), _Distribution(0, np.ones(1), 0.0)
    p_certified = p_given_up = samples = 0.0
    last = 0
    for n, step, c, g in zip(sizes.tolist(), steps.tolist(), upper.tolist(), lower.tolist(), strict=True):
        reached = undecided.convolved(binomials[step])
        last = n
        low = min(max(g + 1 - reached.first, 0), len(reached.mass))
        high = min(max(c - reached.first, low), len(reached.mass))
        stopped, proved = float(reached.mass[:low].sum()), float(reached.mass[high:].sum())
        p_certified, p_given_up = p_certified + proved, p_given_up + stopped
        samples += n * (proved + stopped)
        undecided = _Distribution(reached.first + low, reached.mass[low:high], reached.dropped)
        if not len(undecided.mass):
            break
    p_undecided = float(undecided.mass.sum())
    return LatticeOutcome(
        p_certified, p_given_up, p_undecided, samples + last * p_undecided, undecided.dropped, _ROUNDING * last
    )


def exact_error(rule: SequentialRule, p0: float) -> LatticeOutcome:
    """Compute the exact probability that a rule falsely certifies p >= p0, the largest over all p < p0.

    Every certificate of an image with p below p0 is false. The probability of a certificate increases with p, so the
    result is the largest error over all p < p0.

    Args:
        rule: the sequential rule.
        p0: threshold, in (0, 1).

    Returns:
        The outcome at p = p0; ``certified_at_most`` bounds the error probability.

    Raises:
        InputError: p0 is out of range.

    >>> exact_error(SequentialRule(1000, alpha=0.01), 0.84).certified_at_most < 0.01
    True
    """
    return lattice_outcome(p0, rule.looks, *rule.counts(p0))
