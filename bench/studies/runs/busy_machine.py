"""Time of README's blocks on a quiet machine and beside processes that never sleep.

The Python blocks run in order in one process, as pyrobust is imported and again after torch was: then OpenMP's threads
spin while they wait, unless OMP_WAIT_POLICY says otherwise. The command lines run one by one in the folder of the
first round's runs. Seconds are the medians of the rounds, by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from study import Results, busy

README = Path(__file__).parents[3] / "README.md"
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
# Times each block that it reads, as JSON, from the standard input.
RUN_BLOCKS = """
import json, sys, time
if sys.argv[1] == "torch first":
    import torch
names, seconds = {}, []
for block in json.load(sys.stdin):
    begin = time.perf_counter()
    exec(block, names)
    seconds.append(time.perf_counter() - begin)
print("\\n" + json.dumps(seconds))
"""


def blocks(language: str) -> list[str]:
    """README's blocks in this language, but for those that are not run."""
    matches = re.findall(r"(<!-- not run[^\n]*\n)?```(\w+)\n(.*?)```", README.read_text(), re.DOTALL)
    return [text for skipped, name, text in matches if name == language and not skipped]


def python_seconds(order: str) -> dict[str, float]:
    """Return the seconds of each Python block, the imports of torch and pyrobust in the first."""
    sources = blocks("python")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", RUN_BLOCKS, order]
        run = subprocess.run(command, input=json.dumps(sources), cwd=folder, env=PLAIN, capture_output=True, text=True)
    run.check_returncode()
    seconds = json.loads(run.stdout.splitlines()[-1])
    return {f"{order}: {label(source)}": value for source, value in zip(sources, seconds, strict=True)}


def command_seconds() -> dict[str, float]:
    """Return the seconds of each command line."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for line in "".join(blocks("bash")).splitlines():
            command = line.partition("#")[0].strip()
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", *command.split()], cwd=folder, env=PLAIN, check=True, capture_output=True
            )
            seconds[" ".join(command.split()[:2])] = time.perf_counter() - begin
    return seconds


def label(source: str) -> str:
    """The last line of a block, without its comment."""
    return source.strip().splitlines()[-1].partition("#")[0].strip()[:60]


def medians(others: int, rounds: int) -> dict[str, float]:
    """Median seconds of every block beside so many processes that never sleep."""
    with busy(others):
        all_rounds = [
            python_seconds("pyrobust first") | python_seconds("torch first") | command_seconds() for _ in range(rounds)
        ]
    return {name: statistics.median(one[name] for one in all_rounds) for name in all_rounds[0]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--busy", type=int, default=2, help="processes that never sleep")
    parser.add_argument("--rounds", type=int, default=3)


def measure(options: argparse.Namespace) -> Results:
    quiet, beside = (medians(others, options.rounds) for others in (0, options.busy))
    for name in quiet:
        yield {"block": name, "quiet_s": quiet[name], "busy_s": beside[name], "ratio": beside[name] / quiet[name]}
    return {"busy": options.busy}
