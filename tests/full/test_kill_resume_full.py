"""A sweep killed with kill -9 at fifty random moments and resumed each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluation.test_certify_kill import kill_and_resume

pytestmark = pytest.mark.full


def test_resume_after_fifty_kills(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=50, seed=1)
