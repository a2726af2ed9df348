"""Drop-in replacement for the reference implementation of randomized smoothing (Cohen, Rosenfeld and Kolter, 2019).

Change ``from core import Smooth`` to ``from pyrobust.compat.smoothing import Smooth``. Differences from the reference:

- the noise is derived from a seed, the image and the number of earlier draws for that image (see ``Smooth``), so a
  script gives the same result each time it runs, however its images are ordered or split; torch's own generators are
  not touched;
- rows without a predicted class (NaN or +inf logits) count against the certified class, while the reference counts them
  as votes for a class;
- bounds and radii are rounded down;
- the base classifier's train/eval mode is restored after every call.

Features that forks added to the reference are supported, too: the arguments ``device``, ``mode`` and ``beta`` (MACER,
CAT-RS), the methods ``confidence_all`` and ``confidence_top2`` (CAT-RS), and classifiers that return a tuple with the
logits first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pyrobust.checks import float_tensor, integer, kind, probability, summary
from pyrobust.errors import InputError, ModelError
from pyrobust.row_independence import tensor_versions
from pyrobust.runner import Classifier
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing, certified_radius
from pyrobust.smoothing.checks import one_example, samples
from pyrobust.stats import binomial_test, clopper_pearson_lower

# The forks' modes that use the reference's certificate: MACER's name for it, and CAT-RS's.
_MODES = ("hard", "gaussian")


class Smooth:
    """A smoothed classifier g, with the reference implementation's methods.

    The noise for an image x has a key: a 64-bit hash of the seed and of x's shape and values. ``RandomizedSmoothing``
    forms the key in the same way if it gets no image indices. A draw of n samples for x also depends on how many draws
    this object has made for x before. This number takes the place of the image index. With one seed, this has the
    following consequences:

    - two images share noise only if their keys coincide, even across objects and processes. The keys of a pair coincide
      with probability 2^-64. The results for two images are therefore as independent as with fresh noise, so different
      processes may certify parts of a data set, and each image may have its own object;
    - one ``Smooth`` object uses fresh noise in every draw for an image, so the two draws of ``certify`` are
      independent, and so are repeated calls;
    - the k-th draw for an image has the same noise in every object and process. The results for two classifiers or
      sigmas on one image therefore depend on each other, and a rerun repeats a result rather than confirming it; for an
      independent result, give another seed.

    Args:
        base_classifier: maps a batch [N, C, H, W] to logits [N, num_classes]. Instead of the logits, it may return an
            object with ``.logits``, or a tuple or list whose first element, and no other, is a tensor of the logits'
            shape.
        num_classes: number of classes.
        sigma: standard deviation of the Gaussian noise, positive.
        device: where to run; default: where the classifier is.
        mode: "hard" or "gaussian"; both count votes of the arg-max under Gaussian noise.
        beta: factor of the logits, accepted for MACER's scripts; the votes are for the arg-max and do not depend on it.
        seed: random seed of the noise, in [0, 2**64).

    Raises:
        InputError: a value out of range, or a mode for which this class has no certificate.

    >>> import torch
    >>> smooth = Smooth(lambda x: torch.stack([x.flatten(1).sum(1), -x.flatten(1).sum(1)], 1), 2, 0.5)
    >>> label, radius = smooth.certify(torch.ones(1, 2, 2), n0=100, n=1000, alpha=0.001, batch_size=100)
    >>> label, round(radius, 2)
    (0, 1.23)
    """

    #: The class that ``certify`` and ``predict`` return to abstain: -1.
    ABSTAIN = ABSTAIN

    def __init__(
        self,
        base_classifier: Classifier,
        num_classes: int,
        sigma: float,
        device: torch.device | str | None = None,
        mode: str = "hard",
        beta: float = 1.0,
        *,
        seed: int = 0,
    ) -> None:
        self.base_classifier = base_classifier
        self.num_classes = num_classes
        self.sigma = sigma
        self.device = device
        self.mode = mode
        self.beta = beta
        self._seed = integer("seed", seed, 0, (1 << 64) - 1)
        self._draws: Counter[int] = Counter()  # number of draws for each image, by its key
        self._built: tuple[tuple[Any, ...], RandomizedSmoothing] | None = None
        self._smoother()  # check the arguments now

    def __repr__(self) -> str:
        return summary(self, num_classes=self.num_classes, sigma=self.sigma, mode=self.mode, seed=self._seed)

    def certify(self, x: Tensor, n0: int, n: int, alpha: float, batch_size: int) -> tuple[int, float]:
        """Return the class and its certified l2 radius, or (``ABSTAIN``, 0.0).

        A certificate is wrong with probability at most alpha.

        Args:
            x: one example, [C, H, W] or as a batch [1, C, H, W].
            n0: samples for selecting the class.
            n: samples for bounding the probability of the class.
            alpha: probability of a wrong certificate, in (0, 1).
            batch_size: rows per forward pass.

        Raises:
            InputError: a value out of range, or a non-finite x.
        """
        n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
        if type(self)._sample_noise is Smooth._sample_noise:
            selection, estimation = self._draw(x, (n0, n), batch_size)
        else:  # a subclass that draws its own noise
            selection, estimation = self._sample_noise(x, n0, batch_size), self._sample_noise(x, n, batch_size)
        top = int(selection.argmax())
        p_lower = self._lower_confidence_bound(int(estimation[top]), n, alpha)
        if p_lower <= 0.5:
            return ABSTAIN, 0.0
        return top, float(certified_radius(p_lower, self.sigma))

    def predict(self, x: Tensor, n: int, alpha: float, batch_size: int) -> int:
        """Return the smoothed classifier's class or ``ABSTAIN``; a wrong class has probability at most alpha.

        Args:
            x: one example, [C, H, W] or as a batch [1, C, H, W].
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

    def confidence_all(self, x: Tensor, n: int, batch_size: int) -> npt.NDArray[np.float64]:
        """Return the share of the votes of each class, float64 [num_classes]: an estimate without a confidence bound.

        Args:
            x: one example, [C, H, W] or as a batch [1, C, H, W].
            n: number of samples.
            batch_size: rows per forward pass.

        Raises:
            InputError: a value out of range, or a non-finite x.
        """
        n = samples("n", n)
        return self._sample_noise(x, n, batch_size) / n

    def confidence_top2(
        self, x: Tensor, n: int, batch_size: int
    ) -> tuple[npt.NDArray[np.int64], list[float], npt.NDArray[np.float64]]:
        """Return the two classes with the most votes, their shares, and all shares; see ``confidence_all``."""
        shares = self.confidence_all(x, n, batch_size)
        top2 = np.argsort(-shares, kind="stable")[:2]
        return top2, shares[top2].tolist(), shares

    def _sample_noise(self, x: Tensor, num: int, batch_size: int) -> npt.NDArray[np.int64]:
        """Return the votes [num_classes] of ``num`` noisy copies of x; rows without a predicted class are left out."""
        return self._draw(x, (num,), batch_size)[0]

    def _draw(self, x: Tensor, numbers: Sequence[int], batch_size: int) -> list[npt.NDArray[np.int64]]:
        """Return the votes [num_classes] of each draw; draw i has ``numbers[i]`` samples, and draws share batches."""
        x = float_tensor("x", x)
        x = x[0] if x.dim() == 4 and len(x) == 1 else x  # a batch of one, as loaders yield it
        batch = one_example(x)
        smoother = self._smoother(x.device)
        smoother.runner.set_batch_size(batch_size)
        batch, noise = smoother.examples(batch)
        (key,) = noise.keys or []
        votes = torch.zeros((len(numbers), self.num_classes + 1), dtype=torch.int64, device=batch.device)
        runs = [(0, self._draws[key] + draw, 0, number) for draw, number in enumerate(numbers)]
        rows, keys = range(len(numbers)), [key] * len(numbers)
        smoother.sampler.count(
            batch, runs, "estimate", votes, report=lambda done: None, rows=rows, keys=keys, one_example=True
        )
        self._draws[key] += len(numbers)
        return list(smoother.sampler.read(votes, numbers)[:, : self.num_classes])

    def _smoother(self, where: torch.device | None = None) -> RandomizedSmoothing:
        """Return the smoother for the current attributes and for images on a device.

        Scripts may change attributes, move the classifier or load other weights between calls. While nothing changes,
        the smoother is reused with its runner. The runner counts batches and, after some of them, probes again whether
        the rows of a batch depend on each other. A new runner would start this count anew.
        """
        if self.mode not in _MODES:
            raise InputError(
                "mode",
                f"one of {', '.join(_MODES)}",
                repr(self.mode),
                "soft votes and Cauchy noise have no certificate here, so certify the votes of the arg-max with "
                'mode="hard"',
            )
        classifier = self.base_classifier
        versions = tensor_versions(classifier) if isinstance(classifier, nn.Module) else ()
        settings = (classifier, self.num_classes, self.sigma, self.device, where, versions)
        if self._built is None or self._built[0] != settings:
            if isinstance(classifier, nn.Module):
                classifier = _LogitsOf(classifier, self.num_classes)
            elif callable(classifier):
                classifier = partial(_logits_of, classifier, self.num_classes)
            options: dict[str, Any] = {"grid": None, "device": self.device, "seed": self._seed}
            smoother = RandomizedSmoothing(classifier, self.num_classes, self.sigma, **options)
            self._built = settings, smoother
        return self._built[1]

    def _count_arr(self, arr: npt.NDArray[np.integer], length: int) -> npt.NDArray[np.int64]:
        """Return the histogram [length] of an array of classes."""
        return np.bincount(arr, minlength=length).astype(np.int64)

    def _lower_confidence_bound(self, NA: int, N: int, alpha: float) -> float:
        """Return the one-sided Clopper-Pearson lower bound at confidence 1 - alpha for NA successes in N samples."""
        return clopper_pearson_lower(int(NA), int(N), alpha)


class _LogitsOf(nn.Module):
    """The classifier as a module that returns only logits."""

    def __init__(self, base_classifier: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.base_classifier = base_classifier  # errors name the modules as parts of this attribute
        self.num_classes = num_classes

    def forward(self, batch: Tensor) -> Any:
        return _logits_of(self.base_classifier, self.num_classes, batch)


def _logits_of(classifier: Classifier, num_classes: int, batch: Tensor) -> Any:
    """Return the classifier's output; if that is a tuple or list that begins with the logits, only the logits."""
    output = classifier(batch)
    if not isinstance(output, tuple | list) or hasattr(output, "logits"):
        return output
    shape = (len(batch), num_classes)
    if [isinstance(element, Tensor) and element.shape == shape for element in output] != [True] + [False] * (
        len(output) - 1
    ):
        parts = ", ".join(
            str(tuple(element.shape)) if isinstance(element, Tensor) else kind(element) for element in output
        )
        raise ModelError(
            f"base_classifier: expected logits {shape}, alone or first in a tuple without another tensor of that "
            f"shape, got {type(output).__name__} of ({parts}); return the logits, as in lambda x: model(x)[0]"
        )
    return output[0]
