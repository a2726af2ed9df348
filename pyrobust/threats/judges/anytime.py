"""Intervals of a success rate that hold at all times: for evaluations that are stopped when they look decided."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pyrobust.checks import integer, items, probability
from pyrobust.errors import InputError
from pyrobust.frames import Tabular
from pyrobust.stats import looks as usual_looks
from pyrobust.stats import population_sequence, sequence_lower, sequence_upper

from .means import bets, checked_shares, log_wealth
from .region import FloatArray


@dataclass(frozen=True)
class AnytimeRate(Tabular):
    """Bounds on a success rate after some numbers of prompts, all of which hold together; see ``anytime_rate``.

    Attributes:
        n: [T], numbers of prompts seen.
        values: [T], mean of the prompts seen.
        lower, upper: [T], bounds; the best so far at each look.
        alpha: upper bound on the probability that the rate is ever outside.
        method: "mixture", "betting" or "population".
    """

    n: npt.NDArray[np.int64]
    values: FloatArray
    lower: FloatArray
    upper: FloatArray
    alpha: float
    method: Literal["mixture", "betting", "population"]

    def __repr__(self) -> str:
        at = f"n={self.n[-1]}, value={self.values[-1]:.6g}, lower={self.lower[-1]:.6g}, upper={self.upper[-1]:.6g}"
        return f"AnytimeRate({at}, alpha={self.alpha:g}, method={self.method!r})"

    def decided(self, threshold: float) -> int | None:
        """Number of prompts at the first look where the interval excludes a threshold; None if it never does.

        Stopping there and stating the side on which the rate lies errs with probability at most alpha.

        Args:
            threshold: a rate in [0, 1].
        """
        excluded = (self.lower > threshold) | (self.upper < threshold)
        return int(self.n[excluded.argmax()]) if excluded.any() else None

    def _columns(self) -> dict[str, Any]:
        return {"n": self.n, "value": self.values, "lower": self.lower, "upper": self.upper}

    def _attributes(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "method": self.method}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists, a list for each column."""
        return {name: column.tolist() for name, column in self._columns().items()} | self._attributes()


def anytime_rate(
    values: npt.ArrayLike,
    alpha: float = 0.05,
    *,
    binary: bool = False,
    population: int | None = None,
    looks: Iterable[int] | None = None,
) -> AnytimeRate:
    """Bounds on a success rate that may be inspected after any prompt, any number of times.

    Prompts (or clusters of attempts, with the share of their successes) come in the order of ``values`` and are
    independent draws: the rate is the mean of their distribution. An ordinary 95 % interval that is inspected until it
    excludes a threshold excludes the truth far more often than in 5 % of evaluations; these bounds do so at most with
    probability alpha, over all looks together.

    - "betting" (Waudby-Smith and Ramdas, 2024), the default: shares in [0, 1]; follows their variance.
    - "mixture" (Krichevsky and Trofimov, 1981), with ``binary``: failures and successes only.
    - "population", with ``population``: prompts of a finite list in random order, each seen once; binary. The rate is
      that of the list, and the interval closes as the list ends.

    Args:
        values: [N >= 1], in [0, 1]; each prompt's success, or each cluster's share of successes.
        alpha: upper bound on the probability that the rate is ever outside its bounds, in (0, 1).
        binary: whether every value is 0 or 1 by the design of the evaluation.
        population: number of prompts in the list, at least N.
        looks: numbers of prompts after which bounds are wanted, increasing, at most N; by default at steps of 1/16, and
            N. Each costs time; alpha is the same.

    Returns:
        AnytimeRate.

    Raises:
        InputError: a value, alpha, population or look out of range, or values other than 0 and 1 in a binary sequence.
        InputTypeError: values that are not numbers.

    >>> rng = np.random.default_rng(0)
    >>> rate = anytime_rate(rng.random(2000) < 0.2, binary=True)
    >>> rate.decided(0.3)
    176
    """
    level = probability("alpha", alpha, "0.05 is usual")
    shares = checked_shares("values", np.asarray(values, dtype=np.float64) if _is_bool(values) else values)
    total = len(shares)
    at = np.array(_checked_looks(looks, total))
    sums = np.cumsum(shares)[at - 1]
    if binary or population is not None:
        wrong = (shares != 0.0) & (shares != 1.0)
        if wrong.any():
            raise InputError(
                f"values: expected 0 or 1, got {shares[wrong.argmax()]} at index {int(wrong.argmax())}; leave out "
                "binary= and population= for shares"
            )
        won = sums.astype(np.int64)
        if population is not None:
            size = integer("population", population, total, 10**9)
            least, most = population_sequence(won, at, size, level)
            lower, upper = least / size, most / size
        else:
            lower, upper = sequence_lower(won, at, level), sequence_upper(won, at, level)
    else:
        if level / 2 == 0:
            raise InputError(f"alpha: expected a number whose half is above 0, got {level}")
        lower, upper = _betting(shares, at, level / 2), 1.0 - _betting(1.0 - shares, at, level / 2)
    method: Literal["mixture", "betting", "population"] = (
        "population" if population is not None else "mixture" if binary else "betting"
    )
    best = np.maximum.accumulate(lower), np.minimum.accumulate(upper)
    return AnytimeRate(at, sums / at, *best, level, method)


def _is_bool(values: Any) -> bool:
    return np.asarray(values).dtype == np.bool_


def _checked_looks(looks: Iterable[int] | None, total: int) -> list[int]:
    if looks is None:
        return [*range(1, min(total, 16)), *(n for n in usual_looks(total) if n >= min(total, 16))]
    numbers = [integer("looks", n, 1, total) for n in items("looks", looks, "integers")]
    if not numbers or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(f"looks: expected increasing numbers of prompts, got {numbers[:5]}")
    return numbers


def _betting(values: FloatArray, at: npt.NDArray[np.int64], alpha: float) -> FloatArray:
    """Lower bounds at looks, by bisection at each of them, starting from the bound of the look before."""
    bet, goal = bets(values, alpha), -math.log(alpha) * (1 + 1e-12)
    bounds, known = [], 0.0
    for n in at.tolist():
        seen, stake = values[:n], bet[:n]

        def beaten(mean: float, seen: FloatArray = seen, stake: FloatArray = stake) -> bool:
            return bool(log_wealth(seen, stake, mean).max() >= goal)

        low, high = known, 1.0
        while high - low > 1e-7:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if beaten(middle) else (low, middle)
        known = low
        bounds.append(known)
    return np.array(bounds)
