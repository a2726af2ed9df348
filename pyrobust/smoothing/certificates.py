"""What a smoothed classifier returns: certificates and predictions, with everything that they depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import summary
from pyrobust.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

#: The prediction where no class could be certified.
ABSTAIN = -1

# Radii in what an interpreter shows.
_MOST_SHOWN = 8

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Results:
    """The parameters that every result of a smoothed classifier carries."""

    indices: _Ints
    prediction: _Ints
    sigma: float
    noise: str
    norm: str
    n: int
    alpha: float
    seed: int

    def __len__(self) -> int:
        return len(self.prediction)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, arrays as lists, a grid's step as text."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, (np.ndarray, tuple)):
                values[name] = np.asarray(value).tolist()
            elif isinstance(value, Fraction):
                values[name] = str(value)
        return values

    def to_pandas(self) -> pd.DataFrame:
        """A row an example; the parameters in ``.attrs``. Histograms stay out. Needs pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("to_pandas: pandas is not installed: pip install pandas") from error

        columns: dict[str, Any] = {}
        attributes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray) and value.ndim == 1:
                columns[field.name] = value
            elif not isinstance(value, np.ndarray):
                attributes[field.name] = value
        frame = pd.DataFrame(columns)
        frame.attrs.update(attributes)
        return frame


@dataclass(frozen=True, eq=False, repr=False)
class Certificates(_Results):
    r"""Certificates of B examples.

    Each says: with probability at least 1 - alpha over the noise, the classifier smoothed with this noise predicts
    ``prediction[i]`` on the open ball of radius ``radius[i]`` around example i, in this norm; with a grid, at the
    points of the ball that are on it.

    Attributes:
        indices: [B], int64, the image index of the noise contract.
        prediction: [B], int64, the certified class, or ``ABSTAIN``; of "sequential" also where the example was given up
            before any radius was proved.
        radius: [B], float64, in the input's unit; 0.0 where abstained.
        radii: the radii of interest that were given.
        p_lower: [B], float64, the lower confidence bound on the probability of the selected class; of a sequence, the
            best of all looks.
        counts0: [B, K + 1], int64, votes of the selection; column K holds those without a winner (NaN or +inf)
            and, on a grid, those whose noise was beyond what is drawn.
        counts: [B, K + 1], int64, votes of the estimation, likewise.
        samples: [B], int64, used for each example, those of the selection included.
        undecided: [B, R], bool: the r-th of ``radii`` was neither certified nor rejected within n samples. All False
            for "fixed", which decides none.
        sigma, noise, norm, n0, n, alpha, seed: as given; n is the most samples of a sequence.
        guarantee: "grid": the smoothed classifier is that of noise rounded to a grid, and the certificate holds for
            every image on the grid, whatever is rounded in floats; the base classifier is the model as it ran, in this
            dtype and batch size. "real": the proof idealises the noise as real-valued; the usual practice.
        method: "fixed": n samples for every example; "sequential": until every radius was decided.
        hybrid: share of alpha that "sequential" kept for one more bound at n samples.
        rival_upper: [B], float64, of two_class the upper bound on every other class' probability, which ``radius`` may
            rest on; None without.
        grid: step of the grid, or None.
        delta: bound on the distance (total variation) of a drawn sample from an exactly rounded Gaussian; it has been
            subtracted from ``p_lower`` (added to ``rival_upper``).
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
        at = dict(zip(self.radii, self.certified.sum(axis=0).tolist(), strict=True))
        return summary(
            self,
            images=len(self),
            certified=int((self.prediction != ABSTAIN).sum()),
            certified_at=at if 0 < len(at) <= _MOST_SHOWN else None,
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
        )

    @property
    def certified(self) -> npt.NDArray[np.bool_]:
        """[B, R]: whether example b is certified at the r-th of ``radii``; an abstention never is."""
        reached = self.radius[:, None] >= np.asarray(self.radii, dtype=np.float64)
        certified: npt.NDArray[np.bool_] = reached & (self.prediction != ABSTAIN)[:, None]
        return certified


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(_Results):
    """Predictions of B examples, each the smoothed classifier's with probability at least 1 - alpha, or ``ABSTAIN``.

    Attributes:
        indices: [B], int64, the image index of the noise contract.
        prediction: [B], int64, the class, or ``ABSTAIN``.
        p_value: [B], float64, of the two-sided test that the two leading classes are equally likely.
        counts: [B, K + 1], int64; column K as of `Certificates`.
        sigma, noise, norm, n, alpha, seed: as given.
        guarantee: "grid" or "real", as of `Certificates`.
        grid: step of the grid, or None.
        delta: bound on the distance (total variation) of the n drawn samples from exact ones; it has been added to
            ``p_value``.
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
        )
