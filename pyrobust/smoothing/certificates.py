"""Results of a smoothed classifier: certificates and predictions, with all parameters on which they depend."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import summary
from pyrobust.frames import Tabular, plain_fields

#: Prediction of an example for which no class could be certified.
ABSTAIN = -1

# Largest number of radii that the repr of certificates lists.
_MAX_SHOWN = 8

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Results(Tabular):
    """Fields and conversions common to all results of a smoothed classifier."""

    indices: _Ints
    prediction: _Ints
    sigma: float
    noise: str
    norm: str
    n: int
    alpha: float
    seed: int

    #: Philox key of each example's noise, [B], uint64, if it is keyed by values; None if it is keyed by index.
    keys: npt.NDArray[np.uint64] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.prediction)

    @property
    def keyed_by(self) -> str:
        """How the noise was keyed: by the given "indices", or by the "values" of the examples."""
        return "indices" if self.keys is None else "values"

    @property
    def repeated(self) -> int:
        """Number of examples that share their noise with an earlier example of the call.

        If the noise is keyed by values, equal examples have equal noise, so each example counted here repeats an
        earlier result. A rate over all examples of the call then counts some examples several times, and its confidence
        interval does not account for this.
        """
        return len(self) - len(np.unique(self.indices if self.keys is None else self.keys))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, with arrays as lists and the grid step as a string."""
        values = plain_fields(self)
        for name, value in values.items():
            if isinstance(value, (tuple, Fraction)):
                values[name] = list(value) if isinstance(value, tuple) else str(value)
        return values

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return one row per example, without histograms."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray) and value.ndim == 1}

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}


@dataclass(frozen=True, eq=False, repr=False)
class Certificates(_Results):
    r"""Certificates of B examples.

    With probability at least 1 - alpha over the noise, the smoothed classifier predicts ``prediction[i]`` on the open
    ball of radius ``radius[i]`` around example i, in the norm ``norm``. On a grid, the guarantee holds at the points of
    the ball that lie on the grid.

    Attributes:
        indices: [B], int64; if indices were given, the image index from which the noise of each example was derived;
            otherwise, the position of each example in the call.
        prediction: [B], int64; the certified class, or ``ABSTAIN`` if p_lower is not above 1/2 (and, with
            ``two_class``, not above rival_upper either). For "sequential", an example that was given up keeps the class
            and the smaller radius that its samples had proved by then.
        radius: [B], float64; certified radius in the input's unit, 0.0 for an abstention.
        radii: the radii of interest that were passed.
        p_lower: [B], float64; lower confidence bound on the probability of the selected class. For "sequential", it is
            the largest of the bounds at all looks (sample sizes at which the example was judged).
        counts0: [B, K + 1], int64; votes of the n0 samples that select the class. Column K counts samples without a
            winner (logits with NaN or +inf, or only -inf). On a grid, it also counts samples whose noise lies so far in
            the tails that its magnitude is not drawn.
        counts: [B, K + 1], int64; votes of the samples that estimate the class's probability, in the same columns.
        samples: [B], int64; samples drawn for each example, including those of the selection.
        undecided: [B, R], bool; whether the r-th of ``radii`` was neither certified nor given up within n samples. All
            False for "fixed".
        sigma, noise, norm, n0, n, alpha, seed: as passed; for "sequential", n is the largest number of samples.
        guarantee: "grid" or "real". With "grid", the noise is rounded to a grid, and the certificate holds for every
            image on the grid despite floating-point rounding. The base classifier is then the model as it ran, so the
            same model with another dtype or batch size is another base classifier. With "real", the proof idealises the
            noise as real-valued, which is the usual practice.
        method: "fixed" (n samples for every example) or "sequential" (sampling until every radius is decided).
        hybrid: share of alpha that "sequential" reserves for a Clopper-Pearson bound at n samples.
        rival_upper: [B], float64; upper confidence bound on the probability of every other class. ``radius`` may depend
            on it. Without ``two_class``, it is None.
        grid: step of the grid, or None.
        delta: bound on the total variation distance of a drawn sample from an exactly rounded Gaussian. delta is
            already subtracted from ``p_lower`` and added to ``rival_upper``.
        keys: [B], uint64; Philox key of each example's noise, a hash of seed and values; None if indices were given.
    """

    radius: _Floats
    radii: tuple[float, ...]
    p_lower: _Floats
    counts0: _Ints
    counts: _Ints
    samples: _Ints
    undecided: npt.NDArray[np.bool_]
    n0: int
    guarantee: str = "real"
    method: str = "fixed"
    hybrid: float = 0.0
    rival_upper: _Floats | None = None
    grid: Fraction | None = None
    delta: float = 0.0

    def __repr__(self) -> str:
        certified_at = dict(zip(self.radii, self.certified.sum(axis=0).tolist(), strict=True))
        return summary(
            self,
            images=len(self),
            certified=int((self.prediction != ABSTAIN).sum()),
            certified_at=certified_at if 0 < len(certified_at) <= _MAX_SHOWN else None,
            noise=self.noise,
            sigma=self.sigma,
            norm=self.norm,
            guarantee=self.guarantee,
            grid=None if self.grid is None else str(self.grid),
            method=self.method,
            n0=self.n0,
            n=self.n,
            alpha=self.alpha,
            seed=self.seed,
            keyed_by=self.keyed_by,
            repeated=self.repeated or None,
        )

    @property
    def certified(self) -> npt.NDArray[np.bool_]:
        """Whether example b is certified at the r-th of ``radii``, bool [B, R]; False for abstentions."""
        reached = self.radius[:, None] >= np.asarray(self.radii, dtype=np.float64)
        certified: npt.NDArray[np.bool_] = reached & (self.prediction != ABSTAIN)[:, None]
        return certified


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(_Results):
    """Predictions of the smoothed classifier for B examples, each wrong with probability at most alpha.

    Attributes:
        indices: [B], int64; if indices were given, the image index from which the noise of each example was derived;
            otherwise, the position of each example in the call.
        prediction: [B], int64; the class, or ``ABSTAIN``.
        p_value: [B], float64; p-value of the two-sided test that the two leading classes are equally likely. On a grid,
            the samples without a winner are counted for the runner-up; the p-value is 1 if the leading class is then
            not ahead of the runner-up.
        counts: [B, K + 1], int64; votes, with column K as in `Certificates`.
        sigma, noise, norm, n, alpha, seed: as passed.
        guarantee: "grid" or "real", see `Certificates`.
        grid: step of the grid, or None.
        delta: bound on the total variation distance of the n drawn samples from exact ones. It is already added to
            ``p_value``.
        keys: as in `Certificates`.
    """

    p_value: _Floats
    counts: _Ints
    guarantee: str = "real"
    grid: Fraction | None = None
    delta: float = 0.0

    def __repr__(self) -> str:
        return summary(
            self,
            images=len(self),
            abstained=int((self.prediction == ABSTAIN).sum()),
            noise=self.noise,
            sigma=self.sigma,
            norm=self.norm,
            guarantee=self.guarantee,
            grid=None if self.grid is None else str(self.grid),
            n=self.n,
            alpha=self.alpha,
            seed=self.seed,
            keyed_by=self.keyed_by,
            repeated=self.repeated or None,
        )
