"""Sweeps on a grid: the recorded guarantee, and refusals to mix classifiers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.damage import change
from support.sweep_models import FEW, Failing, images, same, smoother

from pyrobust.errors import FileFormatError, InputError, ModelError, StoreError
from pyrobust.evaluation import (
    Run,
    audit,
    certify_dataset,
    certify_sequential,
    compute_certified_accuracy,
    merge_runs,
    predict_dataset,
    read_certification_log,
)
from pyrobust.report import certified_accuracy_table, comparison_table, prediction_table
from pyrobust.zoo import ImageSet


def sweep(out: Path | None = None, grid: Any = "1/16", model: Any = None, **options: Any) -> Run:
    return certify_dataset(smoother(model, grid=grid), images(), out=out, **(FEW | options))


def test_a_run_records_its_guarantee(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run.db")
    again = Run(tmp_path / "run.db")
    with pytest.raises(StoreError, match="grid: '1/16' stored, '1/256' given"):
        sweep(tmp_path / "run.db", grid="1/256")
    assert run.header == again.header
    assert again.header.guarantee == "grid"
    assert again.parameters["grid"] == "1/16"
    assert 0 < again.parameters["delta"] < 1e-20
    result = smoother(grid="1/16").certify_batch(images().x, indices=range(len(images())), **FEW)
    np.testing.assert_array_equal(again.histogram(), result.counts)
    np.testing.assert_array_equal(again.table["p_lower"], result.p_lower)
    assert result.delta == again.parameters["delta"]
    predicted = predict_dataset(smoother(grid="1/16"), images(), n=50)
    assert predicted.header.guarantee == "grid"
    assert predicted.parameters["delta"] >= 50 * run.parameters["delta"]
    log = read_certification_log(tmp_path / "run.db")
    assert audit(log).exit_status == 0
    assert ("guarantee", "grid of 1/16") in comparison_table([log]).rows
    for table in (certified_accuracy_table(again), prediction_table(predicted)):
        assert "sound in floating point on the grid of 1/16, in batches of 64" in "\n".join(table.notes)


def test_auto_chooses_one_grid_for_the_whole_data_set(tmp_path: Path) -> None:
    """The first images are black, and thus on every grid."""
    x = torch.zeros(6, 1, 2, 2)
    x[4:] = 3 / 16
    data = ImageSet("dark first", x, torch.zeros(6, dtype=torch.int64))
    run = certify_dataset(smoother(grid="auto"), data, out=tmp_path / "run.db", **FEW)
    assert run.parameters["grid"] == "1/16"
    other = certify_dataset(smoother(grid=Fraction(1, 16)), data, **FEW)
    assert same(run, other)
    assert same(run, certify_dataset(smoother(grid="auto"), data, out=tmp_path / "run.db", **FEW))


def test_auto_chooses_one_grid_for_an_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobust.evaluation.smoothed_accuracy._CHUNK", 2)
    x = torch.zeros(6, 1, 2, 2)
    x[4:] = 1.0
    x[5, 0, 0, 1] = 3 / 16
    y = torch.tensor([0, 0, 0, 0, 2, 2])
    accuracies = [compute_certified_accuracy(smoother(grid=grid), x, y, n=500) for grid in ("auto", "1/16")]
    assert accuracies[0] == accuracies[1]
    with pytest.raises(InputError, match="nearest to multiples of 1/255"):
        compute_certified_accuracy(smoother(grid="1/255"), x, y, n=500)


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("method", [{}, {"method": "sequential", "radii": [0.05], "n": 2000}])
def test_a_run_on_a_grid_is_not_resumed_under_another_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    """Its kernels may round differently: the votes of an unfinished image must not mix two versions."""

    def under(version: str, name: str, grid: str | None = "1/16", calls: int = 10**9, **options: Any) -> Run:
        monkeypatch.setattr(torch, "__version__", version)
        return sweep(tmp_path / name, grid, Failing(calls, ZeroDivisionError()), batch_size=16, **method, **options)

    monkeypatch.setattr(certify_sequential, "_PART_S", 0.0)
    for grid, name in (("1/16", "grid.db"), (None, "real.db")):
        with pytest.raises(ZeroDivisionError):
            under("2.11.0", name, grid, calls=40)
    with pytest.raises(StoreError, match=r"torch: '2.11.0' stored, '2.13.0' given"):
        under("2.13.0", "grid.db")
    assert under("2.13.0", "real.db", None).complete
    # A complete run is only read.
    assert under("2.11.0", "grid.db").complete
    assert same(under("2.13.0", "grid.db"), Run(tmp_path / "grid.db"))
    under("2.11.0", "1.db", shard=(1, 2))
    under("2.13.0", "2.db", shard=(2, 2))
    with pytest.raises(InputError, match=r"torch: '2.11.0' in the first, '2.13.0' in the second"):
        merge_runs([tmp_path / "1.db", tmp_path / "2.db"])


@pytest.mark.usefixtures("unprobed")
def test_sequential_runs_on_a_grid(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "sequential", "radii": [0.05, 0.2], "n": 2000}
    run = sweep(tmp_path / "run.db", **options)
    assert (run.header.guarantee, run.parameters["grid"]) == ("grid", "1/16")
    expected = smoother(grid="1/16").certify_batch(images().x, indices=range(len(images())), **(FEW | options))
    for name in ("p_lower", "radius", "prediction", "samples"):
        np.testing.assert_array_equal(run.table[name], getattr(expected, name))
    assert run.parameters["delta"] == expected.delta
    assert (run.table["p_lower"] < sweep(grid=None, **options).table["p_lower"]).any()
    path = tmp_path / "broken.db"
    with pytest.raises(ZeroDivisionError):
        sweep(path, model=Failing(30, ZeroDivisionError()), **options)
    assert same(sweep(path, model=Failing(10**9, ZeroDivisionError()), **options), run)
    assert audit(read_certification_log(path)).exit_status == 0
    with pytest.raises(StoreError, match="guarantee: 'grid' stored, 'real' given"):
        sweep(path, grid=None, model=Failing(10**9, ZeroDivisionError()), **options)


def test_images_off_the_grid_are_refused_before_a_file_is_created(tmp_path: Path) -> None:
    x = images().x.clone()
    x[7, 0, 1, 0] = 0.3
    data = ImageSet("spoiled", x, images().y)
    with pytest.raises(InputError, match=r"data: spoiled: image 7: x: expected the floats .* at \[0, 1, 0\]"):
        certify_dataset(smoother(grid="1/16"), data, out=tmp_path / "run.db", **FEW)
    assert not list(tmp_path.iterdir())
    real = certify_dataset(smoother(grid="auto"), data, **FEW)
    assert real.header.guarantee == "real"
    assert not {"grid", "delta"} & set(real.parameters)
    # Images that are not selected may be off the grid.
    assert len(certify_dataset(smoother(grid="1/16"), data, skip=2, **FEW)) == 20
    x[0] = 0.3
    shard = certify_dataset(smoother(grid="1/16"), ImageSet("first", x, images().y), shard=(3, 20), **FEW)
    assert shard.table["index"].tolist() == [2, 22]


def test_shards_on_a_grid_need_one_batch_size(tmp_path: Path) -> None:
    """On a grid the batch size is part of the classifier."""
    first, second, third = (tmp_path / f"{name}.db" for name in "abc")
    sweep(first, shard=(1, 2))
    sweep(second, shard=(2, 2))
    sweep(third, shard=(2, 2), batch_size=32)
    assert same(merge_runs([first, second]), sweep())
    with pytest.raises(InputError, match="batch_size: 64 in the first, 32 in the second"):
        merge_runs([first, third])


def test_out_of_memory_on_a_grid_stops_the_run(tmp_path: Path) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(ModelError, match=r"batch_size: expected one that fits .* batch_size=8"):
        sweep(tmp_path / "run.db", model=Failing(60, error), batch_size=16)
    assert same(sweep(tmp_path / "run.db", model=Failing(10**9, error)), sweep(batch_size=16))


@pytest.mark.parametrize(
    ("grid", "statement"),
    [
        (None, "UPDATE run SET guarantee = 'grid'"),
        ("1/16", "UPDATE run SET guarantee = 'real'"),
        ("1/16", "UPDATE run SET parameters = replace(parameters, '1/16', '2/32')"),
        ("1/16", "UPDATE run SET parameters = replace(parameters, '\"delta\": ', '\"delta\": -')"),
        ("1/16", "UPDATE run SET parameters = replace(parameters, '\"delta\"', '\"other\"')"),
    ],
)
def test_inconsistent_files_are_refused(tmp_path: Path, grid: str | None, statement: str) -> None:
    sweep(tmp_path / "run.db", grid=grid)
    change(tmp_path / "run.db", statement)
    with pytest.raises(FileFormatError, match=r"guarantee contradicts the parameters|parameter"):
        Run(tmp_path / "run.db")
