"""Make the helpers of the sweeps' tests importable; a run of one process."""

import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS / "evaluation"), str(_TESTS / "runs")]
import counted_model  # noqa: E402


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one process, with its log and its forward passes beside it."""
    path = tmp_path / "whole.db"
    monkeypatch.setenv(counted_model.LOG, f"{path}.passes")
    counted_model.certify(str(path), "none")
    return path
