"""A run of one process."""

from pathlib import Path

import pytest
from support import counted_model


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one process, with its log and its forward passes beside it."""
    path = tmp_path / "whole.db"
    monkeypatch.setenv(counted_model.LOG, f"{path}.passes")
    counted_model.certify(str(path), "none")
    return path
