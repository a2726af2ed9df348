"""Entry point of ``pyrobust``, outside the package: its import takes a second or two, in which Ctrl-C can come."""

from __future__ import annotations

import os
import signal

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Import the command line and run it.

    During the import, Ctrl-C ends the process silently with status 130: no work is lost, and a KeyboardInterrupt would
    surface inside some import. Afterwards the commands handle it.
    """
    # A process started with Ctrl-C ignored keeps ignoring it.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED_STATUS))
    import pyrobust.cli.app  # noqa: F401 - imports torch

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from pyrobust.cli import main as run

    run()


if __name__ == "__main__":
    main()
