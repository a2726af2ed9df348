"""The command line: one file per command."""

from __future__ import annotations


def main() -> None:
    """Runs ``pyrobust`` with the arguments of the process; ends it with the command's exit status.

    0: done. 2: wrong arguments, or an error that the message explains. 130: interrupted.
    """
    from pyrobust.cli.app import app

    app(prog_name="pyrobust")
