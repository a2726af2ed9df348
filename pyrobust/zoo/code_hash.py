"""SHA-256 hash of the Python code that a model runs, as syntax trees of its sources."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

# Their versions are compared instead.
_FOREIGN = sys.stdlib_module_names | {"torch", "numpy", "pyrobust"}
_INSTALLED = {"site-packages", "dist-packages"}


def code_hash(model: Any) -> str:
    """SHA-256 of the code that a model runs, in hex; "" if none of it can be found in source files.

    Covers the definitions of the classes of all submodules and of their functions and hooks, and what these name:
    functions, classes and constants, also those imported from other files. Comments, docstrings and layout are ignored,
    as are definitions that nothing here names. Not covered: torch, numpy and the standard library; of other installed
    packages all but the files that define a class of the model; names that are computed as the model runs.

    Args:
        model: module or callable.

    Returns:
        64 hexadecimal digits, or "".

    >>> code_hash(nn.Linear(1, 1))
    ''
    """
    seen: set[tuple[str, str]] = set()
    parts: set[str] = set()
    work = [definition for value in _definitions(model) for definition in _places(value)]
    while work:
        module_name, name = work.pop()
        if (module_name, name) in seen:
            continue
        seen.add((module_name, name))
        module = sys.modules[module_name]
        for statement in _bindings(_path(module)).get(name, ()):
            parts.add(f"{'' if module_name == '__main__' else module_name} {_encode(statement)}")
            work += [definition for definition in _named(statement, module, name) if _followed(module, definition)]
    digest = hashlib.sha256()
    for part in sorted(parts):
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest() if parts else ""


def _definitions(model: Any) -> Iterator[Any]:
    """Yield the classes and functions that a model consists of."""
    if not isinstance(model, nn.Module):
        yield from _functions(model)
        return
    for module in model.modules():
        yield from type(module).__mro__
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        for value in [*vars(module).values(), *(hook for table in hooks for hook in table.values())]:
            if callable(value) and not isinstance(value, nn.Module):
                yield from _functions(value)


def _functions(value: Any) -> Iterator[Any]:
    """Yield the functions and classes behind a callable."""
    if isinstance(value, functools.partial):
        yield from _functions(value.func)
        return
    value = inspect.unwrap(value)
    if isinstance(value, types.MethodType):
        yield type(value.__self__)
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield value
        for cell in value.__closure__ or ():
            content = cell.cell_contents
            if isinstance(content, nn.Module):
                yield from _definitions(content)
            elif isinstance(content, types.FunctionType) and content is not value:
                yield from _functions(content)
    else:
        yield from (value if isinstance(value, type) else type(value)).__mro__


def _places(value: Any) -> list[tuple[str, str]]:
    """Return the place of a class or function: its module and the name at its top level, or none without a source."""
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
    """Return the source file of a module of the user or of an installed package other than the foreign ones."""
    file = getattr(module, "__file__", None)
    foreign = module.__name__.split(".")[0] in _FOREIGN and module.__name__ != "__main__"
    return Path(file) if file and file.endswith(".py") and not foreign else None


def _followed(module: types.ModuleType, definition: tuple[str, str]) -> bool:
    """Whether a name is followed from a module: anywhere in user code, within its own file in installed packages."""
    path = _path(sys.modules[definition[0]]) if definition[0] in sys.modules else None
    return path is not None and (path == _path(module) or not _INSTALLED & set(path.parts))


def _named(statement: ast.stmt, module: types.ModuleType, bound: str) -> Iterator[tuple[str, str]]:
    """Yield the places of the names in a statement."""
    if isinstance(statement, ast.ImportFrom):
        package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
        base = ".".join(package.split(".")[: len(package.split(".")) - statement.level + 1]) if statement.level else ""
        source = ".".join(part for part in (base, statement.module) if part)
        original = next((alias.name for alias in statement.names if (alias.asname or alias.name) == bound), bound)
        yield (f"{source}.{original}", "") if f"{source}.{original}" in sys.modules else (source, original)
        return
    attributes = {
        (node.value.id, node.attr)
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for name in {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}:
        yield module.__name__, name
        value = vars(module).get(name)
        if isinstance(value, types.ModuleType):
            yield from ((value.__name__, attribute) for base, attribute in attributes if base == name)
        elif isinstance(value, type | types.FunctionType):  # where a star imported it
            yield from _places(value)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, modified: int) -> dict[str, list[ast.stmt]]:
    """Return the statements at the top level of a file by the names that they bind or change."""
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
    """Yield statements, and those inside blocks such as ``try``, that run when the module is imported."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement
            continue
        blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        handlers = [handler.body for handler in getattr(statement, "handlers", [])]
        inner = [block for block in (*blocks, *handlers) if block]
        if inner:
            for block in inner:
                yield from _top_level(block)
        else:
            yield statement


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, or whose attributes or items it sets."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _encode(node: Any) -> str:
    """Encode a syntax tree, the same in all versions of Python: without positions, docstrings and empty fields."""
    if isinstance(node, list):
        return f"[{','.join(map(_encode, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, []) and name != "kind"}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        fields["body"] = node.body[1:]
    if isinstance(node, ast.Constant):
        fields = {"value": node.value}  # None is one
    return f"{type(node).__name__}({','.join(f'{name}={_encode(value)}' for name, value in fields.items())})"
