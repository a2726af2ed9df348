"""Make verdicts from the values of untrusted files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.threats.verdicts import ThreatVerdict

_TRUE = ("true", "1", "1.0", "yes")
_FALSE = ("false", "0", "0.0", "no")


def verdict(where: str, **values: Any) -> ThreatVerdict:
    """Make a verdict from JSON values; integers become floats where floats are expected. Errors name ``where``."""
    for name in ("score", "cost"):
        if type(values.get(name)) is int:
            values[name] = number(values[name], f"{where}: {name}")
    try:
        return ThreatVerdict(**values)
    except (InputError, InputTypeError) as error:
        raise FileFormatError(f"{where}: {error}") from error
    except TypeError as error:
        raise FileFormatError(f"{where}: id: expected a string, got nothing") from error


def named_field(name: str, where: str, *holders: dict[str, Any]) -> str:
    """Return the text of a field, from the first object that has the field; dots in the name lead to nested fields."""
    for holder in holders:
        value: Any = holder
        for step in [name] if name in holder else name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, dict | list) and str(value):
            return str(value)
    present = ", ".join(sorted({str(key)[:40] for holder in holders for key in holder})[:20])
    raise FileFormatError(f"{where}: {name}: expected a text or a number, got none; fields here: {present or 'none'}")


def number(value: Any, where: str) -> float | None:
    """Convert a JSON number, or text that holds a number, to a float; None for null and empty text."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):  # only Python takes these for numbers
        raise FileFormatError(f"{where}: expected a number, got {value[:40]!r}")
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else _fail(value)
    except (ValueError, OverflowError):
        raise FileFormatError(f"{where}: expected a number, got {str(value)[:40]!r}") from None


def count(value: Any, where: str) -> int | None:
    """Convert a JSON number, or text that holds a number, to an integer; None for null and empty text."""
    parsed = number(value, where)
    if parsed is None:
        return None
    if not parsed.is_integer() or abs(parsed) > 1 << 53:
        raise FileFormatError(f"{where}: expected an integer, got {str(value)[:40]!r}")
    return int(parsed)


def truth(value: Any, where: str) -> bool | None:
    """Return True, False or None from a JSON value or its text; empty text is None."""
    if value is None or isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("", "none", "nan", "null"):
        return None
    if text not in _TRUE + _FALSE:
        raise FileFormatError(f"{where}: expected true, false or nothing, got {str(value)[:40]!r}")
    return text in _TRUE


def numbered(rows: Iterable[ThreatVerdict]) -> list[ThreatVerdict]:
    """Number the attempts at each prompt, in the order of the rows."""
    seen: Counter[tuple[str, ...]] = Counter()
    result = []
    for row in rows:
        key = (row.model, row.group, row.threat, row.behaviour, row.prompt, row.judge)
        result.append(replace(row, attempt=seen[key]))
        seen[key] += 1
    return result


def _fail(value: Any) -> float:
    raise ValueError(value)
