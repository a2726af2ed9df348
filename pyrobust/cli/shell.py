"""How commands speak: results on standard output, everything else on standard error, errors in one line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from pyrobust.errors import InputError, InputTypeError, PyrobustError

#: Set to anything but nothing, it does what ``--debug`` does.
DEBUG_VARIABLE = "PYROBUST_DEBUG"
ERROR_STATUS = 2
INTERRUPTED_STATUS = 130

P = ParamSpec("P")
R = TypeVar("R")

# Options whose arguments have another name in Python.
_ELSEWHERE = {"epsilons": "epsilon", "max_images": "max", "n_queries": "steps"}

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
            message = " ".join(str(error).split())
            if isinstance(error, (InputError, InputTypeError)):
                message = _as_typed(message, command)
            note(f"error: {message}")
            raise typer.Exit(ERROR_STATUS) from None
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED_STATUS) from None

    return wrapped


def _as_typed(message: str, command: Callable[..., object]) -> str:
    """A message about an argument, or an argument of a function, as one about the option that it came from."""
    names = _options_of(command)
    function, _, rest = message.partition(": ")
    # A message may begin with the function's name.
    for text in (message, rest) if function.isidentifier() and function not in names else (message,):
        given, colon, what = text.partition(": ")
        options = [names.get(_ELSEWHERE.get(name, name)) for name in given.split(", ")]
        if colon and all(options):
            return f"{', '.join(filter(None, options))}: {what}"
    return message


def _options_of(command: Callable[..., object]) -> dict[str, str]:
    """What each parameter of a command is called on the command line."""
    names: dict[str, str] = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                given = [str(part) for part in (info.default, *(info.param_decls or ())) if str(part).startswith("--")]
                names[name] = given[0] if given else f"--{name.replace('_', '-')}"
    return names


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
