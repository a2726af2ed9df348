"""Objects named ``module:name`` in the user's own Python code, the only code of others that is ever run."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyrobust.errors import InputError


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """Puts the working folder first on the import path for as long as the block runs, as ``python -m`` does.

    >>> with working_folder_importable():
    ...     sys.path[0] == os.getcwd()
    True
    """
    folder = os.getcwd()
    sys.path.insert(0, folder)
    # A module written since the last import is otherwise not seen where the clock of the file system is coarse.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def find_object(spec: str, argument: str) -> Any:
    """Imports a module and takes an object out of it.

    Args:
        spec: ``package.module:name``, where name may have dots.
        argument: what the message calls the argument that the spec came in.

    Returns:
        The object. What the module raises while it is imported is not caught: it is the user's code, and its traceback
        is needed.

    Raises:
        InputError: the spec has another form, or there is no such module or name.

    >>> find_object("math:sqrt", "model")(4.0)
    2.0
    """
    module_name, _, name = spec.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise InputError(f"{argument}: expected module:callable such as my_models:make_net, got {spec!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is there but imports a missing one is reported as it is.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"{argument}: {spec}: there is no module {error.name!r} in {os.getcwd()} or on the import path"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"{argument}: {spec}: module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    return found
