"""Sets of images in memory: their hash and checks, and data of a callable, a folder or a library."""

from __future__ import annotations

import hashlib
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError, PyrobustError
from pyrobust.zoo import ImageSet, as_image_set, load_data, load_digits
from pyrobust.zoo.folder import load_folder
from pyrobust.zoo.hashing import hash_tensors

X = torch.rand(6, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 4 - 2
Y = torch.tensor([0, 2, 1, 1, 0, 3])


SMALL = torch.zeros(3, 1, 2, 2)
THREE = torch.tensor([0, 2, 1])


def test_hash_is_sha256_of_length_prefixed_parts() -> None:
    x = torch.where(torch.arange(12).view(SMALL.shape) < 6, -SMALL, SMALL + 0.5)  # minus zero is another number
    fields = [b"x torch.float32 [3, 1, 2, 2]", b"\0\0\0\x80" * 6 + b"\0\0\0\x3f" * 6, b"y torch.int64 [3]", b"".join(
        int(label).to_bytes(8, "little") for label in THREE
    )]  # fmt: skip
    expected = hashlib.sha256(b"".join(len(field).to_bytes(8, "little") + field for field in fields)).hexdigest()
    assert ImageSet("a", x, THREE).sha256 == expected
    assert ImageSet("b", x.clone().to(memory_format=torch.channels_last), THREE).sha256 == expected
    one = torch.zeros(1, dtype=torch.uint8)
    assert hash_tensors({"a": one, "b": one}) != hash_tensors({"a": one})
    assert hash_tensors({"s": torch.tensor(1.0, dtype=torch.bfloat16)}) != hash_tensors({"s": torch.tensor(1.0)})


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (SMALL.double(), THREE, InputTypeError, "float32"),
        (SMALL, THREE.int(), InputTypeError, "int64"),
        (SMALL[0], THREE, InputError, r"\[N, C, H, W\]"),
        (SMALL, THREE[:2], InputError, "same N"),
        (SMALL[:0], THREE[:0], InputError, "at least one"),
        (SMALL / 0, THREE, InputError, r"got (nan|inf) at \[0, 0, 0\] of image 0"),
        (torch.cat([SMALL[:2], SMALL[:1] + torch.inf]), THREE, InputError, r"got inf at \[0, 0, 0\] of image 2"),
        (SMALL, THREE - 1, InputError, "got -1 for image 0"),
    ],
)
def test_invalid_image_sets_are_rejected(x: Tensor, y: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageSet("bad", x, y)


def test_images_are_read_by_index_in_the_given_order() -> None:
    x = torch.arange(12).reshape(3, 1, 2, 2) / 16
    data = ImageSet("a", x, THREE)
    pixels, labels = data.read([2, 0, 2])
    assert torch.equal(pixels, x[[2, 0, 2]])
    assert labels.tolist() == [1, 0, 1]
    assert data.read(range(0))[0].shape == (0, 1, 2, 2)
    assert (data.shape, data.grid, data.extremes) == ((1, 2, 2), Fraction(1, 16), (0.0, 0.6875))
    for index in (-1, 3):
        with pytest.raises(InputError, match="indices: expected 0 to 2"):
            data.read([index])


# --- data by name


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("user_data_module")
    monkeypatch.setitem(sys.modules, "user_data_module", module)
    return module


def test_specs_of_the_bundled_digits() -> None:
    for spec, split in (("digits", "test"), ("digits:train", "train"), ("digits:all", "all")):
        assert load_data(spec).sha256 == load_digits(split).sha256
        assert load_data(spec).name == spec


@pytest.mark.parametrize(
    "returned",
    [
        (X, Y),
        [X.numpy(), Y.numpy().astype(np.uint8)],
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        [(X[:2], Y[:2]), (X[2:], Y[2:])],
        ((X[i].double(), Y[i]) for i in range(6)),
    ],
    ids=["pair", "arrays", "TensorDataset", "DataLoader", "two batches", "generator"],
)
def test_valid_return_values_of_a_callable(user: ModuleType, returned: object) -> None:
    user.make = lambda: returned
    data = load_data("user_data_module:make")
    assert torch.equal(data.x, X)
    assert torch.equal(data.y, Y)
    assert data.x.data_ptr() != X.data_ptr()


def test_grey_images_without_a_channel_axis(user: ModuleType) -> None:
    grey = (X[:, 0].abs() * 100).to(torch.uint8)
    for returned in ((grey, Y), list(zip(grey, Y, strict=True))):
        user.make = lambda returned=returned: returned
        assert torch.equal(load_data("user_data_module:make").x, grey[:, None].float() / 255)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "iterable of .x, y., got NoneType"),
        ({"x": X, "y": Y}, "got dict"),
        ([], "expected at least one image, got none"),
        ([X, Y, Y], "expected pairs .x, y., got Tensor"),
        ((X, Y[:5]), r"got x \[6, 3, 4, 5\] and y \[5\]"),
        ((X.int(), Y), "float pixels"),
        ([(X[0], 0), (X[0, :, :2], 0)], "images of the same shape"),
        ([(X[0, 0, 0, 0], 0)], "expected x"),
    ],
)
def test_invalid_return_values_of_a_callable(user: ModuleType, returned: object, message: str) -> None:
    user.make = lambda: returned
    with pytest.raises(InputError, match=message):
        load_data("user_data_module:make")


def test_user_code_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_loader_of_the_test.py").write_text(
        "import torch\nclass Data:\n    @staticmethod\n    def load():\n"
        "        return torch.ones(2, 1, 3, 3), torch.tensor([1, 0])\n"
        "number = 3\n"
    )
    (tmp_path / "my_broken_loader.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert len(load_data("my_loader_of_the_test:Data.load")) == 2
    assert sys.path == before
    with pytest.raises(InputTypeError, match="expected a callable, got int"):
        load_data("my_loader_of_the_test:number")
    with pytest.raises(InputError, match="has no 'nothing'"):
        load_data("my_loader_of_the_test:nothing")
    # Errors in user code are raised unchanged.
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there") as caught:
        load_data("my_broken_loader:load")
    assert not isinstance(caught.value, PyrobustError)
    sys.modules.pop("my_loader_of_the_test")


@pytest.mark.parametrize("spec", ["", "cifar", "digit:x", "no_such_module:f", "npz:", "a b:c", "x:", 3])
def test_unknown_specs_list_the_forms(spec: Any) -> None:
    with pytest.raises((InputError, InputTypeError), match=r"one of digits.*mnist:DIR.*npz:FILE.*module:callable"):
        load_data(spec)


def picture(path: Path, value: int, mode: str = "L", size: tuple[int, int] = (5, 4)) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)


def test_folder(tmp_path: Path) -> None:
    picture(tmp_path / "b" / "1.png", 51)
    picture(tmp_path / "a" / "2.png", 255)
    picture(tmp_path / "a" / "10.PNG", 0)
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "a" / ".DS_Store").write_text("")
    data = load_data(f"folder:{tmp_path}")
    assert data.x.shape == (3, 1, 4, 5)
    assert data.x[:, 0, 0, 0].tolist() == pytest.approx([0, 1, 0.2])
    assert data.y.tolist() == [0, 0, 1]


def test_folder_rgb_is_nchw(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    levels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    image.fromarray(levels).save(tmp_path / "a" / "1.png")
    expected = levels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    assert np.array_equal(load_folder(tmp_path).x[0].numpy(), expected)


@pytest.mark.parametrize(
    ("name", "mode", "size", "message"),
    [
        ("2.png", "L", (4, 5), "expected 5x4 grey like .*1.png, got 4x5 grey"),
        ("2.png", "RGB", (5, 4), "got 5x4 RGB"),
        ("2.png", "I;16", (5, 4), "8-bit grey or RGB"),
        ("2.png", "P", (5, 4), "8-bit grey or RGB"),
        ("2.bmp", "L", (5, 4), "only PNG and JPEG files"),
        ("2.png", "L", (5000, 5000), "at most 16777216 pixels"),
    ],
)
def test_folder_with_unsupported_files_is_rejected(
    tmp_path: Path, name: str, mode: str, size: tuple[int, int], message: str
) -> None:
    picture(tmp_path / "a" / "1.png", 0)
    picture(tmp_path / "b" / name, 0, mode, size)
    with pytest.raises(FileFormatError, match=message):
        load_folder(tmp_path)


def test_pictures_that_would_be_read_as_others_are_rejected(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    path = tmp_path / "a" / "1.png"
    path.parent.mkdir()
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)  # 16-bit RGB, which Pillow cannot write
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" + bytes(range(6)))), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with pytest.raises(FileFormatError, match=r"8-bit grey or RGB .* got 16 bits, mode RGB"):
        load_folder(tmp_path)
    image.new("RGB", (2, 2), 1).save(path, save_all=True, append_images=[image.new("RGB", (2, 2), 2)])
    with pytest.raises(FileFormatError, match="got an animation"):
        load_folder(tmp_path)
    palette = image.new("RGB", (2, 2), 200).quantize(2)
    with pytest.raises(InputError, match=r"data: mine: expected pictures of the modes L, .* got P; convert them"):
        as_image_set([(palette, 0)], "mine")


def test_folder_with_damaged_images_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a" / "1.png"
    picture(path, 7, size=(50, 40))
    whole = path.read_bytes()
    for size in range(0, len(whole) - 16, 5):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match="not a readable PNG or JPEG"):
            load_folder(tmp_path)


def test_folder_with_bombs_or_another_layout_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="got no image"):
        load_folder(tmp_path)
    for i in range(5):
        picture(tmp_path / "a" / f"{i}.png", 0, size=(4096, 4096))
    with pytest.raises(FileFormatError, match="expected a compression ratio"):
        load_folder(tmp_path)
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(FileFormatError, match="only one subfolder per class"):
        load_folder(tmp_path)


def test_no_image_of_a_folder_is_skipped_or_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    picture(tmp_path / "a" / "1.png", 0)
    picture(tmp_path / "b" / "1.PNG", 0)
    picture(tmp_path / "b" / "1.x.JPEG", 0)
    assert load_folder(tmp_path).y.tolist() == [0, 1, 1]

    def refused(change: Callable[[Path], object], name: str, message: str) -> None:
        path = tmp_path / name
        change(path)
        with pytest.raises(FileFormatError, match=message):
            load_folder(tmp_path)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    refused(lambda path: picture(path, 0), "b/1.jpg", "expected one file for each image, got 1.PNG too")
    refused(Path.touch, "b/2.png", "2.png: not a readable PNG or JPEG file")
    refused(Path.mkdir, "b/2.png", "expected only PNG and JPEG files")
    refused(Path.mkdir, "c", "c: expected at least one PNG or JPEG file, because every subfolder is a class")
    refused(lambda path: path.symlink_to("nowhere"), "b/2.png", "expected only PNG and JPEG files")
    refused(lambda path: path.symlink_to("../a/1.png"), "b/2.png", "2.png: expected each file once, .*a/1.png")
    refused(lambda path: path.symlink_to("a"), "c", "c/1.png: expected each file once, .*a/1.png")
    (tmp_path / "b/2.png").symlink_to(shutil.copy(tmp_path / "a/1.png", tmp_path / ".elsewhere.png"))
    assert load_folder(tmp_path).y.tolist() == [0, 1, 1, 1]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(FileFormatError, match=r"cannot be read \(Permission denied\)"):
            load_folder(tmp_path)
    assert not caplog.records


@pytest.mark.parametrize(("names", "label"), [(range(11), 2), ((3, 5), 0), (("00", "01"), None), (("1", "a"), None)])
def test_classes_named_by_other_numbers_are_noted(
    tmp_path: Path, names: tuple[object, ...], label: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    for name in names:
        picture(tmp_path / str(name) / "1.png", 0)
    load_folder(tmp_path)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (label is not None)
    assert label is None or f"is class {label}; check" in caplog.text


def test_folder_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a" / "1.png", 0)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pyrobust\[data\]"):
        load_folder(tmp_path)


@pytest.mark.parametrize("limit", [1, 3, 8, 9])
def test_reading_of_an_endless_iterable_stops(user: ModuleType, limit: int) -> None:
    def images() -> Iterator[tuple[torch.Tensor, int]]:
        for index in count():
            yield X[index % 6], int(Y[index % 6])

    class Stream(IterableDataset):
        __iter__ = staticmethod(images)

    user.single = images
    user.batched = lambda: DataLoader(Stream(), batch_size=4)
    user.whole = lambda: (torch.cat([X, X])[:limit], torch.cat([Y, Y])[:limit])
    expected = load_data("user_data_module:whole")
    for name in ("single", "batched"):
        data = load_data(f"user_data_module:{name}", limit)
        assert (len(data), data.sha256) == (limit, expected.sha256)


def test_data_with_a_length_are_read_whole(user: ModuleType) -> None:
    user.make = lambda: DataLoader(TensorDataset(X, Y), batch_size=4)
    assert len(load_data("user_data_module:make", 3)) == len(load_data("user_data_module:make")) == 6
    assert len(load_data("digits", 3)) == 382
    user.short = lambda: iter([(X, Y)])
    assert len(load_data("user_data_module:short", 100)) == 6
    for limit in (0, -1):
        with pytest.raises(InputError, match="most: expected at least 1"):
            load_data("digits", limit)


class Rows(Dataset[object]):
    """A map-style data set, whose rows one of the usual ways of torch and Hugging Face holds; iteration never ends."""

    def __init__(self, row: Callable[[int], object]) -> None:
        self.row = row

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> object:
        return self.row(i % 6)


LEVELS = (np.arange(6 * 3 * 4 * 5).reshape(6, 3, 4, 5) % 256).astype(np.uint8)


def pillow_image(i: int) -> object:
    pillow = pytest.importorskip("PIL.Image")
    return pillow.fromarray(np.moveaxis(LEVELS[i], 0, -1))


@pytest.mark.parametrize(
    "row",
    [
        lambda i: (torch.from_numpy(LEVELS[i]).float() / 255, i),
        lambda i: (LEVELS[i], np.int64(i)),
        lambda i: (pillow_image(i), i),
        lambda i: {"image": pillow_image(i), "label": i},
        lambda i: {"img": LEVELS[i], "labels": i, "fine_label": 0},
    ],
)
def test_data_sets_of_torch_and_hugging_face(row: Callable[[int], object]) -> None:
    data = as_image_set(Rows(row), "rows")
    assert torch.equal(data.x, torch.from_numpy(LEVELS).float() / 255)
    assert data.y.tolist() == list(range(6))
    if not isinstance(row(0), dict) and not hasattr(row(0)[0], "getbands"):
        loaded = as_image_set(DataLoader(Rows(row), batch_size=4), "loader")
        assert loaded.sha256 == data.sha256


@pytest.mark.parametrize(
    "labels", [["dog", "cat"], ("dog", "cat"), np.array(["dog", "cat"]), np.array(["dog", "cat"], object)]
)
def test_names_of_classes_number_labels_of_strings(labels: Any) -> None:
    x = np.zeros((2, 3), np.float32)
    for data in ((x, labels), list(zip(x, labels, strict=True)), [{"x": x, "y": labels}]):
        assert as_image_set(data, "pets", classes=["cat", "mouse", "dog"]).y.tolist() == [2, 0]
        with pytest.raises(InputError, match=r"pets: y: expected names among classes, 'cat', 'mouse', got .*dog"):
            as_image_set(data, "pets", classes=["cat", "mouse"])
        with pytest.raises(InputError, match=r"expected integer labels, got .*; as_image_set\(data, name, classes="):
            as_image_set(data, "pets")


@pytest.mark.parametrize(
    ("data", "classes", "message"),
    [
        (Rows(lambda i: {"picture": LEVELS[i], "label": i}), None, "keys image, img.*got picture, label; pass pairs"),
        *(((X, ["cat"] * 6), classes, "list of distinct names") for classes in ("cat", ["cat", "cat"], ["cat", 1], 2)),
        ((X, [0] * 6), ["cat"], "expected names among classes"),  # numbers are no names
    ],
)
def test_rows_and_classes_that_are_refused(data: object, classes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_image_set(data, "pets", classes=classes)
