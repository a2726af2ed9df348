"""Files are written atomically and overwrite nothing; images on the grid of bytes survive one, bit by bit."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.zoo import load_data, save_images
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


# --- saved images


def byte_images(count: int, channels: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, 5, 4), generator=generator).float() / 255


@pytest.mark.parametrize("channels", [1, 3])
def test_every_byte_survives(tmp_path: Path, channels: int) -> None:
    levels = torch.arange(256).view(1, 1, 16, 16)
    image = torch.cat([levels.roll(shift, 2) for shift in range(channels)], 1)
    x, y = torch.cat([image, 255 - image, image.flip(3)]) / torch.tensor(255.0), [3, 9, 0]
    save_images(tmp_path / "f", x, y)
    save_images(tmp_path / "f.npz", x, y)
    for spec in (f"folder:{tmp_path / 'f'}", f"npz:{tmp_path / 'f.npz'}"):
        loaded = load_data(spec)
        assert torch.equal(loaded.x, x)
        assert loaded.y.tolist() == y
    with Image.open(tmp_path / "f" / "000000.png") as image:  # read by another library
        assert np.array_equal(np.asarray(image)[..., 0] if channels > 1 else np.asarray(image), levels[0, 0])


def test_a_folder_is_completed_and_nothing_is_overwritten(tmp_path: Path) -> None:
    x = byte_images(4)
    folder = tmp_path / "f"
    save_images(folder, x[2:], [1, 0], indices=[20, 30], columns={"distance": [0.5, None]}, about="sweep")
    first = (folder / "000020.png").stat().st_mtime_ns
    save_images(folder, x[:3], [3, 2, 1], indices=[0, 10, 20], columns={"distance": [1, 2, 0.5]}, about="sweep")
    assert (folder / "000020.png").stat().st_mtime_ns == first
    table = (folder / "images.tsv").read_text().splitlines()
    assert table[0] == "# pyrobust images, bytes over 255; sweep"
    assert table[1].split("\t") == ["file", "index", "label", "distance"]
    assert [line.split("\t") for line in table[2:]] == [
        ["000000.png", "0", "3", "1"],
        ["000010.png", "10", "2", "2"],
        ["000020.png", "20", "1", "0.5"],
        ["000030.png", "30", "0", ""],
    ]
    assert torch.equal(load_data(f"folder:{folder}").x, x)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(InputError, match="expected no other image named 000010"):
        save_images(folder, x[:1], [2], indices=[10], columns={"distance": [0]}, about="sweep")
    for label, distance in ((1, 2), (2, 1)):  # the row that is there says class 2, distance 2
        with pytest.raises(InputError, match="path: expected the row of 000010"):
            save_images(folder, x[1:2], [label], indices=[10], columns={"distance": [distance]}, about="sweep")
    with pytest.raises(InputError, match="expected a folder of the same images"):
        save_images(folder, x[:1], [2], indices=[40], columns={"distance": [0]}, about="another")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_kill_between_the_pictures_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, chunks = byte_images(5), iter(range(2))

    def killed(folder: Path, files: dict[str, bytes]) -> None:
        if next(chunks, None) is None:
            raise KeyboardInterrupt
        write_together(folder, files)

    monkeypatch.setattr("pyrobust.zoo.saved_images._CHUNK", 2)
    with monkeypatch.context() as patch:
        patch.setattr("pyrobust.zoo.saved_images.write_together", killed)
        with pytest.raises(KeyboardInterrupt):
            save_images(tmp_path / "f", x, range(5))
    save_images(tmp_path / "f", x, range(5))
    data: Any = load_data(f"folder:{tmp_path / 'f'}")
    assert torch.equal(data.x, x)


@pytest.mark.parametrize("content", ["file", "folder", "npz"])
def test_what_others_made_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / ("a.npz" if content == "npz" else "a")
    if content == "folder":
        path.mkdir()
        (path / "images.tsv").write_text("mine\n")
    else:
        path.write_text("mine")
    with pytest.raises(InputError, match=r"^path: expected a"):
        save_images(path, byte_images(1), [0])
    kept = path / "images.tsv" if content == "folder" else path
    assert kept.read_text().strip() == "mine"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": byte_images(2) + 1e-7}, r"^x: expected the float32 nearest to k/255"),
        ({"x": torch.full((2, 1, 2, 2), torch.nan)}, r"^x: expected the float32 nearest"),
        ({"x": byte_images(2)[0]}, r"^x: expected images"),
        ({"x": byte_images(2, 2)}, r"^x: expected 1 or 3 channels"),
        ({"indices": [1, 1]}, r"^indices: expected distinct"),
        ({"indices": [1]}, r"^indices: expected one for each"),
        ({"y": [1]}, r"^y: expected shape"),
        ({"columns": {"a": [1]}}, r"^columns: expected 2 values of a"),
        ({"path": ""}, r"^path: expected the name"),
    ],
)
def test_bad_input_writes_nothing(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    arguments: dict[str, Any] = {"path": tmp_path / "f", "x": byte_images(2), "y": [0, 1]} | change
    path, x, y = (arguments.pop(name) for name in ("path", "x", "y"))
    with pytest.raises(InputError, match=match):
        save_images(path, x, y, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    save_images(tmp_path / "f", byte_images(2), [0, 1])
    table = tmp_path / "f" / "images.tsv"
    whole = table.read_text()
    lines = whole.splitlines(keepends=True)
    for damaged in (
        whole.replace("000001.png", "../0.png"),
        whole.replace("\t1\t", "\tone\t"),
        "".join(lines[:2]).rstrip(),
        lines[0].rstrip(),
        whole + lines[-1],
        whole.replace("file\tindex", "index\tfile"),
        "",
        whole.replace("000001.png\t1", "000007.png\t7"),
    ):
        assert damaged != whole
        table.write_text(damaged)
        with pytest.raises(FileFormatError, match=r"save (them|it) again"):
            load_data(f"folder:{tmp_path / 'f'}")


def test_images_that_no_row_names_are_refused(tmp_path: Path) -> None:
    save_images(tmp_path / "f", byte_images(2), [0, 1])
    (tmp_path / "f" / ".hidden").touch()
    assert len(load_data(f"folder:{tmp_path / 'f'}")) == 2
    for name in ("000007.png", "cat"):
        (tmp_path / "f" / name).touch()
        with pytest.raises(FileFormatError, match=f"{name}: expected only the images that images.tsv names"):
            load_data(f"folder:{tmp_path / 'f'}")
        (tmp_path / "f" / name).unlink()
