"""Standard output and error that cannot be written, or are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FULL = "error: standard output: cannot be written (No space left on device)\n"


def run(arguments: Sequence[str], out: str, err: str | None = None, **environment: str) -> tuple[int, str]:
    """Run a command with its output on files, and return its status and what it wrote on standard error."""
    with open(out, "w") as stdout, open(err or "errors", "w") as stderr:
        command = [sys.executable, "-m", "pyrobust", *arguments]
        done = subprocess.run(command, stdout=stdout, stderr=stderr, env={**os.environ, **environment})
    return done.returncode, "" if err else Path("errors").read_text()


# typer's echo, and a table of rich's.
@pytest.mark.parametrize(("arguments", "unbuffered"), [(["--version"], "1"), (["audit", "log_sigma0.25.tsv"], "")])
def test_a_full_standard_output_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], unbuffered: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log_sigma0.25.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.4\t1\t0:00:01\n")
    assert run(arguments, "/dev/full", PYTHONUNBUFFERED=unbuffered) == (2, FULL)


def test_a_full_standard_error_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["log", "missing.db"], "out", "/dev/full") == (2, "")
    assert run(["--version"], "out", "/dev/full") == (0, "")
    assert Path("out").read_text().startswith("pyrobust ")


def test_completion_without_a_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": "/proc/nobody"}
    status, error = run(["--install-completion", "bash"], "out", **named)
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("error: --install-completion: cannot write '/proc/nobody")


def test_closed_streams_are_opened_on_nothing() -> None:
    code = "import pyrobust.cli as c, os, sys; c.open_closed_streams(); print(sys.stderr.isatty(), os.dup(1) > 2)"
    done = subprocess.run(f"{sys.executable} -c '{code}' <&- 2>&-", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False True\n")


def test_an_error_of_the_users_code_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    Path("mine.py").write_text("def images():\n    raise OSError(28, 'No space left on device')\n")
    model = ["--model", "zoo:digits-smooth-0.25", "--sigma", "0.25"]
    status, error = run(["certify", *model, "--data", "mine:images"], "out")
    assert status == 1
    assert "in images" in error
