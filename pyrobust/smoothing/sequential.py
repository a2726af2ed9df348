"""Deciding radii by a confidence sequence: the rule, a pure function of the counts at fixed sample sizes."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.checks import number, numbers, some
from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import (
    SHARE_AT_END,
    SequentialRule,
    clopper_pearson_lower,
    clopper_pearson_upper,
    sequence_lower,
    sequence_upper,
)

from .certificates import ABSTAIN
from .grid import lower_by, raise_by
from .radius import certified_radius, required_probability, two_class_radius

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

# Of the upper limits of p_A and lower ones of p_B, which certify nothing.
_LEVEL = 0.1
# Of two classes radii are estimated first: they err by less than 1e-7, most of it the rounding of sigma to float32, and
# a proved radius lies 1e-11 below the exact one.
_SLACK = 1e-6
_MOST_RADII = 1024


@dataclass(eq=False)
class ImageSequence:
    """One image and what is known of it so far; it may be kept and gone on with at any number of samples.

    Attributes:
        index: image index of the noise contract.
        counts0: [K + 1], int64, votes of the selection; None before it.
        counts: [K + 1], int64, votes of the sequence.
        limits: [4], float64: lower and upper limit of p_A, the probability of the selected class, and of p_B, that of
            its strongest rival; each the best of all looks so far.
        seconds: of work.
    """

    index: int
    counts: _Ints
    counts0: _Ints | None = None
    limits: _Floats = field(default_factory=lambda: np.array([0.0, 1.0, 0.0, 1.0]))
    seconds: float = 0.0

    @property
    def drawn(self) -> int:
        """Samples of the sequence so far."""
        return int(self.counts.sum())

    @property
    def selected(self) -> int:
        """The class with most votes of the selection; the first of several."""
        return -1 if self.counts0 is None else int(self.counts0[:-1].argmax())


@dataclass(frozen=True)
class CertificationRule:
    """When an image is judged, what its counts then prove, and when it is done.

    At each of ``looks(n)`` samples the confidence sequence of Krichevsky and Trofimov's bets (Ville, 1939; Voráček,
    2024) bounds p_A. A radius is reached when the running maximum of the lower limits proves it, and rejected at a look
    whose votes are so few that a certificate is no longer worth its samples: ``pyrobust.stats.SequentialRule``.
    Rejecting certifies nothing, so it takes nothing of alpha. An image is done when each radius is one or the other,
    or at n samples.

    - ``hybrid``, a share of alpha, is kept for one bound of Clopper and Pearson at n samples; the sequence has the
      rest. Near saturation that certifies more images at n, for log(1/(1 - hybrid)) more evidence before. A hundredth
      costs next to nothing.
    - ``two_class``: half of alpha is for the lower limit of p_A, half for upper limits of its K rivals, the votes
      without a winner among them (Bonferroni); the radius is ``sigma/2·(Φ⁻¹(p_A) - Φ⁻¹(p_B))`` (Cohen, Rosenfeld and
      Kolter, 2019) where that is larger. A radius is then rejected when limits at a level of 0.1 leave no room for it.

    Args:
        radii: to be decided, at least one.
        num_classes: K.
        sigma, noise, norm: of the smoothing.
        n: samples of an image at most.
        alpha: probability that an image's certificate is wrong.
        hybrid: in [0, 1).
        two_class: gaussian noise only.
        delta: total variation between the drawn noise and the one that certificates are about; positive on a grid.
            ``results`` takes it from p_lower and adds it to the rival's bound, and a vote without a winner, which may
            be one in the noise's tail, then counts for each rival.

    Raises:
        InputError: no radii, a share out of range, or two classes with other noise.
        InputTypeError: radii or a share that are no numbers, or a two_class that is no bool.

    >>> rule = CertificationRule((0.25, 1.0), 3, 0.5, "gaussian", "l2", 10_000, 0.001)
    >>> limits = rule.look(np.array([1]), np.array([[5, 395, 0, 0]]), np.array([[0.0, 1.0, 0.0, 1.0]]))
    >>> rule.reached(limits), rule.rejected(limits, np.array([395]), np.array([400]))
    (array([[ True, False]]), array([[False, False]]))
    """

    radii: tuple[float, ...]
    num_classes: int
    sigma: float
    noise: str
    norm: str
    n: int
    alpha: float
    hybrid: float = SHARE_AT_END
    two_class: bool = False
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not numbers("radii", self.radii):
            raise InputError("radii: expected the radii that the sequential method is to decide, got none")
        if len(self.radii) > _MOST_RADII or not all(map(math.isfinite, self.radii)):
            raise InputError(
                f"radii: expected at most {_MOST_RADII} finite numbers, got {len(self.radii)}: {some(self.radii)}"
            )
        if not 0.0 <= number("hybrid", self.hybrid) < 1.0:
            raise InputError(f"hybrid: expected a share of alpha in [0, 1), got {self.hybrid}")
        if not isinstance(self.two_class, bool):
            raise InputTypeError(f"two_class: expected True or False, got {self.two_class!r}")
        if self.two_class and self.noise != "gaussian":
            raise InputError(f"two_class: expected gaussian noise, whose radius has two classes, got {self.noise}")
        own = self.decisions  # says what is wrong with the shares of alpha
        shares = (own.alpha_sequence, own.alpha_fixed) if self.hybrid else (own.alpha_sequence,)
        if self.two_class and not all(self._of_a_rival(share) > 0.0 for share in shares):
            raise InputError(f"two_class: expected shares of alpha that leave each class some, got alpha {self.alpha}")

    @cached_property
    def decisions(self) -> SequentialRule:
        """The rule for p_A alone, with its part of alpha."""
        return SequentialRule(self.n, 0.5 * self.alpha if self.two_class else self.alpha, self.hybrid)

    @property
    def looks(self) -> tuple[int, ...]:
        """The sample sizes at which images are judged."""
        return self.decisions.looks

    @cached_property
    def required(self) -> _Floats:
        """[R]: the lower limits that prove each radius; 1.0 where none does."""
        required = [required_probability(radius, self.sigma, noise=self.noise, norm=self.norm) for radius in self.radii]
        return raise_by(required, self.delta)

    @cached_property
    def given_up(self) -> _Ints:
        """[looks, R]: the most votes with which a radius is rejected, of one class.

        The last look could reject all that it does not certify; it rejects the shares of votes that the look before
        does, so that the rest shows as undecided.
        """
        rule, every = self.decisions, np.array(self.looks)
        table = np.stack([rule.counts(p)[1] if p < 1.0 else every for p in self.required.tolist()], axis=1)
        before = table[-2] * self.n // every[-2] if len(every) > 1 else np.full(len(self.radii), -1)
        table[-1] = np.where(self.required < 1.0, np.minimum(table[-1], before), self.n)
        return table

    def next_look(self, drawn: int) -> int:
        """The first look beyond a number of samples, which is below n."""
        return self.looks[bisect_right(self.looks, drawn)]

    def look(self, top: _Ints, counts: _Ints, limits: _Floats) -> _Floats:
        """The limits after a look.

        Args:
            top: [B], the selected classes.
            counts: [B, K + 1], each row's sum one of the looks.
            limits: [B, 4], before.

        Returns:
            [B, 4].
        """
        rows = np.arange(len(top))
        others = counts.copy()
        others[rows, top] = 0
        rival = others[:, :-1].max(axis=1) + others[:, -1] if self.delta else others.max(axis=1)
        return self.limits_after(counts[rows, top], rival, counts.sum(axis=1), limits)

    def limits_after(self, votes: _Ints, rival: _Ints, drawn: _Ints, limits: _Floats) -> _Floats:
        """The same from what matters of the counts.

        Args:
            votes: [B], for the selected class.
            rival: [B], for the strongest other one; at one number of samples all limits move one way with votes.
            drawn: [B], samples.
            limits: [B, 4], before.

        Returns:
            [B, 4].
        """
        own = self.decisions
        # Both limits that reject two classes together err as often as one.
        level = 0.5 * _LEVEL if self.two_class else _LEVEL
        found: _Floats = limits.copy()
        found[:, 0] = np.maximum(limits[:, 0], sequence_lower(votes, drawn, own.alpha_sequence))
        found[:, 1] = np.minimum(limits[:, 1], sequence_upper(votes, drawn, level))
        last = np.flatnonzero(drawn == self.n) if self.hybrid else np.zeros(0, dtype=np.int64)
        if len(last):
            bound = clopper_pearson_lower(votes[last], drawn[last], own.alpha_fixed)
            found[last, 0] = np.maximum(found[last, 0], bound)
        if not self.two_class:
            return found
        found[:, 2] = np.maximum(limits[:, 2], sequence_lower(rival, drawn, level))
        # The rivals' half of alpha is as large as p_A's, and has the same shares.
        found[:, 3] = np.minimum(limits[:, 3], sequence_upper(rival, drawn, self._of_a_rival(own.alpha_sequence)))
        if len(last):
            bound = clopper_pearson_upper(rival[last], drawn[last], self._of_a_rival(own.alpha_fixed))
            found[last, 3] = np.minimum(found[last, 3], bound)
        return found

    def reached(self, limits: _Floats) -> _Bools:
        """[B, R]: which radii are certified."""
        reached: _Bools = limits[:, :1] >= self.required
        if self.two_class:
            radius = self._two_class_estimate(limits[:, :1], limits[:, 3:])
            reached |= radius - _SLACK * (self.sigma + np.abs(radius)) >= np.asarray(self.radii)
        return reached

    def rejected(self, limits: _Floats, votes: _Ints, drawn: _Ints) -> _Bools:
        """[B, R]: which radii are given up.

        Args:
            limits: [B, 4].
            votes: [B], for the selected class.
            drawn: [B], samples; what is no look rejects nothing of one class.
        """
        if not self.two_class:
            look = np.searchsorted(self.looks, drawn)
            known = np.append(self.looks, 0)[look] == drawn
            rejected: _Bools = known[:, None] & (votes[:, None] <= self.given_up[np.minimum(look, len(self.looks) - 1)])
            return rejected
        upper = limits[:, 1:2]
        radius = np.maximum(self.sigma * special.ndtri(upper), self._two_class_estimate(upper, limits[:, 2:3]))
        return np.asarray(radius + _SLACK * (self.sigma + np.abs(radius)) < np.asarray(self.radii), dtype=np.bool_)

    def done(self, limits: _Floats, votes: _Ints, drawn: _Ints) -> _Bools:
        """[B]: whether all radii are decided, or all samples drawn; arguments as of ``rejected``."""
        decided = (self.reached(limits) | self.rejected(limits, votes, drawn)).all(axis=1)
        return np.asarray(decided | (drawn == self.n), dtype=np.bool_)

    def results(self, images: list[ImageSequence]) -> dict[str, Any]:
        """What images that are done come to.

        Args:
            images: each with its selected class.

        Returns:
            By name: ``indices``, ``prediction``, ``radius``, ``p_lower``, ``p_upper``, ``rival_upper``, ``samples``
            [B]; ``counts0``, ``counts`` [B, K + 1]; ``undecided`` [B, R].
        """
        width = self.num_classes + 1
        counts0 = np.array([image.counts0 for image in images], dtype=np.int64).reshape(-1, width)
        counts = np.array([image.counts for image in images], dtype=np.int64).reshape(-1, width)
        limits = np.array([image.limits for image in images], dtype=np.float64).reshape(-1, 4)
        top = np.array([image.selected for image in images], dtype=np.int64)
        p_lower, p_upper, _, rival_upper = limits.T.copy()
        p_lower, rival_upper = lower_by(p_lower, self.delta), raise_by(rival_upper, self.delta)
        radius = certified_radius(p_lower, self.sigma, noise=self.noise, norm=self.norm)
        certain = p_lower > 0.5
        if self.two_class:
            certain |= p_lower > rival_upper
            radius = np.maximum(radius, two_class_radius(p_lower, rival_upper, self.sigma))
        certified = certain[:, None] & (radius[:, None] >= np.asarray(self.radii))
        drawn = counts.sum(axis=1)
        rejected = self.rejected(limits, counts[np.arange(len(top)), top], drawn)
        return {
            "indices": np.array([image.index for image in images], dtype=np.int64),
            "prediction": np.where(certain, top, ABSTAIN).astype(np.int64),
            "radius": radius,
            "p_lower": p_lower,
            "p_upper": p_upper,
            "rival_upper": rival_upper,
            "samples": counts0.sum(axis=1) + drawn,
            "counts0": counts0,
            "counts": counts,
            "undecided": ~certified & ~self.reached(limits) & ~rejected,
        }

    def _of_a_rival(self, alpha: float) -> float:
        """A rival's part of alpha, which K of them share."""
        return math.nextafter(alpha / self.num_classes, 0.0)

    def _two_class_estimate(self, p: _Floats, rival: _Floats) -> _Floats:
        """About the radius of two probabilities; negative where there is none, and infinite at p = 1 or rival = 0."""
        return np.asarray(0.5 * self.sigma * (special.ndtri(p) - special.ndtri(rival)), dtype=np.float64)
