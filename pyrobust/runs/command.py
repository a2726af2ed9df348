"""The command line of this process, stored in the header of each run that the process starts."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

_COMMAND = ContextVar("_COMMAND", default="")


@contextlib.contextmanager
def stating_command(arguments: Sequence[str]) -> Iterator[None]:
    """Store this ``pyrobust`` command line in runs that are started inside the context.

    >>> with stating_command(["verify", "--data", "my data"]):
    ...     command_line()
    "pyrobust verify --data 'my data'"
    """
    token = _COMMAND.set(shlex.join(["pyrobust", *arguments]))
    try:
        yield
    finally:
        _COMMAND.reset(token)


def command_line() -> str:
    """Return the command line; "" if the library is called from Python.

    >>> command_line()
    ''
    """
    return _COMMAND.get()
