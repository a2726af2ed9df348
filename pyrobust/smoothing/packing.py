"""Sequential sampling of many images in shared full batches, in which new images replace decided ones."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import ModelError
from pyrobust.machine import fixed_threads

from .sampling import Sampler
from .sequential import CertificationRule, ImageSequence

# Batches per round. The host waits for the device once per round, to read the votes.
_ROUND_BATCHES = 32
# Limits on the number of active images: enough that looks 16 samples apart fill many batches, few enough to fit on the
# device.
_MIN_ACTIVE, _MAX_ACTIVE, _MAX_ACTIVE_BYTES = 64, 4096, 1 << 28


@dataclass(frozen=True)
class Round:
    """Result of one round of sampling: the decided images, and the active (undecided) images with all their votes.

    Images in ``finished`` are no longer modified. Sampling continues with the images in ``active``, in this order.
    """

    finished: list[ImageSequence]
    active: list[ImageSequence]


class SequencePacker:
    """Sample images until each is decided; active images share full batches, and new images replace decided ones.

    The number of samples after which an image is decided depends only on its own votes. The image's result therefore
    does not depend on the batch size, on the order of images or on the other active images. A selection draws the n0
    samples that select the class of each new image. All batches are full, with three exceptions: the last batch of a
    selection; the batches at the end, when the remaining samples do not fill a batch; and all batches if the batch size
    is larger than the number of samples that the active images, at most 4096 or 256 MiB of them, need until their next
    looks. A look is a sample size at which an image is judged. On a grid, the model runs on whole batches even at the
    end, and the spare rows hold samples beyond the next look of their images. If an image is decided at this look, its
    samples beyond the look are dropped. The batches depend only on the images and the batch size, even if sampling is
    stopped after any ``Round`` and resumed. The argument ``example`` is one image [...] as ``fetch`` returns it.

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
        by_batch = max(sampler.runner.batch_size(self._shape), _MIN_ACTIVE)
        slots = min(by_batch, _MAX_ACTIVE, max(1, _MAX_ACTIVE_BYTES // size))
        # Filled with zeros, because the noise op also reads slots without an image.
        self._pool = torch.zeros((slots, *self._shape), dtype=example.dtype, device=example.device)
        self._images: dict[int, ImageSequence] = {}  # by slot of the pool
        self._queue: deque[int] = deque()  # slots in the order in which they are sampled next

    def run(
        self,
        images: Iterable[ImageSequence],
        fetch: Callable[[list[ImageSequence]], Tensor],
        report: Callable[[int], None] = lambda done: None,
        active: Sequence[ImageSequence] = (),
    ) -> Iterator[Round]:
        """Sample until all images are decided.

        Args:
            images: images that have not been active yet. They become active as earlier images are decided.
            fetch: returns the pixels [m, ...] of m images.
            report: called after each batch with the number of samples drawn since the last round.
            active: for a resumed run, the active images of the run's last ``Round``, in the same order.

        Yields:
            A Round whenever the samples that select the classes of new images are drawn, and after each round of
            samples.

        Raises:
            InputError, ModelError: see ``Sampler.count``.
        """
        # May exceed the slots if memory ran out earlier, which halved the batches.
        resumed, waiting = list(active[: len(self._pool)]), chain(active[len(self._pool) :], images)
        if resumed:
            self._admit(resumed, fetch(resumed))
        while True:
            batch = self.sampler.runner.batch_size(self._shape)
            needs = self._needs()
            free = len(self._pool) - len(self._queue)
            new = list(islice(waiting, free)) if 2 * free >= len(self._pool) or sum(needs) < batch else []
            if new:
                fresh = self._admit(new, fetch(new))
                if fresh:
                    votes = self._draw([(slot, 0, self.n0) for slot in fresh], "select", report)
                    for slot, counts0 in zip(fresh, votes, strict=True):
                        self._images[slot].counts0 = counts0
                    yield Round([], self._active())
                continue
            if not self._queue:
                return
            # Samples that would not fill a last batch wait for the next round.
            rows = min(sum(needs), _ROUND_BATCHES * batch)
            rows -= rows % batch if rows > batch else 0
            drawn, runs = rows, []
            for slot, need in zip(self._queue, needs, strict=True):
                taken = min(need, rows)
                if not taken:
                    break
                runs.append((slot, self._images[slot].drawn, taken))
                rows -= taken
            whole = drawn < batch and self.sampler.grid is not None
            stages = [runs, *(self._look_ahead(batch - drawn) if whole else [])]
            votes = self._draw(list(chain(*stages)), "estimate", report)
            decided = self._judge(stages, votes)
            yield Round([self._images.pop(slot) for slot in decided], self._active())

    def _active(self) -> list[ImageSequence]:
        """Return the active images in the order in which they are sampled next."""
        return [self._images[slot] for slot in self._queue]

    def _needs(self) -> list[int]:
        """Return how many samples each queued image still needs until it is judged next."""
        drawn = (self._images[slot].drawn for slot in self._queue)
        return [self.rule.next_look(number) - number for number in drawn]

    def _admit(self, new: list[ImageSequence], x: Tensor) -> list[int]:
        """Assign slots to new images; return the slots of images that have no selected class yet."""
        free = [slot for slot in range(len(self._pool)) if slot not in self._images][: len(new)]
        self._pool[torch.tensor(free, device="cpu").to(self._pool.device, non_blocking=True)] = x
        self._images.update(zip(free, new, strict=True))
        self._queue.extend(free)
        return [slot for slot, image in zip(free, new, strict=True) if image.counts0 is None]

    def _look_ahead(self, room: int) -> list[list[tuple[int, int, int]]]:
        """Return runs of samples for at most ``room`` spare rows, one list per look that follows the next one."""
        stages: list[list[tuple[int, int, int]]] = []
        looks = {slot: self.rule.next_look(self._images[slot].drawn) for slot in self._queue}
        while room and (looks := {slot: look for slot, look in looks.items() if look < self.rule.n}):
            stages.append([])
            for slot, first in looks.items():
                looks[slot] = self.rule.next_look(first)
                if number := min(looks[slot] - first, room):
                    stages[-1].append((slot, first, number))
                    room -= number
        return stages

    def _draw(
        self, runs: Sequence[tuple[int, int, int]], stage: str, report: Callable[[int], None]
    ) -> npt.NDArray[np.int64]:
        """Sample the runs (slot, first sample, number of samples); return their votes [runs, K + 1]."""
        begin = time.perf_counter()
        counts = torch.zeros((len(runs), self.sampler.num_classes + 1), dtype=torch.int64, device=self._pool.device)
        images = [self._images[slot] for slot, _, _ in runs]
        by_values = any(image.key is not None for image in images)
        words = [image.index if image.key is None else 0 for image in images]
        packed = [(slot, word, first, number) for word, (slot, first, number) in zip(words, runs, strict=True)]
        keys = [self.sampler.seed if image.key is None else image.key for image in images] if by_values else None
        with fixed_threads():  # an image's votes come from several calls, so no trial may change the threads in between
            self.sampler.count(self._pool, packed, stage, counts, report=report, rows=range(len(runs)), keys=keys)
        votes: npt.NDArray[np.int64] = counts.cpu().numpy()
        self.sampler.note_no_class(votes)
        seconds = time.perf_counter() - begin
        total = sum(number for _, _, number in runs)
        for (slot, _, number), got in zip(runs, votes.sum(axis=1).tolist(), strict=True):
            image = self._images[slot]
            if got != number:
                raise ModelError(f"smoothing: expected {number} votes for image {image.index}, got {got}")
            image.seconds += seconds * number / total
        return votes

    def _judge(self, stages: list[list[tuple[int, int, int]]], votes: npt.NDArray[np.int64]) -> list[int]:
        """Add votes stage by stage, judging the images after each stage; return the pool slots of decided images."""
        decided: list[int] = []
        begin = 0
        for runs in stages:
            dropped = set(decided)
            rows = {slot: begin + row for row, (slot, _, _) in enumerate(runs) if slot not in dropped}
            begin += len(runs)
            for slot, row in rows.items():
                self._images[slot].counts = self._images[slot].counts + votes[row]
            decided += self._judge_look(list(rows))
        return decided

    def _judge_look(self, slots: list[int]) -> list[int]:
        """Apply the rule to sampled images that have reached a look; return the slots of decided images."""
        # The last run may have been cut off before its look; its image stays at the head of the queue.
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
        self._queue.extend(slot for slot, decided in zip(ready, done, strict=True) if not decided)
        return [slot for slot, decided in zip(ready, done, strict=True) if decided]
