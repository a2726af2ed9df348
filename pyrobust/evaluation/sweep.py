"""The part of a sweep that each worker executes: prepare for the run, then compute chunk by chunk."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from pyrobust.checks import WORDS, count
from pyrobust.errors import InputError, ModelError, PyrobustError
from pyrobust.machine import fixed_threads, threads_wait_for_others
from pyrobust.runner import Runner
from pyrobust.runs.identity import Identity, software_versions
from pyrobust.runs.kinds import kind_of
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import Header
from pyrobust.runs.settings import SweepSettings
from pyrobust.workers.fleet import Place
from pyrobust.zoo import ImageSet, LabelledImages

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pyrobust.smoothing.sequential import ImageSequence

#: Receives the progress of the current chunk as (done, total).
Advance: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class ChunkPart:
    """A part of a chunk's results, committed in one transaction; the chunk can be resumed after any part.

    Args:
        rows: columns of the images finished since the last part.
        pending: columns of the chunk's images that are begun but not finished; None if images have no intermediate
            state.
    """

    rows: Mapping[str, Any]
    pending: Mapping[str, Any] | None = None


#: Computes the columns of a chunk, except idx, label and seconds, from images [B, C, H, W], labels [B] and indices.
Step: TypeAlias = Callable[[Tensor, Tensor, Sequence[int], Advance], dict[str, Any]]
#: Computes a chunk in parts, also from the states of its images whose sampling has begun.
PartsStep: TypeAlias = Callable[
    [Tensor, Tensor, Sequence[int], "Sequence[ImageSequence]", Advance], Iterator[ChunkPart]
]


@dataclass(frozen=True)
class Prepared:
    """A sweep on one device, ready to compute chunks.

    Args:
        header: header of the run, without the model's identity.
        step: function that computes a chunk; for sequential sampling, a ``PartsStep``, which computes it in parts.
        identify: returns the identity of the model.
    """

    header: Header
    step: Step | PartsStep
    identify: Callable[[], Identity]


@dataclass(frozen=True, kw_only=True)
class Sweep(abc.ABC):
    """A sweep over a data set. Its arguments are checked, but it is not bound to a device; workers get a copy.

    Args:
        images: the data set.
        selection: the run parameters that select the images of the sweep.
        settings: the settings of the sweep.
    """

    images: LabelledImages
    selection: dict[str, Any]
    settings: SweepSettings

    @abc.abstractmethod
    def prepare(self, stored: Mapping[str, Any], device: str | None) -> AbstractContextManager[Prepared]:
        """Prepare the sweep on a device (None: the model's own), with the parameters that the run stores, if any."""

    @property
    def first(self) -> int:
        """Index of the first selected image; 0 if there is none."""
        return next(iter(chosen_indices(self.selection)), 0)

    def portable(self) -> Sweep:
        """Return the sweep as sent to workers: without images in memory, which are sent to them chunk by chunk."""
        images = _SentImages.of(self.images, {0, self.first}) if isinstance(self.images, ImageSet) else self.images
        settings = dataclasses.replace(self.settings, executor=None, timeout=None, progress=False)
        return dataclasses.replace(self, images=images, settings=settings)


@dataclass(frozen=True)
class Task:
    """A chunk, or the missing part of a chunk.

    Args:
        first: data-set index of the first image of the chunk, which identifies the chunk.
        indices: data-set indices of the missing images, in processing order.
        pending: states of the images whose sampling has begun.
        images: x [B, C, H, W] and y [B]; None if the workers read the images themselves.
    """

    first: int
    indices: Sequence[int]
    pending: Sequence[ImageSequence] = ()
    images: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class ChunkAnswer:
    """A part of a chunk that a worker has computed; ``last`` says whether the chunk is finished."""

    first: int
    part: ChunkPart
    last: bool


class SweepWorker:
    """Computes chunks of a sweep on one device; every worker holds one such object.

    ``threads`` is the number of CPU threads for forward passes; the run records it. If ``threads`` is None, the number
    is the one that the worker's ``Place`` sets or, if it sets none, torch's number of threads. A run in memory of a
    small network may then use only one thread on a busy machine.
    """

    def __init__(self, sweep: Sweep, threads: int | None, place: Place, advance: Callable[[Task], Advance]) -> None:
        self._sweep, self._threads, self._place, self._advance = sweep, threads, place, advance
        self._tasks: deque[Task] = deque()
        self._parts: Iterator[ChunkPart] | None = None
        self._images_left = 0  # images of the oldest task that are in no part yet
        self._stack = ExitStack()
        self._prepared: Prepared | None = None

    def prepare(self, stored: Mapping[str, Any]) -> Header:
        """Prepare for a run with these stored parameters; return its header, with the model's identity."""
        threads = self._threads or stored.get("threads")
        used = threads or self._place.threads or torch.get_num_threads()
        if threads is None and not stored:
            threads = used  # runs of earlier versions record none
        if used != torch.get_num_threads():
            self._stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(used)
        if self._threads or self._sweep.settings.out is not None:
            self._stack.enter_context(fixed_threads())
            if self._place.device is None and not torch.cuda.is_available() and threads_wait_for_others():
                logger.warning(
                    "other processes run, and %d threads spin while they wait, which may take many times as long; "
                    "set OMP_WAIT_POLICY=passive, import pyrobust before torch, or pass threads=1",
                    torch.get_num_threads(),
                )
        prepared = self._stack.enter_context(self._sweep.prepare(stored, self._place.device))
        header = prepared.header
        parameters = header.parameters if threads is None else header.parameters | {"threads": threads}
        self._prepared = dataclasses.replace(prepared, header=dataclasses.replace(header, parameters=parameters))
        return dataclasses.replace(self._prepared.header, identity=prepared.identify())

    def identify(self) -> Identity:
        """Return the model's current identity."""
        assert self._prepared is not None
        return self._prepared.identify()

    def work(self, task: Task | None) -> ChunkAnswer:
        """Take a task, if any, and compute the next part of the oldest unfinished task."""
        if task is not None:
            self._tasks.append(task)
        task = self._tasks[0]
        try:
            if self._parts is None:
                self._parts, self._images_left = self._compute(task), len(task.indices)
            part = next(self._parts)
        except BaseException:
            self._parts = None
            self._tasks.popleft()
            raise
        self._images_left -= len(part.rows["idx"])
        if not self._images_left:
            self._parts = None
            self._tasks.popleft()
        return ChunkAnswer(task.first, part, last=not self._images_left)

    def _compute(self, task: Task) -> Iterator[ChunkPart]:
        assert self._prepared is not None
        x, y = self._sweep.images.read(task.indices) if task.images is None else task.images
        advance = self._advance(task)
        if self._prepared.header.type.pending:
            yield from cast(PartsStep, self._prepared.step)(x, y, task.indices, task.pending, advance)
            return
        begin = time.perf_counter()
        rows = cast(Step, self._prepared.step)(x, y, task.indices, advance)
        seconds = (time.perf_counter() - begin) / len(task.indices)
        yield ChunkPart(
            rows | {"idx": list(task.indices), "label": y.numpy(), "seconds": [seconds] * len(task.indices)}
        )

    def close(self) -> None:
        """Restore the previous state of the model and the number of threads."""
        self._stack.close()


@dataclass(frozen=True, eq=False)
class _SentImages(LabelledImages):
    """A worker's view of images in the main process's memory: facts about all images, and the pixels of a few."""

    name: str
    length: int
    facts: dict[str, Any]
    examples: dict[int, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, images: ImageSet, indices: set[int]) -> _SentImages:
        facts = {name: getattr(images, name) for name in ("shape", "num_classes", "sha256", "grid", "extremes")}
        examples = {index: tuple(tensor.clone() for tensor in images.read([index])) for index in indices}
        return cls(images.name, len(images), facts, cast(Any, examples))

    def __len__(self) -> int:
        return self.length

    @property
    def shape(self) -> tuple[int, ...]:
        return cast(tuple[int, ...], self.facts["shape"])

    @property
    def num_classes(self) -> int:
        return int(self.facts["num_classes"])

    @property
    def sha256(self) -> str:
        return str(self.facts["sha256"])

    @property
    def grid(self) -> Fraction | None:
        return cast(Fraction | None, self.facts["grid"])

    @property
    def extremes(self) -> tuple[float, float]:
        return cast(tuple[float, float], self.facts["extremes"])

    def _read(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        pairs = [self.examples[index] for index in indices]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def network_header(
    kind: str,
    kind_parameters: dict[str, Any],
    *,
    runner: Runner,
    model: tuple[str, str],
    images: LabelledImages,
    selection: dict[str, Any],
    batch: int,
    stored: Mapping[str, Any],
    guarantee: str,
) -> Header:
    """Return the header of a run on a network without smoothing; a resumed run keeps its stored chunk size.

    ``kind_parameters`` holds the parameters of this kind of run, ``model`` holds the model's name and hash, and
    ``batch`` is the number of rows of a batch.
    """
    batch = count("batch_size", batch, WORDS)
    parameters = kind_parameters | {
        "dtype": str(runner.dtype).removeprefix("torch."),
        "memory_format": str(runner.memory_format).removeprefix("torch."),
        "device": runner.device.type,
        **({"shape": list(images.shape), "example_dtype": "float32"} if "examples" in kind_parameters else {}),
        **selection,
        "batch_size": batch,
        "chunk": stored.get("chunk", min(WORDS, batch)),
    }
    try:
        kind_of(kind, parameters).check(parameters)
    except ValueError as error:
        raise InputError(kind, "values that a run can store", error) from error
    return Header(
        kind=kind,
        parameters=parameters,
        model=model[0],
        model_sha256=model[1],
        data=images.name,
        data_sha256=images.sha256,
        guarantee=guarantee,
        versions=software_versions(),
    )


@contextlib.contextmanager
def probing(shape: Sequence[int]) -> Iterator[None]:
    """Translate any exception that a model raises on its first image, which has this shape, into a ModelError.

    The most likely cause is a model that does not fit the images; the traceback would say little about this cause.
    Exceptions later in a sweep, and this package's own errors, propagate unchanged.

    >>> with probing((1, 8, 8)):
    ...     raise ValueError("expected 3 channels")
    Traceback (most recent call last):
    pyrobust.errors.ModelError: model: failed on one image of shape (1, 8, 8): ValueError: expected 3 channels
    """
    try:
        yield
    except PyrobustError:
        raise
    except Exception as error:
        reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise ModelError(f"model: failed on one image of shape {tuple(shape)}: {reason}") from error
