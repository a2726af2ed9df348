"""The process around a command: imports, Ctrl-C, and standard streams that cannot be written or are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyrobust.zoo import list_models

COMMAND = "from pyrobust.cli import main; main()"
# A torch that cannot be imported, as beside the wrong CUDA libraries, and none of the packages that torch needs.
BARE = "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'scipy', 'matplotlib'))); " + COMMAND
# Independent of the tests' own handler: background jobs of a shell ignore Ctrl-C.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
IGNORE = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
IMPORTED = """
import sys
from pyrobust.cli import main
try:
    main()
finally:
    ran = [name for name, module in sys.modules.items() if (getattr(module, "__file__", None) or "").endswith(".py")]
    print(*sorted(name for name in ran if name.partition(".")[0] == "pyrobust"), file=sys.stderr)
"""
#: Modules of the package that ``pyrobust certify`` may execute.
MOST = 120
FULL = "error: standard output: cannot be written (No space left on device)\n"


def python(code: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a folder, from which modules are imported."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
    )


# -- imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["--help", "--version", "attack --help", "--show-completion bash"])
def test_help_and_version_need_no_torch(tmp_path: Path, arguments: str) -> None:
    # The shell is named here: a test has none to detect.
    done = python(BARE, tmp_path, *arguments.split(), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    expected = {
        "--version": "pyrobust 0.",
        "--show-completion bash": "_PYROBUST_COMPLETE=complete_bash",
        "attack --help": "--certify-first",
    }
    assert expected.get(arguments, "quickstart") in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("certi", ["certify"]),
        ("attack --mini", ["--minimum"]),
        ("attack --attack ap", ["apgd-ce", "apgd-dlr", "apgd-t"]),
        ("certify --model zoo:", list_models()),
    ],
)
def test_completion_needs_no_torch(tmp_path: Path, words: str, expected: list[str]) -> None:
    typed = {"COMP_WORDS": f"pyrobust {words}", "COMP_CWORD": str(len(words.split()))}
    done = python(BARE, tmp_path, _PYROBUST_COMPLETE="complete_bash", **typed)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, expected, "")


def test_a_broken_torch_is_one_line(tmp_path: Path) -> None:
    done = python(BARE, tmp_path, "info")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: import of ")
    assert done.stderr.count("\n") == 1


def test_names_in_the_command_and_in_any_order(tmp_path: Path) -> None:
    code = """
import sys
import pyrobust
print([name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy", "ast", "importlib.metadata")])
from pyrobust import *
names = [name for name in pyrobust.__all__ if getattr(pyrobust, name) is not globals()[name]]
print(names, "PGD" in dir(pyrobust), pyrobust.threats.Threat.__name__, pyrobust.ABSTAIN is pyrobust.smoothing.ABSTAIN)
try:
    pyrobust.nothing
except AttributeError as error:
    print(error)
"""
    done = python(code, tmp_path)
    seen = "[]\n[] True Threat True\nmodule 'pyrobust' has no attribute 'nothing'\n"
    assert (done.stdout, done.stderr) == (seen, "")


def test_what_needs_the_ops_registers_them_and_certify_imports_what_it_uses(tmp_path: Path) -> None:
    """Each in a process of its own, which is forked from one that has imported torch.

    certify imports no other command, attack, bound, auditor, format of data, worker or table of other runs.
    """
    code = f"""
import os
import sys
import torch
for first in ("pyrobust; pyrobust.ops", "pyrobust; pyrobust._C", "pyrobust, pickle; pickle.dumps(pyrobust.PGD)"):
    if not os.fork():
        exec(f"import {{first}}; torch.ops.pyrobust.count_votes")
        sys.exit()
    print(os.wait()[1], flush=True)
{IMPORTED}"""
    line = "certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 100 --max 2 --out run.db"
    done = python(code, tmp_path, *line.split())
    assert done.returncode == 0, done.stderr
    *others, last = done.stderr.splitlines()
    assert (done.stdout[:6], "Traceback" in "".join(others)) == ("0\n0\n0\n", False)
    modules = last.split()
    assert len(modules) <= MOST, modules
    rooms = {name.split(".")[1] for name in modules if "." in name}
    assert rooms.isdisjoint({"attacks", "auditing", "bounds", "compat", "reference", "text", "threats", "training"})


# -- Ctrl-C while a command is still being imported -------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [False, True])
def test_interrupted_import_ends_without_a_traceback(tmp_path: Path, ignored: bool) -> None:
    """Ctrl-C comes while a fake torch is imported, which ends the process itself if Ctrl-C is ignored."""
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(3)\n")
    done = python((IGNORE if ignored else HEED) + COMMAND, tmp_path, "info")
    assert (done.returncode, done.stdout, done.stderr) == (3 if ignored else 130, "", "")


def test_nothing_is_imported_before_the_handler_stands(tmp_path: Path) -> None:
    """Every module takes time, in which Ctrl-C shows a traceback."""
    code = "import sys; before = set(sys.modules); import pyrobust.cli; print(*sorted(set(sys.modules) - before))"
    done = python(code, tmp_path)
    imported = "pyrobust pyrobust.cli pyrobust.environment pyrobust.late\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, imported, "")


def test_afterwards_the_command_handles_it(tmp_path: Path) -> None:
    code = HEED + (
        "import pyrobust.cli\n"
        "try:\n"
        "    pyrobust.cli.main()\n"
        "finally:\n"
        "    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    done = python(code, tmp_path, "--version")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "True")


# -- standard streams -------------------------------------------------------------------------------------------------


def redirected(arguments: Sequence[str], out: str, err: str | None = None, **environment: str) -> tuple[int, str]:
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
    assert redirected(arguments, "/dev/full", PYTHONUNBUFFERED=unbuffered) == (2, FULL)


def test_a_full_standard_error_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert redirected(["log", "missing.db"], "out", "/dev/full") == (2, "")
    assert redirected(["--version"], "out", "/dev/full") == (0, "")
    assert Path("out").read_text().startswith("pyrobust ")


def test_completion_without_a_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": "/proc/nobody"}
    status, error = redirected(["--install-completion", "bash"], "out", **named)
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("error: --install-completion: cannot write '/proc/nobody")


def test_closed_streams_are_opened_on_nothing() -> None:
    code = "import pyrobust.cli as c, os, sys; c.open_closed_streams(); print(sys.stderr.isatty(), os.dup(1) > 2)"
    done = subprocess.run(f"{sys.executable} -c '{code}' <&- 2>&-", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False True\n")
