"""The command line: one file per command."""

from __future__ import annotations


def main() -> None:
    """Run ``pyrobust`` with the arguments of the process, and exit with the command's status.

    0: success. 1: faults found by ``audit``, or signs of masked gradients by ``diagnose``. 2: wrong arguments, or an
    error that the message explains. 130: interrupted.
    """
    import sys

    from pyrobust.cli.app import app
    from pyrobust.cli.shell import reports_full_output
    from pyrobust.runs.command import stating_command

    with reports_full_output(), stating_command(sys.argv[1:]):
        app(prog_name="pyrobust")
