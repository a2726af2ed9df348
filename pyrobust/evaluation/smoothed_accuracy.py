"""Certified accuracy of a smoother over a set of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import WORDS, Numbers, class_labels, float_tensor, items, non_negatives, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.runner import Runner
from pyrobust.smoothing import ABSTAIN, Certificates, RandomizedSmoothing

# Images certified at once: enough to fill batches, and few enough for the device's memory.
_CHUNK = 1024


@runtime_checkable
class Smoother(Protocol):
    """Any object that certifies one example at a time."""

    def certify(self, x: Tensor, *, n: int, alpha: float) -> tuple[int, float]:
        """Return class (−1 for an abstention) and certified radius of one example [...]."""
        ...


def compute_certified_accuracy(
    smoother: Smoother,
    test_images: Numbers,
    test_labels: Tensor | npt.ArrayLike,
    radii: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5),
    n: int = 10_000,
    alpha: float = 0.001,
) -> dict[str, float]:
    """Certify every image, and compute the certified accuracy at each radius (Cohen, Rosenfeld and Kolter, 2019).

    The certified accuracy at r is ``(1/N)·Σ 1[g(xᵢ) = yᵢ and Rᵢ ≥ r]``, where g is the smoothed classifier and Rᵢ is
    the certified radius at xᵢ. Rᵢ and r are compared in float64. An abstention (class −1) counts as wrong for every
    label, even for label −1. A radius of +inf counts as certified at every r, and makes the mean radius infinite. A
    radius of NaN or −inf counts as certified at no r; in the mean radius, it counts as 0.

    Args:
        smoother: a ``RandomizedSmoothing``, or any object with a method ``certify(x, n=, alpha=)`` that returns (class,
            radius). For such an object, ``certify`` is called with one image ``test_images[i]`` at a time.
        test_images: [N, ...], float; N ≥ 1.
        test_labels: [N], integers, the true classes. The label −1 stands for an image without a true class; every
            prediction for such an image is wrong.
        radii: radii ≥ 0, possibly inf, in the unit of the input.
        n: noise samples for each image; they bound the probability of the class predicted for the image.
        alpha: probability that one certificate is wrong, in (0, 1).

    Returns:
        A dictionary of floats. ``clean_accuracy`` is the share of images that the smoothed classifier classifies
        correctly. ``f"certified_r={r}"`` is the certified accuracy at radius r; there is one such key for each r in
        ``radii``, with r written as it was passed. ``avg_radius`` is the mean radius of correctly classified images,
        0.0 if there are none.

    Raises:
        InputError: there are no images, the number of labels is not N, a label is out of range, a radius is negative or
            NaN, or ``certify_batch`` refuses an argument.
        InputTypeError: labels that are not integers, a smoother without ``certify``, or one whose ``certify`` returns
            anything but a class and a radius.

    >>> import torch
    >>> class Known:
    ...     def certify(self, x, *, n, alpha):
    ...         return (1, 0.5) if x.sum() > 0 else (-1, 0.0)
    >>> images = torch.tensor([[1.0], [1.0], [-1.0]])
    >>> summary = compute_certified_accuracy(Known(), images, [1, 0, 1], radii=[0.5, 0.75])
    >>> summary["certified_r=0.5"], summary["certified_r=0.75"], summary["avg_radius"]
    (0.3333333333333333, 0.0, 0.5)
    """
    runner = getattr(smoother, "runner", None)
    dtype = runner.list_dtype if isinstance(runner, Runner) else None
    test_images = float_tensor("test_images", test_images, "certify_dataset", dtype)
    if test_images.dim() < 1 or len(test_images) == 0:
        raise InputError("test_images", "at least one image", f"shape {tuple(test_images.shape)}")
    if isinstance(smoother, RandomizedSmoothing):
        smoother.infer_classes(test_images)
    classes = getattr(smoother, "num_classes", None)
    labels = class_labels("test_labels", test_labels, len(test_images), classes, lowest=ABSTAIN).numpy()
    radii = items("radii", radii)
    values = non_negatives("radii", radii, infinite=True)

    prediction, radius_of = _certify(smoother, test_images, n, alpha)
    correct = (prediction == labels) & (prediction != ABSTAIN)
    certified = ~(np.isnan(radius_of) | np.isneginf(radius_of))
    result = {"clean_accuracy": float(correct.mean())}
    for radius, value in zip(radii, values, strict=True):
        result[f"certified_r={radius}"] = float((correct & certified & (radius_of >= value)).mean())
    result["avg_radius"] = float(np.where(certified, radius_of, 0.0)[correct].mean()) if bool(correct.any()) else 0.0
    return result


def _certify(
    smoother: Smoother, images: Tensor, n: int, alpha: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    prediction = np.empty(len(images), dtype=np.int64)
    radius = np.empty(len(images), dtype=np.float64)
    if isinstance(smoother, RandomizedSmoothing) and type(smoother).certify is RandomizedSmoothing.certify:
        smoother = smoother.on_grid_of(images)  # one grid for all chunks
        for begin in range(0, len(images), _CHUNK):
            stop = min(begin + _CHUNK, len(images))
            result: Certificates = smoother.certify_batch(
                images[begin:stop], n=n, alpha=alpha, indices=range(begin, stop)
            )
            prediction[begin:stop], radius[begin:stop] = result.prediction, result.radius
    elif isinstance(smoother, Smoother):
        for i in range(len(images)):
            prediction[i], radius[i] = _answer(smoother.certify(images[i], n=n, alpha=alpha))
    else:
        raise InputTypeError("smoother", "an object with certify(x, n=, alpha=)", type(smoother).__name__)
    return prediction, radius


def _answer(answer: Any) -> tuple[int, float]:
    """Return the class and the radius in a smoother's answer."""
    try:
        label, radius = answer
        if isinstance(label, str) or int(label) != label or not -1 <= label < WORDS:
            raise ValueError
        return int(label), float(radius)
    except (TypeError, ValueError, OverflowError):
        raise InputTypeError(
            "smoother", "certify to return a class of at least -1 and a radius", shown(answer)
        ) from None
