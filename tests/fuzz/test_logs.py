"""Fuzz the log reader and the auditor: any bytes give one clear error, or an audit. Atheris runs `log_target.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fuzz.log_target import examine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.planted_logs import made_up

from pyrobust.auditing.log_reader import _COLUMNS, REQUIRED

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER = "\t".join(_COLUMNS)
VALID = made_up(12).encode()
ODD = ["0", "-1", "3", "0.377", "0.953", "1e309", "-0.0", "nan", "", "4294967295", "0:00:01", "True", "1 day, 0:00:00"]
TINY = ["1e-320", "0.12345678901234567890", "2.2250738585072014e-308", "9" * 20, "1e999999", "1.7e308", "inf"]
FIELDS = st.sampled_from(ODD + TINY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log_sigma0.25.tsv"


@QUICK
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(path: Path, content: bytes) -> None:
    assert not examine(content, path)


@QUICK
@given(st.binary(max_size=300))
def test_random_bytes_below_a_header(path: Path, content: bytes) -> None:
    examine(HEADER.encode() + b"\n" + content, path)


@QUICK
@given(st.lists(st.lists(FIELDS, min_size=len(_COLUMNS), max_size=len(_COLUMNS)), min_size=1, max_size=8))
def test_unusual_fields(path: Path, rows: list[list[str]]) -> None:
    examine("\n".join([HEADER, *map("\t".join, rows), ""]).encode(), path)


ROWS = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(-1, 9),
    st.integers(-2, 9),
    st.floats(-1, 2) | st.floats() | st.sampled_from([0.0, 0.953, 0.935]),
    st.integers(-1, 2) | st.floats(0, 1),
)


@settings(QUICK, max_examples=8)
@example([(0, -1, 0, 0.0, 0)])  # no label is a class
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_any_numbers_form_a_log(path: Path, rows: list[tuple[Any, ...]]) -> None:
    assert examine("\n".join(["\t".join(REQUIRED), *("\t".join(map(str, row)) for row in rows), ""]).encode(), path)


@QUICK
@given(st.data())
def test_mutated_logs(path: Path, data: st.DataObject) -> None:
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(content)))
        end = min(len(content), start + data.draw(st.integers(0, 40)))
        content[start:end] = data.draw(
            st.binary(max_size=10) | st.sampled_from([b"\t", b"\n", b"\r\n", b"nan", b"-", b"9"])
        )
    examine(bytes(content), path)


def test_the_fuzz_target_accepts_a_log_and_refuses_an_empty_file(path: Path) -> None:
    assert examine(VALID, path)
    assert not examine(b"", path)
