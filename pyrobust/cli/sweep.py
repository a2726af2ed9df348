"""Shared parts of ``certify``, ``predict``, ``verify`` and ``attack``: the run's name, interruption and table."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from pyrobust.cli.shell import (
    INTERRUPTED_STATUS,
    TERMINATED_STATUS,
    Terminated,
    check_outputs,
    describe_path,
    heeding_termination,
    note,
    show_progress,
)
from pyrobust.errors import InputError, ModelError, PyrobustError

if TYPE_CHECKING:
    from pyrobust.evaluation import RobustnessCurve, Run
    from pyrobust.runs.progress import Report, SweepProgress
    from pyrobust.workers.executors import Executor

# File systems allow 255 bytes, of which SQLite needs some for "-journal".
_LONGEST_NAME = 160
# Least number of images whose accuracy is meaningful.
_ENOUGH = 10


def run_name(
    begin: Sequence[str],
    weights: Path | None,
    data: str,
    end: Sequence[str],
    shard: tuple[int, int] | None,
) -> Path:
    """Return the default file name of a run, readable and the same for the same arguments.

    >>> run_name(["attack", "zoo:net"], Path("runs/best.pt"), "npz:/data/cifar.npz", ["eps0.1"], (1, 2))
    PosixPath('attack-net-best-cifar-eps0.1-shard1of2.db')
    >>> run_name(["attack", "zoo:net"], None, "npz:/data/cifar.npz:x_test,y_test", [], None)
    PosixPath('attack-net-cifar-x_test-y_test.db')
    >>> run_name(["certify"], None, "digits", ["r" * 200, "n1000"], None).name[-20:]
    'rrrr-13d5d5e2f137.db'
    """
    begin = [*begin, *([] if weights is None else [weights.stem])]
    names = [*(word.removeprefix("zoo:") for word in begin), data, *end]
    form, _, remainder = data.partition(":")
    if form in ("npz", "folder", "mnist") and remainder:
        names[len(begin)] = Path(remainder.replace(".npz:", "-")).stem  # includes the names of the arrays
    if shard is not None:
        names.append("shard{}of{}".format(*shard))
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "x" for name in names)
    if len(name) > _LONGEST_NAME:  # for example, with many radii
        import hashlib

        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return Path(f"{name}.db")


def named_file(out: str | None) -> Path | None:
    """Return the file that ``--out`` names; None if ``--out`` is omitted, names an existing folder or ends in /.

    >>> named_file("run.db"), named_file("runs/"), named_file(None)
    (PosixPath('run.db'), None, None)
    """
    if out == "":
        raise InputError("--out", "a file or a folder", "an empty name")
    return None if out is None or out.endswith(os.sep) or os.path.isdir(out) else Path(out)


def run_file(out: str | None, name: Path) -> Path:
    """Return the file ``--out``, or a file of the default name in the folder ``--out``; the folder is created."""
    file = named_file(out)
    if file is not None or out is None:
        return file or name
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise InputError(
            "--out", problem=f"cannot create the folder {out!r} ({error.strerror})", hint="name another"
        ) from error
    return Path(out) / name


def executor_of(on: str | None, devices: str | None, device: str | None) -> tuple[Executor, str | None]:
    """Return the executor that --on or --devices names, and the device on which this process loads the model.

    >>> executor_of(None, "cpu:2", None), executor_of(None, None, "cpu")
    (('cpu:2', None), (None, 'cpu'))
    """
    if on is None and devices is None:
        return None, device
    from pyrobust.workers.executors import RayCluster, check_executor

    if on is not None and devices is not None:
        raise InputError("--devices", "none with --on, which says where to compute", hint="leave one of them out")
    with naming_executor(on):
        if on is not None:
            return RayCluster(on, device=device), None
        if device is not None:
            raise InputError("executor", f"none with --device {device}", hint="leave one of them out")
        check_executor(devices)
    return devices, None


@contextlib.contextmanager
def naming_executor(on: str | None) -> Iterator[None]:
    """Change errors about the executor or the device so that they name the command's option."""
    try:
        yield
    except InputError as error:
        executor = "--devices" if on is None else "--on"
        error.argument = {"device": "--device", "executor": executor}.get(error.argument, error.argument)
        raise


@contextlib.contextmanager
def resumable(path: Path, shard: str | None = None, out: str | None = None) -> Iterator[Report]:
    """Yield the function that reports a sweep's progress; if the sweep is interrupted, say how to resume it, and exit.

    ``shard`` and ``out`` are the texts of the options ``--shard`` and ``--out``. All shards in the folder of ``path``
    must belong to one sweep if ``shard`` is auto or auto/K, or if ``shard`` is given and ``out`` is a folder. This is
    checked before the first image.
    """
    from pyrobust.runs.progress import sweep_reporting

    alone = shard is not None and (shard.startswith("auto") or (out is not None and named_file(out) is None))
    try:
        with heeding_termination(), sweep_reporting(show_progress()) as report:
            yield announcing_resumption(_checking_siblings(report, path) if alone else report, describe_path(path))
    except KeyboardInterrupt as error:
        from pyrobust.evaluation import Run

        status, what = (
            (TERMINATED_STATUS, "terminated") if isinstance(error, Terminated) else (INTERRUPTED_STATUS, "interrupted")
        )
        if not path.is_file():
            note(f"{what} before the first results; nothing was saved")
        else:
            run = Run(path)
            note(f"{what}; {len(run)} of {len(run.expected)} images are saved in {describe_path(path)}")
            note(f"resume with: {shlex.join(['pyrobust', *sys.argv[1:]])}")
        raise typer.Exit(status) from None
    except PyrobustError:
        raise
    except Exception as error:
        from pyrobust.evaluation import Run

        if not path.is_file():
            raise
        run = Run(path)
        note(
            f"{len(run)} of {len(run.expected)} images are saved in {describe_path(path)}; when the model is repaired,"
        )
        note(f"resume with: {shlex.join(['pyrobust', *sys.argv[1:]])}")
        raise ModelError(
            f"model: failed after {len(run)} of {len(run.expected)} images: {type(error).__name__}: {error}; "
            "pyrobust --debug shows the traceback"
        ) from error


class _Progress(Protocol):
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...


_Now = TypeVar("_Now", bound=_Progress)


def announcing_resumption(report: Callable[[_Now], None], out: str) -> Callable[[_Now], None]:
    """Before a resumed run's first report, write a line that says how much of the run was already done."""
    begun = False

    def forward(now: _Now) -> None:
        nonlocal begun
        if not begun and now.done:
            note(f"{out}: {'already complete' if now.done == now.total else 'resumed'}, {now.done} of {now.total} done")
        begun = True
        report(now)

    return forward


def _checking_siblings(report: Report, path: Path) -> Report:
    """Return a function that checks the shards in the run's folder before its first call of ``report``."""
    checked = False

    def forward(now: SweepProgress) -> None:
        nonlocal checked
        if not checked:
            from pyrobust.runs.shards import check_siblings

            check_siblings(path)
        checked = True
        report(now)

    return forward


def model_name(model: str, weights: Path | None) -> str:
    """Return the model's name in runs and tables, with its weight file.

    >>> model_name("mynet:make", Path("runs/best.pt"))
    'mynet:make, weights best.pt'
    """
    return model if weights is None else f"{model}, weights {weights.name}"


#: First bytes of the summary of a run, which another summary may overwrite.
SUMMARY_BEGINS = b'{\n "kind": '


def check_json(
    json_file: str | None,
    inputs: Sequence[Path | None],
    replace: bool = False,
    plot: Path | None = None,
    *,
    json_begins: bytes = SUMMARY_BEGINS,
) -> None:
    """Raise InputError, before any work is done, unless the files of ``--json`` and ``--plot`` may be written.

    ``inputs`` are files that are never overwritten, including the run. An existing JSON file that starts with the bytes
    ``json_begins`` is overwritten even without ``--replace``.
    """
    file = None if json_file in (None, "-") else Path(str(json_file))
    never = [path for path in inputs if path is not None]
    begins = {"--json": json_begins}
    check_outputs([("--plot", plot), ("--json", file)], inputs=never, replace=replace, begins=begins)


def write_json(content: dict[str, Any], json_file: str) -> None:
    """Write JSON to a file, or to standard output for "-"."""
    from pyrobust.zoo.files import write_atomically

    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    if json_file == "-":
        typer.echo(text, nl=False)
    else:
        write_atomically(json_file, text.encode())
        note(f"json: {describe_path(json_file)}")


def curve_values(curve: RobustnessCurve) -> dict[str, Any]:
    """Return a curve for JSON, with null in place of infinity for an image that no epsilon broke."""
    values = curve.to_dict()
    values["broken_epsilon"] = [value if math.isfinite(value) else None for value in values["broken_epsilon"]]
    return values


def show_run(run: Run, json_file: str | None = None, curve: RobustnessCurve | None = None) -> None:
    """Print the table of a run and, on standard error, where it is saved; write its summary as JSON.

    If ``json_file`` is "-", standard output gets only the JSON. ``curve`` is the curve of a minimum-norm run.
    """
    from rich.console import Console

    from pyrobust.report.table import table_of

    if len(run):
        Console(stderr=json_file == "-").print(table_of(run, **({} if curve is None else {"curve": curve})))
        if json_file is not None:
            _write_summary(run, json_file, curve)
    else:
        note("empty shard: no images to process")
    if run.path is not None:
        path = describe_path(run.path)
        note(f"run: {path} (export its log: {shlex.join(['pyrobust', 'log', path])})")


def _write_summary(run: Run, json_file: str, curve: RobustnessCurve | None) -> None:
    from pyrobust.report import describe_run, run_summary
    from pyrobust.zoo.files import check_output

    if json_file != "-":
        # The run's file may be new, or have a name that the arguments gave it.
        check_output("--json", json_file, inputs=run.files, replace=True)
    extra = {} if curve is None else {"about": describe_run(run), "curve": curve_values(curve)}
    write_json(run_summary(run) | extra, json_file)


def note_guessing(run: Run, model: str, weights: Path | None) -> None:
    """Print a warning if a user's model, loaded without a weight file, is no better than a random guess."""
    if weights is not None or model.startswith("zoo:") or len(run) < _ENOUGH:
        return
    classes = run.parameters["num_classes"]
    accuracy = run.clean_accuracy()
    if accuracy.lower <= 1 / classes:
        note(
            f"warning: correct on {100 * float(accuracy):.1f} % of the images, no better than a guess among {classes} "
            "classes, and no weights were given: pass --weights FILE, or load them in the model's function"
        )
