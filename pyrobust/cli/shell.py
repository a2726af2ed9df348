"""How commands speak: results on standard output, everything else on standard error, errors in one line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from pyrobust.errors import PyrobustError

#: Set to anything but nothing, it does what ``--debug`` does.
DEBUG_VARIABLE = "PYROBUST_DEBUG"
ERROR_STATUS = 2
INTERRUPTED_STATUS = 130

P = ParamSpec("P")
R = TypeVar("R")

_debug = False


def set_debug(debug: bool) -> None:
    """Whether errors show their traceback."""
    global _debug
    _debug = debug


def note(text: str) -> None:
    """A line for the person at the terminal."""
    typer.echo(text, err=True)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns the package's errors into one line on standard error and an exit status."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except PyrobustError as error:
            if _debug:
                raise
            note(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(ERROR_STATUS) from None
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED_STATUS) from None

    return wrapped


def show_progress() -> bool:
    """Whether a bar would be seen."""
    return sys.stderr.isatty()


def describe_path(path: str | os.PathLike[str]) -> str:
    """A path as one would type it."""
    path = Path(path)
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
