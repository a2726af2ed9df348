"""Importing objects named ``module:name`` from user code, the only external code that is ever run."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyrobust.errors import InputError


@contextmanager
def working_directory_importable() -> Iterator[None]:
    """Put the working directory first on the import path inside the block, as ``python -m`` does.

    >>> with working_directory_importable():
    ...     sys.path[0] == os.getcwd()
    True
    """
    folder = os.getcwd()
    sys.path.insert(0, folder)
    # Without this, a module written since the last import is not found if file system timestamps are coarse.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def find_object(spec: str, argument: str) -> Any:
    """Import the object named by a spec ``package.module:name``, where name may contain dots.

    Raises InputError, naming ``argument``, if the spec has another form or the module or name does not exist.
    Exceptions raised by the module while it is imported are not caught, because the user needs their traceback.

    >>> find_object("math:sqrt", "model")(4.0)
    2.0
    """
    module_name, _, name = spec.partition(":")
    if not all(component.isidentifier() for component in (*module_name.split("."), *name.split("."))):
        raise InputError(argument, "module:callable such as my_models:make_net", repr(spec))
    try:
        with refusing_exit(spec, argument, "imported"):
            result: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # If an existing module imports a missing one, the original exception is raised.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            argument, problem=f"no module {error.name!r} in {os.getcwd()} or on the import path", where=spec
        ) from error
    for component in name.split("."):
        if not hasattr(result, component):
            raise InputError(argument, problem=f"module {module_name!r} has no {name!r}", where=spec)
        result = getattr(result, component)
    return result


def call_without_arguments(function: Callable[..., Any], spec: str, argument: str) -> Any:
    """Return what the callable named by a spec returns.

    Raises InputError, naming ``argument``, if the callable needs arguments or ends the process. Other exceptions that
    the callable raises are not caught, as in `find_object`.

    >>> call_without_arguments(dict, "builtins:dict", "data")
    {}
    >>> call_without_arguments(sys.exit, "sys:exit", "model")
    Traceback (most recent call last):
    pyrobust.errors.InputError: model: sys:exit: expected code that returns, got code that ended the process when called
    """
    parameters: Iterable[inspect.Parameter] = ()
    with suppress(TypeError, ValueError):  # some classes of C extensions have no signature
        parameters = inspect.signature(function).parameters.values()
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise InputError(
            argument,
            "a callable without arguments",
            f"one that needs {', '.join(needed)}",
            "name a function that calls it with them",
            where=spec,
        )
    with refusing_exit(spec, argument, "called"):
        return function()


@contextmanager
def refusing_exit(spec: str, argument: str, when: str) -> Iterator[None]:
    """Turn SystemExit into an InputError that says when the code ended the process: ``when``, such as "called"."""
    try:
        yield
    except SystemExit as error:
        raise InputError(
            argument, "code that returns", f"code that ended the process when {when}", where=spec
        ) from error
