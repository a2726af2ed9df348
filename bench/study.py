"""Run a study: one question, its figures result by result.

python bench/study.py                                   list the studies
python bench/study.py attacks/minimum_norm [OPTIONS]    run one

A study is a module of bench/studies/SUBJECT/, whose docstring states the question. ``arguments(parser)`` adds its
options; ``measure(options)`` yields its results, each a row or a pair of a name and figures, and may return further
facts. With --json FILE they are written to FILE.new as they come, which in the end replaces FILE.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import gc
import importlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

STUDIES = Path(__file__).parent / "studies"
Row = dict[str, Any]
Results = Generator[Row | tuple[str, Any], None, Any]
T = TypeVar("T")


def questions() -> dict[str, str]:
    """Study → the first line of its docstring; a module without ``measure`` is what studies share."""
    summaries = {}
    for path in sorted(STUDIES.glob("*/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body):
            summaries[f"{path.parent.name}/{path.stem}"] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return summaries


def main() -> None:
    listed = questions()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in listed:
        listing = "\n".join(f"  {study:<28}{question}" for study, question in listed.items())
        if name in ("-h", "--help"):
            print(__doc__, listing, sep="\n")
            return
        raise SystemExit(f"study: expected one of those below, got {name!r}\n{listing}")
    module = importlib.import_module(f"studies.{name.replace('/', '.')}")
    parser = argparse.ArgumentParser(
        f"study.py {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    run(module.measure, parser.parse_args(sys.argv[2:]))


def run(measure: Callable[[argparse.Namespace], Results], options: argparse.Namespace) -> None:
    """Print the results of a study as they come, and write them."""
    if isinstance(threads := getattr(options, "threads", None), int):
        import torch

        torch.set_num_threads(threads)
    facts: Row = {}

    def measured() -> Iterator[Row | tuple[str, Any]]:
        nonlocal facts
        facts = (yield from measure(options)) or {}

    rows: list[Row] = []
    named: dict[str, Any] = {}
    device = getattr(options, "device", "cpu")
    unfinished = options.json and options.json.with_name(options.json.name + ".new")
    for result in measured():
        if isinstance(result, tuple):
            named[result[0]] = result[1]
            print(f"{result[0]}: {shown(result[1])}", flush=True)
        else:
            rows.append(result)
            print(shown(result), flush=True)
        if unfinished:
            write(unfinished, named or rows, device)
    if facts:
        print(shown(facts))
    if not (named or rows or facts):
        raise SystemExit("no results: the options leave nothing to measure")
    if unfinished:
        write(unfinished, named or rows, device, **facts)
        unfinished.replace(options.json)
        print(f"wrote {options.json}")


def shown(figures: Any) -> str:
    """Figures in one line: four digits, and long lists counted."""
    if isinstance(figures, dict):
        return f"{{{', '.join(f'{name}: {shown(each)}' for name, each in figures.items())}}}"
    if isinstance(figures, list | tuple):
        return f"[{', '.join(map(shown, figures))}]" if len(figures) <= 12 else f"[{len(figures)} values]"
    return f"{figures:.4g}" if isinstance(figures, float) else str(figures)


def write(path: Path, results: list[Row] | dict[str, Any], device: str, **facts: Any) -> None:
    """Write figures with the command and the machine, one line for each result."""
    import torch

    from pyrobust.microbench.timing import describe_machine

    command = shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    head = {"command": command, "machine": describe_machine(torch.device(device)), **facts}
    text = json.dumps(head, indent=1).removesuffix("\n}")
    if isinstance(results, dict):
        lines, (begin, end) = [f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in results.items()], "{}"
    else:
        lines, (begin, end) = [f"  {json.dumps(row)}" for row in results], "[]"
    joined = ",\n".join(lines)
    path.write_text(f'{text},\n "results": {begin}\n{joined}\n {end}\n}}\n', encoding="utf-8")


def separately(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process of its own, which has imported no more than the function's module."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def peak_rise(call: Callable[[], T], *, trimmed: bool = False) -> tuple[T, int]:
    """Call; return the result and by how many bytes the resident size rose at its peak. Linux only."""
    if trimmed:  # free memory that stays resident would be used again without being counted
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes the current size
    before = _resident("VmRSS")
    result = call()
    return result, _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes running that never sleep."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()


if __name__ == "__main__":
    main()
