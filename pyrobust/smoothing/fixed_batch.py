"""Certificates of one batch of examples from a fixed number of samples each."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pyrobust.runner import Progress, reporting
from pyrobust.stats import clopper_pearson_lower

from .certificates import ABSTAIN, Certificates
from .grid import lower_by
from .radius import CERTIFIED, certified_radius
from .sampling import Sampler


def certify_fixed(
    sampler: Sampler,
    x: Tensor,
    index: list[int],
    n0: int,
    n: int,
    alpha: float,
    radii: tuple[float, ...],
    progress: bool | Progress,
) -> Certificates:
    """Selects a class with n0 samples, and bounds its probability with n fresh ones (Clopper and Pearson, 1934).

    Args:
        sampler: of the smoothed classifier.
        x: [B, ...], on the sampler's device.
        index: image index of each.
        n0: samples for the selection.
        n: samples for the bound.
        alpha: probability that one certificate is wrong.
        radii: of interest.
        progress: as of ``RandomizedSmoothing.certify_batch``.

    Returns:
        Certificates.

    Raises:
        InputError, ModelError: as ``Sampler.votes``.

    >>> import torch
    >>> from pyrobust.runner import Runner
    >>> sampler = Sampler(Runner(lambda x: x), 2, 0.5, "gaussian", 0, None)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> certify_fixed(sampler, x, [0, 1], 100, 1000, 0.001, (), False).prediction
    array([ 0, -1])
    """
    norm = dict(CERTIFIED)[sampler.noise]
    total = len(x) * (n0 + n)
    with reporting(progress, total) as report:
        counts0 = sampler.votes(x, index, n0, "select", report)
        counts = sampler.votes(x, index, n, "estimate", lambda done: report(len(x) * n0 + done))
    top = counts0[:, : sampler.num_classes].argmax(axis=1)
    delta = sampler.delta(x.shape[1:])
    p_lower = lower_by(clopper_pearson_lower(counts[np.arange(len(top)), top], n, alpha), delta)
    radius = certified_radius(p_lower, sampler.sigma, noise=sampler.noise, norm=norm)
    return Certificates(
        indices=np.asarray(index, dtype=np.int64),
        prediction=np.where(p_lower > 0.5, top, ABSTAIN).astype(np.int64),
        radius=radius,
        radii=radii,
        p_lower=p_lower,
        counts0=counts0,
        counts=counts,
        samples=np.full(len(top), n0 + n, dtype=np.int64),
        undecided=np.zeros((len(top), len(radii)), dtype=np.bool_),
        sigma=sampler.sigma,
        noise=sampler.noise,
        norm=norm,
        n0=n0,
        n=n,
        alpha=alpha,
        seed=sampler.seed,
        guarantee=sampler.guarantee,
        grid=sampler.grid,
        delta=delta,
    )
