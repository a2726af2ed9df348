"""Many images' sequences in full batches: who is drawn next, and who is done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import ModelError

from .sampling import Sampler
from .sequential import CertificationRule, ImageSequence

# Batches between two looks at the votes: so often is the device waited for.
_ROUND_BATCHES = 32
# Images in work: enough that the smallest steps, of 16 samples, fill many batches; few enough to lie on the device.
_FEWEST, _MOST, _MOST_BYTES = 64, 4096, 1 << 28


@dataclass(frozen=True)
class Round:
    """What a round of draws came to.

    Attributes:
        finished: images that are done; they are not touched any more.
        active: images in work, with all their votes; the next round goes on with them.
        drawn: samples of this round.
    """

    finished: list[ImageSequence]
    active: list[ImageSequence]
    drawn: int


class SequencePacker:
    """Draws for images until each is done; those in work share full batches, and others come in as they leave.

    Which samples an image gets depends on its own votes alone, so that its result depends neither on the batch size
    nor on the order nor on who else is in work. Batches are full but for the last one of a selection, and for those at
    the end, when all that are left do not fill one.

    Args:
        sampler: of the smoothed classifier.
        rule: when an image is done.
        n0: samples for the selection of the class.
        example: one image, [...], as ``fetch`` gives it, on the sampler's device.

    >>> from pyrobust.runner import Runner
    >>> x = torch.tensor([[1.0, 0.0], [0.1, 0.0]])
    >>> rule = CertificationRule((0.25,), 2, 0.5, "gaussian", "l2", 10_000, 0.001)
    >>> packer = SequencePacker(Sampler(Runner(lambda x: x), 2, 0.5, "gaussian", 0, None), rule, 10, x[0])
    >>> images = [ImageSequence(i, np.zeros(3, dtype=np.int64)) for i in range(2)]
    >>> for _ in packer.run(images, lambda images: x[[image.index for image in images]]):
    ...     pass
    >>> [int(image.counts.sum()) for image in images]
    [80, 48]
    """

    def __init__(self, sampler: Sampler, rule: CertificationRule, n0: int, example: Tensor) -> None:
        self.sampler, self.rule, self.n0 = sampler, rule, n0
        self._looks = frozenset(rule.looks)
        self._shape = tuple(example.shape)
        size = max(1, example.numel() * example.element_size())
        window = min(max(sampler.runner.batch_size(self._shape), _FEWEST), _MOST, max(1, _MOST_BYTES // size))
        # Zeros, for the noise op looks at slots without an image, too.
        self._pool = torch.zeros((window, *self._shape), dtype=example.dtype, device=example.device)
        self._images: dict[int, ImageSequence] = {}  # by slot of the pool
        self._queue: deque[int] = deque()  # slots, the next one to be drawn for first

    def run(
        self,
        images: Iterable[ImageSequence],
        fetch: Callable[[list[ImageSequence]], Tensor],
        report: Callable[[int], None] = lambda done: None,
    ) -> Iterator[Round]:
        """Goes on until all images are done.

        Args:
            images: taken as there is room: new ones, or such as were in work before.
            fetch: [m, ...], the pixels of m of them.
            report: called after each batch with the samples drawn since the last round.

        Yields:
            Round, after each selection and each round of draws.

        Raises:
            InputError, ModelError: as ``Sampler.count``.
        """
        waiting = iter(images)
        while True:
            batch = self.sampler.runner.batch_size(self._shape)
            needs = self._needs()
            free = len(self._pool) - len(self._queue)
            new = list(islice(waiting, free)) if 2 * free >= len(self._pool) or sum(needs) < batch else []
            if new:
                fresh = self._admit(new, fetch(new))
                if fresh:
                    self._draw([(slot, 0, self.n0) for slot in fresh], "select", report)
                    yield Round([], list(self._images.values()), len(fresh) * self.n0)
                continue
            if not self._queue:
                return
            # Where there is more than a batch, what would not fill one waits for the next round.
            rows = min(sum(needs), _ROUND_BATCHES * batch)
            rows -= rows % batch if rows > batch else 0
            drawn, runs = rows, []
            for slot, need in zip(self._queue, needs, strict=True):
                taken = min(need, rows)
                if not taken:
                    break
                runs.append((slot, self._images[slot].drawn, taken))
                rows -= taken
            self._draw(runs, "estimate", report)
            done = self._look([slot for slot, first, taken in runs])
            yield Round([self._images.pop(slot) for slot in done], list(self._images.values()), drawn)

    def _needs(self) -> list[int]:
        """For each image of the queue, the samples to its next look."""
        drawn = (self._images[slot].drawn for slot in self._queue)
        return [self.rule.next_look(number) - number for number in drawn]

    def _admit(self, new: list[ImageSequence], x: Tensor) -> list[int]:
        """Gives images their places; those without a selected class."""
        free = [slot for slot in range(len(self._pool)) if slot not in self._images][: len(new)]
        self._pool[torch.tensor(free, device=self._pool.device)] = x
        self._images.update(zip(free, new, strict=True))
        self._queue.extend(free)
        return [slot for slot, image in zip(free, new, strict=True) if image.counts0 is None]

    def _draw(self, runs: Sequence[tuple[int, int, int]], stage: str, report: Callable[[int], None]) -> None:
        """Adds the votes of (slot, first sample, number of samples) to their images."""
        begin = time.perf_counter()
        counts = torch.zeros(
            (len(self._pool), self.sampler.num_classes + 1), dtype=torch.int64, device=self._pool.device
        )
        packed = [(slot, self._images[slot].index, first, number) for slot, first, number in runs]
        self.sampler.count(self._pool, packed, stage, counts, report)
        votes: npt.NDArray[np.int64] = counts.cpu().numpy()
        seconds = time.perf_counter() - begin
        total = sum(number for _, _, number in runs)
        for slot, _, number in runs:
            image = self._images[slot]
            if int(votes[slot].sum()) != number:
                raise ModelError(f"smoothing: expected {number} votes for image {image.index}, got {votes[slot].sum()}")
            image.seconds += seconds * number / total
            if stage == "select":
                image.counts0 = votes[slot]
            else:
                image.counts = image.counts + votes[slot]

    def _look(self, slots: list[int]) -> list[int]:
        """Judges those that were drawn for and have come to a look; the slots of those that are done."""
        # The last one may have been cut off before its look; it is the next one to be drawn for.
        ready = [slot for slot in slots if self._images[slot].drawn in self._looks]
        for _ in ready:
            self._queue.popleft()
        images = [self._images[slot] for slot in ready]
        if not ready:
            return []
        counts = np.stack([image.counts for image in images])
        top = np.array([image.selected for image in images], dtype=np.int64)
        limits = self.rule.look(top, counts, np.stack([image.limits for image in images]))
        for image, row in zip(images, limits, strict=True):
            image.limits = row
        done = self.rule.done(limits, counts[np.arange(len(top)), top], counts.sum(axis=1))
        self._queue.extend(slot for slot, over in zip(ready, done, strict=True) if not over)
        return [slot for slot, over in zip(ready, done, strict=True) if over]
