"""Draw noisy samples of many images in batches, and count the votes; small batches are drawn and counted together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyrobust.ops.count_votes import count_votes

#: (row of x, image index or number of the draw, first sample, number of samples), see ``pyrobust.ops.sample_noise``.
SampleRun: TypeAlias = tuple[int, int, int, int]
#: Writes noisy copies of flat sample runs, of one stage and with one key each, to a batch; on grids, marks tails.
Draw: TypeAlias = Callable[[Tensor, "Tensor | None", str, list[int], list[int]], None]

# Limit on samples drawn at once, so that they stay near the caches.
_BLOCK_BYTES = 256 << 10
# Alignment of memory that torch allocates; with another, a kernel might round differently and so change the classifier.
_ALIGNMENT = 64


class SampleBlocks:
    """Batches of the samples of all runs, in order; the samples of a block of batches are drawn and counted at once.

    Args:
        draw: draws the samples.
        runs: runs of consecutive samples of one image, at least one sample each (``SampleRun``).
        stages: for each run, its stage ("select", "estimate", …), on which its noise depends; see ``Sampler.count``.
        keys: Philox key of each run; empty if the seed is the key of all runs.
        rows: for each run, its row in ``counts``.
        counts: [R, K + 1], int64; updated in place.
        like: an empty tensor [0, ...] with the dtype and device of a batch.
        memory_format: memory format of a batch.
        tails: whether the noise of a sample can lie so far in the tails of its distribution that its magnitude is not
            drawn. A sample with such noise votes for no class.

    >>> counts = torch.zeros(1, 3, dtype=torch.int64)
    >>> def draw(out, tail, stage, pieces, keys):
    ...     print(pieces, stage)
    ...     out.zero_()
    >>> arguments = {"stages": ["estimate"], "keys": [], "rows": [0], "counts": counts, "like": torch.empty(0, 2)}
    >>> blocks = SampleBlocks(draw, [(0, 7, 0, 40)], **arguments)
    >>> for begin, end in [(0, 16), (16, 32), (32, 40)]:
    ...     blocks.vote(blocks.batch(begin, end, 16)[: end - begin], begin, end)
    [0, 7, 0, 40] estimate
    >>> counts
    tensor([[40,  0,  0]])
    """

    def __init__(
        self,
        draw: Draw,
        runs: Sequence[SampleRun],
        *,
        stages: Sequence[str],
        keys: Sequence[int],
        rows: Sequence[int],
        counts: Tensor,
        like: Tensor,
        memory_format: torch.memory_format = torch.contiguous_format,
        tails: bool = False,
    ) -> None:
        self._draw, self._runs, self._stages, self._keys = draw, runs, stages, keys
        self._rows, self._counts = rows, counts
        self._like, self._format, self._tails = like, memory_format, tails
        self._row_bytes = math.prod(like.shape[1:]) * like.element_size()
        self._ends = list(accumulate(run[3] for run in runs))
        self._buffer = like
        self._first = self._last = self._size = 0  # range of samples in the block, and rows per batch
        self._tail: Tensor | None = None
        self._owners: Tensor | None = None  # for each sample of the block, its row in ``counts``
        self._logits: list[Tensor] = []  # of the block's batches so far, not yet counted

    @property
    def total(self) -> int:
        """Number of samples."""
        return self._ends[-1] if self._ends else 0

    def batch(self, begin: int, end: int, size: int) -> Tensor:
        """Return a batch [size, ...] of the samples [begin, end); the rows after them are copies of the last sample."""
        if size != self._size or not self._first <= begin < end <= self._last:
            self._begin_block(begin, size)
        first = begin - self._first
        batch = self._buffer[first : first + size]
        if end - begin < size:
            batch[end - begin :] = batch[end - begin - 1]
        return batch

    def vote(self, logits: Tensor, begin: int, end: int) -> None:
        """Keep the logits [end - begin, K] of samples [begin, end); when a block is complete, count its votes."""
        # The model may reuse the memory of its logits.
        self._logits.append(logits if end == self._last and not self._logits else logits.clone())
        if end == self._last:
            self.count()

    def count(self) -> None:
        """Add the votes of logits whose block is not complete yet."""
        if not self._logits or self._owners is None:
            return
        logits = self._logits[0] if len(self._logits) == 1 else torch.cat(self._logits)
        self._logits = []
        if self._tail is not None:
            logits = logits.masked_fill(self._tail[: len(logits), None], torch.nan)
        count_votes(logits, self._owners[: len(logits)], self._counts)

    def _begin_block(self, begin: int, size: int) -> None:
        """Draw the samples of as many batches as a block holds."""
        self.count()
        batch_bytes = max(1, size * self._row_bytes)
        batches = 1 if batch_bytes % _ALIGNMENT else max(1, _BLOCK_BYTES // batch_bytes)
        end = min(begin + batches * size, self.total)
        rows = -(-(end - begin) // size) * size
        if size != self._size or len(self._buffer) < rows:
            self._buffer = self._like  # frees the old buffer first, because both may not fit in memory
            self._buffer = torch.empty(
                (rows, *self._like.shape[1:]),
                dtype=self._like.dtype,
                device=self._like.device,
                memory_format=self._format,
            )
        self._first, self._last, self._size = begin, end, size
        self._tail = torch.zeros(end - begin, dtype=torch.bool, device=self._like.device) if self._tails else None
        self._draw_samples(begin, end)

    def _draw_samples(self, begin: int, end: int) -> None:
        """Write samples [begin, end) to the beginning of the buffer."""
        runs = range(bisect_right(self._ends, begin), bisect_right(self._ends, end - 1) + 1)
        numbers_of = list[int]()  # number of samples of each run in the block
        drawn = 0
        for stage, numbers in groupby(runs, self._stages.__getitem__):
            first, keys, pieces = drawn, list[int](), list[int]()
            for number in numbers:
                row, image, sample, count = self._runs[number]
                start = self._ends[number] - count
                skipped = max(begin - start, 0)
                taken = min(end - start, count) - skipped
                pieces += (row, image, sample + skipped, taken)
                keys += self._keys[number : number + 1]
                numbers_of.append(taken)
                drawn += taken
            tail = None if self._tail is None else self._tail[first:drawn]
            self._draw(self._buffer[first:drawn], tail, stage, pieces, keys)
        owners = np.array([self._rows[number] for number in runs]).repeat(numbers_of)
        self._owners = torch.from_numpy(owners).to(self._counts.device, non_blocking=True)
