"""Fixtures that run a command as a user does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pyrobust.cli import main


class Outcome:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def error(self) -> str:
        """The error, which is one line."""
        assert self.status == 2
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        return lines[0]


@pytest.fixture
def pyrobust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command in an empty folder; its ``ok`` asserts that the command succeeds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYROBUST_DEBUG", raising=False)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pyrobust", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        return Outcome(exit_.value.code or 0, output.out, output.err)

    def ok(*arguments: object) -> Outcome:
        outcome = call(*arguments)
        assert outcome.status == 0, outcome.err
        return outcome

    call.ok = ok  # type: ignore[attr-defined]  # functions may have it
    return call
