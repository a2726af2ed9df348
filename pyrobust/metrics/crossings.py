"""How many confirmed attacks inside certified balls can be due to chance, if the certificates are probabilistic.

A crossing is an adversarial example inside a certified ball. With deterministic certificates, a single crossing proves
an error. A probabilistic certificate is false with probability at most alpha. The test that confirms an attack on a
smoothed classifier is wrong with probability at most alpha_attack. A few crossings are therefore to be expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from scipy import special

from pyrobust.checks import count, integer, numbers, probability, share
from pyrobust.errors import InputError
from pyrobust.frames import plain_fields
from pyrobust.stats import fixed_count


@dataclass(frozen=True)
class CrossingRule:
    """Largest number of crossings that chance can explain; a run with more crossings fails. Made by ``crossing_rule``.

    Attributes:
        n: number of all examples, abstentions included.
        alpha: upper bound on the probability that a certificate is false.
        alpha_attack: upper bound on the probability that an attack is confirmed wrongly.
        false_alarm: upper bound on the probability that a run with correct certificates fails.
        most: largest number of crossings with which a run passes.
    """

    n: int
    alpha: float
    alpha_attack: float
    false_alarm: float
    most: int

    def fails(self, crossings: int) -> bool:
        """Whether a run with this many crossings fails.

        Args:
            crossings: number of examples with a confirmed crossing, in [0, n].

        Returns:
            ``crossings > most``.

        Raises:
            InputError: a number outside [0, n].
            InputTypeError: a number that is not an integer.

        >>> crossing_rule(1000, 0.001, 0.001).fails(7)
        True
        """
        return integer("crossings", crossings, 0, self.n) > self.most

    def power(self, rate: float) -> float:
        """Probability that the run fails if each example is a crossing with probability ``rate``, independently.

        Args:
            rate: probability of a crossing, in [0, 1].

        Returns:
            ``P(Bin(n, rate) > most)``, to scipy's accuracy.

        Raises:
            InputError: a rate outside [0, 1].
            InputTypeError: a rate that is not a number.

        >>> round(crossing_rule(1000, 0.001, 0.001).power(0.01), 2)
        0.87
        """
        rate = share("rate", rate)
        return float(special.betainc(self.most + 1, self.n - self.most, rate)) if self.most < self.n else 0.0

    to_dict = plain_fields


def crossing_rule(n: int, alpha: float, alpha_attack: float, false_alarm: float = 0.01) -> CrossingRule:
    """Return the rule that fails a run of probabilistic certificates with more crossings than chance can explain.

    An example is a crossing by chance only if its certificate is false or its attack is confirmed wrongly; this happens
    with probability at most ``alpha + alpha_attack``. Assume that the noise is independent between examples, and that
    the confirming test uses noise that neither the certificate nor the attack has used. The number of chance crossings
    is then stochastically dominated by ``Bin(n, alpha + alpha_attack)``. The rule's ``most`` is the quantile of this
    distribution at ``1 - false_alarm``, so that more than ``most`` chance crossings occur with probability at most
    false_alarm. ``fixed_count`` computes the quantile rigorously, with ``alpha + alpha_attack`` rounded up.

    Args:
        n: number of all examples for which certification was attempted, abstentions included, in [1, 10**9].
        alpha: error probability of each certificate, in (0, 1); if each example takes the best of several certificates,
            pass the ``union_bound`` of their error probabilities.
        alpha_attack: error probability of the confirming test of each example, in (0, 1).
        false_alarm: allowed probability that a run fails by chance, in (0, 1).

    Returns:
        CrossingRule.

    Raises:
        InputError: a value out of range, or ``alpha + alpha_attack`` of at least 1.
        InputTypeError: n is not an integer, or a probability is not a number.

    >>> crossing_rule(1000, 0.001, 0.001).most
    6
    """
    n = count("n", n)
    alpha, alpha_attack = probability("alpha", alpha), probability("alpha_attack", alpha_attack)
    false_alarm = probability("false_alarm", false_alarm)
    chance = union_bound([alpha, alpha_attack])
    if chance >= 1:
        raise InputError("alpha, alpha_attack", "a sum below 1", f"{alpha} + {alpha_attack}")
    return CrossingRule(n, alpha, alpha_attack, false_alarm, fixed_count(n, chance, false_alarm) - 1)


def union_bound(alphas: Iterable[float]) -> float:
    """Bound on the probability that any of several errors occurs, ``min(1, Σ alphas)``, rounded up.

    If an example's radius is the best of several probabilistic certificates, this radius is false only if at least one
    of these certificates is false. The bound limits the probability of this.

    Args:
        alphas: error probabilities in [0, 1], at least one.

    Returns:
        The bound; the error probability itself if there is only one.

    Raises:
        InputError: no error probabilities, or a value out of range.
        InputTypeError: values that are not numbers.

    >>> union_bound([0.25, 0.5]), union_bound([0.75, 0.5])
    (0.75, 1.0)
    """
    values = numbers("alphas", alphas)
    if not values:
        raise InputError("alphas", "at least one error probability", "none")
    for index, value in enumerate(values):
        if not 0 <= value <= 1:
            raise InputError("alphas", "numbers in [0, 1]", f"{value} at index {index}")
    exact = sum(map(Fraction, values), Fraction(0))
    nearest = float(exact)
    return min(1.0, nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf))
