"""Kinds of runs: what their declarations give, and that every kind says what tables and pages ask for."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.example_parameters import example
from support.store_rows import rows, write_rows

from pyrobust import report
from pyrobust.errors import FileFormatError
from pyrobust.report.robustness_table import bounds_robustness
from pyrobust.runs.kinds import KINDS, kind_of
from pyrobust.runs.kinds.attack import Attack
from pyrobust.runs.kinds.certify import Certify, Sequential
from pyrobust.runs.kinds.columns import OptionalReal, Probability, Radius, Votes
from pyrobust.runs.kinds.kind import Parameter
from pyrobust.runs.kinds.predict import Predict
from pyrobust.runs.kinds.values import count
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.runs.schema import create_statements

# Character for character as version 12 writes them.
_COMMON = "idx INTEGER PRIMARY KEY, label INTEGER NOT NULL, prediction INTEGER NOT NULL, status TEXT NOT NULL, "
_COMMON += "seconds REAL NOT NULL, "
_BROKEN = "adversarial INTEGER NOT NULL, distance REAL, broken_by TEXT NOT NULL, "
RESULT = {
    "certify": "counts0 TEXT NOT NULL, counts TEXT NOT NULL, p_lower REAL NOT NULL, radius REAL NOT NULL",
    "sequential": "counts0 TEXT NOT NULL, counts TEXT NOT NULL, samples INTEGER NOT NULL, p_lower REAL NOT NULL, "
    "p_upper REAL NOT NULL, rival_upper REAL NOT NULL, undecided TEXT NOT NULL, radius REAL NOT NULL",
    "predict": "counts TEXT NOT NULL, p_value REAL NOT NULL",
    "attack": _BROKEN + "x_adv BLOB NOT NULL",
    "minimum": _BROKEN + "x_adv BLOB NOT NULL",
    "certified-first": _BROKEN + "proved INTEGER NOT NULL, rows_saved INTEGER NOT NULL, proof_seconds REAL NOT NULL, "
    "x_adv BLOB NOT NULL",
    "verify": "radius REAL NOT NULL, verdicts TEXT NOT NULL, stages TEXT NOT NULL, margins TEXT NOT NULL, "
    "x_adv BLOB NOT NULL",
    "sandwich": "lower REAL NOT NULL, lower_by TEXT NOT NULL, upper REAL, upper_by TEXT NOT NULL, "
    "adversarial INTEGER NOT NULL, confidence REAL NOT NULL, margin REAL, x_adv BLOB NOT NULL",
    "smoothed-sandwich": "counts0 TEXT NOT NULL, counts TEXT NOT NULL, p_lower REAL NOT NULL, lower REAL NOT NULL, "
    "upper REAL, upper_by TEXT NOT NULL, adversarial INTEGER NOT NULL, counts_adv TEXT NOT NULL, "
    "p_value REAL NOT NULL, x_adv BLOB NOT NULL",
}
_PENDING = (
    "CREATE TABLE pending (idx INTEGER PRIMARY KEY, counts0 TEXT NOT NULL, counts TEXT NOT NULL, "
    "p_lower REAL NOT NULL, p_upper REAL NOT NULL, rival_lower REAL NOT NULL, rival_upper REAL NOT NULL, "
    "seconds REAL NOT NULL, place INTEGER NOT NULL)"
)


def test_each_layout_has_the_tables_of_its_files() -> None:
    assert set(KINDS) == set(RESULT)
    for layout, kind in KINDS.items():
        statements = create_statements(kind)
        assert statements["result"] == f"CREATE TABLE result ({_COMMON}{RESULT[layout]})"
        pending = {"pending"} if isinstance(kind, Sequential) else set()
        assert set(statements) == {"run", "result", "identity", "chunk", "digest", "seal"} | pending
        with closing(sqlite3.connect(":memory:")) as connection:
            for statement in statements.values():
                connection.execute(statement)
    assert create_statements(Sequential())["pending"] == _PENDING


@pytest.mark.parametrize("layout", KINDS)
def test_each_layout_takes_its_parameters_and_no_others(layout: str) -> None:
    parameters, kind = example(layout), KINDS[layout]
    assert kind_of(kind.name, parameters) is kind
    kind.check(parameters)
    kind.check(parameters | {"order": "random", "order_seed": 1, "threads": 2})
    for changed in ({"order": "random"}, {"order_seed": 1}, {"delta": 0.1}, {"unknown": 1}):
        with pytest.raises(ValueError, match="parameters do not match this kind of run"):
            kind.check(parameters | changed)
    for name in parameters:
        without = {other: value for other, value in parameters.items() if other != name}
        if not kind.parameters[name].group:
            with pytest.raises(ValueError, match="do not match"):
                kind.check(without)
        with pytest.raises(ValueError, match=f"parameter {name}: "):
            kind.check(parameters | {name: object()})
    for untrusted in (None, [], "x", 1):
        with pytest.raises(ValueError, match="do not match"):
            kind.check(untrusted)


def test_only_smoothed_classifiers_have_the_distance_of_a_grid() -> None:
    for layout, kind in KINDS.items():
        grid: dict[str, Any] = {"grid": "1/16"} | ({"delta": 1e-6} if kind.smoothed else {})
        if kind.smoothed or "broken_by" in kind.columns:
            kind.check(example(layout) | grid)
            assert kind.guarantees_grid(grid) == kind.smoothed
        else:
            with pytest.raises(ValueError, match="do not match"):
                kind.check(example(layout) | grid)


def test_shards_may_differ_in_how_they_were_executed() -> None:
    for kind in KINDS.values():
        always = {"shard", "order", "order_seed", "chunk", "threads"}
        assert kind.execution(grid=True) == always
        assert kind.execution(grid=False) == always | {"batch_size", "device"}


@pytest.mark.parametrize("layout", KINDS)
def test_each_kind_says_what_tables_captions_and_pages_ask(layout: str) -> None:
    kind, parameters = KINDS[layout], example(layout)
    made = Header(kind.name, parameters, "net", "", "digits", "", "real", {})
    assert made.type is kind
    assert made.layout == layout
    assert callable(getattr(report, kind.table))
    assert all(kind.describe(made))
    assert all(kind.promises(made))
    assert kind.method_of(parameters)
    assert bool(kind.outcome) == bool(kind.side) == (kind.stepwise or bool(kind.epsilons_of(parameters)))
    assert {"idx", "label", "predict", "correct", "time"} <= set(kind.log)
    assert kind.panel


def test_an_attack_that_certifies_first_has_a_figure_of_robust_accuracy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot")
    from pyrobust.report.figures import robust_accuracy_frame

    run = Run(write_rows(tmp_path / "run.db", "certified-first", images=8))
    figure = robust_accuracy_frame(run).render("svg")
    assert b"under attack, an upper bound" in figure


def test_only_runs_with_rates_at_epsilons_bound_robust_accuracy(tmp_path: Path) -> None:
    runs = [Run(write_rows(tmp_path / f"{layout}.db", layout)) for layout in ("attack", "sandwich")]
    assert [bounds_robustness(run) for run in runs] == [True, False]


def test_images_of_a_sandwich_are_unbroken_beyond_their_adversarial_distance(tmp_path: Path) -> None:
    kind = Run(write_rows(tmp_path / "run.db", "sandwich")).header.type
    unbroken = kind.unbroken({"upper": [None, np.inf, 0.1, 0.2, 0.3]}, 0.2)
    assert unbroken is not None
    assert unbroken.tolist() == [True, True, False, False, True]
    assert kind.unbroken({"upper": [0.1]}, 0.0) is None  # without a radius


def test_unknown_kinds_are_refused() -> None:
    for name in ("", "threat", "Certify", "sequential", "x" * 100):
        with pytest.raises(ValueError, match="unknown kind"):
            kind_of(name, {})
    assert isinstance(kind_of("attack", None), Attack)


def test_a_kind_is_declared_by_its_attributes() -> None:
    class Counted(Certify):
        m = Parameter(count)
        counts0 = Votes("m")
        extra = Probability()

    assert [*Certify.columns][-4:] == ["counts0", "counts", "p_lower", "radius"]
    assert [*Counted.columns][-5:] == ["counts", "p_lower", "radius", "counts0", "extra"]
    assert set(Counted.parameters) == {*Certify.parameters, "m"}
    assert not any(isinstance(kind, Counted) for kind in KINDS.values())


def test_rows_of_images_that_the_run_does_not_cover_are_refused() -> None:
    table = {name: np.array(values) for name, values in rows([20]).items()} | {"index": np.array([20])}
    with pytest.raises(FileFormatError, match=r"run\.db: damaged: holds an image that the run does not cover; do not"):
        Certify().check_rows(example("certify"), table, Path("run.db"))


def test_null_is_what_a_column_says() -> None:
    assert OptionalReal().decode("distance", [0.5, None]).tolist()[:1] == [0.5]
    assert np.isnan(OptionalReal().decode("distance", [None])).all()
    assert OptionalReal(missing=np.inf).decode("distance", [None, 0.5]).tolist() == [np.inf, 0.5]
    for value in (np.inf, 1, "0.5"):
        with pytest.raises(ValueError, match="column distance: expected"):
            OptionalReal().decode("distance", [value])
    with pytest.raises(ValueError, match="column radius: expected values of type float"):
        Radius().decode("radius", [None])


def test_the_command_of_a_kind_stands_under_its_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyrobust.cli import app
    from pyrobust.cli.sweeps import predict

    monkeypatch.setattr(Predict, "name", "new-kind")
    monkeypatch.setattr(Predict, "panel", "New heading")
    monkeypatch.setattr(predict, "new_kind", predict.predict, raising=False)
    monkeypatch.setitem(sys.modules, "pyrobust.cli.sweeps.new_kind", predict)
    app._modules.cache_clear()
    commands = app._Commands({})
    assert (commands["new-kind"].name, commands["new-kind"].rich_help_panel) == ("new-kind", "New heading")
    assert [*commands][3:5] == ["certify", "verify"]
    assert [*commands][-1] == "new-kind"
    app._modules.cache_clear()
