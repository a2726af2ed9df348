"""Columns of a run's tables, each with its SQL type, decoder, encoder and range test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pyrobust.checks import WORDS
from pyrobust.errors import InputError
from pyrobust.late import numpy as np
from pyrobust.runs.kinds.values import is_name, parse_json

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"

#: Decimals of a printed radius.
RADIUS_DECIMALS = 6
# This context represents every double exactly, so that a radius is rounded only once, downward.
_EXACT = Context(prec=400)


class Column:
    """A column of a table.

    Attributes:
        sql: SQL type, as in the CREATE statement.
        fault: description of a value out of range; in this text, "{name}" stands for the column's name.
    """

    sql: ClassVar[str]
    python: ClassVar[type[Any]]
    dtype: ClassVar[str]
    fault = "a {name} out of range"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault or self.fault

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        """Whether values are in range, as one bool for all values or one bool for each value."""
        return True

    def decode(self, name: str, values: Sequence[Any]) -> Array:
        """Convert untrusted SQLite values to an array; raise ValueError for wrong types and infinite numbers."""
        if not set(map(type, values)) <= {self.python}:
            raise ValueError(f"column {name}: expected values of type {self.python.__name__}")
        return np.array(values, dtype=self.dtype)

    def encode(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Convert values so that SQLite returns them bit for bit; raise InputError for values that cannot be stored."""
        return list(map(self.python, values))

    def log(self, values: Array) -> list[Any]:
        """Return values as they appear in a text log."""
        texts: list[Any] = values.tolist()
        return texts


class Integer(Column):
    """64-bit integers."""

    sql, python, dtype = "INTEGER NOT NULL", int, "int64"

    def encode(self, name: str, values: Sequence[Any]) -> list[Any]:
        return values.astype(np.int64).tolist() if isinstance(values, np.ndarray) else list(map(int, values))


class Index(Integer):
    """The 32-bit data-set index of an image; the primary key."""

    sql = "INTEGER PRIMARY KEY"

    def decode(self, name: str, values: Sequence[Any]) -> Array:
        indices = super().decode(name, values)
        if len(indices) and not (indices.min() >= 0 and indices.max() < WORDS):
            raise ValueError(f"column {name}: expected image indices of 32 bits")
        return indices

    def encode(self, name: str, values: Sequence[Any]) -> list[Any]:
        indices = super().encode(name, values)
        if indices and not (min(indices) >= 0 and max(indices) < WORDS):
            raise InputError(f"store: {name}", "image indices from 0 to 2**32 - 1", f"{min(indices)} to {max(indices)}")
        return indices


class Label(Integer):
    """A class of the data set."""

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return (values >= 0) & (values < parameters["num_classes"])


class Prediction(Integer):
    """A class, or -1 for an abstention or for logits without a finite maximum."""

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return (values >= -1) & (values < parameters["num_classes"])


class FlagColumn(Integer):
    """0 or 1."""

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return np.isin(values, (0, 1))


class Text(Column):
    """Text without restrictions on its value."""

    sql, python, dtype = "TEXT NOT NULL", str, "str"


class Name(Text):
    """The name of an attack, or "" for none."""

    fault = "an invalid attack name in {name}"

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return all(is_name(name) for name in set(values.tolist()) - {""})


class Real(Column):
    """Finite numbers, float64."""

    sql, python, dtype = "REAL NOT NULL", float, "float64"

    def decode(self, name: str, values: Sequence[Any]) -> Array:
        numbers = super().decode(name, values)
        if not np.isfinite(numbers).all():
            raise ValueError(f"column {name}: expected finite numbers")
        return numbers

    def encode(self, name: str, values: Sequence[Any]) -> list[Any]:
        array = np.asarray(values, dtype=np.float64)
        # SQLite would store NaN as NULL, so NaN is refused.
        if not np.isfinite(array).all():
            shown = array[~np.isfinite(array)][0]
            raise InputError(f"store: {name}", "finite numbers", shown, "the results are not stored")
        numbers: list[Any] = (array + 0.0).tolist()  # SQLite stores -0.0 as 0
        return numbers


class OptionalReal(Real):
    """Finite numbers, or NULL, which is read as ``missing``."""

    sql = "REAL"

    def __init__(self, missing: float = math.nan) -> None:
        super().__init__()
        self._missing = missing

    def decode(self, name: str, values: Sequence[Any]) -> Array:
        present = super().decode(name, [value for value in values if value is not None])
        numbers = np.full(len(values), self._missing)
        numbers[[value is not None for value in values]] = present
        return numbers

    def encode(self, name: str, values: Sequence[Any]) -> list[Any]:
        if None not in values:
            return super().encode(name, values)
        present = iter(super().encode(name, [value for value in values if value is not None]))
        return [None if value is None else next(present) for value in values]

    def log(self, values: Array) -> list[Any]:
        return [value if math.isfinite(value) else "" for value in values.tolist()]


class Seconds(Real):
    """Durations."""

    fault = "a negative time"

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return values >= 0


class Probability(Real):
    """Probabilities."""

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return (values >= 0) & (values <= 1)


class Radius(Real):
    """Certified radii, rounded down in text logs."""

    def in_range(self, values: Array, parameters: dict[str, Any]) -> Any:
        return values >= 0

    def log(self, values: Array) -> list[Any]:
        return list(map(format_radius, values.tolist()))


class Votes(Text):
    """Histograms of votes, as JSON objects that omit classes without votes.

    Args:
        samples: name of the parameter that fixes the number of samples; "" if no parameter fixes it.
        optional: whether an image may have no votes at all.
    """

    def __init__(self, samples: str, *, optional: bool = False) -> None:
        super().__init__()
        self.samples, self.optional = samples, optional

    def encode(self, name: str, values: Sequence[Any]) -> list[Any]:
        return encode_histograms(np.asarray(values))


class ExampleColumn(Column):
    """Adversarial examples (`pyrobust.runs.examples`)."""

    sql, python = "BLOB NOT NULL", bytes


def format_radius(radius: float) -> str:
    """Format a radius with six decimals, rounded down, so that it never exceeds what was proved.

    >>> format_radius(0.9999999), format_radius(0.25)
    ('0.999999', '0.250000')
    """
    return f"{Decimal(radius).quantize(Decimal(1).scaleb(-RADIUS_DECIMALS), ROUND_FLOOR, _EXACT):f}"


def encode_histograms(counts: npt.NDArray[np.int64]) -> list[str]:
    """Encode votes [N, K+1] as JSON objects without the classes that have no votes; the last column counts NaN outputs.

    >>> encode_histograms(np.array([[0, 97, 0, 3], [100, 0, 0, 0]]))
    ['{"1":97,"nan":3}', '{"0":100}']
    """
    if not counts.size:
        return ["{}"] * len(counts)
    last = counts.shape[1] - 1
    image, column = np.nonzero(counts)
    names = [
        f'"{k}":{v}' if k != last else f'"nan":{v}'
        for k, v in zip(column.tolist(), counts[image, column].tolist(), strict=True)
    ]
    stops = np.cumsum(np.count_nonzero(counts, axis=1)).tolist()
    return [f"{{{','.join(names[start:stop])}}}" for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def decode_counts(text: str, num_classes: int) -> dict[int, int]:
    """Decode an untrusted histogram to {column: votes}, with "nan" as the last column; raise ValueError if malformed.

    >>> decode_counts('{"1":97,"nan":3}', 3)
    {1: 97, 3: 3}
    """
    histogram = parse_json(text)
    if not isinstance(histogram, dict):
        raise ValueError("not a histogram")
    counts: dict[int, int] = {}
    for name, votes in histogram.items():
        if name != "nan" and not (name.isascii() and name.isdigit() and len(name) < 12 and int(name) < num_classes):
            raise ValueError(f"invalid class {name[:20]!r}")
        if type(votes) is not int or not 0 < votes <= WORDS:
            raise ValueError(f"invalid number of votes for class {name}")
        counts[num_classes if name == "nan" else int(name)] = votes
    return counts


def decode_histograms(texts: npt.NDArray[np.str_], num_classes: int) -> npt.NDArray[np.int64]:
    """Decode untrusted histograms to votes, int64 [N, K+1]; raise ValueError if one is malformed.

    >>> decode_histograms(np.array(['{"1":97,"nan":3}']), 3)
    array([[ 0, 97,  0,  3]])
    """
    counts = np.zeros((len(texts), num_classes + 1), dtype=np.int64)
    for row, text in zip(counts, texts.tolist(), strict=True):
        for column, votes in decode_counts(text, num_classes).items():
            row[column] = votes
    return counts
