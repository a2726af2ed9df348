"""Labelled images in Parquet files, and in Arrow files written by Hugging Face's ``save_to_disk``."""

from __future__ import annotations

import io
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError, PyrobustError, extra
from pyrobust.zoo.folder import read_picture
from pyrobust.zoo.lazy.images import LazyImages
from pyrobust.zoo.lazy.source import ImageSource, Position, Row, find_files
from pyrobust.zoo.rows import IMAGE_KEYS, LABEL_KEYS, checked_classes, numbered
from pyrobust.zoo.untrusted import as_labels, as_nchw, as_pixels, check_distinct

# Number of rows decoded at once.
_ROWS = 64
# Bytes by which a column of a row group is read, and most bytes of an Arrow record batch.
_BUFFER, _MAX_BATCH = 1 << 20, 1 << 30
_MAX_JSON = 1 << 24
_MAX_AXES = 4
_END = b"\xff\xff\xff\xff\0\0\0\0"


def load_parquet(
    path: str | Path,
    name: str | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
) -> LazyImages:
    """Read images from Parquet files on demand, row group by row group. Needs the extra ``parquet``.

    Images are PNG or JPEG files, or nested lists. The image files are stored in a binary column, or in Hugging Face's
    type Image, a struct with the field "bytes". These files have 8 bits, are all grey or all RGB, and need Pillow (the
    extra ``data``). The lists [C][H][W] or [H][W] hold uint8 values, which are divided by 255, or floats in [0, 1].
    Labels are integers. All images have the same shape. Reading out of order is fastest with row groups of a few
    hundred images.

    Args:
        path: a file, a folder (all its .parquet files), or a pattern such as ``data/test-*.parquet``.
        name: name of the set. By default, it is the path.
        image: column of the images. By default, it is the column named "image", "img", "pixel_values" or "x".
        label: column of the labels. By default, it is the column named "label", "labels", "y" or "cls".
        classes: if the labels are names, the names of all classes, in the order of the model's outputs.

    Raises:
        FileFormatError: a file is missing or damaged, or a column is missing or has values of another kind.
        InputError: ``classes`` are not distinct names, or a label is not one of them.
        MissingExtraError: pyarrow, or Pillow for pictures, is missing.

    >>> load_parquet("/nowhere.parquet")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: /nowhere.parquet: expected .parquet files, found none; check the path
    """
    return LazyImages(_ParquetSource(find_files(path, ".parquet"), image, label, classes), name or str(path))


def load_hugging_face(
    path: str | Path,
    split: str | None = None,
    name: str | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
) -> LazyImages:
    """Read images of a saved Hugging Face data set on demand. Needs pyarrow (the extra ``parquet``).

    The columns are as for `load_parquet`. The package ``datasets`` is not needed.

    Args:
        path: a folder written by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``, an Arrow file, or a pattern.
        split: split of a ``DatasetDict``. By default, it is the only split.
        name: name of the set. By default, it is the path.
        image: column of the images; the default is as for `load_parquet`.
        label: column of the labels; the default is as for `load_parquet`.
        classes: as for `load_parquet`.

    Raises:
        InputError: the split is missing, ``classes`` are not distinct names, or a label is not one of them.
        FileFormatError: a file is missing or damaged, or a column is missing or has values of another kind.
        MissingExtraError: pyarrow, or Pillow for pictures, is missing.

    >>> load_hugging_face("/nowhere")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: /nowhere: expected .arrow files, found none; check the path
    """
    files = _saved_files(Path(path), split)
    return LazyImages(_ArrowSource(files, image, label, classes), name or f"{path}{f':{split}' if split else ''}")


def _saved_files(path: Path, split: str | None) -> tuple[Path, ...]:
    """Return the Arrow files of a data set that Hugging Face saved, or the Arrow files that a pattern names."""
    splits = _json(path / "dataset_dict.json").get("splits")
    if isinstance(splits, list):
        if split is None and len(splits) == 1:
            split = splits[0]
        if split is None or split not in splits or not _is_plain(split):
            raise InputError("data", f"one of the splits {', '.join(map(str, splits))}", split, where=path)
        path = path / split
    elif split is not None:
        raise InputError("data", f"a DatasetDict with the split {split!r}", "no dataset_dict.json", where=path)
    state = _json(path / "state.json")
    if not state:
        if path.is_dir() and any(path.glob("*.parquet")):
            raise FileFormatError(f"{path}: expected a folder of save_to_disk, got Parquet files; use parquet:{path}")
        files = find_files(path, ".arrow")
        cached = [file for file in files if file.name.startswith("cache-")]
        if len(files) > 1 and cached and path.is_dir():  # files that the package datasets caches for map and filter
            raise FileFormatError(
                f"{cached[0]}: expected the files of one data set, got a cache of datasets; save the data set with "
                "save_to_disk, or name one file"
            )
        return files
    entries = state.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or [None]]
    if state.get("_indices_files") or state.get("_indices_data_files") or not all(map(_is_plain, names)):
        raise FileFormatError(
            f"{path / 'state.json'}: expected a list of files beside it, without a file of indices; load it with "
            "datasets, call flatten_indices() and save it again"
        )
    files = tuple(file for name in names for file in find_files(path / str(name), ".arrow"))
    check_distinct(files)
    return files


def _is_plain(name: object) -> bool:
    """Whether a value read from a file is the plain name of a file or folder in the same folder, not a path."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if the file is missing."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_JSON))
        if not isinstance(content, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not a JSON object ({error}); save the data set again") from error
    return content


class _TableSource(ImageSource):
    """Images and labels in two table columns; a position names a row group by number or a record batch by offset."""

    kind: str

    def __init__(
        self, files: tuple[Path, ...], image: str | None, label: str | None, classes: Sequence[str] | None
    ) -> None:
        self.files = files
        self._names = checked_classes(classes)
        self.options = (self.kind, image or "", label or "", *(classes or ()))
        self._requested = image, label
        self.image, self.label, self._classes = self._columns(files[0])

    def _columns(self, path: Path) -> tuple[str, str, object]:
        """Return the names of the columns of images and labels, and the class names if Hugging Face stored them."""
        with _reading(path):
            schema = self._schema(path)
        image = _column(schema.names, self._requested[0], IMAGE_KEYS, path)
        label = _column(schema.names, self._requested[1], LABEL_KEYS, path)
        return image, label, _class_names(schema.metadata, label)

    def count(self) -> int:
        """Add up the numbers of rows; raise FileFormatError unless all files have the same columns and classes."""
        total = 0
        for path in self.files:
            image, label, classes = self._columns(path)
            if (image, label) != (self.image, self.label):
                raise FileFormatError(
                    f"{path}: expected the columns {self.image} and {self.label} of {self.files[0]}, got {image} and "
                    f"{label}; name the columns, or write all files with the same"
                )
            if classes != self._classes:
                raise FileFormatError(
                    f"{path}: expected the names of classes of {self.files[0]}, in their order, got others; write all "
                    "files with one numbering of the classes"
                )
            with _reading(path):
                total += self._count(path)
        return total

    @abstractmethod
    def _schema(self, path: Path) -> Any:
        """Return the Arrow schema of a file."""

    @abstractmethod
    def _count(self, path: Path) -> int:
        """Return the number of rows of a file."""

    @abstractmethod
    def _batches(self, path: Path, start: int, skip: int) -> Iterator[tuple[int, int, Any]]:
        """Yield batches from group ``start`` on, each with its row group or record batch and its first row there."""

    def rows(self, position: Position, rounded: Callable[[Tensor], None] | None = None) -> Iterator[Row]:
        """Yield the rows from ``position`` onwards."""
        _, start, skip = position
        for number in range(position[0], len(self.files)):
            path = self.files[number]
            with _reading(path):
                for group, first, batch in self._batches(path, start, skip):
                    begin = max(0, skip - first) if group == start else 0
                    if begin >= len(batch):
                        continue
                    tail = batch.slice(begin)
                    where = f"{path}: {self.kind} {group}, rows from {first + begin}"
                    labels = _labels(tail.column(self.label), f"{where}: {self.label}", self._names)
                    images = _images(tail.column(self.image), f"{where}: {self.image}", rounded)
                    for row, x in enumerate(images):
                        yield (number, group, first + begin + row), x, labels[row]
            start = skip = 0


class _ParquetSource(_TableSource):
    kind = "row group"

    def _schema(self, path: Path) -> Any:
        with _parquet(path) as file:
            return file.schema_arrow

    def _count(self, path: Path) -> int:
        with _parquet(path) as file:
            rows: int = file.metadata.num_rows
            return rows

    def _batches(self, path: Path, start: int, skip: int) -> Iterator[tuple[int, int, Any]]:
        with _parquet(path) as file:
            for group in range(start, file.metadata.num_row_groups):
                first = 0
                columns = [self.image, self.label]
                for batch in file.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False):
                    yield group, first, batch
                    first += len(batch)


class _ArrowSource(_TableSource):
    kind = "record batch at offset"

    def _schema(self, path: Path) -> Any:
        import pyarrow as pa

        with pa.OSFile(str(path)) as file:
            return _schema(file)

    def _count(self, path: Path) -> int:
        return sum(len(batch) for _, batch in _record_batches(path, 0))

    def _batches(self, path: Path, start: int, skip: int) -> Iterator[tuple[int, int, Any]]:
        for offset, batch in _record_batches(path, start):
            for first in range(0, len(batch), _ROWS):
                yield offset, first, batch.slice(first, _ROWS)


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)


def _schema(file: Any) -> Any:
    """Read the schema at the start of an Arrow stream; in Arrow's file format, the stream begins after eight bytes."""
    import pyarrow as pa

    file.seek(8 if file.read(6) == b"ARROW1" else 0)
    return pa.ipc.read_schema(pa.ipc.read_message(file))


def _record_batches(path: Path, offset: int) -> Iterator[tuple[int, Any]]:
    """Yield each record batch with its offset, starting at ``offset``, or at the first one if ``offset`` is 0."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:
        has_footer = file.read(6) == b"ARROW1"
        file.seek(0)
        schema = _schema(file)
        if offset:
            file.seek(offset)
        while True:
            offset = file.tell()
            begin = file.read(8)
            if begin == _END:
                if not has_footer and file.tell() < file.size():
                    raise FileFormatError(
                        f"{path}: offset {offset}: expected nothing after the end marker, got data, as of concatenated "
                        "streams; keep the streams in files of their own"
                    )
                return
            file.seek(offset)
            if len(begin) < 8:
                raise FileFormatError(f"{path}: offset {offset}: ends without an end marker; it is truncated")
            message = pa.ipc.read_message(file)
            if message.type != "record batch":
                raise FileFormatError(f"{path}: offset {offset}: expected plain columns, got a {message.type}")
            if file.tell() - offset > _MAX_BATCH:
                raise FileFormatError(
                    f"{path}: offset {offset}: expected record batches of at most {_MAX_BATCH} bytes, got "
                    f"{file.tell() - offset}; save smaller ones (writer_batch_size=1000)"
                )
            yield offset, pa.ipc.read_record_batch(message, schema)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn pyarrow's exceptions on damaged files into a FileFormatError."""
    with extra("parquet", "data: Parquet and Arrow files need pyarrow"):
        import pyarrow as pa
    try:
        yield
    except (GeneratorExit, PyrobustError):  # a stream may be closed as the interpreter ends
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, KeyError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileFormatError(f"{path}: not readable ({reason}); the file is truncated or damaged") from error


def _column(names: list[str], wanted: str | None, usual: tuple[str, ...], path: Path) -> str:
    matching = [name for name in ((wanted,) if wanted else usual) if name in names]
    if len(matching) != 1 or names.count(matching[0]) != 1:
        raise FileFormatError(
            f"{path}: expected one of the columns {wanted or ', '.join(usual)}, found {', '.join(names)[:200]}; name "
            "the column with image= or label= of load_parquet or load_hugging_face"
        )
    return matching[0]


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> object:
    """Return the class names that Hugging Face's datasets wrote into a schema; None if there are none."""
    try:
        names: object = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return names


def _storage(column: Any) -> Any:
    """Return the column's storage array, fully checked, because offsets and sizes in a file may point anywhere."""
    import pyarrow as pa

    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    column.validate(full=True)
    return column


def _labels(column: Any, where: str, classes: Sequence[str] | None) -> list[int]:
    import pyarrow as pa

    column = _storage(column)
    if column.null_count:
        raise FileFormatError(f"{where}: expected a label for every image, got none for some; remove these rows")
    if classes is not None:
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return list(map(int, numbered(np.array(column.to_pylist(), object), classes, where)))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        raise FileFormatError(f"{where}: expected numbers of classes, got their names; pass classes= of the loader")
    labels: list[int] = as_labels(_numbers(column, where), where).tolist()
    return labels


def _numbers(column: Any, where: str) -> npt.NDArray[Any]:
    import pyarrow as pa

    if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        raise FileFormatError(f"{where}: expected numbers, got {column.type}; save them as integers or floats")
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers


def _images(column: Any, where: str, rounded: Callable[[Tensor], None] | None) -> Iterator[Tensor]:
    """Yield the images of a column, float32 [C, H, W]."""
    import pyarrow as pa

    column = _storage(column)
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pa.compute.struct_field(column, "bytes")
    if column.null_count:
        raise FileFormatError(
            f"{where}: expected the bytes of every picture, got none for some; pictures that a column only names by "
            "path are not looked up: embed them"
        )
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        for row, value in enumerate(column):
            picture = read_picture(io.BytesIO(value.as_buffer()), f"{where}, picture {row}")
            yield as_pixels(np.moveaxis(picture, -1, 0), where)
        return
    sizes = [len(column)]
    while (
        pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)
    ):
        lengths = pa.compute.unique(pa.compute.list_value_length(column))
        column = column.flatten()
        if len(lengths) != 1 or column.null_count or len(sizes) == _MAX_AXES:
            raise FileFormatError(
                f"{where}: expected lists [C][H][W] or [H][W] of one size without gaps, got others; resize the images"
            )
        sizes.append(lengths[0].as_py())
    if len(sizes) < 3 or len(column) != math.prod(sizes):
        raise FileFormatError(
            f"{where}: expected PNG or JPEG files, or nested lists [C][H][W] or [H][W] of numbers, got {column.type} "
            f"{sizes[1:]}"
        )
    yield from as_nchw(as_pixels(_numbers(column, where).reshape(sizes), where, rounded=rounded), where)
