"""The public names: documented, with examples that run, imported when first used, quickly and silently."""

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
from collections import Counter
from pathlib import Path

import pytest
from support.forked import forget, in_fork

import pyrobust
from pyrobust.late import LazyPackage

PACKAGE = Path(pyrobust.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODULES = ["pyrobust", *(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "pyrobust."))]
CHECKED = [name for name in MODULES if not name.endswith(("__main__", "._C"))]


def public():
    """Return (module, name) of every entry of an ``__all__``."""
    return [(name, item) for name in CHECKED for item in getattr(importlib.import_module(name), "__all__", ())]


def documented_callables():
    """Return the public functions and the public methods of public classes, each once."""
    callables = {}
    for module, name in public():
        value = getattr(importlib.import_module(module), name)
        if inspect.isfunction(value):
            callables[f"{value.__module__}.{value.__qualname__}"] = value
        elif inspect.isclass(value) and value.__module__.startswith("pyrobust"):
            for key, method in vars(value).items():
                if inspect.isfunction(method) and not key.startswith("_"):
                    callables[f"{value.__module__}.{method.__qualname__}"] = method
    return callables


@pytest.fixture(scope="module")
def examples():
    """Return all words in the doctests of the package."""
    words = set()
    for name in CHECKED:
        for test in doctest.DocTestFinder().find(importlib.import_module(name), name):
            for example in test.examples:
                words |= set(re.findall(r"\w+", example.source))
    return words


def test_the_public_names():
    assert set(pyrobust.__all__) >= {
        *("ABSTAIN", "Certificates", "Predictions", "PyrobustError", "RandomizedSmoothing", "certified_radius"),
        *("compute_certified_accuracy", "AdversarialAttack", "AutoAttack", "BoundedModel", "Bounds", "Verdicts"),
        *("certified_accuracy_ibp", "compute_ibp_bounds", "verify_dataset", "calculate_empirical_robustness"),
        *("compute_robustness_curve", "project_l1_ball", "project_l1_ball_box", "project_l2_ball"),
        *("project_linf_ball", "project_simplex"),
    }
    assert pyrobust.ABSTAIN == -1
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", pyrobust.__version__)


def test_modules():
    for module in CHECKED:
        imported = importlib.import_module(module)
        assert (imported.__doc__ or "").strip(), f"{module}: expected a module docstring"
        names = list(getattr(imported, "__all__", ()))
        assert len(names) == len(set(names)), module
        assert [name for name in names if not hasattr(imported, name)] == [], module


def documented_below(module, name):
    """Return whether a constant's assignment is followed by a string, its documentation on the reference pages."""
    body = ast.parse(Path(importlib.import_module(module).__file__).read_text(encoding="utf-8")).body
    for statement, below in itertools.pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            return isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and len(below.value.value) > 20
    return False


def test_every_name_is_documented(examples):
    for module, name in public():
        value = getattr(importlib.import_module(module), name)
        if inspect.ismodule(value) or not callable(value):
            documented = name.startswith("__") or documented_below(module, name)
            assert documented, f"{module}.{name}: expected a string below its assignment"
            continue
        doc = inspect.getdoc(value) or ""
        assert len(doc) > 20, f"{module}.{name}"
        if dataclasses.is_dataclass(value):
            assert not doc.startswith(f"{name}("), f"{module}.{name}: expected a docstring, got dataclass's own"
            continue  # a result; its constructor's examples show it
        if not (inspect.isclass(value) and issubclass(value, Exception)):
            assert name in examples, f"{module}.{name}: expected a doctest that uses it"


def test_every_function_documents_arguments_and_errors():
    for name, function in documented_callables().items():
        doc = inspect.getdoc(function) or ""
        assert doc, f"{name}: no docstring"
        signature = inspect.signature(function)
        parameters = [key for key in signature.parameters if key not in ("self", "cls")]
        # "arguments as for ..." refers to a sibling.
        refers = re.search(r"[Aa]rguments.* as for|same arguments|signature", doc)
        # The summary may explain a single argument.
        assert len(parameters) < 2 or "Args:" in doc or refers, f"{name}: expected an Args section"
        if "Args:" in doc:
            section = doc.split("Args:")[1]
            missing = [key for key in parameters if not re.search(rf"\b{key}\b", section)]
            assert not missing, f"{name}: Args does not mention {missing}"
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(parse(function)))
        assert not raises or "Raises:" in doc or refers or "Checks" in doc, f"{name}: expected a Raises section"


def parse(function):
    source = inspect.getsource(function)
    return ast.parse(inspect.cleandoc("\n" + source) if not source[0].isspace() else "if True:\n" + source)


def test_classes_document_their_arguments():
    for cls in (pyrobust.RandomizedSmoothing, importlib.import_module("pyrobust.compat.smoothing").Smooth):
        doc = inspect.getdoc(cls)
        for key in list(inspect.signature(cls).parameters):
            assert re.search(rf"\b{key}\b", doc.split("Args:")[1]), key
        assert "Raises:" in doc


#: These drop-in replacements print what their users expect.
PRINTING = ("autoattack.py", "robustbench.py", "torchattacks")


def test_the_library_prints_nothing():
    for path in SOURCES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "cli" or (parts[0] == "compat" and parts[1] in PRINTING):
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\b(print|eval|exec)\b", text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("print", "eval", "exec"), f"{path}:{node.lineno}"


def test_no_folder_is_crowded():
    tests = Path(__file__).resolve().parent
    native = tests.parent / "csrc"
    assert native.is_dir()
    for root, limit in ((PACKAGE, 25), (tests, 30), (native, 30)):
        sources = [path for path in root.rglob("*.*") if path.suffix in (".py", ".cpp", ".cu", ".cuh", ".h", ".inl")]
        assert sources
        for folder, count in Counter(path.parent for path in sources).items():
            assert count <= limit, f"{folder}: {count} files, expected at most {limit}"


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
from pyrobust import *
taken = time.process_time() - start
heavy = {name.split(".")[0] for name in set(sys.modules) - before}
print(taken, sorted(heavy & {"matplotlib", "pandas", "rich", "typer", "sklearn", "PIL", "flint"}))
"""
    out = run(code)
    assert out.count("\n") == 1
    taken, heavy = out.split(maxsplit=1)
    assert float(taken) < 5.0  # usually a quarter of this; the machine may be busy
    assert heavy.strip() == "[]", "expected heavy modules to be imported on use only"


def test_errors_are_the_builtin_ones_too():
    errors = importlib.import_module("pyrobust.errors")
    classes = [
        cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, Exception) and not name.startswith("_")
    ]
    assert len(classes) >= 6
    for cls in classes:
        assert issubclass(cls, pyrobust.PyrobustError)
        assert cls is pyrobust.PyrobustError or issubclass(cls, (ValueError, TypeError, RuntimeError))


# --- packages that import their names when they are first used


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


def imported_anew() -> list[object]:
    """Use names of the package while its ops, of which torch takes one registration, stay imported."""
    for name in ("zoo", "evaluation", "cli", "report"):
        forget(f"pyrobust.{name}")
    del sys.modules["pyrobust"]
    zoo = importlib.import_module("pyrobust.zoo")
    found: list[object] = [zoo.nets.__name__, "load_data" in dir(zoo), hasattr(zoo, "nothing")]
    importlib.import_module("pyrobust.zoo.code_hash")
    importlib.import_module("pyrobust.evaluation.sandwich.result")
    names: dict[str, object] = {}
    exec("from pyrobust.zoo import *\nimport pyrobust", names)
    package = names["pyrobust"]
    assert package is not pyrobust
    code_hash = names["code_hash"]
    found += [code_hash.__qualname__, zoo.code_hash is code_hash, package.evaluation.sandwich is package.sandwich]
    return found


def test_modules_are_attributes_unknown_names_none_and_no_name_is_hidden_by_its_module() -> None:
    """``pyrobust.zoo.code_hash`` is a module and the function in it."""
    assert in_fork(imported_anew) == ["pyrobust.zoo.nets", True, False, "code_hash", True, True]
