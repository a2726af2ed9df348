"""Tables in every form: values are read back unchanged, and names are escaped."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pyrobust.errors import InputError
from pyrobust.report import Column, Quantity, ReportTable, format_table, rich_table
from pyrobust.report.formats import Interval

ODD = '50%_of $x^2$ & #1 {a}~b\\c|d<e>*f*[g](h) `i` "j" --k'


def table(*rows, columns=("what", "net"), notes=(), title="A table"):
    head, *others = columns
    return ReportTable(title, (Column(head, "left"), *map(Column, others)), (tuple(rows),), notes)


def parsed(text):
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity(0.7665, 0.75808, 0.77477, 2, percent=True), "76.65 % (75.80 to 77.48)"),
        (Quantity(0.7454, percent=True, digits=2, down=True), "74.54 %"),
        (Quantity(0.99999, percent=True, digits=2, down=True), "99.99 %"),
        (Quantity(0.99999, percent=True, digits=2), "100.00 %"),
        (Quantity(0.4240243), "0.4240"),
        (Quantity(1e-9, 0.0, 1e-5), "0.0000 (0.0000 to 0.0001)"),
        (Quantity(-0.5, -0.55555, -0.44444, 1), "-0.5 (-0.6 to -0.4)"),
        (Quantity(math.nan), "–"),
        (Quantity(0.5, 0.4, None), "0.5000"),
    ],
)
def test_quantities_are_rounded_and_their_ends_outward(quantity, text):
    assert str(quantity) == text


@given(st.floats(0, 1), st.floats(0, 0.2), st.integers(0, 6))
def test_printed_intervals_enclose_the_exact_ones(value, width, digits):
    lower, upper = max(0.0, value - width), min(1.0, value + width)
    ends = [float(end) / 100 for end in re.findall(r"\d+\.?\d*", str(Quantity(value, lower, upper, digits, True)))[1:]]
    assert ends[0] <= lower * (1 + 1e-15)
    assert ends[1] >= upper * (1 - 1e-15)


def test_csv_keeps_every_value():
    rows = [("rate", Quantity(0.1 + 0.2, 0.1, 1 / 3)), ("n", 100_000), (ODD, 0.001), ("none", None), ("no", math.nan)]
    lines = parsed(format_table(table(*rows), "csv"))
    assert lines[0] == ["what", "net", "net lower", "net upper"]
    assert [float(field) for field in lines[1][1:]] == [0.1 + 0.2, 0.1, 1 / 3]
    assert lines[2] == ["n", "100000", "", ""]
    assert lines[3] == [ODD, "0.001", "", ""]
    assert lines[4:] == [["none", "", "", ""], ["no", "", "", ""]]


def test_csv_follows_the_rfc():
    text = format_table(table(('a "b", c', 1), ("two\nlines", np.float64(0.5))), "csv")
    assert text == 'what,net\r\n"a ""b"", c",1\r\ntwo�lines,0.5\r\n'


def test_intervals_have_two_columns_in_csv():
    made = table(("images", ""), ("rate", Interval(0.4439, 0.9748)), columns=("what", "95 % interval"))
    assert parsed(format_table(made, "csv")) == [
        ["what", "95 % interval lower", "95 % interval upper"],
        ["images", "", ""],
        ["rate", "0.4439", "0.9748"],
    ]
    assert json.loads(format_table(made, "json"))["rows"][1] == ["rate", {"lower": 0.4439, "upper": 0.9748}]
    assert "| rate | 44.3 to 97.5 % |" in format_table(made, "md")


def test_text_of_a_quantity_and_ungrouped_integers():
    columns = (Column("what", "left"), Column("share"), Column("images", grouped=False))
    made = ReportTable("A table", columns, ((("right", Quantity(1 / 3, text="33.3 %"), 12_345),),))
    assert "| right | 33.3 % | 12345 |" in format_table(made, "md")
    assert json.loads(format_table(made, "json"))["rows"][0][1]["value"] == 1 / 3
    assert parsed(format_table(made, "csv"))[1] == ["right", repr(1 / 3), "12345"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "＝", "＠"])
def test_csv_escapes_formulas(start):
    formula = f'{start}HYPERLINK("http://example.org","x")'
    for row in parsed(format_table(table((formula, -1.5), columns=(formula, formula)), "csv")):
        for field in row[:1]:
            assert field[0] in ("'", "�")
    # numbers stay numbers
    assert parsed(format_table(table(("a", -1.5)), "csv"))[1] == ["a", "-1.5"]


@given(st.text(), st.floats(), st.integers())
def test_json_and_csv_hold_anything(name, number, whole):
    made = table((name, number), (name, whole), (name, Quantity(number)), title=name, notes=(name,))
    document = json.loads(format_table(made, "json"), parse_constant=pytest.fail)
    assert document["columns"] == ["what", "net"]
    assert document["rows"][1][1] == whole
    expected = number if math.isfinite(number) else None
    assert document["rows"][0][1] == expected
    assert document["rows"][2][1] == {"value": expected, "lower": None, "upper": None}
    assert len(parsed(format_table(made, "csv"))) == 4
    assert format_table(made, "md").encode().count(b"\n| ") == 5
    format_table(made, "tex").encode()
    Console(file=io.StringIO(), width=80).print(rich_table(made))


def latex_meaning(text):
    """Text that TeX prints for escaped text."""
    words = {"textbackslash": "\\", "textasciicircum": "^", "textasciitilde": "~"}
    words |= {"textless": "<", "textgreater": ">", "textbar": "|"}
    text = re.sub(
        r"\\(text[a-z]+)\{\}",
        lambda match: {"\\": "\0b", "~": "\0t", "^": "\0c"}.get(words[match[1]], words[match[1]]),
        text,
    )
    text = re.sub(r"\{([-`])\}", r"\1", text)
    # what is left of the active characters has to stand behind a backslash
    assert not re.search(r"(?<!\\)[$&#%_{}]", text), text
    assert not re.search(r"[\^~]", text)
    text = re.sub(r"\\([$&#%_{}])", r"\1", text).replace("''", '"')
    return text.replace("\0b", "\\").replace("\0t", "~").replace("\0c", "^")


@given(st.text(st.characters(codec="ascii", exclude_categories=("Cc",)).filter(lambda c: c != "'"), min_size=1))
def test_latex_prints_the_text(name):
    lines = format_table(table((name, 1)), "tex").splitlines()
    line = lines[lines.index(r"\midrule") + 1]
    cell = line.removesuffix(r" & 1 \\")
    assert latex_meaning(cell.removeprefix("{}")) == name


def test_latex_is_a_booktabs_float():
    text = format_table(table(("a", Quantity(0.5, percent=True)), ("[b]", 2), notes=("50 % of it",)), "tex")
    assert r"a & 50.0000 \% \\" in text
    # not the argument of the line break before it
    assert r"{}[b] & 2 \\" in text
    assert "\n% 50 % of it\n" in text
    for word in ("table", "tabular"):
        assert text.count(rf"\begin{{{word}}}") == text.count(rf"\end{{{word}}}") == 1
    assert [text.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [1, 1, 1]
    assert text.count("{") == text.count("}")


def test_markdown_keeps_its_columns():
    text = format_table(table((ODD, "x|y"), columns=("", "a|b")), "md")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3, 3, 3]
    assert rows[1] == "| :--- | ---: |"
    assert "<e>" not in text


def test_control_characters_do_not_reach_the_terminal():
    name = "\x1b[31mred\x1b[0m [bold]b[/bold] \u202eback"
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(rich_table(table((name, 1), title=name, notes=(name,))))
    text = console.file.getvalue()
    assert "[31mred" in text
    assert text.count("[bold]b[/bold]") == 3
    assert "\x1b[31m" not in text
    assert "\u202e" not in text


def test_sections_are_separated():
    made = ReportTable("t", (Column("a"),), (((1,), (2,)), ((3,),)))
    assert format_table(made, "tex").count(r"\midrule") == 2
    assert [row[0] for row in made.rows] == [1, 2, 3]


def test_bad_tables():
    with pytest.raises(InputError, match="columns: expected at least one"):
        ReportTable("t", (), ())
    with pytest.raises(InputError, match="rows of 2 cells, got one of 1"):
        table(("a",))
    with pytest.raises(InputError, match="form: expected one of md, tex, csv, json, got 'html'"):
        format_table(table(), "html")


def test_latex_keeps_hashes_paths_and_notes_in_comments_and_intervals_below_their_values():
    wide = ReportTable(
        "A table",
        (Column("", "left"), Column("a"), Column("b")),
        ((("data sha256", "ab12", "cd34"), ("rate", Quantity(0.5, 0.25, 0.75), 3)),),
        ("from /some/path",),
        aside=("data sha256",),
    )
    text = format_table(wide, "tex")
    page = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert "sha256" not in page
    assert "path" not in page
    assert "% data sha256, ab12, cd34" in text
    assert "rate & 0.5000 & 3 \\\\\n & {\\scriptsize (0.2500 to 0.7500)} &  \\\\" in page
    assert text.count("{") == text.count("}")
    for form in ("md", "csv", "json"):
        assert "sha256" in format_table(wide, form)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_wide_tables_are_printed_in_blocks_without_cutting_names(width):
    names = [f"smoothadv_cifar10_sigma_0.{i}" for i in range(10, 17)]
    rows = (("share of images", *(Quantity(i / 7, i / 9, i / 6) for i in range(7))), ("mean (correct only)", *range(7)))
    wide = ReportTable("A table", (Column("", "left"), *map(Column, names)), (rows,), ("a note",))
    console = Console(file=io.StringIO(), width=width)
    console.print(wide)
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("A table") == text.count("a note") == 1
    # the letters of every heading, in order, within one column of a block
    heads, reading = [], False
    for line in text.splitlines():
        if line.startswith("┏"):
            reading, parts = True, None
        elif line.startswith("┡"):
            heads += parts[1:]
            reading = False
        elif reading:
            cells = [cell.strip() for cell in line.strip("┃").split("┃")]
            parts = cells if parts is None else [a + b for a, b in zip(parts, cells, strict=True)]
    assert heads == names
    for value in rows[0][1:]:
        assert str(value).partition(" (")[0] in text


@pytest.mark.parametrize("width", [80, 400])
def test_details_are_written_and_counted_in_the_terminal(width):
    table = ReportTable("T", (Column("a"), Column("b" * 70)), (((1, 2),),), ("first",), details=("second", "third"))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    printed = console.export_text()
    assert "first" in printed
    assert "second" not in printed
    assert "2 notes on parameters and definitions" in printed
    for form in ("md", "tex", "json"):
        text = format_table(table, form)
        assert "first" in text
        assert "third" in text
    assert "third" in table._repr_html_()
