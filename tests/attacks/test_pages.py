"""Examples of the how-to pages that state figures: their code is run, and gives these figures."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def section(page: str, title: str) -> str:
    """Return the Python code of one section of a page."""
    text = (PAGES / page).read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))


def test_large_logits_do_not_stop_pgd() -> None:
    """The textbook gradient is 0 on all but one image; PGD breaks as many images as without the factor."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(section("attacks.md", "Large and small logits"), names)
    assert round(float(names["nonzero"]), 2) == 0.01
    plain, scaled = (float(line) for line in printed.getvalue().split())
    assert plain == pytest.approx(0.83, abs=0.011)  # rounding may decide an image
    assert scaled == pytest.approx(0.82, abs=0.011)
