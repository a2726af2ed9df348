"""kill -9 at fifty random moments of a sweep, each followed by going on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

_spec = importlib.util.spec_from_file_location(
    "kill_resume", Path(__file__).parents[1] / "evaluation" / "test_certify_kill.py"
)
assert _spec is not None
assert _spec.loader is not None
kill_resume = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kill_resume)


def test_fifty_kills(tmp_path: Path) -> None:
    kill_resume.kill_and_resume(tmp_path, kills=50, seed=1)
