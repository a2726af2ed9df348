"""Files written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyrobust.errors import StoreError
from pyrobust.zoo.files import write_atomically


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log.tsv"
    file.write_text("before")
    for path in (tmp_path, tmp_path / "nowhere" / "log.tsv"):
        with pytest.raises(StoreError, match="cannot be written"):
            write_atomically(path, b"after")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        write_atomically(file, b"after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
    monkeypatch.undo()
    write_atomically(file, b"after")
    assert file.read_text() == "after"
