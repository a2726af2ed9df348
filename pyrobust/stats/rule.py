"""When an image of a sequential run is certified and when it is given up: tables of counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from pyrobust.checks import number
from pyrobust.errors import InputError
from pyrobust.stats.arguments import CountArray
from pyrobust.stats.binomial import clopper_pearson_lower
from pyrobust.stats.sequence import looks, sequence_boundary
from pyrobust.stats.stopping import least_worth

#: The share of alpha that the bound at n_max has where none is said.
SHARE_AT_END: Final = 0.01


def fixed_count(n: int, p0: float, alpha: float) -> int:
    """The least count of n whose Clopper-Pearson lower bound reaches p0, by bisection.

    Args:
        n: in [1, 10**9].
        p0: in (0, 1).
        alpha: of the bound, in (0, 1).

    Returns:
        In [1, n + 1]; n + 1 where not even n successes are enough.

    Raises:
        InputError: a value out of range.
        InputTypeError: n is not an integer, or alpha is not a number.

    >>> fixed_count(100_000, 0.84, 0.001), fixed_count(10, 0.84, 0.001)
    (84358, 11)
    """
    if not 0.0 < number("p0", p0) < 1.0:
        raise InputError(f"p0: expected a number strictly between 0 and 1, got {p0}")
    below, above = 0, n + 1
    while above - below > 1:
        middle = (below + above) // 2
        if clopper_pearson_lower(middle, n, alpha) >= p0:
            above = middle
        else:
            below = middle
    return above


@dataclass(frozen=True)
class SequentialRule:
    """Decisions on "p >= p0" that depend on the counts at fixed looks and on nothing else.

    Certified: the lower limit of the confidence sequence has reached p0, at any look. The hybrid keeps a share of alpha
    for one Clopper-Pearson bound, at n_max; the sequence has the rest, so that both together err with probability at
    most alpha (union bound). That bound needs fewer successes at n_max, and the sequence more samples at every look.

    Given up: a certificate is no longer worth the samples that it would take on average (``stopping``). That needs no
    part of alpha, since nothing is certified by it; the price only sets how many certificates are lost. Who keeps alpha
    for n_max wants to get there: the price falls with the square of what the sequence has of alpha.

    Undecided: neither up to n_max.

    Attributes:
        n_max: samples at which sampling ends.
        alpha: probability of a false certificate, of one image, for all p0 together.
        hybrid: share of alpha in [0, 1) that the bound at n_max has; 0 for the sequence alone. A hundredth costs the
            sequence next to nothing and is a better bound at n_max than its own.
        price: of n_max samples, in certificates: at 0.5 they are worth drawing for a chance of one in two. Where the
            sequence has less than all of alpha it is lowered.

    Raises:
        InputError: n_max, alpha, hybrid or price out of range.
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
        """Check the numbers."""
        if not 0.0 < number("alpha", self.alpha) < 1.0:
            raise InputError(f"alpha: expected a number strictly between 0 and 1, got {self.alpha}")
        if not 0.0 < number("price", self.price) < math.inf:
            raise InputError(f"price: expected a positive finite number of certificates, got {self.price}")
        if not 0.0 <= number("hybrid", self.hybrid) < 1.0:
            raise InputError(f"hybrid: expected a share of alpha in [0, 1), got {self.hybrid}")
        if not self.alpha_sequence > 0.0:
            raise InputError(f"hybrid: expected a share that leaves the sequence some alpha, got {self.hybrid}")
        if self.hybrid and not self.alpha_fixed > 0.0:
            raise InputError(f"hybrid: expected 0 or a share that is some of alpha {self.alpha}, got {self.hybrid}")
        _ = self.looks

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Sample sizes at which an image is judged."""
        return looks(self.n_max)

    @property
    def alpha_fixed(self) -> float:
        """What of alpha the bound at n_max has."""
        return self.alpha * self.hybrid

    @property
    def alpha_sequence(self) -> float:
        """What of alpha the confidence sequence has: the rest, rounded down."""
        if not self.hybrid:
            return self.alpha
        return math.nextafter(self.alpha - self.alpha_fixed, 0.0)

    @property
    def sample_price(self) -> float:
        """Of one sample, in certificates."""
        return self.price * (1.0 - self.hybrid) ** 2 / self.n_max

    def target(self, p0: float) -> float:
        """The least frequency that certifies p0 at n_max: what p has to be believed to reach for sampling to go on.

        Args:
            p0: in (0, 1).

        Returns:
            In (0, 1]; 2.0 where no count at n_max certifies, so that all is given up.

        Raises:
            InputError: p0 out of range.

        >>> SequentialRule(100_000, hybrid=0.0).target(0.84), SequentialRule(100_000, hybrid=0.5).target(0.84)
        (0.84586, 0.84381)
        """
        least = int(sequence_boundary(self.n_max, p0, self.alpha_sequence)[0])
        if self.hybrid:
            least = min(least, fixed_count(self.n_max, p0, self.alpha_fixed))
        return least / self.n_max if least <= self.n_max else 2.0

    def counts(self, p0: float) -> tuple[CountArray, CountArray]:
        """The counts that decide on p0.

        Args:
            p0: in (0, 1).

        Returns:
            Per look the least count that certifies (more than the look's samples where none does), and the greatest
            that gives up (-1 where none does). Read-only: they are kept for the next call.

        Raises:
            InputError: p0 out of range.
        """
        return _counts(self, p0)


@lru_cache(maxsize=256)
def _counts(rule: SequentialRule, p0: float) -> tuple[CountArray, CountArray]:
    n, target = np.array(rule.looks), rule.target(p0)
    certified, _ = sequence_boundary(n, p0, rule.alpha_sequence)
    if target > 1.0:  # nor would all successes do at an earlier look
        given_up = n
    else:
        certified[-1] = min(certified[-1], round(target * rule.n_max))
        given_up = least_worth(n, certified, target, rule.sample_price)
    for table in (certified, given_up):
        table.setflags(write=False)
    return certified, given_up
