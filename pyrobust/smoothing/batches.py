"""Certification of one batch of examples with a fixed number of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.runner import Progress, reporting
from pyrobust.stats import clopper_pearson_lower

from .certificates import ABSTAIN, Certificates
from .grid import lower_by
from .image_noise import ImageNoise
from .radius import CERTIFIED, certified_radius
from .sampling import Sampler


def certify_fixed(
    sampler: Sampler,
    x: Tensor,
    noise: ImageNoise,
    n0: int,
    n: int,
    alpha: float,
    radii: tuple[float, ...],
    progress: bool | Progress,
    *,
    one_example: bool = False,
) -> Certificates:
    """Select a class with n0 samples and bound its probability with n fresh samples (Clopper and Pearson, 1934).

    >>> import torch
    >>> from pyrobust.runner import Runner
    >>> sampler = Sampler(Runner(lambda x: x), 2, 0.5, "gaussian", 0, None)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> certify_fixed(sampler, x, ImageNoise([0, 1]), 100, 1000, 0.001, (), False).prediction
    array([ 0, -1])
    """
    norm = dict(CERTIFIED)[sampler.noise]
    total = len(x) * (n0 + n)
    with reporting(progress, total) as report:
        stages = [("select", n0), ("estimate", n)]
        counts0, counts = sampler.votes(x, noise, stages, report, one_example=one_example)
    delta = sampler.delta(x.shape[1:])
    return Certificates(
        **sampler.described(noise),
        **fixed_results(counts0, counts, alpha, sampler.sigma, noise=sampler.noise, norm=norm, delta=delta),
        indices=noise.indices,
        radii=radii,
        counts0=counts0,
        counts=counts,
        samples=np.full(len(x), n0 + n, dtype=np.int64),
        undecided=np.zeros((len(x), len(radii)), dtype=np.bool_),
        n0=n0,
        n=n,
        alpha=alpha,
        delta=delta,
    )


def fixed_results(
    counts0: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    alpha: float,
    sigma: float,
    noise: str,
    norm: str,
    delta: float,
) -> dict[str, Any]:
    """Compute ``prediction``, ``p_lower`` and ``radius`` [B] from the votes [B, K + 1] of selection and estimation.

    >>> counts = np.array([[95, 5, 0], [55, 45, 0]])
    >>> fixed_results(counts, 10 * counts, 0.001, 0.5, "gaussian", "l2", 0.0)["radius"].round(3)
    array([0.72 , 0.001])
    """
    top = counts0[:, :-1].argmax(axis=1)
    votes, n = counts[np.arange(len(top)), top].tolist(), counts.sum(axis=1).tolist()
    p_lower = lower_by([clopper_pearson_lower(*row, alpha) for row in zip(votes, n, strict=True)], delta)
    return {
        "prediction": np.where(p_lower > 0.5, top, ABSTAIN).astype(np.int64),
        "p_lower": p_lower,
        "radius": certified_radius(p_lower, sigma, noise=noise, norm=norm),
    }
