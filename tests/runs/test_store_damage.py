"""Damaged and older run files, and full disks: one clear error, and nothing half-written."""

from __future__ import annotations

import contextlib
import ctypes
import json
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.damage import largest_file, reseal
from support.store_rows import header, rows
from support.sweep_models import images, smoother

from pyrobust.cli import main
from pyrobust.errors import FileFormatError, PyrobustError, StoreError
from pyrobust.evaluation import predict_dataset
from pyrobust.runs.progress import SweepProgress
from pyrobust.runs.reader import OLDER, OlderFileError
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON result BEGIN DELETE FROM result; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE INDEX i ON result (label)",
        "ALTER TABLE result ADD COLUMN more",
        "DROP TABLE result",
        "DELETE FROM run",
        "UPDATE run SET parameters = '{}'",
        "UPDATE run SET parameters = '[1'",
        "UPDATE run SET parameters = json_set(parameters, '$.num_classes', 1e9)",
        "UPDATE run SET parameters = json_set(parameters, '$.alpha', 2)",
        "UPDATE run SET kind = 'attack'",
        "UPDATE run SET schema_version = 7",
        "UPDATE run SET model = x'00ff'",
        "UPDATE run SET versions = '[]'",
    ],
)
def test_tampered_headers_are_refused(run_file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(run_file)) as connection:
        connection.execute(statement)
        connection.commit()
    if statement.startswith("UPDATE"):
        reseal(run_file)
    for opening in (lambda: Run(run_file), lambda: RunWriter(run_file, header())):
        with pytest.raises(FileFormatError, match=r"run\.db"):
            opening()


def _read_all(path: Path) -> None:
    run = Run(path)
    _ = run.table, run.histogram("counts"), run.histogram("counts0")


def test_truncated_files_are_refused_and_changed_ones_raise_only_documented_errors(
    run_file: Path, tmp_path: Path
) -> None:
    content, broken = run_file.read_bytes(), tmp_path / "broken.db"
    for length in [*range(1, len(content), 3001), len(content) - 1]:
        broken.write_bytes(content[:length])
        for opening in (_read_all, lambda path: RunWriter(path, header())):
            with pytest.raises(FileFormatError, match=r"broken\.db"):
                opening(broken)
        assert broken.read_bytes() == content[:length]
    chance, messages = random.Random(0), []
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 2, 20))):
            changed[chance.choice((chance.randrange(100), chance.randrange(len(content))))] = chance.randrange(256)
        broken.write_bytes(changed)
        try:
            _read_all(broken)
        except PyrobustError as error:
            messages.append(str(error))
        for litter in tmp_path.glob("broken.db-*"):
            litter.unlink()
    assert len(messages) > 50
    assert all("broken.db" in message for message in messages)


def test_parameters_that_nest_deep_give_one_clear_error(run_file: Path) -> None:
    with contextlib.closing(sqlite3.connect(run_file)) as connection, connection:
        connection.execute("UPDATE run SET parameters = ?", ('{"a":' * 50_000 + "1" + "}" * 50_000,))
    for use in (_read_all, lambda path: RunWriter(path, header())):
        with pytest.raises(FileFormatError, match=r"damaged.*nests too deep"):
            use(run_file)


# -- nothing half-written ---------------------------------------------------------------------------------------------


def test_folders_and_missing_parents(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        RunWriter(tmp_path, header())
    with pytest.raises(StoreError, match="cannot create the file"):
        RunWriter(tmp_path / "nowhere" / "run.db", header())
    with pytest.raises(StoreError, match="cannot create the file"):
        RunWriter(tmp_path / "a\0b", header())
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def root_obeys_modes() -> Iterator[None]:
    """Drop the two capabilities that let root read and write against a mode; root stays the owner of its files."""
    libc = ctypes.CDLL(None)
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    capabilities = (ctypes.c_uint32 * 6)()
    assert libc.capget(version_3, capabilities) == 0
    fewer = type(capabilities)(capabilities[0] & ~0b110, *capabilities[1:])  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(version_3, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(version_3, capabilities) == 0


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A read-only folder with an unfinished run and a complete one."""
    folder = Path(tempfile.mkdtemp())
    try:
        with RunWriter(folder / "run.db", header()) as writer:
            writer.append(rows(range(4)))
        predict_dataset(smoother(), images(4), n=10, out=folder / "whole.db")
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        with root_obeys_modes():
            yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_without_permission_to_write_runs_can_be_read(read_only: Path) -> None:
    with pytest.raises(StoreError, match=r"new\.db: cannot create the file"):
        RunWriter(read_only / "new.db", header())
    with pytest.raises(StoreError, match=r"run\.db: cannot be opened to resume .* the file and its folder must be"):
        RunWriter(read_only / "run.db", header())
    assert sorted(file.name for file in read_only.iterdir()) == ["run.db", "whole.db"]
    assert len(Run(read_only / "run.db")) == 4
    reports: list[SweepProgress] = []
    whole = read_only / "whole.db"
    run = predict_dataset(smoother(), images(4), n=10, out=whole, progress=reports.append)
    assert (len(run), run.path) == (4, whole)
    assert [(report.done, report.total, report.correct) for report in reports] == [(4, 4, int(run.correct.sum()))]
    with pytest.raises(StoreError, match="different parameters: n: 10 stored, 20 given"):
        predict_dataset(smoother(), images(4), n=20, out=whole)


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 12288])
def test_full_disk_when_a_run_begins(tmp_path: Path, size: int) -> None:
    with largest_file(size), pytest.raises(StoreError, match="disk full"):
        RunWriter(tmp_path / "run.db", header())
    assert list(tmp_path.iterdir()) == []


def test_full_disk_later_keeps_committed_chunks(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    images = range(100_000)
    big = header(images=len(images))

    def fill(writer: RunWriter) -> None:
        for start in range(len(writer.done), len(images), 500):
            writer.append(rows(images[start : start + 500]))
            if start > 5000:
                return

    with largest_file(300_000), pytest.raises(StoreError, match="disk full"), RunWriter(path, big) as writer:
        fill(writer)
    kept = len(Run(path))
    assert kept > 0
    assert kept % 500 == 0
    with RunWriter(path, big) as writer:
        assert len(writer.done) == kept
        writer.append(rows(images[kept : kept + 500]))
    assert Run(path).table["index"].tolist() == list(range(kept + 500))


def test_new_run_without_results_is_removed_when_its_sweep_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunWriter(tmp_path / "run.db", header()):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with RunWriter(tmp_path / "run.db", header()) as writer:
        writer.append(rows(range(4)))
    with pytest.raises(KeyboardInterrupt), RunWriter(tmp_path / "run.db", header()):
        raise KeyboardInterrupt
    assert len(Run(tmp_path / "run.db")) == 4


# -- files of older schema versions, as the software of their time wrote them: only the header is read

# SQL of four images of each layout; the sequential one has two unfinished images besides.
WRITTEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "older_runs.json").read_text())
VERSIONS = {"sequential": 6, "attack": 6, "certified-first": 9}


def restore(layout: str, path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
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
    [log] = json.loads(out.read_text())["logs"]
    assert [finding["kind"] for finding in log["findings"]] == ["guarantee"]
    assert log["exit_status"] == 2


def test_every_older_version_is_recognised(run_file: Path) -> None:
    for version in sorted(OLDER):
        with contextlib.closing(sqlite3.connect(run_file)) as connection:
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
        with contextlib.closing(sqlite3.connect(run_file)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        for opening in (lambda: Run(run_file), lambda: RunWriter(run_file, header())):
            with pytest.raises(FileFormatError, match=words):
                opening()


def test_an_older_header_is_untrusted(tmp_path: Path) -> None:
    for statement in ("UPDATE run SET kind = 'x'", "UPDATE run SET schema_version = 5", "UPDATE run SET versions = 3"):
        path = restore("attack", tmp_path / "run.db")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(statement)
        with pytest.raises(FileFormatError, match="damaged"):
            Run(path)
        path.unlink()
