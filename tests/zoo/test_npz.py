from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo import load_data
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


def test_bytes_are_divided_by_255_and_rounded_once(tmp_path: Path) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    data = load_npz(save(tmp_path / "a.npz", X=x, Y=np.array([1], np.uint64)))
    assert data.x.shape == (1, 1, 16, 16)
    assert np.array_equal(data.x.numpy().ravel(), np.arange(256, dtype=np.float32) / np.float32(255))


def test_fortran_order_and_spec_with_colons(tmp_path: Path) -> None:
    folder = tmp_path / "C:"
    folder.mkdir()
    path = save(folder / "a:b.npz", x=np.asfortranarray(X), y=Y, other=np.array([None], dtype=object))
    data = load_data(f"npz:{path}")
    assert torch.equal(data.x, torch.from_numpy(X))
    assert data.name == f"npz:{path}"


def test_arrays_of_other_names(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x_test=X, y_test=Y, x_train=X[:1], y_train=Y[:1])
    data = load_data(f"npz:{path}:x_test,y_test")
    assert torch.equal(data.read(range(5))[0], torch.from_numpy(X))
    assert data.name == f"npz:{path}:x_test,y_test"
    assert len(load_npz(path, image="x_train", label="y_train")) == 1
    for spec in (f"npz:{path}", f"npz:{path}:X_test,y_test"):
        with pytest.raises(FileFormatError, match=r"x_test, y_test, x_train, y_train; name two .*FILE:IMAGES,LABELS"):
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
        ({"x": X.astype([("r", "f4")]), "y": Y}, r"array x: expected numbers, got \[\('r', '<f4'\)\]"),
        ({"x": X.astype(np.int32), "y": Y}, "float pixels in .* or uint8 pixels, got int32"),
        ({"x": X > 0.5, "y": Y}, "got bool"),
        ({"x": X.astype(np.longdouble), "y": Y}, "got float128|got longdouble|expected an npy header"),
        ({"x": X * 255, "y": Y}, "got 0 to 255"),
        ({"x": -X, "y": Y}, "got -1 to -?0"),
        ({"x": np.full_like(X, np.nan), "y": Y}, r"got nan at \[0, 0, 0, 0\]"),
        ({"x": X, "y": Y.astype(float)}, "integer labels, got float64"),
        ({"x": X, "y": Y - 1}, "got -1 to 8"),
        ({"x": X, "y": Y.astype(np.uint64) << np.uint64(60)}, "got 0 to"),
        ({"x": X, "y": Y[:4]}, "N labels with N > 0, got x"),
        ({"x": X, "y": Y[:, None]}, "N labels with N > 0, got x"),
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


@pytest.mark.parametrize(
    "header",
    [
        "{'descr':'|u1','fortran_order':False,'shape':(64,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (64,), }   \n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (64L,), }",
    ],
)
def test_headers_of_other_writers_and_versions(tmp_path: Path, header: str) -> None:
    def read(content: bytes) -> Any:
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", content)
        return read_npz_arrays(tmp_path / "a.npz", ["x"])["x"]

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


@pytest.mark.parametrize("labels", [np.array([0x7FFFFFFF] * 3, "<u4").view("<U1"), np.array([b"\xff"] * 3)])
def test_damaged_names_of_classes_are_refused(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(FileFormatError, match="not a readable npz file"):
        load_npz(save(tmp_path / "a.npz", x=X[:3], y=labels), classes=["a"])
