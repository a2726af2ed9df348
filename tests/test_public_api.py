"""The public names: documented, with an example that runs, quick to import, and silent."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import itertools
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyrobust

PACKAGE = Path(pyrobust.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODULES = ["pyrobust", *(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "pyrobust."))]
CHECKED = [name for name in MODULES if not name.endswith(("__main__", "._C"))]


def public():
    """(module, name) of everything in an ``__all__``."""
    return [(name, item) for name in CHECKED for item in getattr(importlib.import_module(name), "__all__", ())]


def documented_callables():
    """The public functions, and the public methods of the public classes, each once."""
    found = {}
    for module, name in public():
        value = getattr(importlib.import_module(module), name)
        if inspect.isfunction(value):
            found[f"{value.__module__}.{value.__qualname__}"] = value
        elif inspect.isclass(value) and value.__module__.startswith("pyrobust"):
            for key, method in vars(value).items():
                if inspect.isfunction(method) and not key.startswith("_"):
                    found[f"{value.__module__}.{method.__qualname__}"] = method
    return found


@pytest.fixture(scope="module")
def examples():
    """All words in all doctests of the package."""
    words = set()
    for name in CHECKED:
        for test in doctest.DocTestFinder().find(importlib.import_module(name), name):
            for example in test.examples:
                words |= set(re.findall(r"\w+", example.source))
    return words


def test_the_public_names():
    assert set(pyrobust.__all__) >= {
        "ABSTAIN",
        "Certificates",
        "Predictions",
        "PyrobustError",
        "RandomizedSmoothing",
        "certified_radius",
        "compute_certified_accuracy",
        "AdversarialAttack",
        "AutoAttack",
        "BoundedModel",
        "Bounds",
        "Verdicts",
        "certified_accuracy_ibp",
        "compute_ibp_bounds",
        "verify_dataset",
        "calculate_empirical_robustness",
        "compute_robustness_curve",
        "project_l1_ball",
        "project_l1_ball_box",
        "project_l2_ball",
        "project_linf_ball",
        "project_simplex",
    }
    assert pyrobust.ABSTAIN == -1
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", pyrobust.__version__)


@pytest.mark.parametrize("module", CHECKED)
def test_modules(module):
    found = importlib.import_module(module)
    assert (found.__doc__ or "").strip(), "a module says what it is for"
    names = list(getattr(found, "__all__", ()))
    assert len(names) == len(set(names))
    assert all(hasattr(found, name) for name in names)


def documented_below(module, name):
    """Whether a constant has a string below its assignment in this module, where the reference pages look for it."""
    body = ast.parse(Path(importlib.import_module(module).__file__).read_text(encoding="utf-8")).body
    for statement, below in itertools.pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            return isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and len(below.value.value) > 20
    return False


@pytest.mark.parametrize(("module", "name"), public())
def test_every_name_is_documented(module, name, examples):
    value = getattr(importlib.import_module(module), name)
    if inspect.ismodule(value) or not callable(value):
        assert name.startswith("__") or documented_below(module, name), "a string below its assignment says what it is"
        return
    doc = inspect.getdoc(value) or ""
    assert len(doc) > 20
    if dataclasses.is_dataclass(value):
        assert not doc.startswith(f"{name}("), "the docstring that a dataclass makes for itself"
        return  # a result; it is shown where it is made
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        assert name in examples, "no doctest uses it"


@pytest.mark.parametrize("name", sorted(documented_callables()))
def test_every_function_says_what_goes_in_and_out(name):
    function = documented_callables()[name]
    doc = inspect.getdoc(function) or ""
    assert doc, "no docstring"
    signature = inspect.signature(function)
    parameters = [key for key in signature.parameters if key not in ("self", "cls")]
    # "arguments as of ..." refers to a sibling.
    refers = re.search(r"[Aa]rguments.* as of|same arguments|signature", doc)
    # One argument may be explained in the sentence itself.
    assert len(parameters) < 2 or "Args:" in doc or refers, "no Args"
    if "Args:" in doc:
        section = doc.split("Args:")[1]
        missing = [key for key in parameters if not re.search(rf"\b{key}\b", section)]
        assert not missing, f"Args does not mention {missing}"
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(parse(function)))
    assert not raises or "Raises:" in doc or refers or "Checks" in doc, "raises, and does not say what"


def parse(function):
    source = inspect.getsource(function)
    return ast.parse(inspect.cleandoc("\n" + source) if not source[0].isspace() else "if True:\n" + source)


def test_classes_say_what_they_take():
    for cls in (pyrobust.RandomizedSmoothing, importlib.import_module("pyrobust.compat.smoothing").Smooth):
        doc = inspect.getdoc(cls)
        for key in list(inspect.signature(cls).parameters):
            assert re.search(rf"\b{key}\b", doc.split("Args:")[1]), key
        assert "Raises:" in doc


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_library_prints_nothing(path):
    if path.relative_to(PACKAGE).parts[0] == "cli" or path.name in ("autoattack.py", "torchattacks.py"):
        return  # the command line's part is to print, and what the other libraries print their scripts' users expect
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "eval", "exec"), f"{path}:{node.lineno}"


def test_no_folder_is_crowded():
    for folder in {path.parent for path in SOURCES}:
        files = [path.name for path in folder.iterdir() if path.is_file()]
        assert len(files) <= 25, f"{folder}: {len(files)} files"


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_quick_and_silent():
    code = """
import sys, time
import numpy, scipy.special, torch
start = time.process_time()
before = set(sys.modules)
import pyrobust
taken = time.process_time() - start
heavy = {name.split(".")[0] for name in set(sys.modules) - before}
print(taken, sorted(heavy & {"matplotlib", "pandas", "rich", "typer", "sklearn", "PIL", "flint"}))
"""
    out = run(code)
    assert out.count("\n") == 1
    taken, heavy = out.split(maxsplit=1)
    assert float(taken) < 2.0  # about a tenth of this; the machine may be busy
    assert heavy.strip() == "[]", "an import for its own use only"


def test_errors_are_the_builtin_ones_too():
    errors = importlib.import_module("pyrobust.errors")
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert len(found) >= 6
    for cls in found:
        assert issubclass(cls, pyrobust.PyrobustError)
        assert cls is pyrobust.PyrobustError or issubclass(cls, (ValueError, TypeError, RuntimeError))
