"""Time of commands with OpenMP threads that spin or sleep while they wait, on a quiet machine and a busy one.

python bench/busy_machine.py [--rounds N] [--json FILE]

Each command runs as a whole process, alternately with OpenMP's default (GOMP_SPINCOUNT=300000) and with what the
command line sets there (OMP_WAIT_POLICY=passive), first alone, then beside one process that never sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = ("--model", "zoo:digits-smooth-0.25", "--data", "digits")
COMMANDS = {
    "certify": ("certify", *MODEL, "--sigma", "0.25", "--n", "20000", "--max", "40"),
    "verify": ("verify", *MODEL, "--radius", "--method", "crown", "--max", "60"),
    "attack": ("attack", *MODEL, "--epsilon", "0.1", "--attack", "pgd", "--max", "200"),
}
QUIET = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
POLICIES = {"default": {"GOMP_SPINCOUNT": "300000"}, "passive": {"OMP_WAIT_POLICY": "passive"}}


def seconds(command: tuple[str, ...], policy: dict[str, str]) -> float:
    """Return the time of one run in a new file."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "pyrobust", *command, "--out", str(Path(folder) / "run.db")]
        begin = time.perf_counter()
        subprocess.run(line, env=QUIET | policy, check=True, capture_output=True)
        return time.perf_counter() - begin


def main() -> None:
    """Run all commands and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for load in ("quiet", "one busy process"):
        busy = None if load == "quiet" else subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            for name, command in COMMANDS.items():
                times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
                for _ in range(arguments.rounds):
                    for policy, variables in POLICIES.items():
                        times[policy].append(seconds(command, variables))
                medians = {policy: round(statistics.median(values), 2) for policy, values in times.items()}
                results.setdefault(load, {})[name] = medians
                print(load, name, medians, flush=True)
        finally:
            if busy is not None:
                busy.kill()
    if arguments.json:
        content = {"command": " ".join(["python", *sys.argv]), "processors": os.cpu_count(), "seconds": results}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
