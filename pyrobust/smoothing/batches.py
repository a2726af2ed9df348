"""Certification of one batch of examples, with a fixed number of samples or sequentially."""

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
from .packing import SequencePacker
from .radius import CERTIFIED, certified_radius
from .sampling import Sampler
from .sequential import CertificationRule, ImageSequence


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
    """Select a class with n0 samples and bound its probability with n fresh ones (Clopper and Pearson, 1934).

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
    results = fixed_results(counts0, counts, alpha, sampler.sigma, sampler.noise, norm, delta)
    return Certificates(
        indices=noise.indices,
        prediction=results["prediction"],
        radius=results["radius"],
        radii=radii,
        p_lower=results["p_lower"],
        counts0=counts0,
        counts=counts,
        samples=np.full(len(x), n0 + n, dtype=np.int64),
        undecided=np.zeros((len(x), len(radii)), dtype=np.bool_),
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
        keys=noise.reported_keys,
    )


def fixed_results(
    counts0: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    alpha: float,
    sigma: float,
    noise: str,
    norm: str,
    delta: float,
) -> dict[str, npt.NDArray[Any]]:
    """Compute ``prediction``, ``p_lower`` and ``radius`` [B] from the votes [B, K + 1] of selection and estimation.

    >>> counts = np.array([[95, 5, 0], [55, 45, 0]])
    >>> fixed_results(counts, 10 * counts, 0.001, 0.5, "gaussian", "l2", 0.0)["radius"].round(3)
    array([0.72 , 0.001])
    """
    top = counts0[:, :-1].argmax(axis=1)
    votes, n = counts[np.arange(len(top)), top], counts.sum(axis=1)
    p_lower = lower_by(clopper_pearson_lower(votes, n, alpha), delta)
    return {
        "prediction": np.where(p_lower > 0.5, top, ABSTAIN).astype(np.int64),
        "p_lower": p_lower,
        "radius": certified_radius(p_lower, sigma, noise=noise, norm=norm),
    }


def certify_sequentially(
    sampler: Sampler, rule: CertificationRule, n0: int, x: Tensor, noise: ImageNoise, progress: bool | Progress
) -> Certificates:
    """Select a class with n0 samples and draw more until the rule has decided every radius.

    Progress counts samples that turn out not to be needed as done.

    >>> import torch
    >>> from pyrobust.runner import Runner
    >>> x = torch.tensor([[1.0, 0.0], [0.1, 0.0]])
    >>> rule = CertificationRule((0.25, 0.5), 2, 0.5, "gaussian", "l2", 10_000, 0.001)
    >>> sampler = Sampler(Runner(lambda x: x), 2, 0.5, "gaussian", 0, None)
    >>> certificates = certify_sequentially(sampler, rule, 100, x, ImageNoise([0, 1]), False)
    >>> certificates.certified, certificates.samples
    (array([[ True,  True],
           [False, False]]), array([467, 148]))
    """
    images = [
        ImageSequence(number, np.zeros(sampler.num_classes + 1, dtype=np.int64)) for number in noise.indices.tolist()
    ]
    for image, key in zip(images, noise.keys or (), strict=noise.keys is not None):
        image.key = key
    row = {id(image): position for position, image in enumerate(images)}
    samples_per_image = n0 + rule.n
    with reporting(progress, len(images) * samples_per_image) as report:
        done = finished = 0

        def fetch(chosen: list[ImageSequence]) -> Tensor:
            return x[[row[id(image)] for image in chosen]]

        def advance(drawn: int) -> None:
            report(done + drawn)

        rounds = SequencePacker(sampler, rule, n0, x[0]).run(images, fetch, advance) if images else ()
        for current in rounds:
            finished += len(current.finished)
            in_progress = sum(n0 + image.drawn for image in current.active if image.counts0 is not None)
            done = finished * samples_per_image + in_progress
            report(done)
    results = rule.results(images)
    return Certificates(
        indices=results["indices"],
        prediction=results["prediction"],
        radius=results["radius"],
        radii=rule.radii,
        p_lower=results["p_lower"],
        counts0=results["counts0"],
        counts=results["counts"],
        samples=results["samples"],
        undecided=results["undecided"],
        sigma=rule.sigma,
        noise=rule.noise,
        norm=rule.norm,
        n0=n0,
        n=rule.n,
        alpha=rule.alpha,
        seed=sampler.seed,
        guarantee=sampler.guarantee,
        grid=sampler.grid,
        delta=rule.delta,
        method="sequential",
        hybrid=rule.hybrid,
        rival_upper=results["rival_upper"] if rule.two_class else None,
        keys=noise.reported_keys,
    )
