"""Numbers out of a block of text, all lines at once: what makes logs of a million rows quick to read.

A column is read character by character over all its rows: the digits go into one integer, m, and those behind the point
are counted, d. Where m < 2^53 and d <= 22 both m and 10^d are doubles, and m / 10^d is rounded once: the double that
``float`` gives (Clinger, 1990). Every other field goes through Python, one at a time.
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

_LONGEST = 40  # of a field that is read character by character
_FULL = 10**17  # a tenth more would no longer fit 64 bits
_EXACT = 1 << 53
_POWERS = np.array([10.0**d for d in range(23)])
_NUMBER = re.compile(r"[+-]?(\d+\.?(\d*)|\.(\d+))(e[+-]?\d{1,5})?", re.IGNORECASE | re.ASCII)
_INFINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TIME = re.compile(r"(?:(\d{1,9}) days?, )?(\d{1,9}):(\d{1,2}):(\d{1,2}(?:\.\d*)?)", re.ASCII)


@dataclass(frozen=True)
class Fields:
    """One column of a block of lines.

    Args:
        text: uint8, the block.
        start: [rows], where each field begins.
        length: [rows], its bytes.
        first_line: the line of the first row, for messages.
    """

    text: npt.NDArray[np.uint8]
    start: IntArray
    length: IntArray
    first_line: int

    def __getitem__(self, row: int) -> str:
        """The text of one field."""
        start = int(self.start[row])
        return self.text[start : start + int(self.length[row])].tobytes().decode("utf-8", "replace")


@dataclass(frozen=True)
class _Scan:
    """What the characters of a column say; worth nothing where not ``plain``."""

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
    plain = (fields.length > 0) & (fields.length <= _LONGEST)
    negative = np.zeros(rows, bool)
    last = len(fields.text) - 1
    for place in range(min(int(fields.length.max(initial=0)), _LONGEST)):
        inside = fields.length > place
        character = fields.text[np.minimum(fields.start + place, last)]
        value = character - np.uint8(ord("0"))  # wraps around below "0"
        digit = (value <= 9) & inside
        if place == 0:
            negative = (character == ord("-")) & inside
            other = inside & ~digit & ~negative
        else:
            other = inside & ~digit
        plain &= ~digit | (mantissa < _FULL)
        mantissa = np.where(digit & (mantissa < _FULL), 10 * mantissa + value, mantissa)
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
    # A point, and nothing or nothing but digits behind it.
    return _Scan(
        mantissa, np.where(point, decimals, -1).astype(np.int64), negative, sixties, colons.astype(np.int64), plain
    )


def parse_integers(fields: Fields, low: int) -> IntArray:
    """Whole numbers from ``low`` to 2^32 - 1; "3.0" is one.

    Args:
        fields: of the column.
        low: the least that is allowed.

    Returns:
        [rows].

    Raises:
        ValueError: a field is something else; the message names its line.

    >>> text = np.frombuffer(b"12 -1", np.uint8)
    >>> parse_integers(Fields(text, np.array([0, 3]), np.array([2, 2]), first_line=2), low=-1)
    array([12, -1])
    """
    found = _scan(fields)
    values = np.where(found.negative, -found.mantissa, found.mantissa)
    plain = found.plain & (found.decimals < 0) & (found.colons == 0) & (values >= low) & (values < WORDS)

    def one(text: str) -> int:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not (number.is_integer() and low <= number < WORDS):
            raise ValueError(f"expected a whole number from {low} to {WORDS - 1}")
        return int(number)

    _read_others(fields, plain, one, values)
    return values


def parse_reals(fields: Fields) -> tuple[npt.NDArray[np.float64], IntArray]:
    """Numbers of any sign, NaN and infinities among them; True and False are 1 and 0.

    Args:
        fields: of the column.

    Returns:
        The numbers as ``float`` reads them, and how many decimals each is written with, [rows] both.

    Raises:
        ValueError: a field is no number; the message names its line.

    >>> text = np.frombuffer(b"0.0611 9.8e-05", np.uint8)
    >>> parse_reals(Fields(text, np.array([0, 7]), np.array([6, 7]), first_line=2))
    (array([6.11e-02, 9.80e-05]), array([4, 6]))
    """
    found = _scan(fields)
    plain = found.plain & (found.colons == 0)
    decimals = np.maximum(found.decimals, 0)
    values = found.mantissa / _POWERS[np.minimum(decimals, 22)]
    values = np.where(found.negative, -values, values)
    exact = plain & (found.mantissa < _EXACT) & (decimals <= 22)
    _read_others(fields, exact, _real, values)
    _read_others(fields, plain, _decimals, decimals)
    return values, decimals


def parse_times(fields: Fields) -> npt.NDArray[np.float64]:
    """Durations in seconds, from seconds, h:mm:ss or "1 day, h:mm:ss", as Python prints a timedelta.

    Args:
        fields: of the column.

    Returns:
        [rows], at least 0.

    Raises:
        ValueError: a field is something else; the message names its line.

    >>> text = np.frombuffer(b"14.5 1:01:15.5 1 day, 0:00:01", np.uint8)
    >>> parse_times(Fields(text, np.array([0, 5, 15]), np.array([4, 9, 14]), first_line=2))
    array([1.4500e+01, 3.6755e+03, 8.6401e+04])
    """
    found = _scan(fields)
    decimals = np.maximum(found.decimals, 0)
    last = found.mantissa / _POWERS[np.minimum(decimals, 22)]
    values: npt.NDArray[np.float64] = found.sixties + last
    plain = found.plain & ~found.negative & (found.mantissa < _EXACT) & (decimals <= 22)
    plain &= (found.colons == 0) | ((found.colons == 2) & (last < 60))
    _read_others(fields, plain, _time, values)
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


def _read_others(
    fields: Fields, done: npt.NDArray[np.bool_], one: Callable[[str], float], values: npt.NDArray[Any]
) -> None:
    """Fills in the values of the fields that are not done."""
    for row in np.flatnonzero(~done).tolist():
        text = fields[row]
        try:
            values[row] = one(text.strip(" ") if len(text) <= 10 * _LONGEST else text)
        except ValueError as error:
            raise ValueError(f"line {fields.first_line + row}: {error}, got {text[:40]!r}") from None
