"""Shares of examples that are certified, attacked and undecided at each radius.

The robustness of an example is bounded below by its certified radius and above by the distance of an adversarial
example; at radii between these two bounds, the example is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import count, first_wrong, non_negatives, summary
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import Tabular

from .arguments import aligned, as_array, checked_integers
from .rate import Rate, checked_alpha, estimate_rate

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RobustnessShares(Tabular):
    """Shares of a set of examples that are certified, attacked and undecided at each of several radii.

    The three shares add up to 1 at each radius. ``1 - attacked`` is the robust accuracy under attack, ``certified`` is
    the certified accuracy and ``undecided`` is the certification gap between them.

    Each interval is for one share at one radius, and misses the true share with probability at most ``alpha``. The
    probability that all intervals hold together may be below ``1 - alpha``. ``robustness_shares`` computes these
    shares.

    Attributes:
        radii: [R], as given.
        certified, attacked, undecided: [R], Rates.
        crossings: int64, positions of the examples for which an attack succeeded inside the certified ball (``upper ≤
            lower`` and ``lower > 0``). For each of them, the certificate or the attack is wrong. An example that is
            both certified and attacked at a radius counts as attacked at this radius.
        alpha: upper bound on the probability that a single interval misses.
        n: number of examples.
    """

    radii: tuple[float, ...]
    certified: tuple[Rate, ...]
    attacked: tuple[Rate, ...]
    undecided: tuple[Rate, ...]
    crossings: _Ints
    alpha: float
    n: int

    def __repr__(self) -> str:
        return summary(self, examples=self.n, radii=list(self.radii), crossings=len(self.crossings))

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each radius."""
        columns: dict[str, Any] = {"radius": list(self.radii)}
        for name in ("certified", "attacked", "undecided"):
            rates: tuple[Rate, ...] = getattr(self, name)
            columns[name] = [rate.value for rate in rates]
            columns[f"{name}_lower"] = [rate.lower for rate in rates]
            columns[f"{name}_upper"] = [rate.upper for rate in rates]
        return columns

    def _attributes(self) -> dict[str, Any]:
        return {"examples": self.n, "alpha": self.alpha, "crossings": self.crossings.tolist()}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists, a list for each column."""
        return self._attributes() | self._columns()


@dataclass(frozen=True, eq=False)
class GroupShares(Tabular):
    """The shares of each group of examples, such as a class, with intervals that hold for all groups together.

    At each single radius and for each of the three shares, the intervals of all groups hold together with probability
    at least 1 - alpha (Bonferroni: each group's interval has error ``alpha / G``). ``robustness_shares_by_group``
    computes these shares.

    Attributes:
        groups: int64 [G], the groups that occur, increasing.
        shares: [G], the RobustnessShares of each group; ``crossings`` are positions among all examples.
        alpha: for each share at each radius, an upper bound on the probability that the interval of at least one group
            misses the true share.
    """

    groups: _Ints
    shares: tuple[RobustnessShares, ...]
    alpha: float

    def __len__(self) -> int:
        return len(self.groups)

    def __repr__(self) -> str:
        return summary(self, groups=len(self), examples=sum(shares.n for shares in self.shares), alpha=self.alpha)

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each group and radius."""
        columns: dict[str, Any] = {"group": [], "examples": []}
        for group, shares in zip(self.groups.tolist(), self.shares, strict=True):
            columns["group"] += [group] * len(shares.radii)
            columns["examples"] += [shares.n] * len(shares.radii)
            for name, column in shares._columns().items():
                columns.setdefault(name, []).extend(column)
        return columns

    def _attributes(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "correction": "bonferroni", "intervals": len(self)}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists, a list for each column."""
        return self._attributes() | self._columns()


def robustness_shares(
    lower: Tensor | npt.NDArray[Any],
    upper: Tensor | npt.NDArray[Any],
    radii: Sequence[float],
    alpha: float = 0.05,
) -> RobustnessShares:
    """Compute the shares of examples that are certified, attacked and undecided in the closed ball of each radius r.

    - attacked: ``upper ≤ r``, that is, an adversarial example within r is known;
    - certified: not attacked, and proved robust in the whole closed ball of radius r: ``lower ≥ r`` and ``lower > 0``;
    - undecided: neither.

    The comparisons are in double precision. A ``lower`` of 0 proves nothing, not even the prediction at the example
    itself, so the example is not certified at radius 0 either. An example whose ``lower`` is NaN is not certified; an
    example whose ``upper`` is NaN is not attacked.

    Args:
        lower: [N], float, the radius proved for the correct class, finite, at least 0; NaN or 0 if nothing is proved.
        upper: [N], float, the distance of an adversarial example, at least 0; 0 if the example is misclassified without
            an attack, inf or NaN if no adversarial example is known.
        radii: the radii r, finite, at least 0, in any order.
        alpha: upper bound on the probability that a single interval misses, in (0, 1). The intervals come from
            ``estimate_rate``, and refer to the shares in the distribution from which the examples are drawn.

    Returns:
        RobustnessShares.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: columns that are not float, or radii that are not numbers.

    >>> lower, upper = np.array([0.3, 0.1, 0.0, np.nan]), np.array([np.inf, 0.4, 0.0, 0.2])
    >>> shares = robustness_shares(lower, upper, [0.1, 0.2, 0.4])
    >>> [(float(c), float(a), float(u)) for c, a, u in zip(shares.certified, shares.attacked, shares.undecided)]
    [(0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.0, 0.75, 0.25)]
    """
    proved, reached = _radius_columns(lower, upper)
    at = non_negatives("radii", radii)
    return _shares(proved, reached, at, checked_alpha(alpha), np.arange(len(proved)))


def robustness_shares_by_group(
    lower: Tensor | npt.NDArray[Any],
    upper: Tensor | npt.NDArray[Any],
    radii: Sequence[float],
    groups: Tensor | npt.NDArray[Any],
    alpha: float = 0.05,
) -> GroupShares:
    """Compute ``robustness_shares`` of each group of examples, with intervals that hold for all groups together.

    Args:
        lower: [N], as in ``robustness_shares``.
        upper: [N], as in ``robustness_shares``.
        radii: as in ``robustness_shares``.
        groups: [N], integers of at least 0: labels, or the bins of ``confidence_bins``.
        alpha: for each share at each radius, an upper bound on the probability that at least one group's interval
            misses the true share; in (0, 1).

    Returns:
        GroupShares.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: columns that are not float, or groups that are not integers.

    >>> lower, upper = np.array([0.3, 0.1, 0.0, 0.0]), np.array([np.inf, 0.4, 0.0, 0.2])
    >>> by_class = robustness_shares_by_group(lower, upper, [0.1], np.array([7, 7, 3, 3]))
    >>> [(group, float(shares.certified[0])) for group, shares in zip(by_class.groups.tolist(), by_class.shares)]
    [(3, 0.0), (7, 1.0)]
    """
    proved, reached = _radius_columns(lower, upper)
    at, alpha = non_negatives("radii", radii), checked_alpha(alpha)
    of = checked_integers("groups", groups, len(proved))
    present = np.unique(of)
    # Rounded down, so that the sum over the groups is at most alpha.
    each = math.nextafter(alpha / len(present), 0.0) if len(present) > 1 else alpha
    members = [np.flatnonzero(of == group) for group in present]
    return GroupShares(present, tuple(_shares(proved[i], reached[i], at, each, i) for i in members), alpha)


def confidence_bins(confidence: Tensor | npt.NDArray[Any], n_bins: int = 5) -> tuple[_Ints, _Floats]:
    """Sort examples into bins of nearly equal size by the confidence of their prediction.

    The upper edges of the bins are quantiles of the given values, computed with the inverse of the empirical
    distribution function. Each value belongs to the first bin whose upper edge is at least this value. Equal values
    share a bin, so some bins can be larger, and there can be fewer bins than ``n_bins``. A confidence interval for a
    bin is a statement about other examples whose confidence lies between the bin's edges. It treats these edges as if
    they had been chosen beforehand.

    Args:
        confidence: [N], float, finite; for example a probability, a margin of logits or p̂_A.
        n_bins: largest number of bins.

    Returns:
        (bins, edges), where bins is int64 [N], with 0 for the least confident examples, and edges is float64 [B], the
        largest value of each bin.

    Raises:
        InputError: no examples, a value that is not finite, or n_bins below 1.
        InputTypeError: values that are not float, or n_bins that is not an integer.

    >>> bins, edges = confidence_bins(np.array([0.9, 0.5, 0.7, 0.7, 1.0]), 2)
    >>> bins.tolist(), edges.tolist()
    ([1, 0, 0, 0, 1], [0.7, 1.0])
    """
    values, bins = _float_column("confidence", confidence), count("n_bins", n_bins)
    if not np.isfinite(values).all():
        raise InputError("confidence", "finite numbers", first_wrong(values, ~np.isfinite(values)))
    rising = np.sort(values)
    ranks = [-(-i * len(rising) // bins) - 1 for i in range(1, bins + 1)]
    edges = np.unique(rising[[rank for rank in ranks if rank >= 0]])
    return np.searchsorted(edges, values).astype(np.int64), edges


def is_certified(lower: _Floats, radius: float) -> _Flags:
    """Whether each lower bound proves a ball of this radius robust; a bound of NaN or 0 proves nothing."""
    proved: _Flags = (lower >= radius) & (lower > 0)
    return proved


def _shares(lower: _Floats, upper: _Floats, radii: list[float], alpha: float, positions: _Ints) -> RobustnessShares:
    """Compute the shares of the given examples; ``positions`` are their positions among all examples."""
    attacked = [upper <= radius for radius in radii]
    certified = [is_certified(lower, radius) & ~broken for radius, broken in zip(radii, attacked, strict=True)]
    undecided = [~(broken | proved) for broken, proved in zip(attacked, certified, strict=True)]
    return RobustnessShares(
        radii=tuple(radii),
        certified=_rates(certified, alpha),
        attacked=_rates(attacked, alpha),
        undecided=_rates(undecided, alpha),
        crossings=positions[(upper <= lower) & (lower > 0)].astype(np.int64),
        alpha=alpha,
        n=len(lower),
    )


def _rates(chosen: list[_Flags], alpha: float) -> tuple[Rate, ...]:
    return tuple(estimate_rate(int(flags.sum()), len(flags), alpha) for flags in chosen)


def _radius_columns(lower: Any, upper: Any) -> tuple[_Floats, _Floats]:
    """Return both columns as float64. Both may contain NaN, but a certified radius must not be infinite."""
    proved = checked_bounds("lower", lower, infinite=False)
    return proved, checked_bounds("upper", upper, infinite=True, n_examples=len(proved))


def checked_bounds(name: str, value: Any, *, infinite: bool, n_examples: int | None = None) -> _Floats:
    """Check radii [N], each at least 0 or NaN (inf is allowed only if ``infinite``); return them as float64."""
    column = aligned(name, _float_column(name, value), n_examples)
    wrong = (column < 0) | (np.isinf(column) & (not infinite))
    if wrong.any():
        expected = "numbers" if infinite else "finite numbers"
        raise InputError(name, f"{expected} of at least 0, or NaN", first_wrong(column, wrong))
    return column


def _float_column(name: str, value: Any) -> _Floats:
    column = as_array(name, value)
    if column.dtype.kind != "f":
        raise InputTypeError(name, "a float tensor or array", column.dtype)
    return column.astype(np.float64)
