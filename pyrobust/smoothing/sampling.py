"""Sampling noisy copies of images in packed batches, and counting the votes of the base classifier."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError, ModelError
from pyrobust.machine import threads_wait_for_others
from pyrobust.ops.grid_table import check_held, grid_noise
from pyrobust.ops.noise_arguments import check_key, check_keys
from pyrobust.ops.sample_grid_noise import draw_grid_noise
from pyrobust.ops.sample_noise import draw_noise
from pyrobust.runner import Runner

from .blocks import SampleBlocks, SampleRun
from .grid import sample_delta
from .image_noise import ImageNoise
from .radius import CERTIFIED

if TYPE_CHECKING:
    from pyrobust.thread_trial import ThreadTrial

logger = logging.getLogger(__name__)

# Share of samples without a predicted class up to which no warning is given: on a grid, noise in the tails causes some.
_FEW_LOST = 0.001


class Sampler:
    """Sampler of a smoothed classifier, for one noise distribution, one seed and one base classifier.

    With a grid, the images x are passed as integer multiples of the grid's step. All samples of a call then run in
    batches of one size, with deterministic kernels. A sample with noise in the tails, whose magnitude is not drawn,
    votes for no class. ``normalize`` is (mean, std), applied after the noise.

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
        num_classes: int | None,
        sigma: float,
        noise: str,
        seed: int,
        normalize: tuple[Tensor, Tensor] | None,
        grid: Fraction | None = None,
    ) -> None:
        self.runner = runner
        self._num_classes = num_classes
        self.sigma = sigma
        self.noise = noise
        self.seed = seed
        self.normalize = normalize
        self.grid = grid
        self._table = None if grid is None else grid_noise(sigma, grid)
        if self._table is not None:
            check_held("grid", self._table, runner.input_dtype, where="step")

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        if self._num_classes is None:
            raise InputError("num_classes", "a number before the first example", "None", "pass num_classes=")
        return self._num_classes

    @property
    def guarantee(self) -> str:
        """Guarantee of the certificates, "grid" or "real"; see ``pyrobust.smoothing.Certificates``."""
        return "real" if self.grid is None else "grid"

    def described(self, noise: ImageNoise) -> dict[str, Any]:
        """Return a dictionary of those fields of a result that describe the noise of its samples."""
        names = ("sigma", "noise", "seed", "guarantee", "grid")
        named = {name: getattr(self, name) for name in names}
        return named | {"norm": dict(CERTIFIED)[self.noise], "keys": noise.reported_keys}

    def delta(self, shape: Sequence[int]) -> float:
        """Return a bound on the total variation distance of drawn and exact noise of this shape; 0.0 without a grid."""
        return 0.0 if self.grid is None else sample_delta(self.sigma, self.grid, math.prod(shape))

    def session(self) -> AbstractContextManager[None]:
        """Return a context for all stages of one call: the model is in evaluation mode, without gradients."""
        return self.runner.session(pinned=self.grid is not None)

    def count(
        self,
        x: Tensor,
        runs: Sequence[SampleRun],
        stages: str | Sequence[str],
        counts: Tensor,
        report: Callable[[int], None],
        rows: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
        one_example: bool = False,
    ) -> None:
        """Draw the samples of all runs in full batches, shared by the runs; add each run's votes to its ``counts`` row.

        Args:
            x: [M, ...], on the runner's device; int32 with a grid.
            runs: the runs to draw, in any order. A run (``SampleRun``) consists of one or more consecutive samples of
                one image. A row of x may occur in several runs.
            stages: purpose of the samples, such as "select" or "estimate", one for all runs or one for each run. No two
                stages share a draw of noise.
            counts: [R, K + 1], int64, on the same device; updated in place.
            report: called after each batch with the number of samples done.
            rows: for each run, its row in ``counts``. By default, it is the run's row in x.
            keys: Philox key of each run. By default, the key is the seed.
            one_example: whether all runs belong to one example. If so, the batches on a grid have equal sizes, which
                may be smaller than the runner's batch size.

        Raises:
            InputError: num_classes differs from the number of logits of the model.
            ModelError: the model does not return logits, or cannot run with deterministic kernels on a grid.
        """
        shape = tuple(x.shape[1:])
        x = x.contiguous()
        stage_of = [stages] * len(runs) if isinstance(stages, str) else list(stages)
        key_bits = {stage: check_key("smoothing", stage, self.seed) for stage in set(stage_of)}
        mean, std = (None, None) if self.normalize is None else (tensor.to(x.device) for tensor in self.normalize)
        table = self._table

        def draw(out: Tensor, tail: Tensor | None, stage: str, pieces: list[int], run_keys: list[int]) -> None:
            arguments = x, pieces, *key_bits[stage], run_keys, mean, std
            if table is None:
                draw_noise(out, *arguments, self.sigma, self.noise)
            elif tail is not None:
                draw_grid_noise(out, tail, *arguments, table)

        blocks = SampleBlocks(
            draw,
            runs,
            stages=stage_of,
            keys=check_keys("smoothing", keys, len(runs)),
            rows=[run[0] for run in runs] if rows is None else rows,
            counts=counts,
            like=torch.empty((0, *shape), dtype=self.runner.dtype, device=x.device),
            memory_format=self.runner.memory_format,
            tails=table is not None,
        )
        total, pinned = blocks.total, table is not None

        def step(begin: int, end: int) -> None:
            size = self.runner.batch_size(shape)
            if not pinned:
                size = min(size, total)
            elif one_example:
                size = self.runner.even_batch(total, shape)
            batch = blocks.batch(begin, end, size)
            if trial is not None:
                trial.settle(lambda: self.runner.logits(batch))
            blocks.vote(self._logits(batch, end - begin), begin, end)
            report(end)

        with self.session(), self._thread_trial(x.device) as trial:
            self.runner.row_probe.expect_known_modules(single=self.runner.given_batch_size == 1)
            self.runner.for_each(total, shape, step, pinned=pinned, one_example=pinned and one_example)
            blocks.count()

    def _thread_trial(self, device: torch.device) -> AbstractContextManager[ThreadTrial | None]:
        if not threads_wait_for_others():
            return nullcontext()
        from pyrobust.thread_trial import ThreadTrial

        return ThreadTrial(device, self.runner.model)

    def votes(
        self,
        x: Tensor,
        noise: ImageNoise,
        samples: Sequence[tuple[str, int]],
        report: Callable[[int], None],
        *,
        one_example: bool = False,
    ) -> list[npt.NDArray[np.int64]]:
        """Count the votes of each image, [B, K + 1] int64 for each stage; arguments and errors as for ``count``.

        The stages share batches; ``samples`` holds pairs of a stage and its number of samples per image.

        Raises:
            ModelError: an image's number of votes differs from its number of samples.
        """
        images, number = x.shape[0], len(samples)
        counts = torch.zeros((number * images, self.num_classes + 1), dtype=torch.int64, device=x.device)
        runs = [(row, word, 0, n) for _, n in samples for row, word in enumerate(noise.words)]
        stages = [stage for stage, _ in samples for _ in noise.words]
        keys = None if noise.keys is None else noise.keys * number
        self.count(x, runs, stages, counts, report=report, rows=range(len(runs)), keys=keys, one_example=one_example)
        return list(self.read(counts, [run[3] for run in runs]).reshape(number, images, self.num_classes + 1))

    def read(self, counts: Tensor, samples: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return counts [R, K + 1] as an array; raise ModelError if a run does not have as many votes as samples."""
        votes: npt.NDArray[np.int64] = counts.cpu().numpy()
        self.note_no_class(votes)
        got = votes.sum(axis=1).tolist()
        if got != list(samples):
            raise ModelError(f"smoothing: expected {list(samples)} votes, got {got}")
        return votes

    def note_no_class(self, votes: npt.NDArray[np.int64]) -> None:
        """Warn, once per runner, if over 0.1% of at least two samples in votes [B, K + 1] have no predicted class."""
        lost, total = int(votes[:, -1].sum()), int(votes.sum())
        if total > 1 and lost > _FEW_LOST * total and not self.runner.warned_no_class:
            self.runner.warned_no_class = True
            logger.warning(
                "%d of %d samples have no predicted class and vote against every certificate: their logits hold NaN or "
                "+inf; check the weights, and the range and normalisation of the images",
                lost,
                total,
            )

    def _logits(self, batch: Tensor, rows: int) -> Tensor:
        """Compute the logits [rows, K] of the noisy copies, which are the first rows of a batch."""
        if self._table is None:
            logits = self.runner.row_probe.logits(batch[:rows], exact=False)
        else:
            # Run all rows: a smaller batch may use a kernel that rounds differently, which would be another base
            # classifier.
            logits = self.runner.row_probe.logits(batch, exact=True, rows=rows)[:rows]
        if logits.shape[1] != self.num_classes:
            raise InputError("num_classes", f"{logits.shape[1]}, the number of logits of the model", self.num_classes)
        return logits
