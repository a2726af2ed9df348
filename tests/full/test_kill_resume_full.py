"""A sweep killed with kill -9 at fifty random moments and resumed each time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

_folder = Path(__file__).parents[1] / "evaluation"
sys.path.insert(0, str(_folder))  # test_certify_kill imports helpers of its folder
_spec = importlib.util.spec_from_file_location("kill_resume", _folder / "test_certify_kill.py")
assert _spec is not None
assert _spec.loader is not None
kill_resume = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kill_resume)


def test_resume_after_fifty_kills(tmp_path: Path) -> None:
    kill_resume.kill_and_resume(tmp_path, kills=50, seed=1)
