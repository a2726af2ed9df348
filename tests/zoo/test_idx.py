from __future__ import annotations

import gzip
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import FileFormatError
from pyrobust.zoo import load_data
from pyrobust.zoo.idx import load_mnist, read_idx

LEVELS = np.random.default_rng(1).integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9], np.uint8)
IMAGES_FILE = struct.pack(">4I", 0x803, 6, 5, 4) + LEVELS.tobytes()
LABELS_FILE = struct.pack(">2I", 0x801, 6) + LABELS.tobytes()


def write(folder: Path, stem: str, zipped: bool, dot: bool = False, images: bytes = IMAGES_FILE) -> None:
    for name, content in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", LABELS_FILE)):
        file = folder / ((name.replace("-idx", ".idx") if dot else name) + (".gz" if zipped else ""))
        file.write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(("stem", "suffix"), [("t10k", ""), ("t10k", ":test"), ("train", ":train")])
def test_round_trip(tmp_path: Path, stem: str, suffix: str, zipped: bool, dot: bool) -> None:
    folder = tmp_path / "with:colon"
    folder.mkdir()
    write(folder, stem, zipped, dot)
    data = load_data(f"mnist:{folder}{suffix}")
    assert np.array_equal(data.x[:, 0].numpy(), LEVELS.astype(np.float32) / np.float32(255))
    assert data.y.tolist() == LABELS.tolist()
    assert data.name == f"mnist:{folder}{suffix}"
    assert load_mnist(folder, suffix[1:] or "test").name == f"mnist:{folder}{suffix or ':test'}"


def test_files_in_two_forms_must_agree(tmp_path: Path) -> None:
    write(tmp_path, "t10k", zipped=False)
    write(tmp_path, "t10k", zipped=True)
    write(tmp_path, "t10k", zipped=False, dot=True)
    assert load_data(f"mnist:{tmp_path}").y.tolist() == LABELS.tolist()
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 6) + bytes(6)))
    with pytest.raises(FileFormatError, match=f"{path.name}: expected the contents of t10k-labels-idx1-ubyte, got"):
        load_data(f"mnist:{tmp_path}")


@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_files_are_rejected(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / ("a.gz" if zipped else "a")
    whole = gzip.compress(IMAGES_FILE) if zipped else IMAGES_FILE
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=str(path)):
            read_idx(path, 3)


@given(position=st.integers(0, 10**6), value=st.integers(1, 255))
def test_flipped_byte_in_gzip_is_detected(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.gz"
    content = bytearray(gzip.compress(IMAGES_FILE))
    content[position % len(content)] ^= value
    path.write_bytes(content)
    with suppress(FileFormatError):
        assert np.array_equal(read_idx(path, 3), LEVELS)  # time and flags in the gzip header may change


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", b"", "offset 0: .* got an empty file"),
        ("a", LABELS_FILE, "offset 0: expected an IDX header of bytes with 3 axes"),
        ("a", b"\0\0\x0d\x03" + IMAGES_FILE[4:], "offset 0"),
        ("a", struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "offset 4: expected .* bytes after the header"),
        ("a", IMAGES_FILE + b"x", "offset 4: expected 120 bytes after the header for .*, got 121"),
        ("a.gz", struct.pack(">4I", 0x803, 2**32 - 1, 28, 28), "expected a compression ratio"),
        ("a.gz", struct.pack(">4I", 0x803, 70000, 28, 28) + bytes(1 << 20), "bytes of data, got only 1048576"),
        ("a.gz", IMAGES_FILE + b"x", "expected 120 bytes of data, got more"),
        ("a.gz", IMAGES_FILE + bytes(1 << 20), "got more"),
    ],
)
def test_invalid_contents_are_rejected(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    with pytest.raises(FileFormatError, match=message):
        read_idx(path, 3)


def test_differing_numbers_of_images_and_labels_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, "t10k", False, images=struct.pack(">4I", 0x803, 3, 5, 4) + LEVELS[:3].tobytes())
    with pytest.raises(FileFormatError, match="expected one image for each of the 6 labels"):
        load_data(f"mnist:{tmp_path}")


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="expected a file train-images-idx3-ubyte or"):
        load_data(f"mnist:{tmp_path}:train")
