"""Arrays in files, npz and IDX: what is read, and that no damaged or hostile file is read as another."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo import load_data
from pyrobust.zoo.idx import load_mnist, read_idx
from pyrobust.zoo.npz import load_npz, read_npz_arrays

X = np.linspace(0, 1, 5 * 16, dtype=np.float32).reshape(5, 1, 4, 4)
Y = np.array([0, 1, 2, 3, 9])


def save(path: Path, compressed: bool = False, **arrays: Any) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_floats(tmp_path: Path, dtype: str, compressed: bool) -> None:
    data = load_npz(save(tmp_path / "a.npz", compressed, x=X.astype(dtype), y=Y.astype(">i2")))
    assert np.array_equal(data.x.numpy(), X.astype(dtype).astype(np.float32))
    assert data.y.tolist() == Y.tolist()


def test_forms_and_names_of_arrays(tmp_path: Path) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    data: Any = load_npz(save(tmp_path / "bytes.npz", X=levels, Y=np.array([1], np.uint64)))
    assert data.x.shape == (1, 1, 16, 16)
    assert np.array_equal(data.x.numpy().ravel(), np.arange(256, dtype=np.float32) / np.float32(255))  # rounded once

    (tmp_path / "C:").mkdir()
    arrays = {"x_test": np.asfortranarray(X), "y_test": Y, "x_train": X[:1], "y_train": Y[:1]}
    path = save(tmp_path / "C:" / "a:b.npz", **arrays, other=np.array([None], dtype=object))
    data = load_data(f"npz:{path}:x_test,y_test")
    assert torch.equal(data.read(range(5))[0], torch.from_numpy(X))
    assert data.name == f"npz:{path}:x_test,y_test"
    assert len(load_npz(path, image="x_train", label="y_train")) == 1
    for spec in (f"npz:{path}", f"npz:{path}:X_test,y_test"):
        with pytest.raises(FileFormatError, match=r"x_test, y_test, x_train, y_train, .*FILE:IMAGES,LABELS"):
            load_data(spec)
    odd = save(tmp_path / "b.npz:x,y", x=X, y=Y)  # numpy appends .npz
    odd.with_name("b.npz:x,y.npz").rename(odd)
    assert len(load_data(f"npz:{odd}")) == 5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "array named y or Y, found 0; the file holds x"),
        ({"x": X, "X": X, "y": Y}, "found 2"),
        ({"x": X.astype(object), "y": Y}, "array x: expected numbers, got Python objects"),
        ({"x": X, "y": Y.astype(str)}, "array y: expected numbers, got <U"),
        ({"x": X.astype(np.int32), "y": Y}, "float pixels in .* or uint8 pixels, got int32"),
        ({"x": X.astype(np.longdouble), "y": Y}, "got float128|got longdouble|expected an npy header"),
        ({"x": X * 255, "y": Y}, "got 0 to 255"),
        ({"x": -X, "y": Y}, "got -1 to -?0"),
        ({"x": np.full_like(X, np.nan), "y": Y}, r"got nan at \[0, 0, 0, 0\]"),
        ({"x": X, "y": Y.astype(float)}, "integer labels, got float64"),
        ({"x": X, "y": Y - 1}, "got -1 to 8"),
        ({"x": X, "y": Y.astype(np.uint64) << np.uint64(60)}, "got 0 to"),
        ({"x": X, "y": Y[:4]}, "N labels with N > 0, got x"),
        ({"x": X[:0], "y": Y[:0]}, "N > 0"),
        ({"x": X[0, 0, 0], "y": Y}, "expected .N, C, H, W. or"),
        ({"x": np.zeros((5, 8, 8, 3), np.uint8), "y": Y}, r"looks like \[N, H, W, C\]"),
    ],
)
def test_unsupported_arrays_are_rejected(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileFormatError, match=message) as caught:
        load_npz(path)
    assert str(path) in str(caught.value)


def test_missing_and_other_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="expected a file, found nothing"):
        load_npz(tmp_path / "none.npz")
    with pytest.raises(FileFormatError, match="found a folder"):
        load_npz(tmp_path)
    for content in (b"", b"PK", b"hello world" * 50, bytes(1000)):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(FileFormatError, match="not a readable npz"):
            load_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_files_are_rejected(tmp_path: Path, compressed: bool) -> None:
    x = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
    whole = save(tmp_path / "a.npz", compressed, x=x, y=np.arange(100)).read_bytes()
    for size in range(0, len(whole), 100):
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"cut\.npz"):
            load_npz(tmp_path / "cut.npz")


@given(position=st.integers(0, 10**6), value=st.integers(1, 255), compressed=st.booleans())
def test_flipped_byte_is_detected_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, compressed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.npz"
    content = bytearray(save(path, compressed, x=X, y=Y).read_bytes())
    content[position % len(content)] ^= value
    path.write_bytes(content)
    try:
        data = load_npz(path)
    except FileFormatError:
        return
    # Checksums protect the arrays, so only bytes without meaning (times, attributes) can change unnoticed.
    assert torch.equal(data.x, torch.from_numpy(X))
    assert data.y.tolist() == Y.tolist()


def member(header: str, data: bytes) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def described(kind: str, shape: str) -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (described("'<f4'", "(1000000000000, 8, 8)"), "expected 256000000000000 bytes"),
        (described("'<f4'", "(1, 8, 8)"), "got 64; the file is damaged"),
        (described("'|u1'", "(1, 1, 1, 1, 1, 1, 1, 8, 8)"), r"at most 8 axes of sizes from 0 on, got \[1, 1, 1"),
        (described("'<f4'", "(-1, 8, 8)"), r"sizes from 0 on, got \[-1, 8, 8\]"),
        (described("__import__('os').abort()", "(1,)"), "expected an npy header"),
        (described("'<f3'", "(1, 8, 8)"), "expected an npy header.*valid dtype.*<f3"),
        ("(" * 5000, "expected an npy header"),
        (described("'|u1'", "(1, 8, 8)") + " " * 20000, "expected an npy header"),
    ],
)
def test_invalid_headers_are_rejected(tmp_path: Path, header: str, message: str) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member(header, bytes(64)))
        archive.writestr("y.npy", b"")
    with pytest.raises(FileFormatError, match=f"array x: .*{message}"):
        read_npz_arrays(path, ["x"])


def test_headers_of_other_writers_and_versions(tmp_path: Path) -> None:
    def read(content: bytes) -> Any:
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", content)
        return read_npz_arrays(tmp_path / "a.npz", ["x"])["x"]

    for header in (
        "{'descr':'|u1','fortran_order':False,'shape':(64,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (64,), }   \n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (64L,), }",
    ):
        assert read(member(header, bytes(range(64)))).tolist() == list(range(64))
    for version in ((1, 0), (2, 0), (3, 0)):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.array(7, np.int16), version=version)
        assert read(buffer.getvalue()) == np.int16(7)


def peak_memory_of_rejection(path: Path, message: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message):
            load_npz(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bomb_is_rejected_without_allocating_its_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    size = 128 << 20
    header = described("'|u1'", f"({size // 64}, 8, 8)")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", b"")
        with archive.open("x.npy", "w") as stream:
            stream.write(member(header, b""))
            for _ in range(size >> 20):
                stream.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    assert peak_memory_of_rejection(path, "expected a compression ratio") < 1 << 20


@pytest.mark.parametrize("declared", [1 << 31, 60 << 20])
def test_archive_directory_with_wrong_sizes_is_rejected(tmp_path: Path, declared: int) -> None:
    path = tmp_path / "wrong.npz"
    content = member(described("'|u1'", f"({declared // 64}, 8, 8)"), bytes(64))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", b"")
    raw = path.read_bytes()
    true_size, wrong_size = struct.pack("<I", len(content)), struct.pack("<I", declared + len(content) - 64)
    assert raw.count(true_size) >= 2
    path.write_bytes(raw.replace(true_size, wrong_size))
    # Rejected by the ratio or because the stream ends early, in both cases with almost nothing allocated.
    assert peak_memory_of_rejection(path, "compression ratio|only") < 8 << 20


@pytest.mark.parametrize("dtype", ["<U5", ">U5", "S5"])
def test_names_of_classes_are_numbered_by_a_list(tmp_path: Path, dtype: str) -> None:
    path = save(tmp_path / "a.npz", x=X[:3], y=np.array(["k", "cat", "k"]).astype(dtype))
    assert load_npz(path, classes=["cat", "dog", "k"]).y.tolist() == [2, 0, 2]
    with pytest.raises(InputError, match=r"array y: expected names among classes, 'cat', 'dog', got 'k'"):
        load_npz(path, classes=["cat", "dog"])
    with pytest.raises(InputError, match="classes: expected a list of distinct names"):
        load_npz(path, classes="cat")
    with pytest.raises(FileFormatError, match=r"array y: expected numbers, got .*; pass the names of the classes"):
        load_npz(path)
    with pytest.raises(FileFormatError, match="array x: expected numbers"):
        load_npz(save(tmp_path / "b.npz", x=np.array(["a"]), y=np.array(["a"])), classes=["a"])
    for labels in (np.array([0x7FFFFFFF] * 3, "<u4").view("<U1"), np.array([b"\xff"] * 3)):
        with pytest.raises(FileFormatError, match="not a readable npz file"):
            load_npz(save(tmp_path / "a.npz", x=X[:3], y=labels), classes=["a"])


# --- IDX

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
def test_idx_round_trip(tmp_path: Path, stem: str, suffix: str, zipped: bool, dot: bool) -> None:
    folder = tmp_path / "with:colon"
    folder.mkdir()
    write(folder, stem, zipped, dot)
    data: Any = load_data(f"mnist:{folder}{suffix}")
    assert np.array_equal(data.x[:, 0].numpy(), LEVELS.astype(np.float32) / np.float32(255))
    assert data.y.tolist() == LABELS.tolist()
    assert data.name == f"mnist:{folder}{suffix}"
    assert load_mnist(folder, suffix[1:] or "test").name == f"mnist:{folder}{suffix or ':test'}"


def test_idx_files_that_are_not_one_set(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="expected a file train-images-idx3-ubyte or"):
        load_data(f"mnist:{tmp_path}:train")
    for zipped, dot in ((False, False), (True, False), (False, True)):
        write(tmp_path, "t10k", zipped, dot)
    data: Any = load_data(f"mnist:{tmp_path}")
    assert data.y.tolist() == LABELS.tolist()
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 6) + bytes(6)))
    with pytest.raises(FileFormatError, match=f"{path.name}: expected the contents of t10k-labels-idx1-ubyte, got"):
        load_data(f"mnist:{tmp_path}")
    write(tmp_path, "train", False, images=struct.pack(">4I", 0x803, 3, 5, 4) + LEVELS[:3].tobytes())
    with pytest.raises(FileFormatError, match="expected one image for each of the 6 labels"):
        load_data(f"mnist:{tmp_path}:train")


@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_idx_files_are_rejected(tmp_path: Path, zipped: bool) -> None:
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
def test_invalid_contents_of_idx_files_are_rejected(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    with pytest.raises(FileFormatError, match=message):
        read_idx(path, 3)
