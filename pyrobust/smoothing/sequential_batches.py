"""Certification of batches by sequential sampling."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pyrobust.runner import Progress, reporting

from .certificates import Certificates
from .checks import SEQUENTIAL
from .image_noise import ImageNoise
from .packing import SequencePacker
from .sampling import Sampler
from .sequential import CertificationRule, ImageSequence


def certify_sequentially(
    sampler: Sampler, rule: CertificationRule, n0: int, x: Tensor, noise: ImageNoise, progress: bool | Progress
) -> Certificates:
    """Select a class with n0 samples and draw more until the rule has decided every radius.

    Samples that turn out to be unnecessary are reported to ``progress`` as done.

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
    del results["p_upper"]
    if not rule.two_class:
        del results["rival_upper"]
    return Certificates(
        **sampler.described(noise),
        **results,
        radii=rule.radii,
        n0=n0,
        n=rule.n,
        alpha=rule.alpha,
        delta=rule.delta,
        method=SEQUENTIAL,
        hybrid=rule.hybrid,
    )
