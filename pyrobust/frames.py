"""Results as data frames, as dictionaries, and as HTML tables in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobust.errors import extra

if TYPE_CHECKING:
    import pandas as pd

# Rows of a notebook's table; to_pandas has all of them.
_MOST_ROWS = 10


class Tabular:
    """Base class of results that have columns of equal length.

    >>> class Radii(Tabular):
    ...     def _columns(self):
    ...         return {"index": [0, 1], "radius": [0.25, 0.5]}
    >>> Radii().to_pandas().radius.tolist()
    [0.25, 0.5]
    """

    def _columns(self) -> Mapping[str, Any]:
        """Return the columns by name; each subclass defines its own."""
        raise NotImplementedError

    def _attributes(self) -> Mapping[str, Any]:
        """Return the values that apply to all rows, by name."""
        return {}

    def to_pandas(self) -> pd.DataFrame:
        """Return the columns as a data frame, whose ``attrs`` hold the parameters that the columns depend on.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with extra("pandas", "to_pandas: needs pandas"):
            import pandas as pd
        frame = pd.DataFrame(dict(self._columns()))
        frame.attrs.update(self._attributes())
        return frame

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the ``repr``, and below it a table of the first rows."""
        columns = self._columns()
        total = max(map(len, columns.values()), default=0)
        rows = list(zip(*(_first(column) for column in columns.values()), strict=True))
        more = f"<p>{len(rows)} of {total:,} rows</p>" if total > len(rows) else ""
        return f"<p><code>{html.escape(repr(self))}</code></p>{html_table(list(columns), [rows])}{more}"


def plain_fields(self) -> dict[str, Any]:  # type: ignore[no-untyped-def] # a method, with the signature of one
    """Convert to a dictionary of all fields, with tensors and arrays as lists."""
    return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else plain_fields(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def columns_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return a dictionary that maps each attribute name to the list of its values, one value for each row.

    >>> columns_of([1 + 2j, 3j], ["real", "imag"])
    {'real': [1.0, 0.0], 'imag': [2.0, 3.0]}
    """
    return {name: [getattr(row, name) for row in rows] for name in names}


def html_table(names: Sequence[str], sections: Sequence[Sequence[Sequence[Any]]]) -> str:
    """Write a table as HTML, with every text escaped.

    Args:
        names: names of the columns.
        sections: groups of rows; each group becomes one ``tbody`` of the table.

    >>> html_table(["<radius>"], [[(0.25,)]])
    '<table><thead><tr><th>&lt;radius&gt;</th></tr></thead><tbody><tr><td>0.25</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    bodies = "".join(f"<tbody>{''.join(map(_row, section))}</tbody>" for section in sections)
    return f"<table><thead><tr>{head}</tr></thead>{bodies}</table>"


def _row(cells: Sequence[Any]) -> str:
    return f"<tr>{''.join(f'<td>{html.escape(_text(cell))}</td>' for cell in cells)}</tr>"


def _text(cell: Any) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _first(column: Any) -> list[Any]:
    values = column[:_MOST_ROWS]
    return list(values.tolist() if isinstance(values, np.ndarray) else values)
