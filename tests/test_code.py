"""Rules of the package's code that no linter has; each test reads the syntax trees of all modules."""

import ast
import functools
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


@functools.cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree, an outer one before those in it."""
    return list(ast.walk(tree))


ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value)}
ARGUMENT_ERRORS = ("InputError", "InputTypeError")
MOST_POSITIONAL = 6
MOST_KIND_NAMES = 60


def name_of(function: ast.expr) -> str:
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def argument_errors(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in nodes(tree) if isinstance(node, ast.Call) and name_of(node.func) in ARGUMENT_ERRORS)


def messages_with_an_argument(tree: ast.AST) -> Iterator[int]:
    """The lines of errors that have only a message, which begins like one about an argument or is made elsewhere."""
    for call in argument_errors(tree):
        if len(call.args) == 1 and not call.keywords:
            message = call.args[0]
            parts = message.values if isinstance(message, ast.JoinedStr) else [message]
            if not isinstance(message, ast.JoinedStr | ast.Constant):
                yield call.lineno
                continue
            text = "".join(str(piece.value) if isinstance(piece, ast.Constant) else "x" for piece in parts)
            head, colon, _ = text.partition(": ")
            if colon and len(head.split()) <= 2:
                yield call.lineno


def parsed_messages(tree: ast.AST) -> Iterator[int]:
    """The lines that take the message of an exception of the package apart."""
    for handler in (node for node in nodes(tree) if isinstance(node, ast.ExceptHandler) and node.type is not None):
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
    offenders = {str(path): lines for path, tree in TREES.items() if (lines := list(messages_with_an_argument(tree)))}
    assert not offenders, 'pass the fields, as in InputError("epsilon", "at least 0", epsilon)'


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
    offenders = {str(path): lines for path, tree in TREES.items() if (lines := list(parsed_messages(tree)))}
    assert not offenders, "set a field of the error instead"


def definitions(trees: Iterable[ast.AST]) -> dict[str, list[float]]:
    """The functions, methods and classes that trees define: by name, the number of arguments that each names."""
    counts: dict[str, list[float]] = defaultdict(list)
    for tree in trees:
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef):
                counts[node.name].append(len(node.args.posonlyargs + node.args.args))
            elif isinstance(node, ast.ClassDef):
                counts[node.name].append(math.inf)  # its fields may be inherited
    return counts


def constructors(trees: Iterable[ast.AST]) -> dict[str, int]:
    """By class name, the most positional arguments that a constructor takes: those of __init__, or the fields."""
    classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for node in (node for tree in trees for node in nodes(tree)):
        if isinstance(node, ast.ClassDef):
            classes[node.name].append(node)

    def count_of(name: str, seen: frozenset[str] = frozenset()) -> int:
        named = () if name in seen else classes.get(name, ())
        return max((count(node, seen | {name}) for node in named), default=0)

    def count(node: ast.ClassDef, seen: frozenset[str]) -> int:
        for init in node.body:
            if isinstance(init, ast.FunctionDef) and init.name == "__init__":
                return len(init.args.posonlyargs + init.args.args) - 1
        keywords = any("kw_only=True" in ast.unparse(decorator) for decorator in node.decorator_list)
        fields = [ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign) and not keywords]
        without = ("ClassVar", "init=False", "kw_only=True")
        number = sum(not any(word in field for word in without) for field in fields)
        return number + sum(count_of(name_of(base), seen) for base in node.bases)

    return {name: count_of(name) for name in classes}


def class_called(call: ast.Call, inside: str) -> str:
    """The class that cls(), type(self)() or self.__class__() make in a class of this name; "" for any other call."""
    function = call.func
    is_type = isinstance(function, ast.Call) and name_of(function.func) == "type"
    return inside if is_type or name_of(function) in ("cls", "__class__") else ""


def starred(call: ast.Call) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in call.args)


def long_calls(tree: ast.AST, callees: dict[str, list[float]], fields: dict[str, int]) -> Iterator[int]:
    """The lines that call a known callee with too many positional arguments.

    A callee is known by its last name (names of the same module come first), unless its first name comes from another
    package. Functions that name at most six arguments and take any number are left out: these arguments are alike, or
    go to a native op, which keywords make slower by a quarter (l1_step of 8 rows: 13.4 us by position, 17.7 us by
    keyword). Constructors, whose numbers of arguments ``fields`` has, are also known by cls and by the names of an
    import; a starred argument in their calls counts as if it filled as many fields as there are.
    """
    local = definitions([tree])
    calls = [
        call
        for call in nodes(tree)
        if isinstance(call, ast.Call) and (starred(call) or len(call.args) > MOST_POSITIONAL)
    ]
    foreign, renamed, inside = set(), {}, {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            foreign |= {(name.asname or name.name).partition(".")[0] for name in node.names} - {"pyrobust"}
        elif isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith("pyrobust"):
            foreign |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            renamed |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ClassDef) and any(class_called(call, node.name) for call in calls):
            # an inner class comes after the outer one
            inside |= {id(call): class_called(call, node.name) for call in ast.walk(node) if isinstance(call, ast.Call)}
    for call in calls:
        first: ast.expr = call.func
        while isinstance(first, ast.Attribute | ast.Call | ast.Subscript):
            first = first.func if isinstance(first, ast.Call) else first.value
        name = name_of(call.func)
        name = inside.get(id(call)) or renamed.get(name, name)
        passed = max(len(call.args), fields.get(name, 0) if starred(call) else 0)
        named = max(local[name] if isinstance(call.func, ast.Name) and name in local else callees.get(name, [0]))
        if name_of(first) not in foreign and min(passed, named) > MOST_POSITIONAL:
            yield call.lineno


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
        ("from pyrobust import A as B; B(1, 2, 3, 4, 5, 6, 7)", [1]),
        ("class A:\n  def f(cls): cls(1, 2, 3, 4, 5, 6, 7)", [2]),
        ("class A:\n  def f(self): type(self)(1, 2, 3, 4, 5, 6, 7), self.__class__(1, 2, 3, 4, 5, 6, g=7)", [2]),
        ("A(*rest), A(*rest, x=1)", []),
        ("Seven(1, *rest)", [1]),
        ("Seven(1, **rest)", []),
        ("Inherited(*rest)", [1]),
        ("Initialised(*rest), Keywords(*rest), f(*rest)", []),
        ("class Seven:\n  def f(cls): cls(*rest)", [2]),
    ],
)
def test_long_calls_are_recognised(code: str, expected: list[int]) -> None:
    seven = "".join(f"    {name}: int\n" for name in "abcdefg")
    trees = [
        ast.parse("def f(a, b, c, d, e, f, g): ..."),
        ast.parse("def any(*a): ...\nclass A:\n    x: int"),
        ast.parse(f"class Seven:\n{seven}class Inherited(Seven):\n    h: int"),
        ast.parse(f"@dataclass(kw_only=True)\nclass Keywords:\n{seven}class Seven:\n    a: int"),
        ast.parse("class Initialised(Seven):\n    def __init__(self, a, b): ..."),
    ]
    assert list(long_calls(ast.parse(code), definitions(trees), constructors(trees))) == expected


def test_calls_have_at_most_six_positional_arguments() -> None:
    stubs = [ast.parse(path.read_text()) for path in PACKAGE.glob("_C.pyi")]
    callees, fields = definitions([*TREES.values(), *stubs]), constructors(TREES.values())
    assert stubs
    assert "linf_step" in callees
    assert fields["ThreatRate"] == 13
    offenders = {str(path): lines for path, tree in TREES.items() if (lines := list(long_calls(tree, callees, fields)))}
    assert not offenders, "pass the later arguments by keyword"


def test_few_literals_name_a_kind_of_run() -> None:
    """If a kind is named outside its class, something about it is said twice; arguments of errors do not count."""
    names = {*KINDS, *(kind.name for kind in KINDS.values())}
    assert {"certify", "sequential", "minimum"} <= names
    literals: list[str] = []
    for path, tree in TREES.items():
        if PACKAGE / "runs" / "kinds" in path.parents:
            continue
        arguments = {id(call.args[0]) for call in argument_errors(tree) if call.args}
        for node in nodes(tree):
            if isinstance(node, ast.Constant) and node.value in names and id(node) not in arguments:
                literals.append(f"{path}:{node.lineno}: {node.value}")
    assert len(literals) <= MOST_KIND_NAMES, "\n".join(literals)
