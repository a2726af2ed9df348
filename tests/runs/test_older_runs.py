"""Run files of older schema versions, as the software of their time wrote them: only the header is read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_rows import header

from pyrobust.cli import main
from pyrobust.errors import FileFormatError
from pyrobust.runs.reader import OLDER, OlderFileError
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter

# SQL of four images of each layout; the sequential one has two unfinished images besides.
WRITTEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "older_runs.json").read_text())
VERSIONS = {"sequential": 6, "attack": 6, "certified-first": 9}


def restore(layout: str, path: Path) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in WRITTEN[layout]:
            connection.execute(statement)
    return path


@pytest.mark.parametrize("layout", sorted(VERSIONS))
def test_older_runs_are_refused_with_their_header(layout: str, tmp_path: Path) -> None:
    path = restore(layout, tmp_path / "run.db")
    before = path.read_bytes()
    message = f"made by version {VERSIONS[layout]} of pyrobust's files; this version reads only its header: kind "
    for opening in (lambda: Run(path), lambda: RunWriter(path, header())):
        with pytest.raises(OlderFileError, match=message) as caught:
            opening()
        assert caught.value.header.layout == layout
        assert "start a new run in another file" in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("layout", "lacks"),
    [
        ("sequential", "guarantee real; its version did not probe"),
        ("attack", "guarantee empirical; its version did not"),
    ],
)
def test_an_audit_says_what_the_version_guaranteed(
    layout: str, lacks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = restore(layout, tmp_path / "run.db"), tmp_path / "audit.json"
    monkeypatch.setattr("sys.argv", ["pyrobust", "audit", str(path), "--json", str(out)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert "this version reads only its header" in printed
    assert lacks in printed
    [found] = json.loads(out.read_text())["logs"]
    assert [finding["kind"] for finding in found["findings"]] == ["guarantee"]
    assert found["exit_status"] == 2


def test_every_older_version_is_recognised(run_file: Path) -> None:
    for version in sorted(OLDER):
        with closing(sqlite3.connect(run_file)) as connection:
            connection.execute("UPDATE run SET schema_version = ?", (version,))
            connection.execute(f"PRAGMA user_version = {version}")
            connection.commit()
        with pytest.raises(OlderFileError, match=f"made by version {version} of"):
            Run(run_file)
    for version, words in (
        (0, "schema version 0, expected 12"),
        (10, "one on threats"),
        (13, "version 13, expected 12"),
    ):
        with closing(sqlite3.connect(run_file)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        for opening in (lambda: Run(run_file), lambda: RunWriter(run_file, header())):
            with pytest.raises(FileFormatError, match=words):
                opening()


def test_an_older_header_is_untrusted(tmp_path: Path) -> None:
    for statement in ("UPDATE run SET kind = 'x'", "UPDATE run SET schema_version = 5", "UPDATE run SET versions = 3"):
        path = restore("attack", tmp_path / "run.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(statement)
        with pytest.raises(FileFormatError, match="damaged"):
            Run(path)
        path.unlink()
