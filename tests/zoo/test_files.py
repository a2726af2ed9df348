"""Atomic file writes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pyrobust.errors import InputError, StoreError
from pyrobust.zoo.files import COMPANIONS, check_output, write_atomically, write_together


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log.tsv"
    file.write_text("before")
    for path in (tmp_path, tmp_path / "nowhere" / "log.tsv"):
        with pytest.raises(StoreError, match="cannot be written"):
            write_atomically(path, b"after")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, full)
            with pytest.raises(StoreError, match="No space left on device"):
                write_atomically(file, b"after")
        assert file.read_text() == "before"
        assert list(tmp_path.iterdir()) == [file]
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


def test_an_input_is_never_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run.db"
    run.write_bytes(b"rows")
    (tmp_path / "hard").hardlink_to(run)
    (tmp_path / "soft").symlink_to("run.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    same = [run, "run.db", "./run.db", tmp_path / "hard", "soft", "folder/run.db", "folder/soft"]
    for path in same:
        with pytest.raises(InputError, match="--out: expected a file other than the inputs"):
            check_output("--out", path, inputs=["other", run], replace=True)
        with pytest.raises(InputError, match="expected a file other than the inputs"):
            check_output("--out", run, inputs=[path], replace=True, begins=b"rows")
    # A missing input has one name, too.
    with pytest.raises(InputError, match="expected a file other than the inputs"):
        check_output("--out", tmp_path / "new", inputs=["folder/new"])
    for suffix in COMPANIONS:
        for path in (f"run.db{suffix}", f"folder/run.db{suffix}", str(run) + suffix):
            with pytest.raises(InputError, match=f"got '.*run.db{suffix}', which belongs to run.db"):
                check_output("--out", path, replace=True)
    check_output("--out", "alone-wal")


def test_nothing_in_an_input_folder_is_overwritten(tmp_path: Path) -> None:
    image = tmp_path / "data" / "cat" / "1.png"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"pixels")
    with pytest.raises(InputError, match="other than the inputs"):
        check_output("--plot", image, inputs=[tmp_path / "data"], replace=True)
    check_output("--plot", image.with_name("2.png"), inputs=[tmp_path / "data"])


def test_existing_files_stay_unless_replaced_or_of_the_same_kind(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(b"idx\tlabel\n0\t1\n")
    check_output("--out", log, begins=b"idx\tlabel\n")
    check_output("--out", log, replace=True)
    for begins in (None, b"idx\tpredict\n", log.read_bytes() + b"1"):
        with pytest.raises(InputError, match=r"--out: expected a new file.*which exists; name another or pass --rep"):
            check_output("--out", log, begins=begins)
    with pytest.raises(InputError, match="pass replace=True"):
        check_output("path", log)
    with pytest.raises(InputError, match="got the folder"):
        check_output("--out", tmp_path, replace=True)
    # Nothing is lost with an empty file, which mktemp makes, nor on a device.
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="null byte"):
        check_output("path", "a\0b")
    for path in (tmp_path / "empty", os.devnull, tmp_path / "new", tmp_path / "nowhere" / "new"):
        check_output("--out", path)


def test_links_are_followed_and_permissions_kept(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "log.tsv", tmp_path / "link.tsv"
    link.symlink_to(target)
    for content in (b"new", b"again"):
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
        target.chmod(0o640)
    assert target.stat().st_mode & 0o777 == 0o640
    write_together(tmp_path, {"link.tsv": b"together"})
    assert link.is_symlink()
    assert target.read_bytes() == b"together"
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere" / "log.tsv")
    for name, reason in (("loop", "symbolic links"), ("lost", "No such file"), ("a\0b", "null byte")):
        with pytest.raises(StoreError, match=reason):
            write_atomically(tmp_path / name, b"text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "link.tsv", "loop", "lost"]


def test_a_file_may_have_the_longest_name(tmp_path: Path) -> None:
    """The temporary file beside it has a name of its own length."""
    longest = "n" * os.pathconf(tmp_path, "PC_NAME_MAX")
    write_atomically(tmp_path / longest, b"text")
    assert [path.name for path in tmp_path.iterdir()] == [longest]
    with pytest.raises(StoreError, match="File name too long"):
        write_atomically(tmp_path / f"{longest}n", b"text")


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    write_atomically(os.devnull, b"text")
    assert Path(os.devnull).is_char_device()
    with pytest.raises(StoreError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        write_atomically("/dev/full", b"text")
    assert Path("/dev/full").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_atomically, args=(pipe, b"text"))
    writer.start()
    assert pipe.read_bytes() == b"text"
    writer.join()
    assert pipe.is_fifo()
