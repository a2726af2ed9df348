"""Atomic file writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyrobust.errors import StoreError
from pyrobust.zoo.files import write_atomically, write_together


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_files_are_written_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "report"
    write_together(folder, {"a": b"1", "b": b"2"})
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"a": b"1", "b": b"2"}

    real, calls = os.fsync, []

    def full_at_the_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_second)
    with pytest.raises(StoreError, match="No space left on device"):
        write_together(folder, {"a": b"3", "b": b"4"})
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"a": b"1", "b": b"2"}
    calls.clear()
    with pytest.raises(StoreError, match="No space left on device"):
        write_together(tmp_path / "other", {"a": b"3", "b": b"4"})
    assert not (tmp_path / "other").exists()
    monkeypatch.undo()
    (folder / "c").mkdir()
    with pytest.raises(StoreError, match="c is a folder"):
        write_together(folder, {"a": b"5", "c": b"6"})
    assert (folder / "a").read_bytes() == b"1"
    with pytest.raises(StoreError, match="cannot be written"):
        write_together(folder / "a", {"x": b"7"})
