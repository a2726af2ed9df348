"""Drawing noisy copies of images in packed batches and counting the base classifier's votes: the one place for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.ops.count_votes import count_votes
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.runner import Runner

#: (row of x, image index, first sample, number of samples), as of ``pyrobust.ops.sample_noise``.
SampleRun: TypeAlias = tuple[int, int, int, int]


class Sampler:
    """Noise of one distribution and seed for one base classifier.

    Args:
        runner: of the base classifier.
        num_classes: K.
        sigma: standard deviation of the noise.
        noise: its family.
        seed: of the noise contract.
        normalize: (mean, std), applied after the noise.

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
    ) -> None:
        self.runner = runner
        self.num_classes = num_classes
        self.sigma = sigma
        self.noise = noise
        self.seed = seed
        self.normalize = normalize

    def count(
        self, x: Tensor, runs: Sequence[SampleRun], stage: str, counts: Tensor, report: Callable[[int], None]
    ) -> None:
        """Adds the votes of every sample of the runs to their rows of counts; runs share full batches.

        Args:
            x: [M, ...], on the runner's device.
            runs: at least one sample each; in any order, several of one row too.
            stage: of the noise contract.
            counts: [M, K + 1], int64, on the same device; updated.
            report: called with the number of samples done, after each batch.

        Raises:
            InputError: num_classes is not what the model returns.
            ModelError: a model that does not return logits.
        """
        shape = tuple(x.shape[1:])
        ends = list(accumulate(run[3] for run in runs))
        total = ends[-1] if ends else 0
        # On the device once: which run a sample belongs to is then found there, without waiting.
        device_ends = torch.tensor(ends, dtype=torch.int64, device=x.device)
        device_rows = torch.tensor([run[0] for run in runs], dtype=torch.int64, device=x.device)
        normalize = self.normalize and (self.normalize[0].to(x.device), self.normalize[1].to(x.device))
        buffer: Tensor | None = None
        current = 0  # the first run that is not done

        def step(begin: int, end: int) -> None:
            nonlocal buffer, current
            size = min(self.runner.batch_size(shape), total)
            if buffer is None or len(buffer) != size:
                buffer = None  # lets go of the old one first, which may not have fitted
                buffer = torch.empty(
                    (size, *shape),
                    dtype=self.runner.dtype,
                    device=x.device,
                    memory_format=self.runner.memory_format,
                )
            parts, run = [], current
            while run < len(runs) and ends[run] - runs[run][3] < end:
                row, image, first, number = runs[run]
                start = ends[run] - number
                skipped = max(begin - start, 0)
                parts.append((row, image, first + skipped, min(end - start, number) - skipped))
                run += 1
            batch = sample_noise(
                x,
                parts,
                sigma=self.sigma,
                noise=self.noise,
                stage=stage,
                seed=self.seed,
                normalize=normalize,
                out=buffer[: end - begin],
            )
            logits = self.runner.logits(batch)
            if logits.shape[1] != self.num_classes:
                raise InputError(
                    f"num_classes: expected what the model returns, {logits.shape[1]}, got {self.num_classes}"
                )
            samples = torch.arange(begin, end, device=x.device)
            count_votes(logits, device_rows[torch.searchsorted(device_ends, samples, right=True)], counts)
            while current < len(runs) and ends[current] <= end:
                current += 1
            report(end)

        with self.runner.session():
            self.runner.for_each(total, shape, step)
