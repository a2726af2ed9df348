"""Share of the model's rows that sequential certification uses, by the number of images that share batches.

No model runs: `SequencePacker` packs images whose votes are drawn from the p_A behind published logs
(`sequential_samples.recovered`), n = 100,000, alpha = 0.001, n0 = 100; N images (default: 8,192) are drawn from each
log. "one radius": 0.5; "all": the quarters up to the largest that n samples can prove. On a grid, where the model
computes whole batches: samples that the results hold, divided by batches times their rows. A chunk of 0 stands for the
whole set in one. Needs PYROBUST_DATA.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import nets
import numpy as np
import numpy.typing as npt
import torch
from studies.smoothing.sequential_samples import ALPHA, N, recovered
from study import Results
from torch import Tensor

from pyrobust.smoothing.packing import SequencePacker
from pyrobust.smoothing.sampling import SampleRun
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

N0 = 100
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 4096, 0)
BATCHES = {"cifar10": (128, 1024, 4096), "imagenet": (128, 512, 1024)}
# Pixels of an image: they bound the number of images on the device.
SHAPES = {"cifar10": (3, 32, 32), "imagenet": (3, 224, 224)}


class Votes:
    """A ``Sampler`` of two classes that draws votes from the probability of each image, and counts rows."""

    num_classes, grid = 2, Fraction(1, 255)

    def __init__(self, p: npt.NDArray[np.float64], batch: int, shape: tuple[int, ...]) -> None:
        self.p, self.batch, self.shape, self.rng = p, batch, shape, np.random.default_rng(0)
        self.runner = SimpleNamespace(batch_size=lambda shape: batch)
        self.batches = 0

    def count(
        self,
        x: Tensor,
        runs: Sequence[SampleRun],
        stage: str,
        counts: Tensor,
        report: Callable[[int], None],
        rows: Sequence[int],
        keys: None = None,
    ) -> None:
        _, images, _, numbers = (np.array(column) for column in zip(*runs, strict=True))
        votes = self.rng.binomial(numbers, self.p[images])
        counts[torch.tensor(rows)] = torch.from_numpy(np.stack([votes, numbers - votes, 0 * votes], axis=1))
        self.batches += -(-int(numbers.sum()) // self.batch)

    def note_no_class(self, votes: npt.NDArray[np.int64]) -> None:
        """Every sample has a class."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=8192, help="images drawn from each log")


def measure(options: argparse.Namespace) -> Results:
    started = time.process_time()
    for path in sorted(nets.folder().glob("logs/*/*.tsv")):
        p, sigma, radii = recovered(path)
        p = np.random.default_rng(1).choice(p, options.images)
        for wanted in ([0.5], radii):
            rule = CertificationRule(tuple(wanted), 2, sigma, "gaussian", "l2", N, ALPHA)
            for batch in BATCHES[path.parent.name]:
                packed = [pack(p, rule, batch, SHAPES[path.parent.name], chunk) for chunk in CHUNKS]
                name = f"{path.parent.name} {path.stem}, {'one radius' if len(wanted) == 1 else 'all'}, batch {batch}"
                yield {"case": name, "chunks": packed}
    return {"seconds": time.process_time() - started, "images": options.images}


def pack(
    p: npt.NDArray[np.float64], rule: CertificationRule, batch: int, shape: tuple[int, ...], chunk: int
) -> dict[str, Any]:
    """Certify the images by chunks; return the share of filled rows and the batches of the chunks."""
    votes, example = Votes(p, batch, shape), torch.zeros(shape)
    slots, batches = len(SequencePacker(votes, rule, N0, example)._pool), []  # type: ignore[arg-type]  # Votes stand in for a sampler
    samples = 0
    for start in range(0, len(p), chunk or len(p)):
        packer = SequencePacker(votes, rule, N0, example[..., :1, :1].sum())  # type: ignore[arg-type]  # as above
        packer._pool = torch.zeros(slots)
        images = [ImageSequence(i, np.zeros(3, dtype=np.int64)) for i in range(start, len(p))[: chunk or None]]
        before = votes.batches
        for state in packer.run(images, lambda new: torch.zeros(len(new))):
            samples += sum(N0 + image.drawn for image in state.finished)
        batches.append(votes.batches - before)
    return {
        "chunk": chunk,
        "used": samples / (votes.batches * batch),
        "samples": samples,
        "batches": votes.batches,
        "batches of a chunk": {"median": float(np.median(batches)), "largest": max(batches)},
    }
