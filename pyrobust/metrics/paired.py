"""Paired comparisons: the same examples, judged twice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import choice
from pyrobust.stats import binomial_test
from pyrobust.stats.binomial import Alternative

from .arguments import checked_flags


@dataclass(frozen=True)
class PairedComparison:
    """Two outcomes of each of n examples, and the test of whether their rates differ.

    Attributes:
        both: number of examples with both outcomes.
        only_first: number of examples with the first outcome alone.
        only_second: number of examples with the second outcome alone.
        neither: number of examples with neither outcome.
        p_value: probability of counts at least as extreme, where the alternative is false; never below the exact one.
        alternative: "greater": the first outcome is more frequent; "less": it is less frequent; or "two-sided".
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
        """Share of examples with the first outcome, minus that with the second."""
        return (self.only_first - self.only_second) / self.n

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary of all fields, with the difference."""
        return asdict(self) | {"difference": self.difference}


def paired_test(
    first: Tensor | npt.NDArray[Any], second: Tensor | npt.NDArray[Any], alternative: Alternative = "two-sided"
) -> PairedComparison:
    """Compare two outcomes of the same examples, such as "right" for two models or "fooled" for two attacks.

    The exact form of McNemar's test (McNemar, 1947): examples with both outcomes or neither say nothing about a
    difference; where the two rates are equal, each of the others has the first outcome with probability 1/2, so that
    ``only_first`` ~ Bin(only_first + only_second, 1/2). The examples are drawn independently from one distribution.

    Args:
        first: bool [N], N ≥ 1, the first outcome of each example.
        second: bool [N], the second.
        alternative: "greater" asks whether the first outcome is more frequent, "less" whether it is less frequent,
            "two-sided" whether they differ.

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
