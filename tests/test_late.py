"""Packages that import their names when they are first used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from pyrobust.late import LazyPackage

PACKAGES = [
    "pyrobust",
    *(f"pyrobust.{name}" for name in ("evaluation", "metrics", "report", "smoothing", "stats", "zoo")),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_see_the_names_that_are_imported(name: str) -> None:
    package = importlib.import_module(name)
    assert isinstance(package, LazyPackage)
    imports = {
        alias.name: statement.module
        for statement in ast.walk(ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8")))
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("pyrobust.")
        for alias in statement.names
        if alias.asname == alias.name
    }
    assert imports == package._modules_of_names
    constants = {"ABSTAIN", "MARGIN", "MAX_TRIALS", "SHARE_AT_END", "__version__"}
    assert set(package.__all__) - constants == set(imports)


def test_modules_are_attributes_unknown_names_none_and_no_name_is_hidden_by_its_module() -> None:
    """``pyrobust.zoo.code_hash`` is a module and the function in it."""
    code = """
import pyrobust.zoo
print(pyrobust.zoo.nets.__name__, "load_data" in dir(pyrobust.zoo), hasattr(pyrobust.zoo, "nothing"))
import pyrobust.zoo.code_hash
import pyrobust.evaluation.sandwich.result
from pyrobust.zoo import *
import pyrobust
print(code_hash.__qualname__, pyrobust.zoo.code_hash is code_hash, pyrobust.evaluation.sandwich is pyrobust.sandwich)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "pyrobust.zoo.nets True False\ncode_hash True True\n"
