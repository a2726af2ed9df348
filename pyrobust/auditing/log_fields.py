"""Parse numbers in a column of a text block, vectorised over rows, so that logs of a million rows are read quickly.

All rows of a column are scanned at once, character by character. The digits of a field form an integer m, and d of them
follow the decimal point. If m < 2^53 and d <= 22, both m and 10^d are exact doubles. Then m / 10^d is rounded only
once, to the double that ``float`` returns (Clinger, 1990). Python parses all other fields one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import WORDS

IntArray = npt.NDArray[np.int64]

_MAX_SCANNED = 40  # characters of a field; Python parses longer ones
_MANTISSA_LIMIT = 10**17  # below it, one more decimal digit fits 64 bits
_EXACT = 1 << 53
_POWERS = np.array([10.0**d for d in range(23)])
_NUMBER = re.compile(r"[+-]?(\d+\.?(\d*)|\.(\d+))(e[+-]?\d{1,5})?", re.IGNORECASE | re.ASCII)
_INFINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TIME = re.compile(r"(?:(\d{1,9}) days?, )?(\d{1,9}):(\d{1,2}):(\d{1,2}(?:\.\d*)?)", re.ASCII)


@dataclass(frozen=True)
class Fields:
    """One column of a block of lines, as slices of its bytes.

    Attributes:
        name: name of the column, for messages.
        text: the block, uint8.
        start: offset of each field, [rows].
        length: bytes of each field, [rows].
        first_line: line number of the first row, for messages.
    """

    name: str
    text: npt.NDArray[np.uint8]
    start: IntArray
    length: IntArray
    first_line: int

    def __getitem__(self, row: int) -> str:
        """Return the text of one field."""
        start = int(self.start[row])
        return self.text[start : start + int(self.length[row])].tobytes().decode("utf-8", "replace")


@dataclass(frozen=True)
class _Scan:
    """The digits of each field of a column; valid only where ``plain`` is true."""

    mantissa: IntArray
    decimals: IntArray
    negative: npt.NDArray[np.bool_]
    sixties: IntArray
    colons: IntArray
    plain: npt.NDArray[np.bool_]


def _scan(fields: Fields) -> _Scan:
    rows = len(fields.start)
    mantissa, sixties = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    decimals, colons, digits = (np.zeros(rows, np.int8) for _ in range(3))
    point = np.zeros(rows, bool)
    plain = (fields.length > 0) & (fields.length <= _MAX_SCANNED)
    negative = np.zeros(rows, bool)
    last = len(fields.text) - 1
    for column in range(min(int(fields.length.max(initial=0)), _MAX_SCANNED)):
        inside = fields.length > column
        character = fields.text[np.minimum(fields.start + column, last)]
        value = character - np.uint8(ord("0"))  # wraps around below "0"
        digit = (value <= 9) & inside
        if column == 0:
            negative = (character == ord("-")) & inside
            other = inside & ~digit & ~negative
        else:
            other = inside & ~digit
        plain &= ~digit | (mantissa < _MANTISSA_LIMIT)
        mantissa = np.where(digit & (mantissa < _MANTISSA_LIMIT), 10 * mantissa + value, mantissa)
        decimals += digit & point
        digits += digit
        if other.any():
            dot = other & (character == ord(".")) & ~point
            colon = other & (character == ord(":")) & ~point & (digits > 0)
            point |= dot
            if colon.any():
                plain &= ~colon | ((mantissa < 10**9) & ((colons == 0) | (mantissa < 60)) & (digits < 10))
                sixties = np.where(colon, (sixties + np.minimum(mantissa, 10**9)) * 60, sixties)
                mantissa, digits = np.where(colon, 0, mantissa), np.where(colon, np.int8(0), digits)
                colons += colon
                plain &= colons <= 2
            plain &= ~(other & ~dot & ~colon)
    plain &= digits > 0
    # decimals: -1 without a decimal point.
    return _Scan(
        mantissa, np.where(point, decimals, -1).astype(np.int64), negative, sixties, colons.astype(np.int64), plain
    )


def parse_integers(fields: Fields, low: int) -> IntArray:
    """Parse integers [rows] from ``low`` to 2^32 - 1, also written as "3.0"; ValueError names the line of a bad field.

    >>> text = np.frombuffer(b"12 -1", np.uint8)
    >>> parse_integers(Fields("label", text, np.array([0, 3]), np.array([2, 2]), first_line=2), low=-1)
    array([12, -1])
    """
    scan = _scan(fields)
    values = np.where(scan.negative, -scan.mantissa, scan.mantissa)
    plain = scan.plain & (scan.decimals < 0) & (scan.colons == 0) & (values >= low) & (values < WORDS)

    def parse(text: str) -> int:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not (number.is_integer() and low <= number < WORDS):
            raise ValueError(f"expected an integer from {low} to {WORDS - 1}")
        return int(number)

    _parse_rest(fields, plain, parse, values)
    return values


def parse_reals(fields: Fields) -> tuple[npt.NDArray[np.float64], IntArray]:
    """Parse real numbers [rows] as ``float`` does (True and False as 1 and 0); also count the decimals of each.

    >>> text = np.frombuffer(b"0.0611 9.8e-05", np.uint8)
    >>> parse_reals(Fields("radius", text, np.array([0, 7]), np.array([6, 7]), first_line=2))
    (array([6.11e-02, 9.80e-05]), array([4, 6]))
    """
    scan = _scan(fields)
    plain = scan.plain & (scan.colons == 0)
    decimals = np.maximum(scan.decimals, 0)
    values = scan.mantissa / _POWERS[np.minimum(decimals, 22)]
    values = np.where(scan.negative, -values, values)
    exact = plain & (scan.mantissa < _EXACT) & (decimals <= 22)
    _parse_rest(fields, exact, _real, values)
    _parse_rest(fields, plain, _decimals, decimals)
    return values, decimals


def parse_times(fields: Fields) -> npt.NDArray[np.float64]:
    """Parse durations [rows], in seconds >= 0, from seconds, h:mm:ss or Python's "1 day, h:mm:ss".

    >>> text = np.frombuffer(b"14.5 1:01:15.5 1 day, 0:00:01", np.uint8)
    >>> parse_times(Fields("time", text, np.array([0, 5, 15]), np.array([4, 9, 14]), first_line=2))
    array([1.4500e+01, 3.6755e+03, 8.6401e+04])
    """
    scan = _scan(fields)
    decimals = np.maximum(scan.decimals, 0)
    last = scan.mantissa / _POWERS[np.minimum(decimals, 22)]
    values: npt.NDArray[np.float64] = scan.sixties + last
    plain = scan.plain & ~scan.negative & (scan.mantissa < _EXACT) & (decimals <= 22)
    plain &= (scan.colons == 0) | ((scan.colons == 2) & (last < 60))
    _parse_rest(fields, plain, _time, values)
    return values


def _real(text: str) -> float:
    if text in ("True", "False"):
        return float(text == "True")
    if not (_NUMBER.fullmatch(text) or _INFINITE.fullmatch(text)):
        raise ValueError("expected a number")
    return float(text)


def _decimals(text: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return 0
    exponent = int(match[4][1:]) if match[4] else 0
    return max(0, min(400, len(match[2] or match[3] or "") - exponent))


def _time(text: str) -> float:
    match = _TIME.fullmatch(text)
    if match is not None:
        days, hours, minutes, seconds = int(match[1] or 0), int(match[2]), int(match[3]), float(match[4])
        if minutes < 60 and seconds < 60:
            return ((24 * days + hours) * 60 + minutes) * 60 + seconds
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 <= number < math.inf:
        raise ValueError("expected seconds or h:mm:ss")
    return number


def _parse_rest(
    fields: Fields, done: npt.NDArray[np.bool_], parse: Callable[[str], float], values: npt.NDArray[Any]
) -> None:
    """Parse one by one the fields that are not parsed yet, and write them to ``values``."""
    for row in np.flatnonzero(~done).tolist():
        text = fields[row]
        try:
            values[row] = parse(text.strip(" ") if len(text) <= 10 * _MAX_SCANNED else text)
        except ValueError as error:
            raise ValueError(f"line {fields.first_line + row}: {fields.name}: {error}, got {text[:40]!r}") from None
