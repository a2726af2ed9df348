"""Tables, rendered for the terminal, a page, a paper, a spreadsheet or a program."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Literal, TypeAlias

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from pyrobust.checks import choice
from pyrobust.errors import InputError
from pyrobust.frames import Tabular, html_table

# Enough digits to represent every double exactly.
_EXACT = Context(prec=400)
# Smallest width of a column on a narrow terminal, even if its contents need less.
_NARROWEST = 12


@dataclass(frozen=True)
class Quantity:
    """A number in a table: rounded in text (``str(quantity)``), exact in CSV and JSON.

    Attributes:
        value: the number; NaN if it is undefined.
        lower, upper: ends of its interval, rounded outward in text; None if it has no interval.
        digits: decimal places in text.
        percent: whether the text is in percent; the value stays a share.
        down: whether the value is a lower bound; it is then rounded down in text.
        text: the text to show; if None, the text is made from the value.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    digits: int = 4
    percent: bool = False
    down: bool = False
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        if math.isnan(self.value):
            return "–"
        text = _rounded(self, self.value, ROUND_FLOOR if self.down else ROUND_HALF_EVEN) + (
            " %" if self.percent else ""
        )
        if self.lower is None or self.upper is None:
            return text
        return f"{text} ({_rounded(self, self.lower, ROUND_FLOOR)} to {_rounded(self, self.upper, ROUND_CEILING)})"


@dataclass(frozen=True)
class Interval:
    """A cell with the ends of a confidence interval, in percent or as numbers; in text, the ends are rounded outward.

    >>> str(Interval(0.4439, 0.9748))
    '44.3 to 97.5 %'
    """

    lower: float
    upper: float
    percent: bool = True

    def __str__(self) -> str:
        digits = 1 if self.percent else 4
        form = Quantity(0.0, digits=digits, percent=self.percent)
        low, high = _rounded(form, self.lower, ROUND_FLOOR), _rounded(form, self.upper, ROUND_CEILING)
        return f"{low} to {high}{' %' if self.percent else ''}"


#: Content of a cell; None for an empty cell.
Cell: TypeAlias = "str | int | float | Quantity | Interval | None"
Row: TypeAlias = "Sequence[Cell]"
#: Forms of a table as text, named by their file endings: Markdown, LaTeX, CSV and JSON.
TableForm: TypeAlias = Literal["md", "tex", "csv", "json"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: heading.
        align: side to which the cells of the column are aligned.
        grouped: whether integers are written with commas between groups of three digits.
    """

    name: str
    align: Literal["left", "right"] = "right"
    grouped: bool = True


@dataclass(frozen=True)
class ReportTable(Tabular):
    """A table, independent of the format in which it is shown.

    The table can be printed with rich's ``Console().print(table)``. A table wider than the terminal is printed in
    blocks of columns.

    Attributes:
        title: one line of text.
        columns: at least one.
        sections: groups of rows, separated by a rule or a gap.
        notes: lines below the table.
        details: further lines, such as parameters and definitions, for files and notebooks; a terminal shows only their
            number.
        aside: names of rows, such as hashes, for which a paper has no room; LaTeX output has these rows as comments.

    Raises:
        InputError: there is no column, or a row does not have as many cells as there are columns.
    """

    title: str
    columns: tuple[Column, ...]
    sections: tuple[tuple[Row, ...], ...]
    notes: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError("columns", "at least one", "none")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError("sections", f"rows of {len(self.columns)} cells", f"one of {len(row)}")

    @property
    def rows(self) -> list[Row]:
        """The rows of all sections, in order."""
        return [row for section in self.sections for row in section]

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Notes and details."""
        return (*self.notes, *self.details)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        yield from _fitting_tables(self, options.max_width)

    def _columns(self) -> dict[str, list[Any]]:
        """Return the exact values, as in CSV."""
        return dict(_exact_columns(self))

    def _attributes(self) -> dict[str, Any]:
        return {"title": self.title, "notes": list(self.all_notes)}

    def _repr_html_(self) -> str:
        """Return the whole table with its title and notes, for notebooks."""
        names = [plain_text(column.name) for column in self.columns]
        table = html_table(names, [[list(_texts(self, row)) for row in section] for section in self.sections])
        notes = "".join(f"<li>{html.escape(plain_text(note))}</li>" for note in self.all_notes)
        return f"<p><b>{html.escape(plain_text(self.title))}</b></p>{table}{notes and f'<ul>{notes}</ul>'}"


def _rounded(form: Quantity, number: float, rounding: str) -> str:
    """Write a number with as many decimals as the quantity ``form`` states."""
    if math.isinf(number):
        return str(number)
    # Scaled in decimal: a binary product can be off by an ulp, and its floor then by a whole unit.
    scaled = Decimal(float.__repr__(number)).scaleb(2 if form.percent else 0)
    return f"{scaled.quantize(Decimal(1).scaleb(-form.digits), rounding, _EXACT):f}"


def rich_table(table: ReportTable) -> Table:
    """Render a table as a single ``rich`` table, however wide, with its notes as the caption.

    Args:
        table: any table.

    Returns:
        The ``rich`` table.

    >>> rich_table(ReportTable("Radii", (Column("log"), Column("mean")), ((("a", Quantity(0.5)),),))).row_count
    1
    """
    return _rich_block(table, range(len(table.columns)), _contents(table), None)


def _contents(table: ReportTable) -> list[list[list[str]]]:
    """Return the texts of all cells by section and row."""
    return [[list(_texts(table, row)) for row in section] for section in table.sections]


def _rich_block(
    table: ReportTable,
    chosen: Sequence[int],
    contents: list[list[list[str]]],
    widths: Sequence[int] | None,
    *,
    title: bool = True,
    notes: bool = True,
) -> Table:
    """Return some columns of a table as a rich table."""
    made = Table(
        title=Text(plain_text(table.title)) if title else None,
        caption=_notes(table) if notes else None,
        title_justify="left",
        caption_justify="left",
        # so that the notes of a narrow table are not folded
        min_width=78 if widths is None else None,
    )
    for j in chosen:
        column = table.columns[j]
        width = None if widths is None else widths[j]
        made.add_column(Text(plain_text(column.name), overflow="fold"), justify=column.align, width=width)
    for section in contents:
        for row in section:
            made.add_row(*(Text(row[j], overflow="fold") for j in chosen))
        made.add_section()
    return made


def _fitting_tables(table: ReportTable, width: int) -> Iterator[Table | Text]:
    """Yield the table or, if it is wider than the terminal, blocks of its columns, each with the row names."""
    contents = _contents(table)
    rows = [[column.name for column in table.columns], *(row for section in contents for row in section)]
    natural = [max(len(plain_text(row[j])) for row in rows) for j in range(len(table.columns))]
    if sum(natural) + _frame(len(natural)) <= width or len(natural) == 1:
        yield rich_table(table)
        return
    # Intervals are put below their values, and long names are folded.
    contents = [
        [[name, *(text.replace(" (", "\n(") for text in texts)] for name, *texts in section] for section in contents
    ]
    lines = [row for section in contents for row in section]
    widths = [max([_NARROWEST, *(len(word) for row in rows for word in row[0].split())])]
    for j in range(1, len(natural)):
        widths.append(max([_NARROWEST, *(len(line) for row in lines for line in row[j].split("\n"))]))
    begin = 1
    while begin < len(widths):
        stop = begin + 1
        while stop < len(widths) and widths[0] + sum(widths[begin : stop + 1]) + _frame(stop + 2 - begin) <= width:
            stop += 1
        block = [0, *range(begin, stop)]
        room = width - sum(widths[j] for j in block) - _frame(len(block))
        fitted = [widths[0] + max(0, min(room, natural[0] - widths[0])), *widths[1:]]
        yield _rich_block(table, block, contents, fitted, title=begin == 1, notes=False)
        begin = stop
    yield _notes(table)


def _notes(table: ReportTable) -> Text:
    lines = [plain_text(note) for note in table.notes]
    if table.details:
        lines.append(
            f"{len(table.details)} notes on parameters and definitions: in the files of pyrobust report --out."
        )
    return Text("\n".join(lines), style="table.caption")


def _frame(columns: int) -> int:
    """Return the width of the lines and gaps around columns."""
    return 3 * columns + 1


def format_table(table: ReportTable, form: TableForm) -> str:
    r"""Render a table as text; equal tables give equal texts.

    Names come from users and files, so characters that are special in the output format are escaped, and control
    characters are replaced.

    Args:
        table: any table.
        form: "md": a pipe table below a heading, with the notes as a list. "tex": a float with a booktabs table. "csv":
            the format of RFC 4180, without title and notes. Numbers are exact, and the ends of intervals have columns
            of their own. NaN and infinity are written as empty fields. If a spreadsheet could take a text for a
            formula, an apostrophe is put before the text. "json": an object with title, columns, notes and rows. A row
            is a list of cells, and a `Quantity` is an object with value, lower and upper. NaN and infinity are written
            as null.

    Returns:
        The text, with a newline at its end.

    Raises:
        InputError: an unknown form.

    >>> table = ReportTable("Radii", (Column("log", "left"), Column("mean")), ((("a_b", Quantity(0.25)),),))
    >>> print(format_table(table, "tex").splitlines()[9])
    a\_b & 0.2500 \\
    >>> format_table(table, "csv")
    'log,mean\r\na_b,0.25\r\n'
    """
    return _FORMS[choice("form", form, tuple(_FORMS))](table)


def _markdown(table: ReportTable) -> str:
    lines = [f"## {_escaped(table.title, _MARKDOWN)}", ""]
    lines.append(_piped(_escaped(column.name, _MARKDOWN) for column in table.columns))
    lines.append(_piped("---:" if column.align == "right" else ":---" for column in table.columns))
    lines += [_piped(_escaped(text, _MARKDOWN) for text in _texts(table, row)) for row in table.rows]
    if table.all_notes:
        lines += ["", *(f"- {_escaped(note, _MARKDOWN)}" for note in table.all_notes)]
    return "\n".join(lines) + "\n"


def _piped(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _latex(table: ReportTable) -> str:
    aside = [row for row in table.rows if str(row[0]) in table.aside]
    lines = [
        r"% Needs \usepackage{booktabs,graphicx}.",
        *(f"% {', '.join(_texts(table, row))}" for row in aside),
        *(f"% {plain_text(note)}" for note in table.all_notes),
        r"\begin{table}",
        r"\centering\footnotesize",
        rf"\caption{{{_escaped(table.title, _LATEX)}}}",
        # shrunk if it is wider than the page
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}",
        r"\toprule",
        _ampersands(_escaped(column.name, _LATEX) for column in table.columns),
    ]
    for section in table.sections:
        lines.append(r"\midrule")
        for row in section:
            if str(row[0]) not in table.aside:
                lines += _latex_row(table, row)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}"]) + "\n"


def _latex_row(table: ReportTable, row: Row) -> list[str]:
    """Return a row as one or two lines of LaTeX; intervals go into the second line, which keeps columns narrow."""
    texts = list(_texts(table, row))
    has_intervals = [
        isinstance(cell, Quantity) and cell.lower is not None and " (" in text
        for cell, text in zip(row, texts, strict=True)
    ]
    if not any(has_intervals):
        return [_ampersands(_escaped(text, _LATEX) for text in texts)]
    halves = [
        text.split(" (") if has_interval else [text, ""]
        for text, has_interval in zip(texts, has_intervals, strict=True)
    ]
    below = (rf"{{\scriptsize ({_escaped(interval, _LATEX)}}}" if interval else "" for _, interval in halves)
    return [_ampersands(_escaped(value, _LATEX) for value, _ in halves), _ampersands(below)]


def _ampersands(cells: Any) -> str:
    # TeX would take a bracket at the beginning of a row for an argument of the line break before it.
    text = " & ".join(cells)
    return f"{'{}' if text.startswith(('[', '*')) else ''}{text} \\\\"


def _csv(table: ReportTable) -> str:
    columns = _exact_columns(table)
    out = io.StringIO()
    writer = csv.writer(out)  # its default dialect is RFC 4180
    writer.writerow([_no_formula(name) for name, _ in columns])
    writer.writerows([_field(column[row]) for _, column in columns] for row in range(len(table.rows)))
    return out.getvalue()


def _exact_columns(table: ReportTable) -> list[tuple[str, list[Any]]]:
    """Return columns of exact values by name; the ends of intervals get two columns, after any other values."""
    columns: list[tuple[str, list[Any]]] = []
    for number, column in enumerate(table.columns):
        cells = [row[number] for row in table.rows]
        intervals = [isinstance(cell, Interval) for cell in cells]
        name = plain_text(column.name)
        if not any(intervals) or not all(cell in ("", None) or isinstance(cell, Interval) for cell in cells):
            columns.append((name, [cell.value if isinstance(cell, Quantity) else cell for cell in cells]))
        if any(intervals) or any(isinstance(cell, Quantity) and cell.lower is not None for cell in cells):
            with_interval = [
                (cell.lower, cell.upper) if isinstance(cell, Quantity | Interval) else (None, None) for cell in cells
            ]
            columns.append((f"{name} lower", [lower for lower, _ in with_interval]))
            columns.append((f"{name} upper", [upper for _, upper in with_interval]))
    return columns


def _field(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, str):
        return _no_formula(cell)
    # float.__repr__, because the repr of a NumPy float names its type
    return float.__repr__(cell) if isinstance(cell, float) else str(cell)


def _no_formula(text: str) -> str:
    text = plain_text(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else text


def _json(table: ReportTable) -> str:
    content = {
        "title": plain_text(table.title),
        "columns": [plain_text(column.name) for column in table.columns],
        "rows": [[_value(cell) for cell in row] for row in table.rows],
        "notes": [plain_text(note) for note in table.all_notes],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _value(cell: Cell) -> Any:
    if isinstance(cell, Quantity):
        return {"value": _value(cell.value), "lower": _value(cell.lower), "upper": _value(cell.upper)}
    if isinstance(cell, Interval):
        return {"lower": _value(cell.lower), "upper": _value(cell.upper)}
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return plain_text(cell) if isinstance(cell, str) else cell


def _texts(table: ReportTable, row: Row) -> Iterator[str]:
    """Yield the cells of a row as text for people."""
    for column, cell in zip(table.columns, row, strict=True):
        if cell is None:
            yield "–"
        elif isinstance(cell, int) and column.grouped:
            yield f"{cell:,}"
        else:
            yield plain_text(str(cell))


def plain_text(text: str) -> str:
    """Replace characters that control a terminal, change the direction of writing or cannot be encoded."""
    if text.isprintable():  # no such character
        return text
    return "".join("�" if unicodedata.category(mark) in _STEERING else mark for mark in text)


def _escaped(text: str, table: dict[int, str]) -> str:
    return plain_text(text).translate(table)


_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in r"\`*_[]|#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})
_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "`": "{`}", '"': "''"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "-": "{-}", "�": "?"}
)
_FORMS: dict[str, Callable[[ReportTable], str]] = {"md": _markdown, "tex": _latex, "csv": _csv, "json": _json}
