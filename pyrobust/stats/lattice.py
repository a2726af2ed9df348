"""What a rule of counts does, exactly: the law of the successes carried from look to look, decided mass taken out.

No probability is subtracted from another: everything is a sum of products of positive doubles, so relative errors only
add up, at most a few units of rounding per sample. Mass in the far tails is dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pyrobust.errors import InputError
from pyrobust.stats.arguments import FloatArray, as_counts, as_real
from pyrobust.stats.rule import SequentialRule

# Relative error per sample. With u = 2^-53: the law of k trials, by doubling, k u (1 + log2(k) / 2), at most 15 k u for
# k <= MAX_TRIALS; its convolution with the law so far k u; summing up what is decided, two more. That is below 2^-48.
_ROUNDING: Final = 2.0**-48
# A probability below it at the edge of a law is dropped.
_NEGLIGIBLE: Final = 1e-30


@dataclass(frozen=True)
class LatticeOutcome:
    """Probabilities of the three ends of an image with a given p, and how far they may be off.

    Attributes:
        certified: of being certified.
        given_up: of being given up.
        undecided: of neither, up to the last look.
        samples: expected number of samples.
        dropped: probability that was not followed.
        rounding: bound of the relative error of all of them.

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
        """Upper bound of the exact probability of being certified."""
        return (self.certified + self.dropped) * (1 + self.rounding)

    @property
    def given_up_at_most(self) -> float:
        """Upper bound of the exact probability of being given up."""
        return (self.given_up + self.dropped) * (1 + self.rounding)


@dataclass(frozen=True)
class _Law:
    """Probabilities of the counts first, first + 1, ...; and what is missing in them."""

    first: int
    mass: FloatArray
    dropped: float

    def trimmed(self) -> _Law:
        some = np.flatnonzero(self.mass >= _NEGLIGIBLE)
        if not len(some):
            return _Law(self.first, self.mass[:0], self.dropped + float(self.mass.sum()))
        low, high = some[0], some[-1] + 1
        lost = float(self.mass[:low].sum() + self.mass[high:].sum())
        return _Law(self.first + int(low), self.mass[low:high], self.dropped + lost)

    def plus(self, other: _Law) -> _Law:
        """The law of the sum of two independent counts."""
        mass = np.convolve(self.mass, other.mass) if len(self.mass) and len(other.mass) else self.mass[:0]
        return _Law(self.first + other.first, mass, self.dropped + other.dropped).trimmed()


class _Trials:
    """Laws of the successes of k trials, made by doubling and kept."""

    def __init__(self, p: float) -> None:
        self._laws = {0: _Law(0, np.ones(1), 0.0), 1: _Law(0, np.array([1.0 - p, p]), 0.0).trimmed()}

    def of(self, k: int) -> _Law:
        if k not in self._laws:
            half = self.of(k // 2)
            self._laws[k] = half.plus(half) if k % 2 == 0 else self.of(k - 1).plus(self.of(1))
        return self._laws[k]


def lattice_outcome(
    p: float, looks: npt.ArrayLike, certified: npt.ArrayLike, given_up: npt.ArrayLike
) -> LatticeOutcome:
    """What becomes of an image whose samples are right with probability p, by dynamic programming over the counts.

    Args:
        p: in [0, 1].
        looks: increasing sample sizes at which the count is judged.
        certified: per look the least count that certifies, as SequentialRule.counts gives it.
        given_up: per look the greatest count that gives up, below the former.

    Returns:
        The probabilities and the expected number of samples, with their error.

    Raises:
        InputError: p out of range, looks that do not increase from at least 1, or arrays of other lengths.
        InputTypeError: counts that are not integers, or p is not a number.

    >>> rule = SequentialRule(10_000)
    >>> outcome = lattice_outcome(0.9, rule.looks, *rule.counts(0.84))
    >>> f"{outcome.certified:.6f} certified after {outcome.samples:.0f} samples"
    '0.999632 certified after 698 samples'
    """
    chance = as_real("p", p)
    if chance.ndim or not 0.0 <= chance <= 1.0:
        raise InputError(f"p: expected one probability, got {p}")
    sizes, least, most = as_counts("looks", looks), as_counts("certified", certified), as_counts("given_up", given_up)
    if sizes.ndim != 1 or not len(sizes) or not sizes.shape == least.shape == most.shape:
        shapes = f"{sizes.shape}, {least.shape} and {most.shape}"
        raise InputError(f"looks, certified, given_up: expected three lists of one length, got shapes {shapes}")
    steps = np.diff(sizes, prepend=0)
    if (steps < 1).any():
        raise InputError("looks: expected increasing sample sizes of at least 1")
    if (most >= least).any():
        raise InputError("given_up: expected counts below those that certify")

    trials, law = _Trials(float(chance)), _Law(0, np.ones(1), 0.0)
    up = down = samples = 0.0
    end = 0
    for n, step, c, g in zip(sizes.tolist(), steps.tolist(), least.tolist(), most.tolist(), strict=True):
        law = law.plus(trials.of(step))
        end = n
        low = min(max(g + 1 - law.first, 0), len(law.mass))
        high = min(max(c - law.first, low), len(law.mass))
        lost, won = float(law.mass[:low].sum()), float(law.mass[high:].sum())
        up, down, samples = up + won, down + lost, samples + n * (won + lost)
        law = _Law(law.first + low, law.mass[low:high], law.dropped)
        if not len(law.mass):
            break
    undecided = float(law.mass.sum())
    return LatticeOutcome(up, down, undecided, samples + end * undecided, law.dropped, _ROUNDING * end)


def exact_error(rule: SequentialRule, p0: float) -> LatticeOutcome:
    """What becomes of an image with p just below p0 when p >= p0 is to be decided: every certificate is an error.

    The probability of a certificate rises with p, so that this is the largest error of all p < p0.

    Args:
        rule: of the run.
        p0: in (0, 1).

    Returns:
        The outcome at p = p0; ``certified_at_most`` bounds the error.

    Raises:
        InputError: p0 out of range.

    >>> exact_error(SequentialRule(1000, alpha=0.01), 0.84).certified_at_most < 0.01
    True
    """
    return lattice_outcome(p0, rule.looks, *rule.counts(p0))
