"""Messages of the commands: results on standard output, notes on standard error, errors in one line."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from pyrobust.errors import InputError, InputTypeError, PyrobustError

#: Environment variable that switches ``--debug`` on.
DEBUG_VARIABLE = "PYROBUST_DEBUG"
ERROR_STATUS = 2
INTERRUPTED_STATUS = 130
TERMINATED_STATUS = 143

P = ParamSpec("P")
R = TypeVar("R")

# Python arguments whose options have another name.
_OPTION_OF = {"epsilons": "epsilon", "max_images": "max", "n_queries": "steps"}

# Libraries that write to standard output.
_PRINTING = ("click", "rich", "typer")

_debug = False


def set_debug(debug: bool) -> None:
    """Set whether errors show their traceback."""
    global _debug
    _debug = debug


def note(text: str) -> None:
    """Print a line on standard error; the command goes on if the line cannot be written."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


@contextlib.contextmanager
def reports_full_output() -> Iterator[None]:
    """If output or a shell-completion script cannot be written, print an error in one line and set the exit status."""
    try:
        yield
    except OSError as error:
        modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not _debug and modules[-1].partition(".")[0] in _PRINTING:
            note(f"error: standard output: cannot be written ({error.strerror})")
        elif not _debug and "typer.completion" in modules:
            reason = f"cannot write {error.filename!r} ({error.strerror})"
            note(f"error: --install-completion: {reason}; --show-completion prints what to install")
        else:
            raise
        raise SystemExit(ERROR_STATUS) from None
    finally:
        # Output left in the buffer would fail again when Python exits, with a traceback and another status.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            except (AttributeError, ValueError):
                pass  # closed


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which schedulers announce that they will kill a process; it is handled like Ctrl-C."""


@contextlib.contextmanager
def heeding_termination() -> Iterator[None]:
    """Raise Terminated on SIGTERM, so that committed work can be reported, unless a handler was set before."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # some schedulers send it twice
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the package's errors into one line on standard error and an exit status."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except PyrobustError as error:
            if _debug:
                raise
            if isinstance(error, (InputError, InputTypeError)):
                _name_options(error, command)
            note(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(ERROR_STATUS) from None
        except OSError as error:
            # Every test for a file may raise this error, which means a mistyped name, not a fault of the code.
            if _debug or error.errno != errno.ENAMETOOLONG:
                raise
            note(f"error: {str(error.filename)[:40]}...: expected the name of a file, got one that is too long")
            raise typer.Exit(ERROR_STATUS) from None
        except ImportError as error:
            if _debug:
                raise
            note(f"error: {' '.join(str(error).split())}; pyrobust --debug shows the traceback")
            raise typer.Exit(ERROR_STATUS) from None
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED_STATUS) from None

    return wrapped


def _name_options(error: InputError | InputTypeError, command: Callable[..., object]) -> None:
    """Change an error so that it names the options that the user typed, not the arguments of a function."""
    names = _options_of(command)
    if error.function in names:  # the argument is a part of an option's value
        error.function = names[error.function]
        return
    options = [names.get(_OPTION_OF.get(name, name), "") for name in error.argument.split(", ")]
    if all(options):
        error.function, error.argument = "", ", ".join(options)
        return
    from pyrobust import evaluation

    if error.function in evaluation.__all__:
        error.function = ""
    elif error.argument in evaluation.__all__:
        error.argument = ""


def _options_of(command: Callable[..., object]) -> dict[str, str]:
    """Return the option name of each parameter of a command."""
    names: dict[str, str] = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                declared = [str(declaration) for declaration in (info.default, *(info.param_decls or ()))]
                options = [declaration for declaration in declared if declaration.startswith("--")]
                names[name] = options[0] if options else f"--{name.replace('_', '-')}"
    return names


def check_outputs(
    files: Iterable[tuple[str, Path | None]],
    *,
    inputs: Collection[Path] = (),
    replace: bool,
    begins: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Raise InputError unless the files may be written; called before any work is done.

    ``files`` are pairs of an option and the file that the option names. An existing file is overwritten without
    ``--replace`` if it starts with the bytes that are listed for its option in ``begins``.
    """
    from pyrobust.zoo.files import check_output

    written: list[str] = []
    for option, path in files:
        if path is None:
            continue
        check_output(option, path, inputs=inputs, replace=replace, begins=begins.get(option))
        real = os.path.realpath(path)
        if real in written:
            raise InputError(option, "another file for each output", f"{str(path)!r} again")
        written.append(real)
        if path.is_fifo():
            note(f"{option}: {path} is a pipe, whose reader is waited for when it is written")
        if not (path.is_char_device() or path.is_fifo() or os.access(os.path.dirname(real), os.W_OK)):
            raise InputError(option, "a file in a writable folder", repr(str(path)))


def show_progress() -> bool:
    """Return whether a progress bar would be visible."""
    return sys.stderr.isatty()


def describe_path(path: str | os.PathLike[str]) -> str:
    """Return a path, relative to the working folder where possible."""
    path = Path(path)
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
