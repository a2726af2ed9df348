"""Fixtures for the tests of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.store_rows import header, rows

from pyrobust.runs.writer import RunWriter


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    with RunWriter(path, header()) as writer:
        writer.append(rows(range(0, 4)))
        writer.append(rows(range(4, 8), radius=0.25))
    return path
