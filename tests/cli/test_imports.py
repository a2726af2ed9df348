"""The modules that a command imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from pyrobust.cli import main
try:
    main()
finally:
    ran = [name for name, module in sys.modules.items() if (getattr(module, "__file__", None) or "").endswith(".py")]
    print(*sorted(name for name in ran if name.partition(".")[0] == "pyrobust"), file=sys.stderr)
"""
#: Modules of the package that ``pyrobust certify`` may execute.
MOST = 120


def test_certify_imports_what_it_uses(tmp_path: Path) -> None:
    """Not the other commands, attacks, bounds, the auditor, formats of data, workers or tables of other runs."""
    line = "certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 100 --max 2 --out run.db"
    done = subprocess.run([sys.executable, "-c", CODE, *line.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = done.stderr.splitlines()[-1].split()
    assert len(modules) <= MOST, modules
    rooms = {name.split(".")[1] for name in modules if "." in name}
    assert rooms.isdisjoint({"attacks", "auditing", "bounds", "compat", "reference", "text", "threats", "training"})
