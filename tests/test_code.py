"""Rules of the package's code that no linter has; each reads the syntax trees of all modules."""

import ast
import inspect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import pyrobust
from pyrobust import errors
from pyrobust.runs.kinds import KINDS

PACKAGE = Path(pyrobust.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value)}
ARGUMENT_ERRORS = ("InputError", "InputTypeError")
MOST_POSITIONAL = 6
MOST_KIND_NAMES = 60


def name_of(function: ast.expr) -> str:
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def argument_errors(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call) and name_of(node.func) in ARGUMENT_ERRORS)


def messages_with_an_argument(tree: ast.AST) -> Iterator[int]:
    """The lines of errors whose message alone begins like one about an argument, or that is made elsewhere."""
    for call in argument_errors(tree):
        if len(call.args) == 1 and not call.keywords:
            message = call.args[0]
            parts = message.values if isinstance(message, ast.JoinedStr) else [message]
            if not isinstance(message, ast.JoinedStr | ast.Constant):
                yield call.lineno
                continue
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
            head, colon, _ = text.partition(": ")
            if colon and len(head.split()) <= 2:
                yield call.lineno


def parsed_messages(tree: ast.AST) -> Iterator[int]:
    """The lines that take the message of an exception of the package apart."""
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is not None):
        assert handler.type is not None
        caught = {name_of(node) for node in ast.walk(handler.type) if isinstance(node, ast.expr)}
        for node in ast.walk(handler) if caught & ERRORS else ():
            if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
                value, method = node.func.value, node.func.attr
                taken = [value, *node.args] if method in ("match", "fullmatch", "search", "sub") else [value]
                parses = method in ("partition", "rpartition", "split", "replace", "removeprefix", "removesuffix")
                messages = (v for v in taken if isinstance(v, ast.Call) and name_of(v.func) == "str" and v.args)
                if any(name_of(v.args[0]) == handler.name for v in messages) and (parses or len(taken) > 1):
                    yield node.lineno


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise InputError('epsilon: expected 1, got 2')", [1]),
        ("raise InputTypeError(f'{name}: expected 1, got {value}')", [1]),
        ("raise InputError(f'epsilon, {name}: expected 1')", [1]),
        ("raise InputError(message)", [1]),
        ("raise InputError('epsilon', '1', 2)", []),
        ("raise InputError('data', problem='none')", []),
        ("raise InputError(f'{first} and {second} are shards of different sweeps: {why}')", []),
        ("raise InputError('expected at least one file, got none')", []),
    ],
)
def test_errors_with_an_argument_are_recognised(code: str, expected: list[int]) -> None:
    assert list(messages_with_an_argument(ast.parse(code))) == expected


def test_errors_about_an_argument_name_it_in_its_field() -> None:
    found = {str(path): lines for path, tree in TREES.items() if (lines := list(messages_with_an_argument(tree)))}
    assert not found, 'pass the fields, as in InputError("epsilon", "at least 0", epsilon)'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("name = str(error).partition(': ')[0]", [4]),
        ("text = str(error).replace('x', 'y')", [4]),
        ("name = re.match('(.*): ', str(error))", [4]),
        ("text = ' '.join(str(error).split())", []),
        ("error.argument = '--x'", []),
    ],
)
def test_parsed_messages_are_recognised(line: str, expected: list[int]) -> None:
    code = f"try:\n    f()\nexcept (InputError, OSError) as error:\n    {line}"
    assert list(parsed_messages(ast.parse(code))) == expected
    assert not list(parsed_messages(ast.parse(code.replace("InputError", "ValueError"))))


def test_nothing_parses_messages() -> None:
    found = {str(path): lines for path, tree in TREES.items() if (lines := list(parsed_messages(tree)))}
    assert not found, "set a field of the error instead"


def definitions(trees: Iterable[ast.AST]) -> dict[str, list[float]]:
    """The functions, methods and classes that trees define, by name: the number of arguments that each names."""
    known: dict[str, list[float]] = defaultdict(list)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                known[node.name].append(len(node.args.posonlyargs + node.args.args))
            elif isinstance(node, ast.ClassDef):
                known[node.name].append(math.inf)  # its fields may be inherited
    return known


def long_calls(tree: ast.AST, known: dict[str, list[float]]) -> Iterator[int]:
    """The lines that call something known with too many positional arguments.

    A callee is known by its last name, the module's own first, unless its first name comes from another package.
    Functions that name at most six arguments and take any number are left out: those are alike, or of a native op,
    which keywords make slower by a quarter (l1_step of 8 rows: 13.4 us by position, 17.7 us by keyword).
    """
    own = definitions([tree])
    foreign = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {(name.asname or name.name).partition(".")[0] for name in node.names} - {"pyrobust"}
        elif isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith("pyrobust"):
            foreign |= {name.asname or name.name for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
            first: ast.expr = node.func
            while isinstance(first, ast.Attribute | ast.Call | ast.Subscript):
                first = first.func if isinstance(first, ast.Call) else first.value
            name = name_of(node.func)
            named = max(own[name] if isinstance(node.func, ast.Name) and name in own else known.get(name, [0]))
            if name_of(first) not in foreign and named > MOST_POSITIONAL:
                yield node.lineno


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("f(1, 2, 3, 4, 5, 6, 7)", [1]),
        ("self.f(1, 2, 3, 4, 5, 6, *rest)", [1]),
        ("module.f(1, 2, 3, 4, 5, 6, 7)", [1]),
        ("A(1, 2, 3, 4, 5, 6, 7)", [1]),
        ("f(1, 2, 3, 4, 5, 6, g=7)", []),
        ("any(1, 2, 3, 4, 5, 6, 7)", []),
        ("other(1, 2, 3, 4, 5, 6, 7)", []),
        ("import numpy as np; np.f(1, 2, 3, 4, 5, 6, 7)", []),
        ("from numpy import f; f(1, 2, 3, 4, 5, 6, 7)", []),
        ("from .module import f; f(1, 2, 3, 4, 5, 6, 7)", [1]),
        ("def f(*a): f(1, 2, 3, 4, 5, 6, 7)", []),
    ],
)
def test_long_calls_are_recognised(code: str, expected: list[int]) -> None:
    known = definitions(
        [ast.parse("def f(a, b, c, d, e, f, g): ..."), ast.parse("def any(*a): ...\nclass A:\n    x: int")]
    )
    assert list(long_calls(ast.parse(code), known)) == expected


def test_calls_have_at_most_six_positional_arguments() -> None:
    stubs = [ast.parse(path.read_text()) for path in PACKAGE.glob("_C.pyi")]
    known = definitions([*TREES.values(), *stubs])
    assert stubs
    assert "linf_step" in known
    found = {str(path): lines for path, tree in TREES.items() if (lines := list(long_calls(tree, known)))}
    assert not found, "pass the later arguments by keyword"


def test_few_literals_name_a_kind_of_run() -> None:
    """Where a kind is named outside its class, something about it is said twice; arguments of errors do not count."""
    names = {*KINDS, *(kind.name for kind in KINDS.values())}
    assert {"certify", "sequential", "minimum"} <= names
    found: list[str] = []
    for path, tree in TREES.items():
        if PACKAGE / "runs" / "kinds" in path.parents:
            continue
        arguments = {id(call.args[0]) for call in argument_errors(tree) if call.args}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in names and id(node) not in arguments:
                found.append(f"{path}:{node.lineno}: {node.value}")
    assert len(found) <= MOST_KIND_NAMES, "\n".join(found)
