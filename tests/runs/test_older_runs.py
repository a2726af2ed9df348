"""Run files of schema versions 6, 7 and 9, as the software of their time wrote them: read, resumed and merged."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_rows import attack_rows, sequential_rows

from pyrobust.errors import StoreError
from pyrobust.runs.merged_file import write_merged
from pyrobust.runs.reader import read_columns
from pyrobust.runs.run import Run
from pyrobust.runs.schema import VERSION, create_statements
from pyrobust.runs.writer import RunWriter

# SQL of four images of each layout; the sequential one has two unfinished images besides.
OLDER: dict[str, list[str]] = json.loads((Path(__file__).parent / "older_runs.json").read_text())
VERSIONS = {"sequential": 6, "attack": 6, "minimum": 7, "certified-first": 9}


def restore(layout: str, path: Path) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in OLDER[layout]:
            connection.execute(statement)
    return path


def more_rows(layout: str, indices: range) -> dict[str, Any]:
    if layout == "sequential":
        return sequential_rows(indices)
    found = attack_rows(indices)
    size = len(indices)
    if layout == "minimum":
        return found | {"distance": [0.5] * size, "broken_by": ["FMN"] * size, "adversarial": [4] * size}
    proofs = {"proved": [0] * size, "rows_saved": [0] * size, "proof_seconds": [0.25] * size}
    return found | proofs if layout == "certified-first" else found


@pytest.mark.parametrize("layout", sorted(VERSIONS))
def test_older_runs_are_read_and_resumed_as_they_are(layout: str, tmp_path: Path) -> None:
    path = restore(layout, tmp_path / "run.db")
    run = Run(path)
    run.check()
    assert (run.header.schema_version, len(run), run.machines, run.set_aside) == (VERSIONS[layout], 4, {}, {})
    given = run.header.identity
    assert given is not None
    elsewhere = replace(run.header, schema_version=VERSION, identity=replace(given, machine="gpu", bits=""))
    with RunWriter(path, elsewhere) as writer:
        assert writer.done == set(range(4))
        if layout == "sequential":
            assert read_columns(writer.connection, path, layout, ["idx"], "pending")["idx"].tolist() == [4, 5]
        writer.set_aside(0 if layout == "sequential" else 8, "an older file has no place for it")
        writer.append(more_rows(layout, range(4, 8)), machines={4: "gpu"})
    run = Run(path)
    run.check()
    assert (run.table["index"].tolist(), run.machines, run.set_aside) == (list(range(8)), {}, {})
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSIONS[layout],)
        stored = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert stored == set(create_statements(layout, VERSIONS[layout]))


def test_older_shards_are_merged_in_their_version(tmp_path: Path) -> None:
    paths = [restore("certified-first", tmp_path / f"{number}.db") for number in (1, 2)]
    for number, path in enumerate(paths, start=1):
        parameters = json.dumps(Run(path).parameters | {"shard": [number, 2]})
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DELETE FROM result WHERE idx % 2 = ?", (number % 2,))
            connection.execute("UPDATE run SET parameters = ?", (parameters,))
            connection.commit()
    run = write_merged(paths, tmp_path / "out.db", partial=True)
    assert (run.header.schema_version, run.table["index"].tolist(), run.machines) == (9, [0, 1, 2, 3], {})


def test_a_void_run_of_an_older_version_stays_void(tmp_path: Path) -> None:
    path = restore("attack", tmp_path / "run.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE identity SET value = json_set(value, '$.void', 'it drifts')")
        connection.commit()
    with pytest.raises(StoreError, match="void, do not use its results: it drifts"):
        Run(path)
