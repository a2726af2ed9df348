"""A share of examples with a confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from pyrobust.checks import integer, probability
from pyrobust.errors import InputError
from pyrobust.stats import clopper_pearson_lower, clopper_pearson_upper


@dataclass(frozen=True)
class Rate:
    """A share of examples with its confidence interval; ``float(rate)`` is the share.

    If the examples are drawn independently from one distribution, the interval covers the share in this distribution
    with probability at least 1 - alpha. The interval says nothing about stronger attacks. The interval is computed when
    it is first used.

    Attributes:
        successes: number of examples that count as successes.
        n: number of all examples; if 0, the share is NaN and its interval is [0, 1].
        alpha: upper bound on the probability that the interval misses.
    """

    successes: int
    n: int
    alpha: float

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"Rate({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    @property
    def value(self) -> float:
        """The share, successes / n."""
        return self.successes / self.n if self.n else math.nan

    @cached_property
    def lower(self) -> float:
        """Lower end of the two-sided interval (Clopper and Pearson, 1934), rounded outward."""
        return clopper_pearson_lower(self.successes, self.n, self.alpha / 2) if self.n else 0.0

    @cached_property
    def upper(self) -> float:
        """Upper end of the two-sided interval (Clopper and Pearson, 1934), rounded outward."""
        return clopper_pearson_upper(self.successes, self.n, self.alpha / 2) if self.n else 1.0

    def to_dict(self) -> dict[str, int | float]:
        """Convert to a dictionary of the counts, the share, its interval and alpha."""
        return {name: getattr(self, name) for name in ("successes", "n", "value", "lower", "upper", "alpha")}


def estimate_rate(successes: int, n: int, alpha: float = 0.05) -> Rate:
    """Estimate the share ``successes / n`` with its two-sided interval (Clopper and Pearson, 1934).

    Each end is the one-sided bound at alpha / 2, rounded outward; the lower end is 0 if no example is a success, and
    the upper end is 1 if all examples are.

    Args:
        successes: number of examples that count as successes, in [0, n].
        n: number of examples, in [1, 10**9].
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
    alpha = checked_alpha(alpha)
    successes, n = integer("successes", successes, 0), integer("n", n, 1, 10**9)
    if successes > n:
        raise InputError("successes", f"at most n, {n}", successes)
    return Rate(successes, n, alpha)


def checked_alpha(alpha: float) -> float:
    """Check that alpha is a number in (0, 1)."""
    return probability("alpha", alpha, "0.05 is usual")
