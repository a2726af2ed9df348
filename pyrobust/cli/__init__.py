"""The command line: one file per command.

The imports of the commands take a second or two, and Ctrl-C may be pressed meanwhile. ``main`` therefore sets a handler
first; this module itself imports only modules that Python has already loaded.
"""

import _signal  # type: ignore[import-not-found]  # in place of signal, which takes 20 ms to import
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Run ``pyrobust`` with the arguments of the process, and exit with the command's status.

    0: success. 1: faults found by ``audit``; signs of masked gradients, or too little to tell, by ``diagnose``; more
    crossings than chance explains in ``sandwich``. 2: wrong arguments, or an error that the message explains. 130:
    interrupted. 143: a sweep ended by SIGTERM.

    While modules are imported, Ctrl-C ends the process silently: a KeyboardInterrupt would look like an error of the
    module being imported. At all other times, the commands handle Ctrl-C.
    """
    open_closed_streams()
    # A process started with Ctrl-C ignored keeps ignoring it.
    handled = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if handled:
        _signal.signal(_signal.SIGINT, _interrupt)
    try:
        from pyrobust.cli.app import app
        from pyrobust.cli.shell import reports_full_output
        from pyrobust.runs.command import stating_command

        with reports_full_output(), stating_command(sys.argv[1:]):
            app(prog_name="pyrobust")
    finally:
        if handled:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    """End the process if an import within ``main`` is under way, else raise KeyboardInterrupt."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_INTERRUPTED_STATUS)
        frame = frame.f_back
    raise KeyboardInterrupt


def open_closed_streams() -> None:
    """Open the null device for each closed standard stream, so that no file opened later gets the stream's number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 -- stays open
