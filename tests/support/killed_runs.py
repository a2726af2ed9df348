"""Sweeps by the command, to be killed and restarted: processes forked from one that has imported it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import torch

from pyrobust.cli import main
from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run

TIMEOUT_S = 120
# Importing torch and the command takes longer than most of these sweeps; pytest is what multiprocessing imports again.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["pyrobust.cli.app", "torch._dynamo", "pytest"])


class Sweep:
    """A process of the command, with the part of ``subprocess.Popen`` that the tests use."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._errors = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it goes with this object
        self._process = _SERVER.Process(target=_command, args=(arguments, folder, self._errors.name))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def communicate(self, timeout: float = TIMEOUT_S) -> tuple[None, str]:
        """Wait for the end, and return what was written on standard error."""
        self._process.join(timeout)
        assert self.returncode is not None, f"not done after {timeout} seconds"
        return None, Path(self._errors.name).read_text()


def _command(arguments: list[str], folder: Path, errors: str) -> None:
    torch.set_num_threads(1)  # several threads wait for each other on a busy machine
    os.chdir(folder)
    for name, stream in ((os.devnull, 1), (errors, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv = ["pyrobust", *arguments]
    main()


def start(sweep: list[str], path: Path) -> Sweep:
    return Sweep([*sweep, "--out", str(path)], path.parent)


def committed(path: Path) -> int:
    try:
        return len(Run(path))
    except PyrobustError:  # not there yet, or just being made
        return 0


def finish(sweep: list[str], path: Path) -> None:
    process = start(sweep, path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
