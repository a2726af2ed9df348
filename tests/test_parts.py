"""The tests that parts.txt names exist."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent


def test_every_line_names_a_test() -> None:
    lines = [line.split() for line in (ROOT / "parts.txt").read_text().splitlines() if not line.startswith("#")]
    for test, part, _ in lines:
        file, function = test.split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), test
        assert part in ("slow", "full"), test
    assert len({(test, part) for test, part, _ in lines}) == len(lines)
