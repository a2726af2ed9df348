"""Paired comparisons: the same examples, judged twice, at one budget or at several radii."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import choice, non_negatives, summary
from pyrobust.errors import InputError
from pyrobust.frames import Tabular, columns_of, plain_fields
from pyrobust.stats import binomial_test, holm
from pyrobust.stats.binomial import Alternative

from .arguments import checked_flags
from .shares import checked_bounds, is_certified


@dataclass(frozen=True)
class PairedComparison:
    """Two outcomes for each of n examples, and the test of whether the rates of the two outcomes differ.

    Attributes:
        both: number of examples with both outcomes.
        only_first: number of examples with only the first outcome.
        only_second: number of examples with only the second outcome.
        neither: number of examples with neither outcome.
        p_value: the probability of counts at least as extreme as these if the alternative is false. It is rounded up,
            so it is never below the exact p-value.
        alternative: what is tested, "greater" (the first outcome is more frequent), "less" (it is less frequent) or
            "two-sided" (the frequencies differ).
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float
    alternative: Alternative

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Share of examples with the first outcome minus share of examples with the second."""
        return (self.only_first - self.only_second) / self.n

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary of all fields, with the difference."""
        return plain_fields(self) | {"difference": self.difference}


def paired_test(
    first: Tensor | npt.NDArray[Any], second: Tensor | npt.NDArray[Any], alternative: Alternative = "two-sided"
) -> PairedComparison:
    """Compare two outcomes of the same examples, such as "correct" for two models or "fooled" for two attacks.

    This is the exact form of McNemar's test (McNemar, 1947). Examples with both outcomes or neither carry no
    information about a difference. If the two rates are equal, each remaining example has the first outcome with
    probability 1/2, so that ``only_first`` ~ Bin(only_first + only_second, 1/2). The examples are assumed to be drawn
    independently from one distribution.

    Args:
        first: bool [N], N ≥ 1, the first outcome of each example.
        second: bool [N], the second outcome of each example.
        alternative: "greater" asks whether the first outcome is more frequent, "less" whether it is less frequent,
            "two-sided" whether the frequencies differ.

    Returns:
        PairedComparison.

    Raises:
        InputError: mismatched lengths, no examples, or an unknown alternative.
        InputTypeError: outcomes that are not bool tensors or arrays.

    >>> import torch
    >>> first, second = torch.ones(8, dtype=torch.bool), torch.tensor([True, True] + 6 * [False])
    >>> comparison = paired_test(first, second, "greater")
    >>> comparison.both, comparison.only_first, comparison.only_second, round(comparison.p_value, 6)
    (2, 6, 0, 0.015625)
    """
    a = checked_flags("first", first)
    b = checked_flags("second", second, len(a))
    choice("alternative", alternative, ("two-sided", "greater", "less"))
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    differ = only_first + only_second
    return PairedComparison(
        both=int((a & b).sum()),
        only_first=only_first,
        only_second=only_second,
        neither=int((~a & ~b).sum()),
        p_value=float(binomial_test(only_first, differ, alternative)) if differ else 1.0,
        alternative=alternative,
    )


@dataclass(frozen=True)
class RadiusComparisons(Tabular):
    """Paired comparisons of two classifiers at several radii, made by ``compare_at_radii``.

    At every radius whose adjusted p-value is at most alpha, reject the hypothesis that the two classifiers have equal
    shares of certified or robust examples. The probability that at least one of these rejections is wrong is then at
    most alpha (Holm, 1979). The p-values in ``comparisons`` are not adjusted.

    Attributes:
        radii: [R], as given.
        comparisons: [R], the comparison at each radius.
        adjusted: [R], p-values adjusted for all R tests.
        outcome: what is compared, "certified" or "robust".
        correction: "holm".
    """

    radii: tuple[float, ...]
    comparisons: tuple[PairedComparison, ...]
    adjusted: tuple[float, ...]
    outcome: Literal["certified", "robust"]
    correction: Literal["holm"] = "holm"

    def __repr__(self) -> str:
        return summary(
            self,
            outcome=self.outcome,
            examples=self.comparisons[0].n,
            tests=len(self.radii),
            correction=self.correction,
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each radius."""
        names = ("both", "only_first", "only_second", "neither", "difference", "p_value")
        columns = {"radius": list(self.radii)} | columns_of(self.comparisons, names)
        return columns | {"adjusted": list(self.adjusted)}

    def _attributes(self) -> dict[str, Any]:
        named = {"outcome": self.outcome, "alternative": self.comparisons[0].alternative}
        return named | {"correction": self.correction, "tests": len(self.radii)}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists, a list for each column."""
        return self._attributes() | self._columns()


def compare_at_radii(
    first: Tensor | npt.NDArray[Any],
    second: Tensor | npt.NDArray[Any],
    radii: Sequence[float],
    outcome: Literal["certified", "robust"] = "certified",
    alternative: Alternative = "two-sided",
) -> RadiusComparisons:
    """Compare two classifiers on the same examples at each radius, by the exact test of ``paired_test``.

    With outcome "certified", an example counts as certified at r if its certified radius has ``radius ≥ r`` and
    ``radius > 0``. With outcome "robust", an example counts as robust at r unless its adversarial example has
    ``distance ≤ r``. An example whose radius or distance is NaN is neither certified nor broken, as in
    ``robustness_shares``, so it does not count as certified but counts as robust.

    Args:
        first: [N], float, the radius or distance of each example for the first classifier, at least 0 or NaN. Radii are
            finite, and 0 if nothing is proved for the correct class. Distances are 0 if the example is misclassified,
            and inf if no adversarial example is known.
        second: [N], float, for the second classifier on the same examples.
        radii: the radii r to compare at, at least one, each finite and at least 0; chosen before seeing the results.
        outcome: "certified" or "robust".
        alternative: alternative of every test, as in ``paired_test``.

    Returns:
        RadiusComparisons.

    Raises:
        InputError: mismatched lengths, no examples, a value out of range, or an unknown outcome or alternative.
        InputTypeError: columns that are not float, or radii that are not numbers.

    >>> import numpy as np
    >>> comparisons = compare_at_radii(np.full(8, 0.5), np.array([0.5] * 2 + [0.25] * 6), [0.25, 0.5])
    >>> [round(comparison.p_value, 6) for comparison in comparisons.comparisons]
    [1.0, 0.03125]
    >>> [round(p_value, 6) for p_value in comparisons.adjusted]
    [1.0, 0.0625]
    """
    proofs = choice("outcome", outcome, ("certified", "robust")) == "certified"
    a = checked_bounds("first", first, infinite=not proofs)
    b = checked_bounds("second", second, infinite=not proofs, n_examples=len(a))
    choice("alternative", alternative, ("two-sided", "greater", "less"))
    at = non_negatives("radii", radii)
    if not at:
        raise InputError("radii", "at least one radius to compare at", "none")
    pairs = [
        (is_certified(a, radius), is_certified(b, radius)) if proofs else (~(a <= radius), ~(b <= radius))
        for radius in at
    ]
    comparisons = tuple(paired_test(*pair, alternative) for pair in pairs)
    adjusted = tuple(holm([comparison.p_value for comparison in comparisons]))
    return RadiusComparisons(tuple(at), comparisons, adjusted, outcome)
