"""SHA-256 hash of the Python code that a model runs, computed from the syntax trees of its sources."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import hashlib
import inspect
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

# Packages whose versions are compared instead of their code.
_FOREIGN = sys.stdlib_module_names | {"torch", "numpy", "pyrobust"}
_INSTALLED = {"site-packages", "dist-packages"}
# Types of objects that a call at import, such as torch.set_num_threads(1), does not change.
_UNCHANGED = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type(None))


def code_hash(model: Any) -> str:
    """Return the SHA-256 of the code that a model runs, in hex; "" if none of this code is in source files.

    The hash covers the definitions of the classes of all submodules, of functions and other callables that are
    attributes of submodules, and of forward hooks. If these definitions use the names of functions, classes or
    constants, the hash also covers the definitions of these, even if they are imported from other files. It covers a
    condition, loop or call at the top level of a file if this statement binds or changes an object that the hash
    covers. It ignores comments, docstrings, layout, and definitions whose names covered code does not use. It covers no
    code of torch, numpy, pyrobust and the standard library. Of other installed packages, it covers only code in files
    that define a class of the model. It does not cover objects whose names are computed while the model runs. Unless
    covered code names them, backward hooks and functions in lists or other containers are not covered either.

    Args:
        model: module or callable.

    Returns:
        64 hexadecimal digits, or "".

    >>> code_hash(nn.Linear(1, 1))
    ''
    """
    seen: set[tuple[str, str]] = set()
    parts: set[str] = set()
    work = [definition for value in _definitions(model, set()) for definition in _places(value)]
    while work:
        module_name, name = work.pop()
        if (module_name, name) in seen:
            continue
        seen.add((module_name, name))
        module = sys.modules[module_name]
        for statement in _bindings(_path(module)).get(name, ()):
            if _calls_alone(statement) and isinstance(vars(module).get(name), _UNCHANGED):
                continue
            parts.add(f"{'' if module_name == '__main__' else module_name} {_encode(statement)}")
            work += [definition for definition in _named(statement, module, name) if _followed(module, definition)]
    digest = hashlib.sha256()
    for text in sorted(parts):
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest() if parts else ""


def _definitions(model: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the classes and functions that a model consists of; ``seen`` has the ids of what was visited before."""
    if not isinstance(model, nn.Module):
        yield from _functions(model, seen)
        return
    for module in model.modules():
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield from type(module).__mro__
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        for value in [*vars(module).values(), *(hook for table in hooks for hook in table.values())]:
            if callable(value) and not isinstance(value, nn.Module):
                yield from _functions(value, seen)


def _functions(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the functions and classes that make up a callable."""
    if isinstance(value, functools.partial):
        yield from _functions(value.func, seen)
        return
    value = inspect.unwrap(value)
    if isinstance(value, types.MethodType):
        yield type(value.__self__)
        value = value.__func__
    if isinstance(value, types.FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        yield value
        for cell in value.__closure__ or ():
            content = None
            with contextlib.suppress(ValueError):  # an empty cell: a name that was never bound
                content = cell.cell_contents
            if isinstance(content, nn.Module | types.FunctionType):
                yield from _definitions(content, seen)
    else:
        yield from (value if isinstance(value, type) else type(value)).__mro__


def _places(value: Any) -> list[tuple[str, str]]:
    """Return the (module, top-level name) pairs under which a class or function is defined; none without source."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or _path(module) is None:
        return []
    name = value.__qualname__.split(".")[0]
    if name == "<lambda>":
        line = value.__code__.co_firstlineno
        bindings = _bindings(_path(module)).items()
        return [
            (module.__name__, bound)
            for bound, statements in bindings
            if any(statement.lineno <= line <= (statement.end_lineno or 0) for statement in statements)
        ]
    return [(module.__name__, name)]


def _path(module: types.ModuleType) -> Path | None:
    """Return the source file of a module; None if there is none or if the module's package is in ``_FOREIGN``."""
    file = getattr(module, "__file__", None)
    foreign = module.__name__.split(".")[0] in _FOREIGN and module.__name__ != "__main__"
    return Path(file) if file and file.endswith(".py") and not foreign else None


def _followed(module: types.ModuleType, definition: tuple[str, str]) -> bool:
    """Whether to follow a name in a module to its definition: only if this is in user code or in the same file."""
    path = _path(sys.modules[definition[0]]) if definition[0] in sys.modules else None
    return path is not None and (path == _path(module) or not _INSTALLED & set(path.parts))


def _named(statement: ast.stmt, module: types.ModuleType, bound: str) -> Iterator[tuple[str, str]]:
    """Yield the place of definition of each name that a statement contains or imports."""
    values = dict(vars(module))
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom):
            for origin, name, value in _imported_from(node, module):
                if node is not statement or name == bound:
                    yield origin
                values[name] = value
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                values[name] = sys.modules.get(alias.name if alias.asname else name)
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield module.__name__, node.id
            value = values.get(node.id)
            if isinstance(value, type | types.FunctionType):  # where a star import brought it from
                yield from _places(value)
        elif isinstance(node, ast.Attribute):
            yield from _through_modules(node, values)


def _imported_from(node: ast.ImportFrom, module: types.ModuleType) -> Iterator[tuple[tuple[str, str], str, Any]]:
    """Yield (origin, bound name, value) for each name in a ``from`` import; the origin is a (module, name) pair."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
    source = ".".join(segment for segment in (base, node.module) if segment)
    for alias in node.names:
        inner = f"{source}.{alias.name}"
        origin = (inner, "") if inner in sys.modules else (source, alias.name)
        value = sys.modules.get(inner, getattr(sys.modules.get(source), alias.name, None))
        yield origin, alias.asname or alias.name, value


def _through_modules(attribute: ast.Attribute, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the places that define an attribute of a module, such as ``package.module.function``."""
    names = [attribute.attr]
    base = attribute.value
    while isinstance(base, ast.Attribute):
        names.append(base.attr)
        base = base.value
    value = values.get(base.id) if isinstance(base, ast.Name) else None
    while isinstance(value, types.ModuleType) and names:
        holder, name = value, names.pop()
        value = vars(holder).get(name)
        if not names:
            yield holder.__name__, name
            if isinstance(value, type | types.FunctionType):  # the file from which a package imported it
                yield from _places(value)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, modified: int) -> dict[str, list[ast.stmt]]:
    """Return, for each name, the top-level statements of a file that bind or change it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    table: dict[str, list[ast.stmt]] = defaultdict(list)
    for statement in _top_level(tree.body):
        for name in _bound(statement):
            table[name].append(statement)
    return table


def _bindings(path: Path | None) -> dict[str, list[ast.stmt]]:
    try:
        return {} if path is None else _parsed(path, path.stat().st_mtime_ns)
    except OSError:
        return {}


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield each statement that runs on import, inside copies of the compound statements (such as ``if``) around it."""
    for statement in body:
        blocks = _blocks(statement)
        if not blocks:
            yield statement
        for holder, field, block in blocks:
            for inner in _top_level(block):
                yield _with_block(statement, holder, field, [inner])


def _blocks(statement: ast.stmt) -> list[tuple[ast.AST, str, list[ast.stmt]]]:
    """Return (node, field, block) for each block of a compound statement; definitions count as having no blocks."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    holders = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    fields = ("body", "orelse", "finalbody")
    blocks = [(holder, field, getattr(holder, field, [])) for holder in holders for field in fields]
    return [(holder, field, block) for holder, field, block in blocks if block]


def _with_block(statement: ast.stmt, holder: ast.AST, field: str, block: list[ast.stmt]) -> ast.stmt:
    """Return a copy of a compound statement that has only one of its blocks."""

    def emptied(node: Any) -> Any:
        made = copy.copy(node)
        for name in {"body", "orelse", "finalbody"} & set(node._fields):
            setattr(made, name, block if node is holder and name == field else [])
        return made

    made: ast.stmt = emptied(statement)
    for name in {"handlers", "cases"} & set(statement._fields):
        setattr(made, name, [emptied(node) for node in getattr(statement, name)])
    return made


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, or whose objects it may change, such as x in ``x[0] = 1`` or ``f(x)``."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.Expr):
        yield from (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    else:
        items = getattr(statement, "items", [])
        for target in filter(None, [getattr(statement, "target", None), *(item.optional_vars for item in items)]):
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
        for _, _, block in _blocks(statement):
            for inner in block:
                yield from _bound(inner)


def _calls_alone(statement: ast.stmt) -> bool:
    """Whether a statement is a bare expression, such as a call; compound statements around it are ignored."""
    blocks = _blocks(statement)
    return isinstance(statement, ast.Expr) if not blocks else _calls_alone(blocks[0][2][0])


def _encode(node: Any) -> str:
    """Encode a syntax tree without positions, docstrings and empty fields, in the same way in any Python version."""
    if isinstance(node, list):
        return f"[{','.join(map(_encode, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, []) and name != "kind"}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        fields["body"] = node.body[1:]
    if isinstance(node, ast.Constant):
        fields = {"value": node.value}  # None is a possible value
    return f"{type(node).__name__}({','.join(f'{name}={_encode(value)}' for name, value in fields.items())})"
