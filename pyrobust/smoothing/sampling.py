"""Sampling noisy copies of images in packed batches, and counting the votes of the base classifier."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError, ModelError
from pyrobust.ops.count_votes import count_votes
from pyrobust.ops.grid_table import check_held, grid_noise
from pyrobust.ops.sample_grid_noise import sample_grid_noise
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.runner import Runner, even_rows

from .examples import noise_dtype
from .grid import sample_delta
from .image_noise import ImageNoise
from .radius import CERTIFIED

#: (row of x, image index or number of the draw, first sample, number of samples), see ``pyrobust.ops.sample_noise``.
SampleRun: TypeAlias = tuple[int, int, int, int]

logger = logging.getLogger(__name__)

# Share of samples without a predicted class that is not worth a warning: noise in the tails on a grid is among them.
_FEW_LOST = 0.001


class Sampler:
    """Sampler of a smoothed classifier: the noise of one distribution and seed, for one base classifier.

    With a grid, x holds images as integer multiples of its step. Each stage then runs on batches of one size, computed
    by deterministic kernels, and a sample whose noise reaches the tails votes for no class. ``normalize`` is (mean,
    std), applied after the noise.

    >>> sampler = Sampler(Runner(lambda x: x), 3, 0.25, "gaussian", 0, None)
    >>> counts = torch.zeros(2, 4, dtype=torch.int64)
    >>> x = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    >>> sampler.count(x, [(0, 0, 0, 5), (1, 1, 0, 7)], "estimate", counts, lambda done: None)
    >>> counts
    tensor([[5, 0, 0, 0],
            [0, 0, 7, 0]])
    """

    def __init__(
        self,
        runner: Runner,
        num_classes: int,
        sigma: float,
        noise: str,
        seed: int,
        normalize: tuple[Tensor, Tensor] | None,
        grid: Fraction | None = None,
    ) -> None:
        self.runner = runner
        self.num_classes = num_classes
        self.sigma = sigma
        self.noise = noise
        self.seed = seed
        self.normalize = normalize
        self.grid = grid
        if grid is not None:
            check_held("grid", grid_noise(sigma, grid), noise_dtype(runner), where="step")

    @property
    def guarantee(self) -> str:
        """Guarantee of the certificates, "grid" or "real"; see ``pyrobust.smoothing.Certificates``."""
        return "real" if self.grid is None else "grid"

    def described(self, noise: ImageNoise) -> dict[str, Any]:
        """The fields of a result that say which noise its samples have, by name."""
        names = ("sigma", "noise", "seed", "guarantee", "grid")
        named = {name: getattr(self, name) for name in names}
        return named | {"norm": dict(CERTIFIED)[self.noise], "keys": noise.reported_keys}

    def delta(self, shape: Sequence[int]) -> float:
        """Bound the total variation distance of a drawn sample [*shape] from an exact one; 0.0 without a grid."""
        return 0.0 if self.grid is None else sample_delta(self.sigma, self.grid, math.prod(shape))

    def session(self) -> AbstractContextManager[None]:
        """A session of the runner, which one call of several stages shares."""
        return self.runner.session(pinned=self.grid is not None)

    def count(
        self,
        x: Tensor,
        runs: Sequence[SampleRun],
        stage: str,
        counts: Tensor,
        report: Callable[[int], None],
        rows: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
        one_example: bool = False,
    ) -> None:
        """Add the votes of all samples of the runs to their rows of ``counts``; runs share full batches.

        Args:
            x: [M, ...], on the runner's device; int32 with a grid.
            runs: at least one sample each, in any order; a row may occur more than once.
            stage: stage of the noise contract.
            counts: [R, K + 1], int64, on the same device; updated in place.
            report: called after each batch with the number of samples done.
            rows: row of ``counts`` for each run. Default: its row of x.
            keys: Philox key of each run. Default: the seed.
            one_example: the runs are all samples of one example, whose batches on a grid divide them evenly instead of
                having the runner's size.

        Raises:
            InputError: num_classes differs from the number of logits of the model.
            ModelError: the model does not return logits, or cannot run with deterministic kernels on a grid.
        """
        shape = tuple(x.shape[1:])
        ends = list(accumulate(run[3] for run in runs))
        total = ends[-1] if ends else 0
        # Copied to the device once, so that the run of each sample is looked up there without synchronisation.
        rows = [run[0] for run in runs] if rows is None else rows
        device_ends, device_rows = torch.tensor([ends, rows], dtype=torch.int64).to(x.device, non_blocking=True)
        normalize = self.normalize and (self.normalize[0].to(x.device), self.normalize[1].to(x.device))
        buffer: Tensor | None = None
        current = 0  # first unfinished run
        pinned = self.grid is not None

        def step(begin: int, end: int) -> None:
            nonlocal buffer, current
            size = self.runner.batch_size(shape)
            if not pinned:
                size = min(size, total)
            elif one_example:
                size = even_rows(total, size)
            if buffer is None or len(buffer) != size:
                buffer = None  # frees the old buffer first, because both may not fit in memory
                buffer = torch.empty(
                    (size, *shape),
                    dtype=self.runner.dtype,
                    device=x.device,
                    memory_format=self.runner.memory_format,
                )
            parts, run = [], current
            part_keys: list[int] | None = None if keys is None else []
            while run < len(runs) and ends[run] - runs[run][3] < end:
                row, image, first, number = runs[run]
                start = ends[run] - number
                skipped = max(begin - start, 0)
                parts.append((row, image, first + skipped, min(end - start, number) - skipped))
                if keys is not None and part_keys is not None:
                    part_keys.append(keys[run])
                run += 1
            logits = self._logits(x, parts, part_keys, stage, normalize, buffer, end - begin)
            if logits.shape[1] != self.num_classes:
                raise InputError(
                    f"num_classes: expected {logits.shape[1]}, the number of logits of the model, "
                    f"got {self.num_classes}"
                )
            samples = torch.arange(begin, end, device=x.device)
            count_votes(logits, device_rows[torch.searchsorted(device_ends, samples, right=True)], counts)
            while current < len(runs) and ends[current] <= end:
                current += 1
            report(end)

        with self.session():
            self.runner.row_probe.expect_known_modules(single=self.runner.given_batch_size == 1)
            self.runner.for_each(total, shape, step, pinned=pinned, one_example=pinned and one_example)

    def votes(
        self,
        x: Tensor,
        noise: ImageNoise,
        n: int,
        stage: str,
        report: Callable[[int], None],
        *,
        one_example: bool = False,
    ) -> npt.NDArray[np.int64]:
        """Count the votes [B, K + 1] of n samples for each image; arguments and errors as for ``count``.

        Raises:
            ModelError: the number of votes of an image is not n.
        """
        counts = torch.zeros((len(x), self.num_classes + 1), dtype=torch.int64, device=x.device)
        runs = [(row, word, 0, n) for row, word in enumerate(noise.words)]
        self.count(x, runs, stage, counts, report, keys=noise.keys, one_example=one_example)
        votes = counts.cpu().numpy()
        self.note_no_class(votes)
        if len(votes) and not bool((votes.sum(axis=1) == n).all()):
            raise ModelError(f"smoothing: expected {n} votes for each example, got {votes.sum(axis=1).tolist()}")
        return votes

    def note_no_class(self, votes: npt.NDArray[np.int64]) -> None:
        """Warn, once per runner, where more than a few samples have no class; votes [B, K + 1] of one call."""
        lost, total = int(votes[:, -1].sum()), int(votes.sum())
        if total > 1 and lost > _FEW_LOST * total and not self.runner.warned_no_class:
            self.runner.warned_no_class = True
            logger.warning(
                "%d of %d samples have no predicted class and vote against every certificate: their logits hold NaN or "
                "+inf; check the weights, and the range and normalisation of the images",
                lost,
                total,
            )

    def _logits(
        self,
        x: Tensor,
        runs: Sequence[SampleRun],
        keys: Sequence[int] | None,
        stage: str,
        normalize: tuple[Tensor, Tensor] | None,
        buffer: Tensor,
        rows: int,
    ) -> Tensor:
        """Logits [rows, K] of noisy copies, written to the buffer first; NaN for samples that vote for no class."""
        if self.grid is None:
            batch = sample_noise(
                x,
                runs,
                sigma=self.sigma,
                noise=self.noise,
                stage=stage,
                seed=self.seed,
                keys=keys,
                normalize=normalize,
                out=buffer[:rows],
            )
            return self.runner.row_probe.logits(batch, exact=False)
        _, tail = sample_grid_noise(
            x,
            runs,
            sigma=self.sigma,
            step=self.grid,
            stage=stage,
            seed=self.seed,
            keys=keys,
            normalize=normalize,
            out=buffer[:rows],
        )
        # A smaller batch may run on another kernel that rounds differently, which would be another base classifier.
        if rows < len(buffer):
            buffer[rows:] = buffer[rows - 1]
        logits = self.runner.row_probe.logits(buffer, exact=True, rows=rows)[:rows]
        return logits.masked_fill(tail[:, None], torch.nan)
