"""Sequential certificates of one batch of examples."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pyrobust.runner import Progress, reporting

from .certificates import Certificates
from .packing import SequencePacker
from .sampling import Sampler
from .sequential import CertificationRule, ImageSequence


def certify_sequentially(
    sampler: Sampler, rule: CertificationRule, n0: int, x: Tensor, index: list[int], progress: bool | Progress
) -> Certificates:
    """Certificates of B examples by a rule.

    Args:
        sampler: of the smoothed classifier.
        rule: when an example is done.
        n0: samples for the selection of the class.
        x: [B, ...], on the sampler's device.
        index: image index of each.
        progress: as of ``RandomizedSmoothing.certify_batch``; samples that turn out not to be needed count as done.

    Returns:
        Certificates.

    Raises:
        InputError, ModelError: as ``Sampler.count``.

    >>> import torch
    >>> from pyrobust.runner import Runner
    >>> x = torch.tensor([[1.0, 0.0], [0.1, 0.0]])
    >>> rule = CertificationRule((0.25, 0.5), 2, 0.5, "gaussian", "l2", 10_000, 0.001)
    >>> sampler = Sampler(Runner(lambda x: x), 2, 0.5, "gaussian", 0, None)
    >>> found = certify_sequentially(sampler, rule, 100, x, [0, 1], False)
    >>> found.certified, found.samples
    (array([[ True,  True],
           [False, False]]), array([467, 148]))
    """
    images = [ImageSequence(number, np.zeros(sampler.num_classes + 1, dtype=np.int64)) for number in index]
    row = {id(image): number for number, image in enumerate(images)}
    whole = n0 + rule.n
    with reporting(progress, len(images) * whole) as report:
        done = finished = 0

        def fetch(some: list[ImageSequence]) -> Tensor:
            return x[[row[id(image)] for image in some]]

        def advance(drawn: int) -> None:
            report(done + drawn)

        rounds = SequencePacker(sampler, rule, n0, x[0]).run(images, fetch, advance) if images else ()
        for now in rounds:
            finished += len(now.finished)
            done = finished * whole + sum(n0 + image.drawn for image in now.active if image.counts0 is not None)
            report(done)
    found = rule.results(images)
    return Certificates(
        indices=found["indices"],
        prediction=found["prediction"],
        radius=found["radius"],
        radii=rule.radii,
        p_lower=found["p_lower"],
        counts0=found["counts0"],
        counts=found["counts"],
        samples=found["samples"],
        undecided=found["undecided"],
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
        rival_upper=found["rival_upper"] if rule.two_class else None,
    )
