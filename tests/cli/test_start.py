"""Help, version and completion need no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyrobust.zoo import list_models

# A torch that cannot be imported, as beside the wrong CUDA libraries, and none of the packages that torch needs.
CODE = """
import sys
for name in ("torch", "numpy", "scipy", "matplotlib"):
    sys.modules[name] = None
from pyrobust.cli import main
sys.argv = ["pyrobust", *{arguments}]
main()
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE.format(arguments=arguments)],
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("arguments", ["--help", "--version", "attack --help", "--show-completion bash"])
def test_help_and_version_need_no_torch(arguments: str) -> None:
    # The shell is named here: a test has none to detect.
    done = run(*arguments.split(), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
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
def test_completion_needs_no_torch(words: str, expected: list[str]) -> None:
    done = run(_PYROBUST_COMPLETE="complete_bash", COMP_WORDS=f"pyrobust {words}", COMP_CWORD=str(len(words.split())))
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, expected, "")


def test_a_broken_torch_is_one_line() -> None:
    done = run("info")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: import of ")
    assert done.stderr.count("\n") == 1


def test_names_in_the_command_and_in_any_order() -> None:
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    seen = "[]\n[] True Threat True\nmodule 'pyrobust' has no attribute 'nothing'\n"
    assert (done.stdout, done.stderr) == (seen, "")


@pytest.mark.parametrize(
    "first",
    ["pyrobust; pyrobust.ops", "pyrobust; pyrobust._C", "pyrobust, pickle; pickle.dumps(pyrobust.PGD)"],
)
def test_what_needs_the_ops_registers_them(tmp_path: Path, first: str) -> None:
    code = f"import {first}; import torch; torch.ops.pyrobust.count_votes"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
