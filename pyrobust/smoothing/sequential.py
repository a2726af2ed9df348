"""Rule that certifies radii by a confidence sequence, or gives them up, from the counts at fixed sample sizes."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.checks import first_values, number
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
from .checks import radii_to_decide
from .grid import lower_by, raise_by
from .radius import certified_radius, required_probability, two_class_radius

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

# Level of the upper limits of p_A and the lower limits of p_B, which only serve to give radii up.
_FUTILITY_LEVEL = 0.1
# Two-class radii are estimated before they are proved. The estimate errs by less than 1e-7, mostly from rounding sigma
# to float32, and a proved radius lies 1e-11 below the exact one.
_ESTIMATE_ERROR = 1e-6
_MAX_RADII = 1024


@dataclass(eq=False)
class ImageSequence:
    """Sampling state of one image; sampling can be interrupted and resumed after any number of samples."""

    #: Image index in the noise contract or, with a key, position in the call.
    index: int
    #: Votes of the samples after the selection, [K + 1], int64.
    counts: _Ints
    #: Votes of the selection, [K + 1], int64; None before the selection.
    counts0: _Ints | None = None
    #: Lower and upper limits of p_A, the probability of the selected class, then of p_B, the probability of its
    #: runner-up; each the tightest over all looks so far. [4], float64.
    limits: _Floats = field(default_factory=lambda: np.array([0.0, 1.0, 0.0, 1.0]))
    #: Time spent on the image.
    seconds: float = 0.0
    #: Philox key of the noise if it is keyed by the image's values; None if keyed by seed and index.
    key: int | None = None

    @property
    def drawn(self) -> int:
        """Number of samples drawn after the selection."""
        return int(self.counts.sum())

    @property
    def selected(self) -> int:
        """Class with the most votes in the selection, the lowest such class on a tie; -1 before the selection."""
        return -1 if self.counts0 is None else int(self.counts0[:-1].argmax())


@dataclass(frozen=True)
class CertificationRule:
    """Rule for sequential certification: when to judge an image, what its counts prove, and when it is decided.

    At each look, that is, at each of the sample sizes ``looks(n)``, the Krichevsky-Trofimov confidence sequence (Ville,
    1939; Voráček, 2024) bounds p_A, the probability of the selected class. A radius is reached when the running maximum
    of the lower limits proves it. A radius is given up (rejected) if the selected class has very few votes at a look,
    because a certificate is then no longer worth the samples that it would take (``pyrobust.stats.SequentialRule``).
    Giving up certifies nothing, so it uses no part of alpha. An image is decided when every radius is reached or given
    up, or after n samples.

    - ``hybrid`` is the share of alpha reserved for one Clopper-Pearson bound at n samples; the sequence has the rest.
      If n is at least a few hundred, more images are certified with this bound than without it, for radii near the
      largest that n samples can prove. In return, the sequence needs more evidence at earlier looks: there, its
      log-likelihood ratio must be larger by log(1/(1 - hybrid)). A share of 0.01 costs the sequence almost nothing.
    - ``two_class`` spends half of alpha on the lower limit of p_A. The other half is spent on upper limits of K other
      classes (Bonferroni): the K - 1 classes that are not selected, and the samples without a winner, which also count
      as a class. The certified radius is then the larger of two radii: the radius from p_A alone, and
      ``sigma/2·(Φ⁻¹(p_A) - Φ⁻¹(p_B))``, where p_B is the probability of the runner-up (Cohen, Rosenfeld and Kolter,
      2019). A radius is given up when it is above the largest radius that is possible if p_A and p_B lie within their
      confidence limits at level 0.1.

    Args:
        radii: radii to be decided, at least one.
        num_classes: number of classes K.
        sigma, noise, norm: parameters of the smoothed classifier.
        n: largest number of samples per image.
        alpha: probability that the certificate of an image is wrong.
        hybrid: share of alpha for the bound at n samples, in [0, 1).
        two_class: whether to bound the other classes, too; Gaussian noise only.
        delta: bound on the total variation distance of the drawn noise from the exact noise; positive on a grid.
            ``results`` subtracts delta from p_lower and adds delta to the runner-up's bound. On a grid, samples with
            noise in the tails, whose magnitude is not drawn, have no winner. A sample without a winner may then belong
            to any class, so it counts for every class that is not selected.

    Raises:
        InputError: there are no radii, a share is out of range, or two_class is combined with noise other than
            Gaussian.
        InputTypeError: radii or a share are not numbers, or two_class is not a bool.

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
        radii_to_decide(self.radii)
        if len(self.radii) > _MAX_RADII or not all(map(math.isfinite, self.radii)):
            raise InputError(
                "radii", f"at most {_MAX_RADII} finite numbers", f"{len(self.radii)}: {first_values(self.radii)}"
            )
        hybrid = number("hybrid", self.hybrid)
        if not 0.0 <= hybrid < 1.0:
            raise InputError("hybrid", "a share of alpha in [0, 1)", hybrid)
        if not isinstance(self.two_class, bool):
            raise InputTypeError("two_class", "True or False", repr(self.two_class))
        if self.two_class and self.noise != "gaussian":
            raise InputError("two_class", "gaussian noise", self.noise, "pass two_class=False")
        decisions = self.decisions  # checks the shares of alpha
        shares = (decisions.alpha_sequence, decisions.alpha_fixed) if self.hybrid else (decisions.alpha_sequence,)
        if self.two_class and not all(self._alpha_per_rival(share) > 0.0 for share in shares):
            raise InputError("two_class", "an alpha large enough to be split over the classes", f"alpha {self.alpha}")

    @cached_property
    def decisions(self) -> SequentialRule:
        """Sequential rule for p_A alone, at level alpha, or at level alpha / 2 with ``two_class``."""
        return SequentialRule(self.n, 0.5 * self.alpha if self.two_class else self.alpha, self.hybrid)

    @property
    def looks(self) -> tuple[int, ...]:
        """Sample sizes at which images are judged."""
        return self.decisions.looks

    @cached_property
    def required(self) -> _Floats:
        """Lower limit of p_A that proves each radius, [R]; 1.0 if no limit below 1 proves the radius."""
        required = [required_probability(radius, self.sigma, noise=self.noise, norm=self.norm) for radius in self.radii]
        return raise_by(required, self.delta)

    @cached_property
    def given_up(self) -> _Ints:
        """Largest number of votes for the selected class at which a radius is given up, [looks, R].

        These numbers apply only without ``two_class``. At the last look, every image that is not certified could count
        as given up. However, an image is given up at the last look only if its share of votes is at most the largest
        share that is given up at the previous look. Uncertified images with more votes are undecided.
        """
        rule, looks = self.decisions, np.array(self.looks)
        table = np.stack([rule.counts(p)[1] if p < 1.0 else looks for p in self.required.tolist()], axis=1)
        before = table[-2] * self.n // looks[-2] if len(looks) > 1 else np.full(len(self.radii), -1)
        table[-1] = np.where(self.required < 1.0, np.minimum(table[-1], before), self.n)
        return table

    def next_look(self, drawn: int) -> int:
        """Return the first look after ``drawn`` samples, where ``drawn`` is below n."""
        return self.looks[bisect_right(self.looks, drawn)]

    def look(self, top: _Ints, counts: _Ints, limits: _Floats) -> _Floats:
        """Update the confidence limits [B, 4] of images that have reached a look.

        Args:
            top: selected classes, [B].
            counts: votes, [B, K + 1]. Each row sums to the sample size of a look.
            limits: limits before the look, [B, 4].
        """
        rows = np.arange(len(top))
        others = counts.copy()
        others[rows, top] = 0
        rival = others[:, :-1].max(axis=1) + others[:, -1] if self.delta else others.max(axis=1)
        return self.limits_after(counts[rows, top], rival, counts.sum(axis=1), limits)

    def limits_after(self, votes: _Ints, rival: _Ints, drawn: _Ints, limits: _Floats) -> _Floats:
        """Update limits [B, 4] from the votes of the selected class and of the runner-up.

        Args:
            votes: votes for the selected class, [B].
            rival: votes for the runner-up, [B]. For a given number of samples, all limits increase with the votes. The
                runner-up therefore has the largest limits among the classes that were not selected.
            drawn: number of samples, [B].
            limits: limits before the look, [B, 4].
        """
        decisions = self.decisions
        # With ``two_class``, both limits that serve to give radii up share one error probability.
        level = 0.5 * _FUTILITY_LEVEL if self.two_class else _FUTILITY_LEVEL
        updated: _Floats = limits.copy()
        updated[:, 0] = np.maximum(limits[:, 0], sequence_lower(votes, drawn, decisions.alpha_sequence))
        updated[:, 1] = np.minimum(limits[:, 1], sequence_upper(votes, drawn, level))
        last = np.flatnonzero(drawn == self.n) if self.hybrid else np.zeros(0, dtype=np.int64)
        if len(last):
            bound = clopper_pearson_lower(votes[last], drawn[last], decisions.alpha_fixed)
            updated[last, 0] = np.maximum(updated[last, 0], bound)
        if not self.two_class:
            return updated
        updated[:, 2] = np.maximum(limits[:, 2], sequence_lower(rival, drawn, level))
        # The other classes share one half of alpha, and p_A has the other half; both halves are split in the same way.
        alpha = self._alpha_per_rival(decisions.alpha_sequence)
        updated[:, 3] = np.minimum(limits[:, 3], sequence_upper(rival, drawn, alpha))
        if len(last):
            alpha = self._alpha_per_rival(decisions.alpha_fixed)
            bound = clopper_pearson_upper(rival[last], drawn[last], alpha)
            updated[last, 3] = np.minimum(updated[last, 3], bound)
        return updated

    def reached(self, limits: _Floats) -> _Bools:
        """Whether the limits [B, 4] certify each radius, [B, R]."""
        reached: _Bools = limits[:, :1] >= self.required
        if self.two_class:
            radius = self._two_class_estimate(limits[:, :1], limits[:, 3:])
            reached |= radius - _ESTIMATE_ERROR * (self.sigma + np.abs(radius)) >= np.asarray(self.radii)
        return reached

    def rejected(self, limits: _Floats, votes: _Ints, drawn: _Ints) -> _Bools:
        """Whether each radius is given up, [B, R].

        Args:
            limits: lower and upper limits of p_A, then of p_B, [B, 4].
            votes: votes for the selected class, [B].
            drawn: number of samples, [B]. Without ``two_class``, nothing is given up between looks.
        """
        if not self.two_class:
            look = np.searchsorted(self.looks, drawn)
            at_look = np.append(self.looks, 0)[look] == drawn
            table = self.given_up[np.minimum(look, len(self.looks) - 1)]
            rejected: _Bools = at_look[:, None] & (votes[:, None] <= table)
            return rejected
        upper = limits[:, 1:2]
        radius = np.maximum(self.sigma * special.ndtri(upper), self._two_class_estimate(upper, limits[:, 2:3]))
        largest = radius + _ESTIMATE_ERROR * (self.sigma + np.abs(radius))
        return np.asarray(largest < np.asarray(self.radii), dtype=np.bool_)

    def done(self, limits: _Floats, votes: _Ints, drawn: _Ints) -> _Bools:
        """Whether all radii are decided or all samples drawn, [B]; arguments as for ``rejected``."""
        decided = (self.reached(limits) | self.rejected(limits, votes, drawn)).all(axis=1)
        return np.asarray(decided | (drawn == self.n), dtype=np.bool_)

    def results(self, images: list[ImageSequence]) -> dict[str, Any]:
        """Collect the results of decided images in a dictionary; its keys are the names of the results.

        Returns:
            A dictionary. ``indices``, ``prediction``, ``radius``, ``p_lower``, ``p_upper``, ``rival_upper`` and
            ``samples`` have the shape [B]. ``counts0`` and ``counts`` have the shape [B, K + 1]. ``undecided`` has the
            shape [B, R].
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

    def _alpha_per_rival(self, alpha: float) -> float:
        """Return alpha / K, rounded down: the share of each class but the selected one; "no winner" is a class."""
        return math.nextafter(alpha / self.num_classes, 0.0)

    def _two_class_estimate(self, p: _Floats, rival: _Floats) -> _Floats:
        """Estimate the two-class radius; negative if nothing is certified, infinite if p = 1 or rival = 0."""
        return np.asarray(0.5 * self.sigma * (special.ndtri(p) - special.ndtri(rival)), dtype=np.float64)
