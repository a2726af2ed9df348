"""Ctrl-C while a command is still being imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "from pyrobust.cli import main; main()"
# Independent of the tests' own handler: background jobs of a shell ignore Ctrl-C.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
IGNORE = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "


def run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, "info"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("ignored", [False, True])
def test_interrupted_import_ends_without_a_traceback(tmp_path: Path, ignored: bool) -> None:
    """Ctrl-C comes while a fake torch is imported, which ends the process itself if Ctrl-C is ignored."""
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(3)\n")
    done = run((IGNORE if ignored else HEED) + COMMAND, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3 if ignored else 130, "", "")


def test_nothing_is_imported_before_the_handler_stands(tmp_path: Path) -> None:
    """Every module takes time, in which Ctrl-C shows a traceback."""
    code = "import sys; before = set(sys.modules); import pyrobust.cli; print(*sorted(set(sys.modules) - before))"
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "pyrobust pyrobust.cli pyrobust.environment pyrobust.late\n",
        "",
    )


def test_afterwards_the_command_handles_it(tmp_path: Path) -> None:
    code = HEED + (
        "import pyrobust.cli\n"
        "try:\n"
        "    pyrobust.cli.main()\n"
        "finally:\n"
        "    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "True")
