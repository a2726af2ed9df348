"""The command ``pyrobust``, outside of the package: importing that takes a second or two, in which Ctrl-C can come."""

from __future__ import annotations

import os
import signal

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Imports the command line and runs it.

    Until that is there, Ctrl-C ends the process with status 130 and without a word, for nothing has been done; a
    KeyboardInterrupt would come up in the middle of somebody's import. Afterwards it is the commands' own affair.
    """
    # Where whoever started the process has it ignore Ctrl-C, it stays so.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED_STATUS))
    import pyrobust.cli.app  # noqa: F401 - with torch and all

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from pyrobust.cli import main as run

    run()


if __name__ == "__main__":
    main()
