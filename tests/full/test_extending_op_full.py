"""The op of docs/extending/scale_rows, put into a copy of the repository, built and tested as op.md says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/extending/op.md").read_text()
EXAMPLE = ROOT / "docs/extending/scale_rows"


@pytest.mark.full
def test_the_op_of_the_page_is_built_and_passes_its_tests(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    hidden = shutil.ignore_patterns(".git", "build", "__pycache__", "*.so", "*.egg-info", ".mypy_cache", ".ruff_cache")
    shutil.copytree(ROOT, tree, ignore=hidden)
    shutil.copytree(EXAMPLE, tree, dirs_exist_ok=True)
    cpu, cuda = re.findall(r"```cmake\n(.*?)```", PAGE, re.S)
    build = tree / "CMakeLists.txt"
    text = build.read_text()
    for lines, after in (
        (cpu, "  csrc/projections/simplex_l1_op.cpp\n"),
        (cuda, "  csrc/projections/cuda/simplex_l1.cu\n"),
    ):
        assert after in text
        text = text.replace(after, after + lines)
    build.write_text(text)
    (line,) = re.findall(r"```text\n(from .*)\n```", PAGE)
    for room in ("ops", "reference"):
        init = tree / "pyrobust" / room / "__init__.py"
        text = init.read_text()
        init.write_text(text.replace("__all__ = [\n", f'{line}\n\n__all__ = [\n    "scale_rows",\n', 1))
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    for command in (
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        [sys.executable, "-m", "pytest", "-q", "tests/ops/test_scale_rows.py"],
        [sys.executable, "bench/run.py", "--only", "scale_rows"],
    ):
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
