"""A share of examples with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

from pyrobust.checks import probability
from pyrobust.frames import plain_fields
from pyrobust.stats import clopper_pearson_lower, clopper_pearson_upper


@dataclass(frozen=True)
class Rate:
    """A share of examples with its confidence interval; ``float(rate)`` is the share.

    The interval is for examples drawn independently from one distribution: it covers the share in that distribution
    with probability at least 1 - alpha. It says nothing about stronger attacks.

    Attributes:
        successes: number of examples that count.
        n: number of all examples.
        value: successes / n.
        lower, upper: ends of the two-sided confidence interval.
        alpha: upper bound on the probability that the interval misses.
    """

    successes: int
    n: int
    value: float
    lower: float
    upper: float
    alpha: float

    def __float__(self) -> float:
        return self.value

    to_dict = plain_fields


def estimate_rate(successes: int, n: int, alpha: float = 0.05) -> Rate:
    """Estimate the share ``successes / n`` with its two-sided interval (Clopper and Pearson, 1934).

    Each end is the one-sided bound at alpha / 2, rounded outward; 0 if nothing succeeded, 1 if everything did.

    Args:
        successes: number of examples that count, in [0, n].
        n: number of examples, at least 1.
        alpha: upper bound on the probability that the interval misses, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: a value out of range.
        InputTypeError: counts that are not integers, or an alpha that is not a number.

    >>> rate = estimate_rate(8, 10)
    >>> f"{float(rate):.2f} in [{rate.lower:.3f}, {rate.upper:.3f}]"
    '0.80 in [0.444, 0.975]'
    """
    half = checked_alpha(alpha) / 2
    lower, upper = clopper_pearson_lower(successes, n, half), clopper_pearson_upper(successes, n, half)
    return Rate(int(successes), int(n), int(successes) / int(n), lower, upper, float(alpha))


def checked_alpha(alpha: float) -> float:
    """Check that alpha is a number in (0, 1)."""
    return probability("alpha", alpha, "0.05 is usual")
