"""How well parameters explain printed radii."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.formulas import Parameters, votes_between
from pyrobust.auditing.piles import Pile, find_piles
from pyrobust.auditing.printed_radii import PrintedRadii
from pyrobust.auditing.saturation import ROUNDING

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]

# Logarithm of the probability that a row of a log is spoiled.
_LOG_SPOILED = float(np.log(1e-3))


@dataclass(frozen=True, eq=False)
class Fits:
    """How well C candidates explain D distinct radii; a candidate is a set of parameters, and all share one formula.

    The attributes are those of ``Fit``, with a first dimension for the candidates.
    """

    radii: PrintedRadii
    candidates: Sequence[Parameters]

    @cached_property
    def votes(self) -> tuple[_Ints, _Ints, _Floats]:
        """Smallest and largest number of votes of each radius [C, D], and the width of its interval in votes."""
        radii, formula = self.radii, self.candidates[0].formula
        low, high = votes_between(self.candidates, *(radii.interval_up if formula.up else radii.interval))
        n = np.array([float(candidate.n) for candidate in self.candidates])[:, None]
        slack = 1e-6 + 1e-10 * n
        low, high = np.nan_to_num(low - slack, nan=1.0), np.nan_to_num(high + slack, nan=0.0)
        return np.ceil(low).astype(np.int64), np.minimum(np.floor(high), n).astype(np.int64), high - low

    @cached_property
    def beyond(self) -> _Mask:
        """Whether each radius is above the maximum by over half a unit of its last digit (1 if rounded up), [C, D]."""
        maximum = np.array([candidate.maximum for candidate in self.candidates])[:, None]
        rounding = 1.0 if self.candidates[0].formula.up else 0.5
        beyond: _Mask = self.radii.value > maximum * (1 + ROUNDING) + rounding * self.radii.unit
        return beyond

    @cached_property
    def attainable(self) -> _Mask:
        """Whether each radius is given by some number of votes, [C, D]."""
        least, most, _ = self.votes
        return (least <= most) & ~self.beyond

    @property
    def gain(self) -> _Floats:
        """Logarithm of the likelihood of each radius, relative to that of random digits, [C, D]."""
        return np.where(self.attainable, -np.log(np.clip(self.votes[2], 1e-9, 1.0)), 0.0)

    @cached_property
    def scores_without_piles(self) -> _Floats:
        """Upper bound of the score of each candidate, [C]."""
        spoiled = np.where(self.attainable, 0, self.radii.count).sum(axis=1)
        return np.asarray(self.gain.sum(axis=1) + _LOG_SPOILED * spoiled, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Fit:
    """Printed radii, and how well given parameters explain them.

    The score is the logarithm of a likelihood ratio: the likelihood of the radii under the parameters, divided by that
    of random digits. A radius that some number of votes gives has a higher score if votes give few of the printable
    radii near it. A radius that no number of votes gives has the score of a row spoiled by chance. Each pile (a radius
    in more rows than binomial votes can explain) lowers the score by its ``evidence``.
    """

    radii: PrintedRadii
    parameters: Parameters

    @cached_property
    def _alone(self) -> Fits:
        return Fits(self.radii, (self.parameters,))

    @property
    def beyond(self) -> _Mask:
        """Whether each distinct radius is above the maximum by over half a unit of its last digit (1 if rounded up)."""
        beyond: _Mask = self._alone.beyond[0]
        return beyond

    @property
    def attainable(self) -> _Mask:
        """Whether each distinct radius is given by some number of votes."""
        attainable: _Mask = self._alone.attainable[0]
        return attainable

    @cached_property
    def piles(self) -> list[Pile]:
        """Radii that are below the maximum, and that occur in more rows than binomial votes can explain."""
        if not self.radii.rows:
            return []
        least, most, _ = (votes[0] for votes in self._alone.votes)
        unit = self.radii.unit.min(keepdims=True)  # smaller radii are printed as 0
        fewest = int(votes_between((self.parameters,), unit, unit)[0][0, 0])
        most = np.where(self.attainable, most, least - 1)
        n = self.parameters.n
        return find_piles(self.radii.value, self.radii.decimals, self.radii.count, (least, most), (fewest, n), n)

    @property
    def unexplained(self) -> _Mask:
        """Whether each distinct radius is a pile or cannot come from any number of votes."""
        mask = ~self.attainable
        for pile in self.piles:
            mask |= (self.radii.value == pile.radius) & (self.radii.decimals == pile.decimals)
        return mask

    @property
    def spoiled(self) -> int:
        """Number of rows whose radius cannot come from any number of votes."""
        return int(self.radii.count[~self.attainable].sum())

    @property
    def explained(self) -> int:
        """Number of rows whose radius comes from some number of votes, excluding piles."""
        return self.radii.rows - self.spoiled - sum(pile.rows for pile in self.piles)

    @property
    def contradicted(self) -> bool:
        """Whether some radii contradict these parameters."""
        return self.spoiled > 0 or bool(self.piles)

    @cached_property
    def gain(self) -> _Floats:
        """Logarithm of the likelihood of each radius, relative to that of random digits; 0 for unattainable radii."""
        gain: _Floats = self._alone.gain[0]
        return gain

    @cached_property
    def score_without_piles(self) -> float:
        """An upper bound of the score, quick to compute."""
        return float(self._alone.scores_without_piles[0])

    @cached_property
    def score(self) -> float:
        """Logarithm of the likelihood of all radii, relative to that of random digits."""
        return self.score_without_piles - sum(pile.evidence for pile in self.piles)

    def row_scores(self) -> _Floats:
        """Return the score of each row [N]: its share of its radius's score, less its share of a pile's evidence."""
        scores = np.where(self.attainable, self.gain / self.radii.count, _LOG_SPOILED)
        for pile in self.piles:
            equal = (self.radii.value == pile.radius) & (self.radii.decimals == pile.decimals)
            scores[equal] -= pile.evidence / pile.rows
        return np.asarray(scores[self.radii.inverse], dtype=np.float64)
