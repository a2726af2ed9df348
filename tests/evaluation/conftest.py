"""What the tests in this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pyrobust.evaluation.writer import RunWriter

sys.path.insert(0, str(Path(__file__).parent))
from store_rows import header, rows


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    with RunWriter(path, header()) as writer:
        writer.append(rows(range(0, 4)))
        writer.append(rows(range(4, 8), radius=0.25))
    return path
