"""Importing optional packages, with an error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any, Final

from pyrobust.errors import MissingExtraError

#: How to install inspect-ai, which runs language models.
INSPECT: Final = 'pip install "pyrobust[threats]" (Python 3.11 or later)'


def extra_module(name: str, needed_by: str, install: str) -> Any:
    """Import a module of an optional package.

    Raises:
        MissingExtraError: the module cannot be imported.

    >>> extra_module("math", "sums", "pip install math").sqrt(4.0)
    2.0
    >>> extra_module("nothing_here", "Judges", "pip install nothing")
    Traceback (most recent call last):
    pyrobust.errors.MissingExtraError: Judges: needs nothing_here; install it with pip install nothing
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise MissingExtraError(f"{needed_by}: {package} is installed, but lacks {error.name}") from error
        raise MissingExtraError(f"{needed_by}: needs {package}; install it with {install}") from error
