"""Text logs: formatting, rounding, reading and errors."""

from __future__ import annotations

import datetime
import math
import os
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pyrobust.errors import FileFormatError
from pyrobust.evaluation import Run, certify_dataset, format_log, predict_dataset, read_log, write_log
from pyrobust.runs.kinds.columns import RADIUS_DECIMALS, format_radius
from pyrobust.runs.log import format_seconds
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


@pytest.fixture(scope="module")
def smoother() -> RandomizedSmoothing:
    return RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, 0.25)


@pytest.fixture(scope="module")
def run(smoother: RandomizedSmoothing) -> Run:
    return certify_dataset(smoother, load_data("digits"), n=200, skip=10)


@example(math.nextafter(0.5, 0.0))
@example(0.1)  # the next double lies above a tenth
@example(0.7)  # and here below seven tenths
@given(st.floats(0, 1e6) | st.floats(0, 1e-5) | st.integers(0, 10**7).map(lambda k: k / 10**6))
def test_radii_are_rounded_down(radius: float) -> None:
    text = format_radius(radius)
    assert Decimal(text) == Decimal(radius).quantize(Decimal("1e-6"), ROUND_FLOOR)
    assert Decimal(text) <= Decimal(radius) < Decimal(text) + Decimal("1e-6")
    assert len(text.partition(".")[2]) == RADIUS_DECIMALS


@given(st.integers(0, 86_399_999_999))
def test_times_match_timedelta(microseconds: int) -> None:
    expected = str(datetime.timedelta(microseconds=microseconds))
    text = format_seconds(microseconds / 1_000_000)
    assert text == (expected if "." in expected else f"{expected}.000000")
    assert format_seconds(90_000.25) == "25:00:00.250000"  # beyond a day


def test_the_largest_radii_round_trip(tmp_path: Path) -> None:
    for radius in (1e22, 1e22 + 2**24, 1.7976931348623157e308):
        text = format_radius(radius)
        assert Decimal(text) == Decimal(radius)
        (tmp_path / "log.tsv").write_text(f"{HEADER}0\t1\t1\t{text}\t1\t0:00:01\n")
        assert read_log(tmp_path / "log.tsv")["radius"].tolist() == [radius]


def test_log_has_the_columns_of_the_reference_script(run: Run) -> None:
    lines = format_log(run).split("\n")
    assert lines[0] + "\n" == HEADER
    assert lines[-1] == ""
    assert len(lines) == 2 + len(run)
    table = run.table
    for row, line in enumerate(lines[1:-1]):
        index, label, predict, radius, correct, time = line.split("\t")
        assert int(index) == table["index"][row]
        assert int(label) == table["label"][row]
        assert int(predict) == table["prediction"][row]
        assert Decimal(radius) <= Decimal(float(table["radius"][row]))
        assert correct == str(int(int(label) == int(predict)))
        assert time.count(":") == 2
    assert {"0", "1"} >= {line.split("\t")[4] for line in lines[1:-1]}


def test_round_trip(run: Run, tmp_path: Path) -> None:
    write_log(run, tmp_path / "log.tsv")
    columns = read_log(tmp_path / "log.tsv")
    assert np.array_equal(columns["idx"], run.table["index"])
    assert np.array_equal(columns["predict"], run.table["prediction"])
    assert np.array_equal(columns["correct"], run.correct)
    assert (columns["radius"] <= run.table["radius"]).all()
    np.testing.assert_allclose(columns["radius"], run.table["radius"], atol=1.001e-6, rtol=0)
    np.testing.assert_allclose(columns["time"], run.table["seconds"], atol=1e-6)


def test_abstentions_are_written_as_minus_one(smoother: RandomizedSmoothing) -> None:
    noise = certify_dataset(
        smoother, (torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(8).long()), n=5
    )
    fields = [line.split("\t") for line in format_log(noise).splitlines()[1:]]
    assert all(line[2:5] == ["-1", "0.000000", "0"] for line in fields)


def test_logs_of_predictions_have_no_radius(smoother: RandomizedSmoothing, tmp_path: Path) -> None:
    run = predict_dataset(smoother, load_data("digits"), n=50, max_images=3)
    write_log(run, tmp_path / "log.tsv")
    assert list(read_log(tmp_path / "log.tsv")) == ["idx", "label", "predict", "correct", "time"]


def test_published_logs_are_read() -> None:
    folder = os.environ.get("PYROBUST_DATA")
    if folder is None:
        pytest.skip("PYROBUST_DATA is not set")
    files = sorted(Path(folder, "logs").rglob("*.tsv"))
    assert files
    for file in files:
        columns = read_log(file)
        assert len(columns["idx"]) in (500, 10_000)
        assert np.array_equal(columns["correct"], columns["predict"] == columns["label"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: expected the columns"),
        (HEADER[:-1], "line 1: incomplete"),
        (HEADER + "0\t1\t1\t0.5\t1\t0:00:01", "line 2: incomplete"),
        (HEADER + "0\t1\t1\t0.5\t1\n", "line 2: expected 6 fields, got 5"),
        (HEADER + "x\t1\t1\t0.5\t1\t0:00:01\n", "line 2: idx"),
        (HEADER + "4294967296\t1\t1\t0.5\t1\t0:00:01\n", "line 2: idx: expected an integer from 0 to 4294967295"),
        (HEADER + "0\t-1\t1\t0.5\t1\t0:00:01\n", "line 2: label"),
        (HEADER + "0\t1\t-2\t0.5\t1\t0:00:01\n", "line 2: predict: expected an integer from -1"),
        (HEADER + "0\t1\t1\tnan\t1\t0:00:01\n", "line 2: radius"),
        (HEADER + "0\t1\t1\t-0.5\t1\t0:00:01\n", "line 2: radius"),
        (HEADER + "0\t1\t1\t1_0\t1\t0:00:01\n", "line 2: radius"),
        (HEADER + "0\t1\t1\t0.5\t2\t0:00:01\n", "line 2: correct: expected an integer from 0 to 1"),
        (HEADER + "0\t1\t1\t0.5\t1\t1.5\n", "line 2: time"),
        (HEADER + "0\t1\t1\t0.5\t1\t0:00:nan\n", "line 2: time"),
        (HEADER + "0\t1\t1\t0.5\t1\t0:00:01\n" * 2, "duplicate image index"),
        (HEADER + "0\t1\t1\t0.5\t1\t0:00:01\xff\n", "not a readable log"),
        (HEADER + "9" * 5000 + "\t1\t1\t0.5\t1\t0:00:01\n", "line 2: too long"),
        ("9" * 5000, "line 1: expected the columns"),
    ],
)
def test_broken_logs_give_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "log.tsv"
    file.write_bytes(text.encode("latin1"))
    with pytest.raises(FileFormatError, match=words) as error:
        read_log(file)
    assert str(file) in str(error.value)
    assert len(str(error.value)) < 500 + len(str(file))


def test_huge_logs_are_refused_without_reading(tmp_path: Path) -> None:
    file = tmp_path / "log.tsv"
    with file.open("wb") as stream:
        stream.write(HEADER.encode())
        stream.truncate(1 << 40)  # a hole: it takes no space
    with pytest.raises(FileFormatError, match="at most 1073741824 bytes"):
        read_log(file)


def test_an_empty_log_has_empty_columns(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(HEADER.replace("\n", "\r\n").encode())
    columns = read_log(tmp_path / "log.tsv")
    assert {name: (len(column), column.dtype) for name, column in columns.items()} == {
        name: (0, np.dtype(np.float64 if name in ("radius", "time") else np.int64)) for name in HEADER.split()
    }


def test_missing_logs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="file not found"):
        read_log(tmp_path / "log.tsv")
    with pytest.raises(FileFormatError, match="is a folder"):
        read_log(tmp_path)
