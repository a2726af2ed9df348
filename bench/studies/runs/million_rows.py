"""Runs of many rows: size, rows a second of writing, and time and memory of resuming, reading, merging and exporting.

Rows are synthetic: votes of ten classes as a certification at 100,000 samples leaves them. Each operation runs in a
process of its own, whose peak of resident memory is counted from where its imports left it. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from study import Results, Row, peak_rise, separately

from pyrobust.runs.identity import Identity
from pyrobust.runs.parameters import processing_order
from pyrobust.runs.reader import Header
from pyrobust.runs.writer import RunWriter

sys.path.append(str(Path(__file__).parents[3] / "tests"))
from support.example_parameters import example

SHARDS = 8
# Chunks of one transaction, as a driver of many workers commits them.
GROUP = 32


def header(kind: str, rows: int, chunk: int, shard: list[int] | None = None, order: str = "data") -> Header:
    """The header of a run of synthetic rows."""
    parameters = example(kind) | {"images": rows, "chunk": chunk, "shard": shard}
    parameters |= {"n": 100_000} if kind != "attack" else {"examples": False}
    parameters |= {"order": "random", "order_seed": 0} if order == "random" else {}
    kinds = {"sequential": "certify"}
    guarantee = "empirical" if kind == "attack" else "real"
    identity = Identity((), "cpu, 1 threads", "", (), 0.0)
    return Header(kinds.get(kind, kind), parameters, "net", "a" * 64, "digits", "b" * 64, guarantee, {}, identity)


def rows(kind: str, indices: list[int]) -> dict[str, Any]:
    """Rows of a chunk, as a sweep hands them to the store."""
    size, index = len(indices), np.asarray(indices)
    label = index % 10
    columns: dict[str, Any] = {
        "idx": indices,
        "label": label,
        "prediction": label,
        "status": ["ok"] * size,
        "seconds": [0.1 + 1e-9 * value for value in indices],
    }
    if kind == "attack":
        broken = index % 3 == 0
        return columns | {
            "adversarial": np.where(broken, (label + 1) % 10, label),
            "distance": [0.1 + value % 7 / 100 if value % 3 == 0 else None for value in indices],
            "broken_by": ["FGSM" if value else "" for value in broken],
            "x_adv": [b""] * size,
        }
    counts0, counts = (np.zeros((size, 11), dtype=np.int64) for _ in range(2))
    for total, votes in ((100, counts0), (100_000, counts)):
        votes[np.arange(size), (label + 1) % 10] = index % (total // 4) + 1
        votes[np.arange(size), (label + 4) % 10] = index % (total // 5) + 1
        votes[np.arange(size), label] += total - votes.sum(axis=1)
    columns |= {"counts0": counts0, "counts": counts, "p_lower": 0.5 + index / 2**33, "radius": 0.25 + index / 2**33}
    if kind == "sequential":
        columns |= {"samples": [100_100] * size, "p_upper": [0.99] * size, "rival_upper": [1.0] * size}
        columns |= {"undecided": ["00"] * size}
    return columns


def write(path: Path, made: Header, group: int) -> float:
    """Write a complete run with some chunks in each transaction; return the seconds that appending took."""
    order = processing_order(made.parameters)
    size, spent = made.parameters["chunk"] * group, 0.0
    with RunWriter(path, made) as writer:
        for start in range(0, len(order), size):
            columns = rows(made.layout, list(order[start : start + size]))
            begin = time.perf_counter()
            writer.append(columns)
            spent += time.perf_counter() - begin
    return spent


def resume(path: Path) -> object:
    """Everything that a resumed sweep does with its run before the first chunk."""
    from pyrobust.evaluation.resume import Tally, _complete_run, _missing_chunks, _stored_header
    from pyrobust.runs.reader import connect_readonly, read_header
    from pyrobust.runs.run import Run

    with closing(connect_readonly(path)) as connection:
        stored = read_header(connection, path)
    assert stored is not None
    _stored_header(path)
    _complete_run(path, stored)
    with RunWriter(path, stored) as writer:
        tally = Tally(Run(writer.connection, writer.path, checked=True))
        return tally.done, len(_missing_chunks(writer)), len(writer.done)


def table(path: Path) -> object:
    """Read the table of a run."""
    from pyrobust.runs.run import Run

    return len(Run(path).table["index"])


def log(path: Path) -> object:
    """Export the log of a run."""
    from pyrobust.runs.log import write_log
    from pyrobust.runs.run import Run

    write_log(Run(path), path.with_suffix(".tsv"), replace=True)
    return path.with_suffix(".tsv").stat().st_size


def read_shards(path: Path) -> object:
    """Read the shards of a run as one."""
    from pyrobust.runs.merge import merge_runs

    return len(merge_runs(shard_paths(path)).table["index"])


def merge(path: Path) -> object:
    """Write the shards of a run as one file."""
    from pyrobust.runs.merged_file import write_merged

    out = path.with_name("merged.db")
    out.unlink(missing_ok=True)
    return len(write_merged(shard_paths(path), out))


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "resume": resume,
    "table": table,
    "log": log,
    "read 8 shards": read_shards,
    "merge 8 shards": merge,
}


def shard_paths(path: Path) -> list[Path]:
    """The files of the shards of a run."""
    return [path.with_name(f"shard-{number}.db") for number in range(1, SHARDS + 1)]


def measured(operation: str, path: Path) -> Row:
    """Time and rise of memory in MB of an operation, in this process."""
    import pyrobust.evaluation.resume
    import pyrobust.runs.log
    import pyrobust.runs.merged_file  # noqa: F401  (imports count as the state before)

    begin, worked = time.perf_counter(), time.process_time()
    result, rise = peak_rise(lambda: OPERATIONS[operation](path))
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - worked}
    return spent | {"rise": rise / 2**20, "result": result}


def commits(folder: Path, chunk: int) -> Iterator[Row]:
    """Chunks a second by the number of chunks in one transaction."""
    for group in (1, 8, 32, 128):
        count = 512
        path = folder / f"commits-{group}.db"
        speed = count / write(path, header("certify", count * chunk, chunk), group)
        yield {"chunk": chunk, "chunks of a transaction": group, "chunks a second": speed}
        path.unlink()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", default="100000,300000,1000000")
    parser.add_argument("--kinds", default="certify,sequential,attack")
    parser.add_argument("--chunks", default="32,1024")
    parser.add_argument("--order", default="data")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--folder", type=Path)


def measure(options: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        yield from commits(folder, 32)
        for kind in options.kinds.split(","):
            for number in map(int, options.rows.split(",")):
                yield from of_run(folder, kind, number, options)


def of_run(folder: Path, kind: str, number: int, options: argparse.Namespace) -> Iterator[Row]:
    """Measure runs of one kind and size."""
    path, run = folder / "run.db", {"kind": kind, "rows": number}
    for chunk in map(int, options.chunks.split(",")):
        for group in (1, GROUP):
            path.unlink(missing_ok=True)
            spent = write(path, header(kind, number, chunk, order=options.order), group)
            speeds = {"rows a second": number / spent, "chunks a second": number / chunk / spent}
            size = path.stat().st_size / 2**20
            yield run | {"chunk": chunk, "chunks of a transaction": group, **speeds, "MB": size}
    for i, shard in enumerate(shard_paths(path), start=1):
        shard.unlink(missing_ok=True)
        write(shard, header(kind, number, 1024, [i, SHARDS], options.order), GROUP)
    for operation in options.operations.split(","):
        yield run | {"operation": operation, **separately(measured, operation, path)}
