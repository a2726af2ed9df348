"""Logs of `pyrobust log` state their parameters in a header beside them; shards are one log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyrobust.auditing.certification_log import read_shards
from pyrobust.errors import InputError
from pyrobust.evaluation import (
    Run,
    audit,
    merge_runs,
    read_certification_log,
    read_log,
    write_log,
)
from pyrobust.runs.merge import group_shards


@pytest.mark.parametrize("name", ["fixed", "laplace", "sequential", "verify"])
def test_an_exported_log_states_what_its_run_states(runs: Path, tmp_path: Path, name: str) -> None:
    run = Run(runs / f"{name}.db")
    write_log(run, tmp_path / "log.tsv")
    log, stored = read_certification_log(tmp_path / "log.tsv"), read_certification_log(runs / f"{name}.db")
    assert log.header is not None
    assert log.header.parameters == run.parameters
    for field in ("kind", "n", "alpha", "sigma", "noise", "norm"):
        assert getattr(log, field) == getattr(stored, field)
    found, exact = audit(log), audit(stored)
    assert not found.faults
    assert (found.metrics.survival is None) == (name != "fixed")
    assert found.metrics.accuracy == exact.metrics.accuracy
    assert found.metrics.certified == exact.metrics.certified
    if found.metrics.survival is not None:  # six decimals determine the votes
        assert exact.metrics.survival is not None
        assert np.array_equal(found.metrics.survival.share, exact.metrics.survival.share)
    assert log.decimals is not None
    assert (log.decimals == 6).all()
    assert read_log(tmp_path / "log.tsv")["idx"].tolist() == log.index.tolist() == run.table["index"].tolist()
    assert np.array_equal(log.is_correct, run.correct)


@pytest.mark.parametrize("name", ["laplace", "sequential"])
def test_radii_above_the_maximum_of_other_methods_are_faults(runs: Path, tmp_path: Path, name: str) -> None:
    log = read_certification_log(_exported(runs, tmp_path, name))
    radius = log.radius.copy()
    radius[np.flatnonzero(radius > 0)[0]] = 9.0
    (fault,) = audit(type(log)(**{**vars(log), "radius": radius})).faults
    assert fault.kind == "above-maximum"


def _exported(runs: Path, to: Path, name: str = "fixed") -> Path:
    write_log(Run(runs / f"{name}.db"), to / "log.tsv")
    return to / "log.tsv"


def test_a_header_of_another_log_is_reported_and_not_used(runs: Path, tmp_path: Path) -> None:
    path = _exported(runs, tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    log = read_certification_log(path)
    assert (log.header, log.sigma) == (None, None)
    fault = next(fault for fault in audit(log).faults if fault.kind == "header")
    assert "log.tsv.json is not used: it belongs to another log, of 20 rows, or the log was changed" in fault.message


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored["run"].update(kind="other"),
        lambda stored: stored["run"]["parameters"].update(sigma=-1),
        lambda stored: stored["run"].pop("parameters"),
        lambda stored: stored.pop("log"),
        lambda stored: stored["run"].update(versions=3),
        lambda stored: stored["run"].update(identity="x"),
    ],
)
def test_damaged_headers_are_reported(runs: Path, tmp_path: Path, change: Any) -> None:
    path = _exported(runs, tmp_path)
    side = tmp_path / "log.tsv.json"
    stored = json.loads(side.read_text())
    change(stored)
    side.write_text(json.dumps(stored, indent=1))
    assert "damaged" in next(fault.message for fault in read_certification_log(path).findings if fault.kind == "header")


def test_files_of_other_programs_are_neither_read_nor_overwritten(runs: Path, tmp_path: Path) -> None:
    side = tmp_path / "log.tsv.json"
    side.write_text('{"mine": 1}')
    with pytest.raises(InputError, match=r"log\.tsv\.json"):
        _exported(runs, tmp_path)
    assert not (tmp_path / "log.tsv").exists()
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t1\t1\t0.25\t1\n")
    log = read_certification_log(tmp_path / "log.tsv")
    assert (log.header, log.findings) == (None, ())
    write_log(Run(runs / "fixed.db"), tmp_path / "log.tsv", replace=True)
    write_log(Run(runs / "fixed.db"), tmp_path / "log.tsv")  # the same kind
    assert read_certification_log(tmp_path / "log.tsv").alpha == 0.01


def test_given_values_override_neither_a_run_nor_its_header(runs: Path, tmp_path: Path) -> None:
    for path, origin in ((runs / "fixed.db", "the run"), (_exported(runs, tmp_path), "log.tsv.json")):
        log = read_certification_log(path, n=300, alpha=0.001)
        assert log.alpha == 0.01
        given = [note.message for note in audit(log).notes if note.kind == "given"]
        assert given == [f"alpha 0.001 ignored; alpha of {origin} is 0.01"]


def test_shards_are_one_log(runs: Path) -> None:
    shards = [runs / f"part-{i}.db" for i in (3, 1, 2)]
    merged, other = map(read_shards, group_shards([*shards, runs / "fixed.db"]))
    whole = merge_runs(shards)
    assert merged.name == "part"
    assert other.name == "fixed"
    assert merged.index.tolist() == whole.table["index"].tolist()
    assert not audit(merged).faults
    (two,) = map(read_shards, group_shards(shards[:2]))
    notes = {note.kind: note.message for note in audit(two).notes}
    assert notes["unfinished"] == f"unfinished run: {len(two)} of {len(merged)} images"
    # The same shard twice is no sweep.
    assert [len(read_shards(group)) for group in group_shards([shards[0], shards[0]])] == [6, 6]
