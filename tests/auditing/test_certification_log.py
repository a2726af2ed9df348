"""Reading certification logs of any origin, and refusing other files."""

from __future__ import annotations

import csv
import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planted_logs import made_up, split, three_digits

from pyrobust.auditing import certification_log, log_reader
from pyrobust.auditing.check_radii import usable_rows
from pyrobust.auditing.log_fields import Fields, parse_integers, parse_reals, parse_times
from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.evaluation import CertificationLog, read_certification_log, read_log

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROW = "0\t3\t3\t0.377\t1\t0:00:14.172309\n"
#: A row as a reader gives it.
FIELDS = {"idx": "0", "label": "3", "predict": "3", "radius": "0.377", "correct": "1"}


def read(folder: Path, text: str | bytes, **options: float) -> CertificationLog:
    file = folder / "log.tsv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_certification_log(file, **options)  # type: ignore[arg-type]  # options of several types


def fields(texts: list[str]) -> Fields:
    block = "\t".join(texts).encode()
    lengths = np.array([len(text.encode()) for text in texts])
    start = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]]).astype(np.int64)
    return Fields("radius", np.frombuffer(block, np.uint8), start, lengths, first_line=2)


NUMBERS = (
    st.floats(allow_nan=False).map(repr)
    | st.floats(0, 10).map(three_digits)
    | st.integers(0, 10**6).map(lambda k: f"{k / 1000:.3f}")
    | st.integers(-(10**25), 10**25).map(str)
    | st.sampled_from(["0", "-0.0", ".5", "5.", "1e-05", "inf", "-inf", "9007199254740993", "0.1234567890123456789"])
)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_real_numbers_match_float_and_decimals_the_text(texts: list[str]) -> None:
    values, decimals = parse_reals(fields(texts))
    assert values.tolist() == [float(text) for text in texts]
    for text, places in zip(texts, decimals.tolist(), strict=True):
        if text.isascii() and "e" not in text and "n" not in text:
            assert places == len(text.partition(".")[2])


@given(st.lists(st.integers(-1, 2**32 - 1), min_size=1, max_size=20))
def test_integers_are_parsed(numbers: list[int]) -> None:
    assert parse_integers(fields([*map(str, numbers), "7.0"]), -1).tolist() == [*numbers, 7]


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=20))
def test_times_match_timedelta(microseconds: list[int]) -> None:
    times = [datetime.timedelta(microseconds=number) for number in microseconds]
    seconds = [time.total_seconds() for time in times]
    np.testing.assert_allclose(parse_times(fields([str(time) for time in times])), seconds, atol=2e-6, rtol=1e-15)
    assert parse_times(fields([repr(second) for second in seconds])).tolist() == seconds
    assert parse_times(fields(["00:00:14.5"])).tolist() == [14.5]


@pytest.mark.parametrize(
    ("parse", "expected", "texts"),
    [
        (parse_reals, "a number", "|  |x|1_0|0x1|1e|--1|+-1|1.2.3|1 2|٣|0:00:01|nano"),
        (
            lambda block: parse_integers(block, -1),
            "an integer from -1 to 4294967295",
            f"|1.5|-2|4294967296|{'9' * 30}|nan|1e400|0:0:1|True",
        ),
        (
            parse_times,
            "seconds or h:mm:ss",
            "|-1|nan|inf|1e400|1:2|0:61:00|0:00:60|:00:01|1:2:3:4|1 day|1 day, 5|0:0:-1",
        ),
    ],
)
def test_invalid_fields_are_refused(parse: Callable[[Fields], object], expected: str, texts: str) -> None:
    for text in texts.split("|"):
        with pytest.raises(ValueError, match=f"line 3: radius: expected {expected}, got"):
            parse(fields(["1", text]))


def test_published_logs_are_read_unchanged() -> None:
    folder = os.environ.get("PYROBUST_DATA")
    if folder is None:
        pytest.skip("PYROBUST_DATA is not set")
    for file in sorted(Path(folder, "logs").rglob("*.tsv")):
        log, other = read_certification_log(file), read_log(file)
        assert np.array_equal(log.index, other["idx"])
        assert np.array_equal(log.label, other["label"])
        assert np.array_equal(log.prediction, other["predict"])
        assert np.array_equal(log.radius, other["radius"])
        assert np.array_equal(log.correct, other["correct"])
        assert log.seconds is not None
        np.testing.assert_allclose(log.seconds, other["time"], rtol=1e-15)
        assert f"sigma{log.sigma:.2f}" in file.name
        assert (log.n, log.alpha) == (100_000, 0.001)
        assert log.origins["n"] == "assumed, as usual; saturated radii agree"
        assert not log.findings


def test_columns_in_any_order_and_extra_columns_ignored(tmp_path: Path) -> None:
    header, rows = split(made_up(50))
    order = [4, 0, 3, 1, 2]
    text = "\t".join(["run", *(header[i].upper() for i in order)]) + "\n"
    text += "".join("\t".join(["ä b", *(row[i] for i in order)]) + "\n" for row in rows)
    log, whole = read(tmp_path, text), read(tmp_path, made_up(50))
    for name in ("index", "label", "prediction", "radius", "correct", "decimals", "lines"):
        assert np.array_equal(getattr(log, name), getattr(whole, name)), name
    assert log.seconds is None
    assert whole.seconds is not None
    assert [(finding.kind, finding.message) for finding in log.findings] == [
        ("extra-columns", "ignored columns: 'run'")
    ]


def test_other_line_ends_byte_order_marks_and_trailing_blank_lines(tmp_path: Path) -> None:
    text = made_up(50)
    expected = read(tmp_path, text)
    for other in (text.replace("\n", "\r\n"), "\ufeff" + text, text + "\n\n", text.replace("\n", "\r\n") + "\r\n"):
        log = read(tmp_path, other)
        assert np.array_equal(log.radius, expected.radius)
        assert np.array_equal(log.seconds, expected.seconds)
        assert not log.findings


def test_block_boundaries_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = made_up(40)
    expected = read(tmp_path, text)
    for size in (1, 7, 30, 31, 32, 33, 64, 1000, len(text) - len(HEADER), len(text)):
        monkeypatch.setattr("pyrobust.auditing.log_reader._BLOCK", size)
        for ending in ("", "\n"):
            log = read(tmp_path, text + ending)
            assert np.array_equal(log.index, expected.index)
            assert np.array_equal(log.radius, expected.radius)
            assert not log.findings
        log = read(tmp_path, text[:-5])
        assert np.array_equal(log.radius, expected.radius[:-1])
        assert [finding.kind for finding in log.findings] == ["truncated"]
        with pytest.raises(FileFormatError, match="line 20: radius: expected a number, got 'x'"):
            read(tmp_path, "\n".join([*text.splitlines()[:19], "18\t1\t1\tx\t1\t0:00:01", *text.splitlines()[20:], ""]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: expected the columns idx label predict radius correct .* the file is empty"),
        ("\x00\x01\x02", "got a binary file"),
        (b"\xff\xfe\x00", "got a binary file"),
        ("idx,label,predict,radius,correct\n0,1,1,0.5,1\n", "expected columns separated by tabs, got commas"),
        ("idx;label;predict;radius;correct\n0;1;1;0.5;1\n", "expected columns separated by tabs, got semicolons"),
        ("idx label predict radius correct\n0 1 1 0.5 1\n", "expected columns separated by tabs, got spaces"),
        ("idx\tlabel\tpredict\tcorrect\n0\t1\t1\t1\n", "line 1: .*; missing column radius"),
        ("idx\tlabel\tradius\n0\t1\t1\n", "line 1: .*; missing columns predict, correct"),
        (HEADER.replace("time", "idx") + ROW, "line 1: duplicate column idx"),
        (ROW, "line 1: expected the columns"),
        (HEADER, "expected at least one complete row"),
        (HEADER[:-1], "line 1: incomplete"),
        (HEADER + ROW[:-3], "expected at least one complete row"),
        (HEADER + "\n" + ROW, "line 2: expected 6 fields separated by tabs, got 1"),
        (HEADER + ROW + "0\t1\t1\t0.5\t1\t0:00:01\t7\n", "line 3: expected 6 fields separated by tabs, got 7"),
        (HEADER + ROW + "-1\t1\t1\t0.5\t1\t0:00:01\n", "line 3: idx: expected an integer from 0"),
        (HEADER + "0\t1\t1\t0,5\t1\t0:00:01\n", "line 2: radius: expected a number, got '0,5'"),
        (HEADER + "0\t1\t1\t0.5\tyes\t0:00:01\n", "line 2: correct: expected a number, got 'yes'"),
        (HEADER + "0\t1\t1\t0.5\t1\tsoon\n", "line 2: time: expected seconds or h:mm:ss, got 'soon'"),
        ((HEADER + ROW).encode() + b"1\t1\t1\t0.\xff\t1\t0:00:01\n", "contains the byte 0xff"),
        (HEADER + ROW + "1\t1\t1\t0.5\t1\t\x00\n", "contains a NUL byte"),
        (HEADER + "9" * 5000 + "\n", "line 2: expected 6 fields"),
        (HEADER + ROW[:-1] + "9" * 5000 + "\n", "line 2: expected at most 1000 bytes"),
        ("x" * 5000, "line 1: expected the columns"),
    ],
)
def test_malformed_logs_give_one_clear_error(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(FileFormatError, match=words) as error:
        read(tmp_path, text)
    assert str(tmp_path / "log.tsv") in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_missing_huge_and_special_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="file not found"):
        read_certification_log(tmp_path / "log.tsv")
    with pytest.raises(FileFormatError, match="is a folder"):
        read_certification_log(tmp_path)
    with pytest.raises(FileFormatError, match="not a readable file"):
        read_certification_log("x" * 5000)
    with pytest.raises(FileFormatError, match="is a special file"):
        read_certification_log("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="is a special file"):
        read_certification_log(tmp_path / "pipe")
    with (tmp_path / "log.tsv").open("wb") as stream:
        stream.truncate(1 << 40)  # a hole: it takes no space
    with pytest.raises(FileFormatError, match="at most 1073741824 bytes"):
        read_certification_log(tmp_path / "log.tsv")


@pytest.mark.parametrize(
    ("name", "sigma", "origin"),
    [
        ("cohen_sigma0.25.tsv", 0.25, "the name of the file"),
        ("sigma_0.50", 0.5, "the name of the file"),
        ("noise_0.12_sigma_1.00.tsv", 1.0, "the name of the file"),
        ("resnet_noise_0.25.txt", 0.25, "the name of the file"),
        ("noise_sd_0.5.tsv", 0.5, "the name of the file"),
        ("Sigma=1.tsv", 1.0, "the name of the file"),
        ("sigma0.25_to_sigma0.50.tsv", None, ""),
        ("sigma25.tsv", None, ""),
        ("sigma0.tsv", None, ""),
        ("log.tsv", None, ""),
        ("sigma_0.25/test.tsv", 0.25, "the name of the folder"),
        ("noise_0.25/sigma_0.5.tsv", 0.5, "the name of the file"),
        ("a.LOG", None, ""),
        ("b.txt", None, ""),
    ],
)
def test_sigma_is_taken_from_the_name(tmp_path: Path, name: str, sigma: float | None, origin: str) -> None:
    file = tmp_path / "plain" / name
    file.parent.mkdir(parents=True)
    file.write_text(made_up(20, n=100))
    log = read_certification_log(file)
    assert (log.sigma, log.origins.get("sigma", "")) == (sigma, origin)
    assert log.name == file.name.removesuffix(".tsv").removesuffix(".txt").removesuffix(".LOG")
    assert read_certification_log(file, sigma=0.7).sigma == 0.7


def test_usual_settings_are_assumed_unless_radii_contradict_them(tmp_path: Path) -> None:
    saturated = {"beta": (4.0, 0.2), "show": lambda radius: f"{radius:.4f}"}

    def settled(text: str, **options: float) -> tuple[int | None, float | None, str]:
        log = read(tmp_path, text, sigma=0.25, **options)
        return log.n, log.alpha, log.origins.get("n", "")

    usual = made_up(300, **saturated)  # type: ignore[arg-type]  # options of several types
    assert settled(usual) == (100_000, 0.001, "assumed, as usual; saturated radii agree")
    assert settled(usual, n=10_000) == (10_000, None, "given")
    assert settled(made_up(300, n=10_000, **saturated)) == (None, None, "")  # type: ignore[arg-type]  # as above
    assert settled(made_up(300, n=10_000, **saturated), n=10_000) == (10_000, 0.001, "given")  # type: ignore[arg-type]  # as above
    assert settled(made_up(300, beta=(8, 4))) == (100_000, 0.001, "assumed, as usual; nothing confirms it")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"n": 0}, InputError),
        ({"n": 1.5}, InputTypeError),
        ({"alpha": 0.0}, InputError),
        ({"alpha": 1.0}, InputError),
        ({"sigma": -1.0}, InputError),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path: Path, options: dict[str, float], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        read(tmp_path, HEADER + ROW, **options)


@pytest.mark.parametrize(
    ("texts", "decimals"),
    [
        (["0.377", "0.48", "1.02", "0.0611", "0.0", "9.8e-05", "0.123", "0.456"], [3, 3, 2, 4, 3, 7, 3, 3]),
        (["0.3770", "0.4800", "0.0000", "1.9057"], [4, 4, 4, 4]),
        (["0.37712", "0.48", "1.02345", "0.06123", "0.00123"], [5, 5, 5, 5, 5]),
        (["0.5", "0.5", "0.25", "0.0"], [1, 1, 2, 1]),
        (["0.0", "0.0"], [1, 1]),
        (["nan", "-0.5"], [0, 1]),
        (["1", "2", "1"], [0, 0, 0]),
    ],
)
def test_decimals_of_printed_radii_are_inferred(tmp_path: Path, texts: list[str], decimals: list[int]) -> None:
    rows = "".join(f"{i}\t1\t1\t{text}\t1\t1\n" for i, text in enumerate(texts))
    log = read(tmp_path, HEADER + rows)
    assert log.decimals is not None
    assert log.decimals.tolist() == decimals


@pytest.mark.parametrize(
    ("header", "row", "last", "complete"),
    [
        (HEADER, ROW, "1\t4\t4\t0.25\t1\t0:00:14.172309", True),
        (HEADER, ROW, "1\t4\t4\t0.25\t1\t0:00:14.1723", False),
        (HEADER, ROW, "1\t4\t4\t0.25\t1\t0:00:14", False),  # of another time with six decimals
        (HEADER, ROW, "1\t4\t4\t0.25\t1\t0", False),
        (HEADER, ROW, "1\t4\t4\t0.25\t1\t", False),
        (HEADER, ROW, "1\t4\t4\t0.25\t1", False),
        (HEADER, "0\t3\t3\t0.377\t1\t0:00:14\n", "1\t4\t4\t0.25\t1\t0:00:15", True),
        (HEADER, "0\t3\t3\t0.377\t1\t14.25\n", "1\t4\t4\t0.25\t1\t15.5", True),
        ("idx\tlabel\tpredict\tradius\tcorrect\n", "0\t3\t3\t0.377\t1\n", "1\t4\t4\t0.25\t1", True),
        ("idx\tlabel\tpredict\tcorrect\tradius\n", "0\t3\t3\t1\t0.377\n", "1\t4\t4\t1\t0.2", False),
        ("idx\tlabel\tpredict\tcorrect\tradius\n", "0\t3\t3\t1\t0.377\n", "1\t4\t4\t1\t0.251", True),
    ],
)
def test_a_last_line_without_its_end_counts_if_complete(
    tmp_path: Path, header: str, row: str, last: str, complete: bool
) -> None:
    log = read(tmp_path, header + row + last)
    assert len(log) == 1 + complete
    assert [finding.kind for finding in log.findings] == ([] if complete else ["truncated"])


@dataclass(frozen=True, eq=False)
class WiderLog(CertificationLog):
    limit: Any = None
    limit_decimals: Any = None


def test_a_new_column_is_a_row_of_the_table_and_an_array_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(log_reader._COLUMNS, "pabar", (("limit", "limit_decimals"), parse_reals))
    monkeypatch.setattr(certification_log, "CertificationLog", WiderLog)
    rows = ("0\t3\t3\t0.377\t1\t0.934\n", "0\t3\t3\t0.38\t1\t0.94\n", "1\t8\t-3\t0.48\t0\t0.9720\n")
    log: Any = read(tmp_path, "idx\tlabel\tpredict\tradius\tcorrect\tpabar\n" + "".join(rows))
    assert log.limit.tolist() == [0.934, 0.94, 0.972]
    assert log.limit_decimals.tolist() == [3, 2, 4]
    counted: Any = usable_rows(log)  # without the second row of image 0
    assert counted.limit.tolist() == [0.934, 0.972]
    assert counted.lines.tolist() == [2, 4]
    assert {len(column) for column in counted._columns().values()} == {2}
    assert "limit" in counted.to_pandas()
    with pytest.raises(FileFormatError, match="line 2: pabar: expected a number, got 'x'"):
        read(tmp_path, "idx\tlabel\tpredict\tradius\tcorrect\tpabar\n0\t3\t3\t0.377\t1\tx\n")


def test_a_reader_of_another_format_gives_the_log_that_its_rows_stand_for(tmp_path: Path) -> None:
    def reader(path: Path) -> Iterator[dict[str, str]]:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                yield {"idx": row["image"], "label": row["y"], "predict": row["g"], "radius": row["R"], "correct": "1"}

    plain = tmp_path / "sigma0.25.tsv"
    plain.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.370\t1\n1\t8\t8\t0.48\t1\n")
    other = tmp_path / "sigma0.25.csv"
    other.write_text("image,y,g,R\n0,3,3,0.370\n1,8,8,0.48\n")
    ours, theirs = read_certification_log(plain), read_certification_log(other, reader=reader)
    assert theirs.to_pandas().equals(ours.to_pandas())
    assert theirs.decimals is not None
    assert theirs.decimals.tolist() == [3, 2]
    assert theirs.sigma == 0.25
    other.write_text("image,y,g,R\n0,3,3,0.370\n1,8,8,0.4x\n")
    with pytest.raises(FileFormatError, match=r"sigma0.25.csv: line 3: radius: .*'0.4x'"):
        read_certification_log(other, reader=reader)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([], FileFormatError, "expected at least one row, got none"),
        ([{"idx": "0", "label": "3"}], FileFormatError, "missing columns predict, radius, correct"),
        ([FIELDS, FIELDS | {"time": "1"}], FileFormatError, "line 3: expected the columns idx, label"),
        ([FIELDS, FIELDS | {"radius": "0.1\n2"}], FileFormatError, "line 3: radius: expected one field, got '0.1"),
        ([FIELDS | {"radius": 0.5}], InputTypeError, "reader: line 2: radius: expected text as it is written"),
        ([("0", "3")], InputTypeError, "reader: expected a mapping for each row, got tuple"),
    ],
)
def test_readers_that_give_no_log(tmp_path: Path, rows: list[Any], error: type[Exception], message: str) -> None:
    path = tmp_path / "log"
    path.write_text("anything")
    with pytest.raises(error, match=message):
        read_certification_log(path, reader=lambda path: rows)
