"""The tests that parts.txt names exist, and few cases are slow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent


def test_every_line_names_a_test() -> None:
    lines = [line.split() for line in (ROOT / "parts.txt").read_text().splitlines() if not line.startswith("#")]
    for test, mark, _ in lines:
        file, function = test.split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), test
        assert mark in ("slow", "full"), test
    assert len({(test, mark) for test, mark, _ in lines}) == len(lines)


def test_at_most_a_tenth_of_the_cases_is_slow(cases_by_part: Counter[str]) -> None:
    assert cases_by_part["slow"] <= 0.1 * (cases_by_part["slow"] + cases_by_part["default"]), cases_by_part
