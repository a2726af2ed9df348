"""Sequential decision rule: the counts at which an image is certified or given up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from pyrobust.checks import count, number, positive, probability
from pyrobust.errors import InputError
from pyrobust.stats.arguments import MAX_TRIALS, SHARE_AT_END, CountArray
from pyrobust.stats.binomial import fixed_count
from pyrobust.stats.sequence import sequence_boundary
from pyrobust.stats.stopping import futility_counts


def looks(n_max: int) -> tuple[int, ...]:
    """Sample sizes at which an image is judged.

    The sample sizes are fixed in advance, so that no decision depends on the batch size.

    The step from one sample size to the next is about 1/16 of the sample size, and at least 16 samples. Only the last
    step, which ends at n_max, may be smaller. A confidence sequence holds at all sample sizes, so additional looks use
    no part of alpha. Compared with a judgement after every sample, a decision is delayed at most until the next look.

    Args:
        n_max: last sample size, in [1, 10**9].

    Returns:
        Increasing integers, the last one n_max.

    Raises:
        InputError: n_max is out of range.
        InputTypeError: n_max is not an integer.

    >>> looks(100)
    (16, 32, 48, 64, 80, 96, 100)
    >>> len(looks(100_000))
    115
    """
    n_max = count("n_max", n_max, MAX_TRIALS)
    sizes, n = [], 16
    while n < n_max:
        sizes.append(n)
        n += max(16, n // 16)
    return (*sizes, n_max)


@dataclass(frozen=True)
class SequentialRule:
    """Rule that certifies p >= p0 or gives up, from the counts of successes at sample sizes fixed in advance (looks).

    An image is certified if the lower limit of the confidence sequence has reached p0 at some look. A hybrid rule
    reserves a share of alpha for one Clopper-Pearson bound at n_max. The sequence gets the rest of alpha. By the union
    bound, the probability that one of the two fails is at most alpha. The larger the reserved share, the fewer
    successes the Clopper-Pearson bound needs at n_max, and the more evidence the sequence needs at every look.

    An image is given up if a certificate is no longer worth the expected number of samples that it would take
    (``pyrobust.stats.stopping``). Giving up certifies nothing, so it uses no part of alpha. The price of the samples
    only determines how many certificates are lost. The more alpha is reserved for n_max, the more images have to reach
    n_max to be certified. To give up fewer of them, the price is multiplied by the square of the sequence's share of
    alpha, (1 - ``hybrid``)**2.

    By ``counts``, every image is certified or given up by n_max samples. Sequential certification
    (`pyrobust.smoothing`) gives up fewer images at n_max, and calls the others undecided.

    Attributes:
        n_max: sample size at which sampling ends.
        alpha: allowed probability that an image is falsely certified. If an image is tested at several p0, this is the
            allowed probability of a false certificate for at least one of them.
        hybrid: share of alpha that the bound at n_max takes, in [0, 1). With 0, the sequence gets all of alpha. A share
            of 0.01 hardly changes the sequence. From an n_max of a few hundred samples on, it usually gives a better
            bound at n_max than the sequence does; for fewer samples, the sequence's bound is often better.
        price: cost of n_max samples in units of the value of a certificate. With a price of 0.5, for example, n_max
            samples are worth drawing if they give a certificate with probability 1/2. If ``hybrid`` is above 0, the
            rule lowers this price, as explained above.

    Raises:
        InputError: n_max, alpha, hybrid or price is out of range.
        InputTypeError: n_max is not an integer.

    >>> rule = SequentialRule(1000)
    >>> certified, given_up = rule.counts(0.9)
    >>> rule.looks[-3:], certified[-3:], given_up[-3:]
    ((897, 953, 1000), array([846, 898, 939]), array([837, 891, 938]))
    """

    n_max: int
    alpha: float = 0.001
    hybrid: float = SHARE_AT_END
    price: float = 0.5

    def __post_init__(self) -> None:
        """Check the parameters."""
        probability("alpha", self.alpha)
        positive("price", self.price)
        if not 0.0 <= number("hybrid", self.hybrid) < 1.0:
            raise InputError("hybrid", "a share of alpha in [0, 1)", self.hybrid)
        if not self.alpha_sequence > 0.0:
            raise InputError("hybrid", "a share that leaves the sequence some alpha", self.hybrid)
        if self.hybrid and not self.alpha_fixed > 0.0:
            raise InputError("hybrid", f"0 or a share of alpha {self.alpha} that does not round to 0", self.hybrid)
        _ = self.looks  # this checks n_max

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Sample sizes at which an image is judged."""
        return looks(self.n_max)

    @property
    def alpha_fixed(self) -> float:
        """Part of alpha that the Clopper-Pearson bound at n_max gets."""
        return self.alpha * self.hybrid

    @property
    def alpha_sequence(self) -> float:
        """Part of alpha that the confidence sequence gets: alpha minus ``alpha_fixed``, rounded down."""
        if not self.hybrid:
            return self.alpha
        return math.nextafter(self.alpha - self.alpha_fixed, 0.0)

    @property
    def sample_price(self) -> float:
        """Price of one sample, in units of the value of a certificate."""
        return self.price * (1.0 - self.hybrid) ** 2 / self.n_max

    def target(self, p0: float) -> float:
        """Smallest frequency of successes that certifies p >= p0 at n_max.

        Args:
            p0: threshold, in (0, 1).

        Returns:
            A frequency in (0, 1]. If no count at n_max certifies, it is 2.0, so that every image is given up.

        Raises:
            InputError: p0 is out of range.

        >>> SequentialRule(100_000, hybrid=0.0).target(0.84), SequentialRule(100_000, hybrid=0.5).target(0.84)
        (0.84586, 0.84381)
        """
        needed = int(sequence_boundary(self.n_max, p0, self.alpha_sequence)[0])
        if self.hybrid:
            needed = min(needed, fixed_count(self.n_max, p0, self.alpha_fixed))
        return needed / self.n_max if needed <= self.n_max else 2.0

    def counts(self, p0: float) -> tuple[CountArray, CountArray]:
        """Counts at which p >= p0 is certified or given up.

        Args:
            p0: threshold, in (0, 1).

        Returns:
            Two int64 arrays with one count per look. The first holds the smallest count that certifies, or a number
            above the look's sample size if no count certifies. The second holds the largest count at which the image is
            given up, or -1 if there is none. The arrays are read-only, because they are cached.

        Raises:
            InputError: p0 is out of range.
        """
        return _counts(self, p0)


@lru_cache(maxsize=256)
def _counts(rule: SequentialRule, p0: float) -> tuple[CountArray, CountArray]:
    n, target = np.array(rule.looks), rule.target(p0)
    certified, _ = sequence_boundary(n, p0, rule.alpha_sequence)
    if target > 1.0:  # then n successes out of n would not certify at any earlier look either
        given_up = n
    else:
        certified[-1] = min(certified[-1], round(target * rule.n_max))
        given_up = futility_counts(n, certified, target, rule.sample_price)
    for table in (certified, given_up):
        table.setflags(write=False)
    return certified, given_up
