"""The result of a sandwich: for each example, a certified radius and the distance of an adversarial example."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pyrobust.checks import kind, summary
from pyrobust.errors import CrossingError, InputError, InputTypeError
from pyrobust.frames import Tabular
from pyrobust.metrics import (
    GroupShares,
    RadiusComparisons,
    RobustnessShares,
    compare_at_radii,
    confidence_bins,
    crossing_rule,
    robustness_shares,
    robustness_shares_by_group,
)
from pyrobust.runs.kinds.words import norm_of
from pyrobust.runs.run import Run
from pyrobust.stats.binomial import Alternative
from pyrobust.zoo import LabelledImages

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Crossing:
    """An example whose certificate is contradicted by an adversarial example.

    Attributes:
        index: data-set index.
        label: the label.
        adversarial: the prediction at the adversarial example.
        lower: the certified radius.
        lower_by: the method that proved ``lower``, or "smoothing".
        upper: the distance of the adversarial example, at most ``lower``.
        upper_by: the attack that found the adversarial example.
        margin: for a base classifier, the label's logit minus the largest other logit at the adversarial example; at
            most 0. With semantics "real", it is an upper bound of this difference in exact arithmetic. None for a
            smoothed classifier.
        p_value: for a smoothed classifier, the p-value of the test that rejected the label. None for a base classifier.
    """

    index: int
    label: int
    adversarial: int
    lower: float
    lower_by: str
    upper: float
    upper_by: str
    margin: float | None
    p_value: float | None


class Sandwich(Tabular):
    """Lower (certified) and upper (attacked) bounds of the distance to misclassification, from a "sandwich" run.

    The true distance of each example lies in ``[lower, upper]``. For a base classifier with semantics "float32", this
    is certain. With "real", ``lower`` bounds the distance in exact arithmetic, but the adversarial example at ``upper``
    was found in the arithmetic in which the model runs; if only rounding misclassifies it, the exact distance can be
    larger than ``upper``. For a smoothed classifier, each certificate is wrong with probability at most alpha, and each
    attack with probability at most alpha_attack.

    Args:
        run: run of ``sandwich_dataset``; if the run is still being written, the examples finished so far are used.

    Attributes:
        run: the run, with parameters, hashes, guarantee and adversarial examples.

    Raises:
        InputError: a run of another kind.
        InputTypeError: ``run`` is not a run.

    >>> from pyrobust.evaluation.sandwich import sandwich
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> both = Sandwich(sandwich(load_model("zoo:digits-ibp-0.10"), data.x[:3], data.y[:3]).run)
    >>> shares = both.shares([0.05, 0.1])
    >>> [float(rate) for rate in shares.certified] <= [1 - float(rate) for rate in shares.attacked]
    True
    >>> both.check()
    """

    def __init__(self, run: Run) -> None:
        if not isinstance(run, Run):
            raise InputTypeError("run", "a Run", kind(run))
        if run.header.type.certified != "lower":
            raise InputError("run", "one of kind sandwich", run.kind, "make one with sandwich_dataset")
        self.run = run

    def __len__(self) -> int:
        return len(self.run)

    def __repr__(self) -> str:
        return summary(
            self,
            examples=len(self),
            classifier="smoothed" if self.smoothed else "base",
            norm=self.norm,
            guarantee=self.run.header.guarantee,
            crossings=len(self.crossings),
        )

    @property
    def smoothed(self) -> bool:
        """Whether the classifier is smoothed."""
        return self.run.header.type.smoothed

    @property
    def norm(self) -> str:
        """Norm of the distances; if the run has a box, a name that identifies this box."""
        return norm_of(self.run.parameters)

    @property
    def lower(self) -> _Floats:
        """Certified lower bounds, float64 [N]; 0 where the example is misclassified or nothing is proved."""
        return self.run.table["lower"]

    @property
    def upper(self) -> _Floats:
        """Distances of adversarial examples, float64 [N]; 0 where x is misclassified, inf where no attack succeeded."""
        return self.run.table["upper"]

    @property
    def gap(self) -> _Floats:
        """``upper − lower``, float64 [N]: the remaining uncertainty; inf where no adversarial example was found."""
        return self.upper - self.lower

    @cached_property
    def confidence(self) -> _Floats:
        """Confidence, float64 [N]: the largest softmax probability or, after smoothing, the largest share of votes."""
        if not self.smoothed:
            return self.run.table["confidence"]
        votes = self.run.histogram("counts")
        confidence: _Floats = votes[:, :-1].max(axis=1) / self.run.parameters["n"]
        return confidence

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """Examples with ``upper ≤ lower`` whose misclassification is certain, in index order.

        What counts as certain depends on the classifier. For a base classifier with semantics "float32", the margin
        observed at the adversarial example must be at most 0. With "real", an upper bound of this margin must be at
        most 0; the classifier is then wrong at the adversarial example even in exact arithmetic. (The margin is the
        label's logit minus the largest other logit.) For a smoothed classifier, the statistical test must have rejected
        the label.
        """
        table = self.run.table
        crossed = (table["upper"] <= table["lower"]) & (table["lower"] > 0)
        if not self.smoothed:
            crossed &= table["margin"] <= 0
        return tuple(
            Crossing(
                index=int(table["index"][row]),
                label=int(table["label"][row]),
                adversarial=int(table["adversarial"][row]),
                lower=float(table["lower"][row]),
                lower_by="smoothing" if self.smoothed else str(table["lower_by"][row]),
                upper=float(table["upper"][row]),
                upper_by=str(table["upper_by"][row]),
                margin=None if self.smoothed else float(table["margin"][row]),
                p_value=float(table["p_value"][row]) if self.smoothed else None,
            )
            for row in np.flatnonzero(crossed).tolist()
        )

    @property
    def allowed_crossings(self) -> int:
        """Largest number of crossings that chance can explain (``crossing_rule``); 0 for a base classifier."""
        if not self.smoothed or not len(self):
            return 0
        return crossing_rule(len(self), self.run.parameters["alpha"], self.run.parameters["alpha_attack"]).most

    def check(self) -> None:
        """Raise CrossingError if there are more crossings than chance can explain.

        Raises:
            CrossingError: for a base classifier, there is a crossing; for a smoothed classifier, there are more
                crossings than ``allowed_crossings``. If the certificates and attacks of a smoothed classifier are wrong
                only with their stated probabilities, a run exceeds this number with probability at most 0.01. The
                message names the examples and the file.
        """
        if len(self.crossings) <= self.allowed_crossings:
            return
        first = self.crossings[0]
        evidence = f"margin {first.margin:.3g}" if first.p_value is None else f"p-value {first.p_value:.3g}"
        others = ", ".join(str(crossing.index) for crossing in self.crossings[1:10])
        more = f"; also examples {others}" + (", ..." if len(self.crossings) > 10 else "") if others else ""
        where = "in memory" if self.run.path is None else str(self.run.path)
        raise CrossingError(
            f"{where}: {len(self.crossings)} crossings of {len(self)} examples, expected at most "
            f"{self.allowed_crossings}: example {first.index} is certified by {first.lower_by} to {first.lower!r} in "
            f"{self.norm}, and {first.upper_by} fooled the classifier at distance {first.upper!r} ({evidence}){more}; "
            "a certificate is false, or the classifier is not the one that was certified: report it with the model and "
            "this file"
        )

    def shares(self, radii: Sequence[float], alpha: float = 0.05) -> RobustnessShares:
        """Certified, attacked and undecided shares at each radius; see ``pyrobust.metrics.robustness_shares``.

        Args:
            radii: finite, at least 0.
            alpha: probability that a single interval misses the true share, in (0, 1).

        Raises:
            InputError: no examples, or a value out of range.
        """
        return robustness_shares(self.lower, self.upper, radii, alpha)

    def shares_by_class(self, radii: Sequence[float], alpha: float = 0.05) -> GroupShares:
        """The shares of each class, with intervals that hold for all classes together.

        Args:
            radii: finite, at least 0.
            alpha: probability that, at a single radius, the interval of at least one class misses the true share, in
                (0, 1).

        Raises:
            InputError: no examples, or a value out of range.
        """
        return robustness_shares_by_group(self.lower, self.upper, radii, self.run.table["label"], alpha)

    def shares_by_confidence(
        self, radii: Sequence[float], n_bins: int = 5, alpha: float = 0.05
    ) -> tuple[GroupShares, _Floats]:
        """Sort the examples by confidence into bins of nearly equal size; return each bin's shares and upper edge.

        Args:
            radii: finite, at least 0.
            n_bins: largest number of bins.
            alpha: probability that, at a single radius, the interval of at least one bin misses the true share, in (0,
                1).

        Raises:
            InputError: no examples, or a value out of range.
        """
        bins, edges = confidence_bins(self.confidence, n_bins)
        return robustness_shares_by_group(self.lower, self.upper, radii, bins, alpha), edges

    def compare(
        self,
        other: Sandwich,
        radii: Sequence[float],
        outcome: Literal["certified", "robust"] = "certified",
        alternative: Alternative = "two-sided",
    ) -> RadiusComparisons:
        """Compare two classifiers on the same examples by McNemar's exact test (``compare_at_radii``).

        Args:
            other: a sandwich of the same data, norm and examples.
            radii: the radii at which to compare; choose them before you see the results.
            outcome: "certified" compares lower bounds, "robust" compares upper bounds.
            alternative: "greater" asks whether more examples are certified (or robust) for this classifier than for
                ``other``.

        Raises:
            InputError: a sandwich of other examples or data, or in another norm.
            InputTypeError: ``other`` is not a Sandwich.
        """
        if not isinstance(other, Sandwich):
            raise InputTypeError("other", "a Sandwich", kind(other))
        pairs = (
            ("data", self.run.header.data_sha256[:16], other.run.header.data_sha256[:16]),
            ("norm", self.norm, other.norm),
            ("examples", self.run.table["index"].tolist(), other.run.table["index"].tolist()),
        )
        different = [name for name, a, b in pairs if a != b]
        if different:
            raise InputError("other", f"the same {', '.join(different)}", "others")
        name = "lower" if outcome == "certified" else "upper"
        return compare_at_radii(getattr(self, name), getattr(other, name), radii, outcome, alternative)

    def to_html(
        self, path: str | os.PathLike[str], *, data: LabelledImages | None = None, replace: bool = False
    ) -> None:
        """Write one self-contained HTML page; see ``pyrobust.report.page.write_page``.

        Args:
            path: path of the page. An existing file is overwritten only if it is a page of pyrobust, or if ``replace``
                is True.
            data: the data set, for pictures. Default: the data set, loaded again from the files that the run names.
            replace: whether an existing file of any kind may be overwritten.

        Raises:
            InputError: writing to ``path`` is not allowed, or the run is empty.
            MissingExtraError: jinja2 or Pillow is not installed.
            StoreError: the file cannot be written.
        """
        import pyrobust

        root: Any = pyrobust  # through the root: packages below the report do not import it
        root.report.page.write_page(path, self.run, data=data, replace=replace)

    def to_dict(self) -> dict[str, Any]:
        """Return the header, the table and the crossings as plain values."""
        return self.run.to_dict() | {"crossings": [vars(crossing) for crossing in self.crossings]}

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return self.run.table | {"gap": self.gap}

    def _attributes(self) -> dict[str, Any]:
        return self.run._attributes()
