"""Sets read from files as needed: equal to those in memory, bit by bit, in any format and order of reading."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError
from pyrobust.grid import find_grid
from pyrobust.zoo import ImageSet, LabelledImages, LazyImages, load_data, load_hugging_face, load_parquet, load_tar
from pyrobust.zoo.lazy import manifest as manifests
from pyrobust.zoo.untrusted import as_pixels

pa = pytest.importorskip("pyarrow", reason="the extra parquet")
pq = pytest.importorskip("pyarrow.parquet", reason="the extra parquet")
picture = pytest.importorskip("PIL.Image", reason="the extra data")

IMAGES = 530  # two blocks and a part of one


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/pyrobust/manifests"


def levels(count: int = IMAGES, channels: int = 3) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, (count, channels, 4, 5), dtype=np.uint8)


def labels(count: int = IMAGES) -> npt.NDArray[np.int64]:
    return np.random.default_rng(8).integers(0, 10, count)


def in_memory(count: int = IMAGES, channels: int = 3) -> ImageSet:
    return ImageSet("memory", as_pixels(levels(count, channels), "x"), torch.from_numpy(labels(count)))


def encode(image: npt.NDArray[np.uint8], form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    hwc = np.moveaxis(image, 0, -1)
    picture.fromarray(hwc if hwc.shape[2] == 3 else hwc[..., 0]).save(buffer, format=form)
    return buffer.getvalue()


def table(count: int = IMAGES, channels: int = 3, **columns: Any) -> Any:
    pictures = [{"bytes": encode(image), "path": None} for image in levels(count, channels)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"img": pa.array(pictures, kind), "label": labels(count), **columns})


def parquet(folder: Path, count: int = IMAGES, channels: int = 3) -> str:
    content = table(count, channels)
    for start in range(0, count, 190):
        pq.write_table(content.slice(start, 190), folder / f"test-{start:05}-of-3.parquet", row_group_size=100)
    return f"parquet:{folder}"


def one_row_group(folder: Path, count: int = IMAGES, channels: int = 3) -> str:
    pq.write_table(table(count, channels), folder / "data.parquet")
    return f"parquet:{folder / 'data.parquet'}"


def binary_column(folder: Path, count: int = IMAGES, channels: int = 3) -> str:
    content = table(count, channels)
    pictures = pa.compute.struct_field(content["img"], "bytes")
    content = pa.table({"id": range(count), "image": pictures, "y": content["label"].cast(pa.uint8())})
    pq.write_table(content, folder / "data.parquet", row_group_size=170)
    return f"parquet:{folder / '*.parquet'}"


def nested_lists(folder: Path, count: int = IMAGES, channels: int = 3) -> str:
    pixels: Any = levels(count, channels)
    pixels = pixels.tolist() if channels > 1 else pixels[:, 0].tolist()
    kind = pa.list_(pa.list_(pa.uint8(), 5))
    x = pa.array(pixels, pa.large_list(kind) if channels > 1 else kind)
    pq.write_table(pa.table({"x": x, "labels": labels(count)}), folder / "a.parquet", row_group_size=130)
    return f"parquet:{folder / 'a.parquet'}"


def saved(folder: Path, count: int = IMAGES, channels: int = 3) -> str:
    """Write what ``save_to_disk`` of a data set writes: streams of Arrow and JSON."""
    content = table(count, channels)
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    cut = count // 3 + 1
    for name, rows in zip(names, (content.slice(0, cut), content.slice(cut)), strict=True):
        with pa.ipc.new_stream(folder / name, content.schema) as writer:
            writer.write_table(rows, max_chunksize=100)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return f"hf:{folder}"


def tar(folder: Path, count: int = IMAGES, channels: int = 3) -> str:
    content = [encode(image) for image in levels(count, channels)]
    for shard in range(3):
        with tarfile.open(folder / f"s-{shard + 9}.tar", "w", format=(1, 0, 2)[shard]) as file:
            for index in range(shard * count // 3, (shard + 1) * count // 3):
                key = f"{'deep/' * 40 if index % 50 == 0 and shard else './'}{index:06}"
                label = int(labels(count)[index])
                entry = ("cls", f"{label}\n".encode()) if index % 2 else ("json", json.dumps({"label": label}).encode())
                parts = [("png", content[index]), ("txt", b"ignored"), entry]
                for extension, data in parts if index % 3 else parts[::-1]:
                    member = tarfile.TarInfo(f"{key}.{extension}")
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
    return f"tar:{folder}/s-{{9..11}}.tar"


WRITERS = [parquet, one_row_group, binary_column, nested_lists, saved, tar]


def check_equal(data: LabelledImages, memory: ImageSet) -> None:
    count = len(memory)
    assert (len(data), data.shape, data.num_classes) == (count, memory.shape, memory.num_classes)
    assert (data.sha256, data.grid, data.extremes) == (memory.sha256, memory.grid, memory.extremes)
    shuffled = np.random.default_rng(0).permutation(count)[:12].tolist()
    middle = range(min(250, count - 1), min(262, count))
    for order in (range(count), range(1, count, 7), middle, shuffled, [count - 1, 0, 0]):
        x, y = data.read(order)
        assert torch.equal(x, memory.x[list(order)])
        assert torch.equal(y, memory.y[list(order)])
    for begin in range(0, count, 100):  # chunks that span blocks
        assert torch.equal(data.read(range(begin, min(begin + 100, count)))[0], memory.x[begin : begin + 100])


@pytest.mark.parametrize(
    ("write", "channels"), [(w, 3 - 2 * (i % 2)) for i, w in enumerate(WRITERS)] + [(nested_lists, 3), (tar, 3)]
)
def test_every_format_equals_the_set_in_memory(write: Callable[..., str], channels: int, tmp_path: Path) -> None:
    spec = write(tmp_path, IMAGES, channels)
    data = load_data(spec)
    assert (data.name, data.grid) == (spec, manifests.CANDIDATES[0])
    check_equal(data, in_memory(IMAGES, channels))


@pytest.mark.parametrize("count", [1, 256, 257])
def test_any_number_of_images(count: int, tmp_path: Path) -> None:
    data = load_data(parquet(tmp_path, count, 1))
    check_equal(data, in_memory(count, 1))
    check_equal(pickle.loads(pickle.dumps(data)), in_memory(count, 1))


def test_floats_and_their_grids(tmp_path: Path) -> None:
    for number, x in enumerate((np.arange(17) / 16, np.linspace(0, 1, 23), np.zeros(4), np.arange(257) / 256)):
        pixels = np.resize(x, (300, 1, 2, 3)).astype(np.float32)
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"x": pa.array(pixels.tolist()), "y": np.arange(300)}), path)
        memory = ImageSet("m", torch.from_numpy(pixels), torch.arange(300))
        check_equal(load_parquet(path), memory)
    rows = [(torch.full((1, 2, 2), float(value)), value) for value in range(300)]
    data = LazyImages(rows, "levels")
    assert (data.grid, data.extremes) == (find_grid(torch.arange(300.0)), (0.0, 299.0))


def test_large_images_have_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_BLOCK_PIXELS", 1 << 8)
    rows = [(torch.full((3, 7, 7), value / 8), value) for value in range(7)]
    data = LazyImages(rows, "large")
    assert len(data._manifest.hashes) == 7
    check_equal(data, ImageSet("m", torch.stack([x for x, _ in rows]), torch.arange(7)))


def test_manifest_is_kept_and_found_while_the_files_stay(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    make = manifests.make_manifest
    monkeypatch.setattr(manifests, "make_manifest", lambda *arguments: passes.append(1) or make(*arguments))
    spec = tar(tmp_path, 30)
    sha256 = load_data(spec).sha256
    assert load_data(spec).sha256 == sha256
    assert len(passes) == 1
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    broken = json.loads(whole.partition(b"\n")[2]) | {"block": 0}
    body = json.dumps(broken).encode()
    damaged = (b"", whole[:-1], whole.replace(b'"low"', b'"lov"'), b"[", *map(_signed, (body, b"[]", b"{}")))
    for content in damaged:
        kept.write_bytes(content)
        assert load_data(spec).sha256 == sha256
        assert kept.read_bytes() == whole
    assert len(passes) == 8
    path = tmp_path / "s-9.tar"
    os.utime(path, ns=(0, 0))
    assert load_data(spec).sha256 == sha256
    assert len(passes) == 9
    monkeypatch.setattr(manifests.metadata, "version", lambda _: "1.2.3")  # another decoder of JPEG
    assert load_data(spec).sha256 == sha256
    assert len(passes) == 10


def _signed(body: bytes) -> bytes:
    return manifests.hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_a_pass_whose_manifest_is_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manifests, "block_hash", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_data(parquet(tmp_path, 20))
    assert not cache.exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO):
        assert len(load_data(parquet(tmp_path, 20))) == 20
    assert "; the next load reads all images again" in caplog.text
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: (1 << 31) - 7)  # a user whom the system does not know
    assert len(load_data(parquet(tmp_path, 20))) == 20


@pytest.mark.parametrize("write", WRITERS)
def test_a_change_after_the_manifest_is_an_error(write: Callable[..., str], cache: Path, tmp_path: Path) -> None:
    spec = write(tmp_path, 300)
    data = load_data(spec)
    assert data.read([0])[1].tolist() == [int(labels(300)[0])]
    data = pickle.loads(pickle.dumps(data))
    path = min(path for path in tmp_path.glob("*.*") if path.suffix != ".json")
    before = path.stat()
    content = bytearray(path.read_bytes())
    if path.suffix == ".parquet":
        other = pq.read_table(path)
        changed = pa.array(9 - other[-1].to_numpy())
        pq.write_table(other.set_column(other.num_columns - 1, other.column_names[-1], changed), path)
    else:
        content[content.index(b"IDAT") + 40] ^= 255
        path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(FileFormatError, match=r": images 0 to 255 have changed since the manifest was made"):
            data.read([3])
    if path.stat().st_size == before.st_size:  # another load would find the manifest
        assert not list(cache.iterdir())


@pytest.mark.parametrize("write", WRITERS)
def test_truncated_files_are_refused_by_name(write: Callable[..., str], tmp_path: Path) -> None:
    spec = write(tmp_path, 40)
    last = max(path for path in tmp_path.glob("*.*") if path.suffix != ".json")
    content = last.read_bytes()
    lengths = {0, 1, 100, 511, 512, len(content) // 2, len(content) - 8, len(content) - 1}
    for length in sorted(lengths if write is not tar else lengths - {len(content) - 8, len(content) - 1}):
        last.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match=last.name):
            load_data(spec)


def test_damaged_files_raise_no_other_error(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    for write in WRITERS:
        folder = tmp_path / write.__name__
        folder.mkdir()
        spec = write(folder, 12)
        path = max(path for path in folder.glob("*.*") if path.suffix != ".json")
        content = path.read_bytes()
        for _ in range(25):
            damaged = bytearray(content)
            for offset in generator.integers(0, len(content), 3):
                damaged[offset] = generator.integers(256)
            path.write_bytes(damaged)
            with contextlib.suppress(FileFormatError):
                data = load_data(spec)
                data.read(range(len(data)))


def write_tar(path: Path, *members: tuple[str, bytes] | tuple[str, bytes, bytes]) -> Path:
    """Write members of these names and contents, and types that are not those of files."""
    with tarfile.open(path, "w") as file:
        for name, data, *kind in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.type, info.linkname = kind[0] if kind else tarfile.REGTYPE, "a.cls" if kind else ""
            file.addfile(info, io.BytesIO(data))
    return path


def pictures(*values: int, form: str = "PNG") -> list[bytes]:
    return [encode(np.full((3, 4, 5), value, np.uint8), form) for value in values]


def write_table(path: Path, content: Any) -> None:
    """Write a table as Parquet, or as a file of Arrow."""
    if path.suffix == ".parquet":
        pq.write_table(content, path)
    else:
        with pa.ipc.new_file(path, content.schema) as writer:
            writer.write_table(content)


LOADERS: dict[str, Callable[..., LazyImages]] = {"parquet": load_parquet, "arrow": load_hugging_face, "tar": load_tar}


def read(data: LabelledImages) -> list[tuple[int, int]]:
    """The level of the first pixel, and the label, of each image."""
    x, y = data.read(range(len(data)))
    return list(zip((x[:, 0, 0, 0] * 255).round().int().tolist(), y.tolist(), strict=True))


A, B, SEGMENTS = pictures(1, 2, 3)


PNG = ("a.png", A)
NO_CLASSES: dict[str, tuple[str, ...]] = {
    "cls": ("cat", "-1", "2147483648", ""),
    "json": (
        *(f'{{"label": {label}}}' for label in ('"cat"', "true", "-1", "36893488147419103232")),
        '{"label": 1, "cls": 2}',
        "[" * 100_000,
    ),
}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "expected 1 to"),
        ([PNG], "a: expected one picture .* got png"),
        ([("a.cls", b"1"), ("b.png", B), ("b.cls", b"1")], "a: expected one picture .* got cls"),
        ([PNG, ("b.png", B), ("a.cls", b"1"), ("b.cls", b"1")], "one after the other"),
        ([PNG, ("a.png", A), ("a.cls", b"1")], "a.png: expected it once"),
        ([PNG, ("a.cls", b"1"), ("a.txt", b""), ("a.txt", b"")], "a.txt: expected it once"),
        *(
            ([PNG, (f"a.{extension}", text.encode())], "number of a class")
            for extension, texts in NO_CLASSES.items()
            for text in texts
        ),
        ([PNG, ("a.cls", b"x"), ("a.json", b'{"label": 2}')], "number of a class"),
        ([PNG, ("a.cls", b"1"), ("a.json", b'{"label": 2}')], "got 1 in .cls and 2 in .json; choose one"),
        ([PNG, ("a.cls", b"1"), ("a.pyd", b"1")], "pickled data, which could run code"),
        ([PNG, ("a.cls", b"1"), ("a.meta.pickle", b"1")], "pickled data"),
        ([("a.png", b"PNG"), ("a.cls", b"1")], "a.png: not a readable PNG"),
        ([("a.cls", b"1"), ("a.png", b"", tarfile.SYMTYPE)], "link or special"),
        ([("a.cls", b"1"), ("a.png", b"", tarfile.LNKTYPE)], "link or special"),
        ([PNG, ("a.cls", b"1" * (1 << 20) + b"1")], "at most 1048576 bytes"),
        ([PNG, ("a.cls", b"1"), ("b.webp", b"x")], "b: expected one picture .* got webp"),
        ([PNG, ("a.cls", b"1"), ("notes.txt", b"x")], "notes: expected one picture .* got txt"),
        ([("a.seg.png", A), ("a.cls", b"1")], r"tar:PATTERN:seg.png, image='seg.png' of load_tar"),
        ([PNG, ("a.jpg", B), ("a.cls", b"1")], r"got png, jpg, cls.*tar:PATTERN:png, image='png' of load_tar"),
        ([PNG, ("a.cls", b"1"), ("b.png", B), ("b.cls", b"0")] * 2, "a: expected the members .* the key again"),
        ([(f"a.{i}.{suffix}", A) for i in range(2) for suffix in ("png", "cls")], "a: .* a key ends at the first dot"),
    ],
)
def test_samples_that_are_not_one_image_of_one_class(members: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        load_tar(write_tar(tmp_path / "a.tar", *members))


def test_members_of_a_sample_by_extension(tmp_path: Path) -> None:
    ordinary = [("d.x/a.seg.png", SEGMENTS), ("d.x/._a.png", b"x"), ("d.x/a.JPG", A), ("d.x/a.cls", b"1")]
    ordinary += [("README", b"x"), ("d.x/a.fine.cls", b"7"), ("d.x/a.json", b'{"width": 5}'), ("d.x/a.seg.json", b"[]")]
    path = write_tar(tmp_path / "a.tar", *ordinary, *((name.replace("a.", "b."), data) for name, data in ordinary))
    assert read(load_tar(path)) == [(1, 1)] * 2
    for data in (load_data(f"tar:{path}:seg.png"), load_tar(path, image="SEG.png", label="cls")):
        assert read(data) == [(3, 1)] * 2
    assert read(load_tar(path, label="fine.cls")) == [(1, 7)] * 2
    numbered = [("a.0.png", A), ("a.0.cls", b"4"), ("a.1.png", B), ("a.1.cls", b"5")]
    path = write_tar(tmp_path / "b.tar", *numbered)
    assert read(load_data(f"tar:{path}:0.png")) == [(1, 4)]
    assert read(load_data(f"tar:{path}:1.png")) == [(2, 5)]
    with pytest.raises(FileFormatError, match=r"expected .2.png and its class"):
        load_data(f"tar:{path}:2.png")
    for options in ({"image": "webp"}, {"image": "a/b.png"}, {"label": "txt"}):
        with pytest.raises(InputError, match=r"(image|label): expected an extension"):
            load_tar(path, **options)


@pytest.mark.parametrize("suffix", ["parquet", "tar"])
def test_no_file_of_a_folder_is_skipped(suffix: str, tmp_path: Path) -> None:
    def write(path: Path, value: int) -> None:
        (image,) = pictures(value)
        if suffix == "tar":
            write_tar(path, ("a.png", image), ("a.cls", b"1"))
        else:
            pq.write_table(pa.table({"img": [image], "label": [1]}), path)

    write(tmp_path / f"a.{suffix}", 1)
    write(tmp_path / f"b.{suffix.upper()}", 2)
    (tmp_path / "readme.md").touch()
    (tmp_path / f".a.{suffix}").touch()
    (tmp_path / "empty").mkdir()
    load = LOADERS[suffix]
    assert read(load(tmp_path)) == [(1, 1), (2, 1)]
    for name in (f"c.{suffix}.gz", {"tar": "c.tgz", "parquet": "c.pq"}[suffix], f"empty/c.{suffix}"):
        (tmp_path / name).touch()
        with pytest.raises(FileFormatError, match=f"expected (no )?.{suffix} files (only|in subfolders)"):
            load(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / f"c.{suffix}").symlink_to(tmp_path / f"a.{suffix}")
    for pattern in ("", f"*.{suffix}"):
        with pytest.raises(FileFormatError, match=f"c.{suffix}: expected each file once, got it twice, as .*/a"):
            load(tmp_path / pattern)
    (tmp_path / f"c.{suffix}").unlink()
    with pytest.raises(FileFormatError, match="got it twice"):
        load(tmp_path / f"{{a,*}}.{suffix}")
    with pytest.raises(FileFormatError, match=rf"z\*.{suffix}: expected .{suffix} files, found none"):
        load(tmp_path / f"{{a,z}}*.{suffix}")
    write(tmp_path / f"a-train.{suffix}", 1)
    write(tmp_path / f"a-Test.{suffix}", 1)
    with pytest.raises(FileFormatError, match="expected files of one split, got test, train"):
        load(tmp_path)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_files_of_one_set_have_the_same_columns_and_classes(form: str, tmp_path: Path) -> None:
    def write(name: str, names: list[str] | None = None, **columns: list[Any]) -> None:
        content = pa.table({"img": [A], "label": [1], **columns})
        if names is not None:
            features = {"label": {"names": names, "_type": "ClassLabel"}}
            content = content.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        write_table(tmp_path / name, content)

    load = LOADERS[form]
    write(f"a.{form}", ["cat", "dog"])
    write(f"b.{form}", ["cat", "dog"], other=[2])
    assert read(load(tmp_path)) == [(1, 1)] * 2
    for columns in ({"image": [B]}, {"labels": [0]}):
        write(f"b.{form}", ["cat", "dog"], **columns)
        with pytest.raises(FileFormatError, match=f"b.{form}: expected one of the columns"):
            load(tmp_path)
    for names in (["dog", "cat"], None):
        write(f"b.{form}", names)
        with pytest.raises(FileFormatError, match=f"b.{form}: expected the names of classes of .*a.{form}"):
            load(tmp_path)
    write(f"b.{form}", ["cat", "dog"])
    if form == "parquet":
        write_table(tmp_path / "a.parquet", pa.table({"image": [A], "label": [1]}).replace_schema_metadata({}))
        with pytest.raises(FileFormatError, match=r"expected the columns image and label of .*, got img and label"):
            load(tmp_path)


def test_arrow_files_that_are_not_one_set(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00002.arrow"}] * 2}))
    with pytest.raises(FileFormatError, match="expected each file once"):
        load_hugging_face(tmp_path)
    state.unlink()
    assert len(load_hugging_face(tmp_path)) == 20
    path = tmp_path / "data-00001-of-00002.arrow"
    path.rename(tmp_path / "cache-1a2b.arrow")
    with pytest.raises(FileFormatError, match="got a cache of datasets"):
        load_hugging_face(tmp_path)
    path = tmp_path / "data-00000-of-00002.arrow"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(FileFormatError, match="expected nothing after the end marker, got data"):
        load_hugging_face(path)


def test_tar_files_that_are_no_plain_set(tmp_path: Path) -> None:
    outside = [("../../x.png", A), ("../../x.cls", b"1"), ("/etc/y.png", A), ("/etc/y.cls", b"1")]
    before = sorted(tmp_path.parent.rglob("*.png"))
    assert len(load_tar(write_tar(tmp_path / "a.tar", *outside))) == 2  # names of members are no paths
    assert sorted(tmp_path.parent.rglob("*.png")) == before
    for mode, kind in (("w:gz", "gzip"), ("w:bz2", "bzip2"), ("w:xz", "xz")):
        with tarfile.open(tmp_path / "a.tar", mode) as file:
            file.addfile(tarfile.TarInfo("a.png"))
        with pytest.raises(FileFormatError, match=f"compressed with {kind}: unpack it"):
            load_tar(tmp_path / "a.tar")
    whole = write_tar(tmp_path / "a.tar", PNG, ("a.cls", b"1")).read_bytes()
    (tmp_path / "b.tar").write_bytes(2 * whole)
    with pytest.raises(FileFormatError, match="concatenated"):
        load_tar(tmp_path / "b.tar")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"img": [A]}, "expected one of the columns label"),
        ({"img": [A], "image": [A], "label": [1]}, "expected one of the columns image"),
        ({"img": [A], "label": ["cat"]}, "expected numbers of classes, got their names"),
        ({"img": [A, A], "label": [1, None]}, "expected a label for every image"),
        ({"img": [A], "label": [-1]}, "expected labels in"),
        ({"img": [A, None], "label": [1, 2]}, "expected the bytes of every picture"),
        ({"img": [{"bytes": None, "path": "/etc/passwd"}], "label": [1]}, "not looked up"),
        ({"img": ["/etc/passwd"], "label": [1]}, "expected PNG or JPEG files"),
        ({"img": [b"GIF89a"], "label": [1]}, "not a readable PNG or JPEG"),
        ({"img": [A, encode(np.zeros((3, 9, 9), np.uint8))], "label": [1, 2]}, "image 1: expected .* like image 0"),
        ({"img": [[[[0.5]]], [[[2.0]]]], "label": [1, 2]}, r"expected pixels in \[0, 1\]"),
        ({"img": [[[[1]]]], "label": [1]}, "divide other integers by their full scale"),
        ({"img": [[1.0, 0.5]], "label": [1]}, r"nested lists \[C\]"),
        ({"img": [[[[0.5]]], [[[0.5, 0.5]]]], "label": [1, 2]}, "of one size without gaps"),
        ({"img": [[[[0.5]]], [[[None]]]], "label": [1, 2]}, "of one size without gaps"),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_unusable_columns(columns: dict[str, list[Any]], message: str, form: str, tmp_path: Path) -> None:
    write_table(tmp_path / f"a.{form}", pa.table(columns))
    with pytest.raises(FileFormatError, match=message):
        LOADERS[form](tmp_path / f"a.{form}")


def test_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(20).append_column("coarse_label", pa.array(np.arange(20))), path)
    assert load_parquet(path, label="coarse_label").read([7])[1].tolist() == [7]
    assert load_parquet(path).read([7])[1].tolist() == [int(labels()[7])]
    columns = [pa.array([A]), pa.array([A]), pa.array([B]), pa.array([1])]
    pq.write_table(pa.Table.from_arrays(columns, names=["img", "img", "image", "label"]), path)
    with pytest.raises(FileFormatError, match="expected one of the columns image, img"):
        load_parquet(path)


STRINGS = [(form, kind) for form in ("parquet", "arrow") for kind in (pa.string(), pa.large_string())]


@pytest.mark.parametrize(("form", "kind"), [*STRINGS, ("parquet", pa.dictionary(pa.int8(), pa.string()))])
def test_names_of_classes_are_numbered_by_a_list(form: str, kind: Any, tmp_path: Path) -> None:
    names = pa.array(["dog", "cat", "dog"]).cast(kind)
    path, load = tmp_path / f"a.{form}", LOADERS[form]
    write_table(path, pa.table({"img": [A, B, A], "label": names}))
    for _ in range(2):  # the manifest of other classes is another one
        assert load(path, classes=["cat", "dog"]).read([0, 1, 2])[1].tolist() == [1, 0, 1]
        assert load(path, classes=["dog", "cat"]).read([0, 1, 2])[1].tolist() == [0, 1, 0]
    with pytest.raises(InputError, match=r"label: expected names among classes, 'cat', got 'dog'"):
        load(path, classes=["cat"])
    with pytest.raises(InputError, match="classes: expected a list of distinct names"):
        load(path, classes=["cat", "dog", "cat"])


def test_saved_hugging_face_sets(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    saved(tmp_path / "test", 20)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert load_data(f"hf:{tmp_path}").sha256 == load_data(f"hf:{tmp_path}:test").sha256 == in_memory(20).sha256
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "train", "../x"]}')
    for split in ("", ":../x", ":val"):
        with pytest.raises(InputError, match="expected one of the splits test, train"):
            load_data(f"hf:{tmp_path}{split}")
    state = tmp_path / "test/state.json"
    for content, message in (
        ('{"_data_files": [{"filename": "../../x.arrow"}]}', "list of files beside it"),
        ('{"_data_files": [{"filename": "a.arrow"}], "_indices_files": [1]}', "flatten_indices"),
        ('{"_data_files": []}', "list of files"),
        ("[]", "not a JSON object"),
    ):
        state.write_text(content)
        with pytest.raises(FileFormatError, match=message):
            load_data(f"hf:{tmp_path / 'test'}")


def test_sets_that_the_library_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets")
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    pictures = [{"bytes": encode(image), "path": None} for image in levels(40)]
    data = datasets.Dataset.from_dict({"img": pictures, "label": labels(40)}, features=features)
    check_equal(LazyImages(data, "pictures"), in_memory(40))
    datasets.DatasetDict(test=data).save_to_disk(str(tmp_path / "dict"))
    check_equal(load_data(f"hf:{tmp_path / 'dict'}:test"), in_memory(40))
    features = datasets.Features({"x": datasets.Array3D((3, 4, 5), "uint8"), "y": datasets.Value("int32")})
    arrays = datasets.Dataset.from_dict({"x": levels(40), "y": labels(40)}, features=features)
    arrays.save_to_disk(str(tmp_path / "arrays"))
    check_equal(load_data(f"hf:{tmp_path / 'arrays'}"), in_memory(40))
    arrays.to_parquet(str(tmp_path / "a.parquet"))
    check_equal(load_data(f"parquet:{tmp_path / 'a.parquet'}"), in_memory(40))


def test_patterns_of_files(tmp_path: Path) -> None:
    for name in ("a-9.tar", "a-10.tar", "b-9.tar"):
        write_tar(tmp_path / name, (f"{name[:-4]}.png", A), (f"{name[:-4]}.cls", b"1"))
    for pattern, names in (
        ("*.tar", ["a-9.tar", "a-10.tar", "b-9.tar"]),
        ("", ["a-9.tar", "a-10.tar", "b-9.tar"]),
        ("a-*.tar", ["a-9.tar", "a-10.tar"]),
        ("{a,b}-9.tar", ["a-9.tar", "b-9.tar"]),
    ):
        data = load_tar(tmp_path / pattern)
        assert (len(data), [path.name for path in data._source.files]) == (len(names), names)
    for pattern, error, message in (
        ("a-{09..11}.tar", FileFormatError, "a-09.tar: expected .tar files, found none"),
        ("c-*.tar", FileFormatError, "expected .tar files, found none"),
        ("{0..999999999999}.tar", InputError, "at most 100000 files"),
        ("{0..9999}{0..9999}.tar", InputError, "at most 100000 files"),
    ):
        with pytest.raises(error, match=message):
            load_tar(tmp_path / pattern)


def test_map_style_sets_must_repeat_their_rows() -> None:
    class Augmented:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.rand(1, 2, 2), index

    data = LazyImages(Augmented(), "augmented")
    with pytest.raises(FileFormatError, match="images 0 to 8: expected the rows that the first reading gave"):
        data.read([0])
    batches = [(torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64))]
    with pytest.raises(InputError, match="expected one image at each index, got 2"):
        LazyImages(batches, "batches")
    for wrong in (iter([]), "digits", 3):
        with pytest.raises(InputTypeError, match="expected a map-style data set"):
            LazyImages(wrong, "wrong")


def test_cache_is_bounded_and_not_pickled(tmp_path: Path) -> None:
    data = load_data(parquet(tmp_path))
    assert isinstance(data, LazyImages)
    data.read(range(0, IMAGES, 50))
    assert len(data._blocks) == 2
    assert len(pickle.dumps(data)) < 5000
    with pytest.raises(InputError, match="indices: expected 0 to 529, got 530"):
        data.read([530])


@pytest.mark.parametrize(("module", "extra"), [("pyarrow", "parquet"), ("PIL", "data")])
def test_missing_extras_are_named(module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parquet(tmp_path, 3)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pyrobust\[{extra}\]"):
        load_data(spec)


def test_the_default_dtype_changes_neither_images_nor_hashes() -> None:
    x, y = torch.arange(12.0).view(3, 1, 2, 2) / 255, torch.tensor([0, 1, 2])
    expected = ImageSet("set", x, y).sha256
    torch.set_default_dtype(torch.float64)
    try:
        images = LazyImages(torch.utils.data.TensorDataset(x, y), "set")
        assert images.sha256 == expected
        assert images.read([2])[0].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
