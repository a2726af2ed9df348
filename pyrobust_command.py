"""Entry point of ``pyrobust``, outside the package: its import takes a second or two, in which Ctrl-C can come."""

# Nothing that Python has not loaded by now: signal, for one, takes 20 ms, in which Ctrl-C would show a traceback.
import _signal  # type: ignore[import-not-found]
import os

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Import the command line and run it.

    During the import, Ctrl-C ends the process silently with status 130: no work is lost, and a KeyboardInterrupt would
    surface inside some import. Afterwards the commands handle it.
    """
    # A process started with Ctrl-C ignored keeps ignoring it.
    handled = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if handled:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(_INTERRUPTED_STATUS))
    import pyrobust.cli.app  # noqa: F401 - imports torch

    if handled:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    from pyrobust.cli import main as run

    run()


if __name__ == "__main__":
    main()
