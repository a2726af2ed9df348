"""``pyrobust bench``."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.options import Replace
from pyrobust.cli.parsing import positive_number, real_number
from pyrobust.cli.shell import reports_errors, show_progress
from pyrobust.cli.sweep import check_json, write_json
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from rich.console import Group

    from pyrobust.microbench.timing import Case, Timing

# Rounds of every case, however long they take.
_ROUNDS = 7
_LEGEND = (
    "Medians; in brackets half the distance of the quartiles. ratio: PyTorch / native, below 1 where PyTorch is "
    "faster. floor: native / floor."
)


@reports_errors
def bench(
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Run the cases alone whose name contains the text, such as project.")
    ] = "",
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Device: cpu, cuda or cuda:N. Default: cuda where usable."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(parser=positive_number, metavar="N", help="CPU threads. Default: torch's.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            parser=real_number,
            metavar="S",
            help=f"Time for all cases together, shared out equally; each takes at least {_ROUNDS} rounds.",
        ),
    ] = 30.0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the times as JSON; - for standard output.")
    ] = None,
    replace: Replace = False,
) -> None:
    """Time the native ops on this machine, and compare them with PyTorch code and with a lower bound.

    The PyTorch code is what scripts usually contain for the same task. The lower bound, called floor, is the least that
    the task could cost: a clone of the same bytes, or the net's forward passes alone. The three are timed in turns.
    Prints medians, their spread (half the distance of the quartiles), and ratios of the times. If the ratio of PyTorch
    to native is below 1, PyTorch is faster. Takes less than a minute on two cores.

    Example: pyrobust bench --only project --json times.json
    """
    import torch

    if not 0 <= seconds < math.inf:
        raise InputError("--seconds", "a number of at least 0", f"{seconds:g}")
    check_json(json_file, [], replace, json_begins=b'{\n "benchmark": ')
    from rich.console import Console

    from pyrobust.machine import existing_device
    from pyrobust.microbench import all_cases
    from pyrobust.microbench.timing import describe_machine, measure, row
    from pyrobust.ops import build_info

    has_kernels = build_info()["cuda"] is not None
    where = existing_device(device or ("cuda" if has_kernels and torch.cuda.is_available() else "cpu"))
    if where.type == "cuda":
        if not has_kernels:
            raise InputError(
                "--device", "cpu", f"{where}, for which this build has no kernels", "build with PYROBUST_CUDA=1"
            )
        if where.index is not None:
            torch.cuda.set_device(where)
    if threads is not None:
        torch.set_num_threads(threads)
    cases = list(all_cases(where))
    chosen = [(subject, case) for subject, case in cases if only in case.name]
    if not chosen:
        names = "; ".join(case.name for _, case in cases)
        raise InputError("--only", "a part of the name of a case", repr(only), f"there are: {names}")
    machine, measured = describe_machine(where), []
    for _, case in chosen:
        status = Console(stderr=True).status(case.name) if show_progress() else contextlib.nullcontext()
        with status:
            measured.append(measure(case, _ROUNDS, where, seconds / len(chosen)))
    about = (
        f"{machine['cpu']}, {machine['simd']}, threads {machine['threads']}, device {machine['device']}, "
        f"torch {machine['torch']}, pyrobust {machine['pyrobust']}"
    )
    Console(stderr=json_file == "-").print(_table([case for _, case in chosen], measured, about))
    if json_file is not None:
        rows = [
            {"group": subject, **row(case, times), "plain": case.plain, "floor": case.floor}
            for (subject, case), times in zip(chosen, measured, strict=True)
        ]
        write_json({"benchmark": "pyrobust bench", "machine": machine, "results": rows}, json_file)


def _table(cases: Sequence[Case], measured: Sequence[dict[str, Timing]], about: str) -> Group:
    """Return the times as a table of the rich library, with a description of the variants and of the machine."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("")
    for name in ("native", "PyTorch", "ratio", "floor"):
        table.add_column(name, justify="right")
    legend: dict[str, str] = {}
    for case, times in zip(cases, measured, strict=True):
        native, plain, floor = (times[name] for name in ("native", case.plain, case.floor))
        ratios = (plain.median / native.median, native.median / floor.median)
        table.add_row(case.name, _shown(native), _shown(plain), *(f"{ratio:.2f}" for ratio in ratios))
        op = re.split(r" \d|,", case.name)[0]
        legend.setdefault(op, f"PyTorch: {case.plain}; floor: {case.floor}")
    lines = [Text(f"{op}: {text}", style="dim") for op, text in legend.items()]
    return Group(table, Text(), *lines, Text(), Text(_LEGEND), Text(about))


def _shown(timing: Timing) -> str:
    """Write the median in a unit that gives three digits, with the spread in per cent."""
    scale, unit = next((pair for pair in ((1e6, "us"), (1e3, "ms")) if timing.median * pair[0] < 1000), (1.0, "s"))
    low, high = timing.quartiles
    return f"{timing.median * scale:.3g} {unit} ({50 * (high - low) / timing.median:.0f}%)"
