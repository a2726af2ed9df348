"""Fixtures for the tests of the store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pyrobust.runs.writer import RunWriter

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "evaluation")]
from store_rows import header, rows


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    with RunWriter(path, header()) as writer:
        writer.append(rows(range(0, 4)))
        writer.append(rows(range(4, 8), radius=0.25))
    return path
