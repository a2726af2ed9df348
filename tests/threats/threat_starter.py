"""Start ``pyrobust`` once for each line of arguments, as JSON, in a process forked when all is imported.

Prints the number of each process, and its status when it has ended.
"""

from __future__ import annotations

import json
import os
import sys

import openai  # noqa: F401

import pyrobust.report.verdict_tables
import pyrobust.threats.running  # noqa: F401
from pyrobust.cli.app import app

print("ready", flush=True)
for line in sys.stdin:
    process = os.fork()
    if not process:
        output = os.open(os.environ["OUTPUT"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["pyrobust", *json.loads(line)]
        try:
            app()
        finally:
            sys.stdout.flush()
            os._exit(0 if sys.exc_info()[1] is None or getattr(sys.exc_info()[1], "code", 1) == 0 else 1)
    print(process, flush=True)
    print(os.waitpid(process, 0)[1], flush=True)
