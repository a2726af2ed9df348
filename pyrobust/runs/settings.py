"""Settings shared by all sweeps over a data set, documented and checked once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyrobust.checks import WORDS, choice, count, file_path, flag, integer, positive
from pyrobust.errors import InputError, InputTypeError
from pyrobust.keywords import field_names, merge_fields, reject_unknown
from pyrobust.option import IMAGES_PANEL, Option

if TYPE_CHECKING:
    from typing import TypedDict

    from pyrobust.runs.progress import Report
    from pyrobust.workers.executors import Executor

    class SweepKeywords(TypedDict, total=False):
        """The fields of ``SweepSettings`` as keyword arguments."""

        out: str | os.PathLike[str] | None
        skip: int
        max_images: int | None
        shard: tuple[int, int] | None
        order: str
        batch_size: int | None
        model_name: str | None
        allow_changed_code: bool
        executor: Executor
        threads: int | None
        timeout: float | None
        progress: bool | Report


#: Orders in which a sweep takes its images.
ORDERS = ("data", "random")


@dataclass(frozen=True)
class SweepSettings:
    """Settings of a sweep: where it stores its results, which images it takes, and where and how it computes.

    The functions ``certify_dataset``, ``predict_dataset``, ``attack_dataset``, ``verify_dataset`` and
    ``sandwich_dataset`` take each field as a keyword argument. They also take all fields together as ``settings=``. A
    keyword overrides the field of ``settings``.

    Attributes:
        out: run file to create or resume. By default, the run is kept in memory.
        skip: use every skip-th image, starting with the first; at least 1.
        max_images: stop after this many images. By default, all images are used.
        shard: (I, K) with I from 1 to K. Of the selected images, every K-th image is used, beginning with the I-th.
        order: "data" for the order of the data set, or "random" for an order derived from the seed. In random order,
            the images done so far are a random sample of the run's images. The run records the order, and must be
            resumed with the same order.
        batch_size: rows in a forward pass. In ``verify_dataset``, and in ``sandwich_dataset`` without smoothing, it is
            the number of images in a chunk. By default, a resumed run keeps its batch size. A new run has the batch
            size of the smoother or attack, 32 in ``verify_dataset``, or 64 in ``sandwich_dataset`` without smoothing.
        model_name: name of the model in the run. By default, this is the model's class. If the model is a callable but
            not a module, only this name identifies it. A run in a file then requires the name.
        allow_changed_code: resume a run although the code of the model has changed, provided that its logits have not;
            the run records the change.
        executor: where chunks are computed. By default (None), this process computes them. To use devices of this
            machine, pass "all", "cpu:4" or a list such as ["cuda:0", "cuda:1"]. To use a Ray cluster, pass "ray",
            "ray://HOST" or a `RayCluster`. On the same kind of hardware, and with the same batch size and number of
            threads, all executors give bitwise equal results; the default of ``threads`` depends on the executor.
        threads: number of CPU threads of a forward pass. The run records this number, since it may change the rounding.
            By default, a resumed run uses its recorded number, and a new run uses torch's default. In a worker, a new
            run uses the worker's share of the machine's CPUs.
        timeout: time limit in seconds, > 0; needs an executor. If a worker computes longer than this without an answer,
            its chunk is set aside and named at the end of the sweep. By default, there is no limit. Even without a
            limit, a chunk that takes 20 times as long as usual, and at least a minute, is named in a warning and given
            to another worker.
        progress: True for a bar on standard error or in a notebook, or a function that receives a `SweepProgress`.

    Raises:
        InputError: a value out of range, an unknown ``order`` (even one of a wrong type), or a ``timeout`` without an
            executor.
        InputTypeError: any other field of the wrong type; ``progress`` is checked when the sweep starts.

    >>> SweepSettings(skip=20, order="random").skip
    20
    """

    out: str | os.PathLike[str] | None = None
    skip: int = 1
    max_images: int | None = None
    shard: tuple[int, int] | None = None
    order: str = "data"
    batch_size: int | None = None
    model_name: str | None = None
    allow_changed_code: bool = False
    executor: Executor = None
    threads: int | None = None
    timeout: float | None = None
    progress: bool | Report = False

    def __post_init__(self) -> None:
        from pyrobust.workers.fleet import MOST_THREADS

        if self.out is not None:
            file_path("out", self.out)
        checked: dict[str, Any] = {
            "skip": count("skip", self.skip, WORDS),
            "max_images": None if self.max_images is None else count("max_images", self.max_images, WORDS),
            "shard": _checked_shard(self.shard),
            "order": choice("order", self.order, ORDERS),
            "batch_size": None if self.batch_size is None else count("batch_size", self.batch_size, WORDS),
            "allow_changed_code": flag("allow_changed_code", self.allow_changed_code),
            "threads": None if self.threads is None else count("threads", self.threads, MOST_THREADS),
        }
        if self.timeout is not None:
            checked["timeout"] = positive("timeout", self.timeout)
            if self.executor is None:
                raise InputError(
                    "timeout",
                    "none without an executor, since no other process can end this one's chunk",
                    self.timeout,
                    "add an executor such as cpu:1",
                )
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.model_name is not None and not isinstance(self.model_name, str):
            raise InputTypeError("model_name", "a string", type(self.model_name).__name__)
        if self.executor is not None:
            from pyrobust.workers.executors import check_executor

            check_executor(self.executor)


#: How the command line offers the fields: ``max_images`` as --max, and ``executor`` as --on and --devices or, for this
#: process, --device.
OPTIONS: dict[str, Option] = {
    "skip": Option("Stride: take every N-th image.", "N", "count", IMAGES_PANEL, default=1),
    "max": Option("Stop after N images.", "N", "count", IMAGES_PANEL),
    "shard": Option(
        "Process the I-th of K parts: every K-th of the chosen images, beginning with the I-th. In a Slurm job array "
        "or under torchrun, auto/K finds I, and auto also K.",
        "I/K",
        panel=IMAGES_PANEL,
    ),
    "order": Option(
        "Order of the images: the data's, or random, for which pyrobust watch bounds the final rates at any time.",
        form="choice",
        panel=IMAGES_PANEL,
        default="data",
        choices=ORDERS,
    ),
    "batch_size": Option("Rows per forward pass. Default: chosen by the memory.", "N", "count"),
    "device": Option("Device: cpu, cuda or cuda:N. Default: the model's own.", "NAME"),
    "on": Option(
        "Compute on a Ray cluster: ray (that of RAY_ADDRESS, or one started here) or ray://HOST:PORT.", "CLUSTER"
    ),
    "devices": Option("Compute in a process for each device: all or 0,1,3 for GPUs, cpu:N for N processes.", "LIST"),
    "threads": Option(
        "CPU threads of a forward pass, recorded in the run. Default: torch's, or each worker's share.", "N", "count"
    ),
    "timeout": Option(
        "Set a chunk aside whose worker has not answered for so long; with --on or --devices.", "SECONDS", "number"
    ),
    "allow_changed_code": Option(
        "Resume although the model's code has changed, where its outputs are the same; recorded in the run.",
        form="flag",
        default=False,
    ),
    "out": Option(
        "Run file, or folder (ending in / where it is new) for the file of the default name; an existing run is "
        "resumed. Default: named after the arguments.",
        "RUN",
    ),
}
#: The keyword arguments that are fields of ``SweepSettings``.
KEYWORDS = field_names(SweepSettings)


def merge_settings(
    call: Callable[..., Any], settings: SweepSettings | None, keywords: Mapping[str, Any]
) -> SweepSettings:
    """Return the settings of a sweep, with fields replaced by the keywords."""
    reject_unknown(call, keywords, KEYWORDS)
    return merge_fields("settings", settings, keywords, SweepSettings())


def _checked_shard(shard: Any) -> tuple[int, int] | None:
    if shard is None:
        return None
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise InputTypeError("shard", "two integers (I, K)", repr(shard))
    index, total = integer("shard", shard[0]), count("shard", shard[1], WORDS)
    if not 1 <= index <= total:
        raise InputError("shard", "(I, K) with I from 1 to K", shard)
    return index, total
