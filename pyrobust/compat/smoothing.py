"""Drop-in replacement for the reference implementation of randomized smoothing (Cohen, Rosenfeld and Kolter, 2019).

Change ``from core import Smooth`` to ``from pyrobust.compat.smoothing import Smooth``. Differences from the reference:

- the noise is derived from a seed and a count of the calls, so a script gives the same result each time it runs; calls
  never share noise, and torch's own generators are not touched;
- votes of rows without a predicted class (NaN or +inf logits) count against the certified class, where the reference
  counts them as votes;
- bounds and radii are rounded down;
- the base classifier's train/eval mode is restored after every call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import probability
from pyrobust.runner import Classifier
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing, certified_radius
from pyrobust.smoothing.checks import one_example, samples
from pyrobust.stats import binomial_test, clopper_pearson_lower


class Smooth:
    """A smoothed classifier g, with the reference implementation's methods.

    Args:
        base_classifier: maps a batch [N, C, H, W] to logits [N, num_classes].
        num_classes: number of classes.
        sigma: standard deviation of the Gaussian noise, positive.
        seed: random seed of the noise, in [0, 2**64).

    Raises:
        InputError: a value out of range.

    >>> import torch
    >>> smooth = Smooth(lambda x: torch.stack([x.flatten(1).sum(1), -x.flatten(1).sum(1)], 1), 2, 0.5)
    >>> label, radius = smooth.certify(torch.ones(1, 2, 2), n0=100, n=1000, alpha=0.001, batch_size=100)
    >>> label, round(radius, 2)
    (0, 1.23)
    """

    #: The class that ``certify`` and ``predict`` return to abstain: -1.
    ABSTAIN = ABSTAIN

    def __init__(self, base_classifier: Classifier, num_classes: int, sigma: float, *, seed: int = 0) -> None:
        self.base_classifier = base_classifier
        self.num_classes = num_classes
        self.sigma = sigma
        self._seed = seed
        self._calls = 0
        self._smoother()  # check the arguments now

    def certify(self, x: Tensor, n0: int, n: int, alpha: float, batch_size: int) -> tuple[int, float]:
        """Return the class and its certified l2 radius, or (``ABSTAIN``, 0.0); wrong with probability at most alpha.

        Args:
            x: one example [C, H, W].
            n0: samples for selecting the class.
            n: samples for bounding its probability.
            alpha: probability of a wrong certificate, in (0, 1).
            batch_size: rows per forward pass.

        Raises:
            InputError: a value out of range, or a non-finite x.
        """
        n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
        selection = self._sample_noise(x, n0, batch_size)
        top = int(selection.argmax())
        estimation = self._sample_noise(x, n, batch_size)
        p_lower = self._lower_confidence_bound(int(estimation[top]), n, alpha)
        if p_lower <= 0.5:
            return ABSTAIN, 0.0
        return top, float(certified_radius(p_lower, self.sigma))

    def predict(self, x: Tensor, n: int, alpha: float, batch_size: int) -> int:
        """Return the smoothed classifier's class, or ``ABSTAIN``; wrong with probability at most alpha.

        Args:
            x: one example [C, H, W].
            n: number of samples.
            alpha: probability of a wrong prediction, in (0, 1).
            batch_size: rows per forward pass.

        Raises:
            InputError: a value out of range, or a non-finite x.
        """
        n, alpha = samples("n", n), probability("alpha", alpha)
        counts = self._sample_noise(x, n, batch_size)
        without_class = n - int(counts.sum())
        order = np.argsort(-counts, kind="stable")
        first = int(counts[order[0]])
        second = max(int(counts[order[1]]) if len(counts) > 1 else 0, without_class)
        if without_class >= first or binomial_test(first, first + second) > alpha:
            return ABSTAIN
        return int(order[0])

    def _sample_noise(self, x: Tensor, num: int, batch_size: int) -> npt.NDArray[np.int64]:
        """Votes [num_classes] of ``num`` noisy copies of x, leaving out rows without a predicted class."""
        votes = self._smoother(batch_size).votes(one_example(x), n=num, indices=[self._calls])
        self._calls += 1
        counts: npt.NDArray[np.int64] = votes[0, : self.num_classes]
        return counts

    def _smoother(self, batch_size: int | None = None) -> RandomizedSmoothing:
        # Built anew for each call: scripts change the attributes, and move the classifier, between calls.
        return RandomizedSmoothing(
            self.base_classifier, self.num_classes, self.sigma, seed=self._seed, batch_size=batch_size
        )

    def _count_arr(self, arr: npt.NDArray[np.integer], length: int) -> npt.NDArray[np.int64]:
        """Histogram [length] of an array of classes."""
        return np.bincount(arr, minlength=length).astype(np.int64)

    def _lower_confidence_bound(self, NA: int, N: int, alpha: float) -> float:
        """One-sided Clopper-Pearson lower bound on the success probability, from NA of N, at confidence 1 - alpha."""
        return clopper_pearson_lower(int(NA), int(N), alpha)
