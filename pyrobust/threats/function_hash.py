"""Identity of functions that serve as models or judges: a hash of their code and of the values stored in them."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

from pyrobust.zoo.code_hash import code_hash

_BUILT_IN = types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType


def function_hash(function: Any) -> str:
    """Return the SHA-256 of a function's code and of the values stored in it, in hex; "" for built-in functions.

    The hash covers the same code as ``code_hash``. It also covers the byte code of lambdas, and of functions without a
    source file (from an interactive session or a notebook). Some values are covered as well: numbers, texts, functions,
    tuples of these, and the names of built-in functions. They are covered if they are in the function's closure, in its
    defaults, or in the arguments of ``functools.partial``. Objects and containers that may change, such as lists, are
    not covered. Variables that the function itself sets are not covered either, since they may be counters or logs.

    Args:
        function: any callable.

    Returns:
        64 hexadecimal digits, or "".

    >>> def at(temperature):
    ...     return lambda prompt: f"{prompt} {temperature}"
    >>> function_hash(at(0.0)) == function_hash(at(0.0)), function_hash(at(0.0)) == function_hash(at(1.0))
    (True, False)
    """
    code = code_hash(function)
    held = sorted(set(_held(function, not code, set())))
    if not held:
        return code
    return hashlib.sha256("\n".join((code, *held)).encode("utf-8", "backslashreplace")).hexdigest()


def function_name(function: Any) -> str:
    """Return module and name of a function, with a hash of its code."""
    definition = function if hasattr(function, "__qualname__") else type(function)
    code = function_hash(function)[:16]
    definition_name = ":".join(filter(None, (getattr(definition, "__module__", None), definition.__qualname__)))
    return definition_name + (f"?code={code}" if code else "")


def _held(value: Any, byte_code: bool, seen: set[int]) -> Iterator[str]:
    """Yield a line for each value that a callable holds and, if requested, a line for the callable's byte code."""
    if isinstance(value, functools.partial):
        yield from _lines("argument", enumerate(value.args), byte_code, seen)
        yield from _lines("argument", value.keywords.items(), byte_code, seen)
        yield from _lines("function", [("", value.func)], byte_code, seen)
        return
    value = getattr(value, "__func__", value)
    if not isinstance(value, types.FunctionType) or id(value) in seen:
        return
    seen.add(id(value))
    if byte_code or value.__name__ == "<lambda>":  # the source of a statement does not tell its lambdas apart
        yield f"code {_code(value.__code__)}"
    assigned = {step.argval for step in dis.get_instructions(value) if step.opname in ("STORE_DEREF", "STORE_GLOBAL")}
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    filled = [(name, cell.cell_contents) for name, cell in cells if name not in assigned and cell != types.CellType()]
    yield from _lines("closure", filled, byte_code, seen)
    yield from _lines("default", enumerate(value.__defaults__ or ()), byte_code, seen)
    yield from _lines("default", (value.__kwdefaults__ or {}).items(), byte_code, seen)
    if byte_code:
        named = [(name, value.__globals__[name]) for name in value.__code__.co_names if name in value.__globals__]
        yield from _lines("global", [(name, held) for name, held in named if name not in assigned], byte_code, seen)


def _lines(kind: str, values: Any, byte_code: bool, seen: set[int]) -> Iterator[str]:
    for name, value in values:
        if _plain(value):
            yield f"{kind} {name} {value!r}"
        elif isinstance(value, _BUILT_IN):  # which have no code
            bound = getattr(value, "__self__", None)  # a module, or the object that a method is bound to
            module, text = getattr(value, "__module__", None), repr(bound) if _plain(bound) else ""
            yield f"{kind} {name} {module} {value.__qualname__} {text}"
        else:
            yield from _held(value, byte_code, seen)


def _plain(value: Any) -> bool:
    """Whether a value is a number, a text or a tuple of these, so that its repr is the same in each process."""
    if type(value) is tuple:
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def _code(code: types.CodeType) -> str:
    """Encode byte code with its constants and names."""
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    # the order of frozen sets differs between processes
    constants = ["".join(sorted(c)) if c.startswith("frozenset") else c for c in constants]
    return repr((code.co_code, constants, code.co_names))
