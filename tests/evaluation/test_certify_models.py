"""Sweeps of models that fail, change, return NaN or do not fit memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sweep_models import CLASSES, FEW, Bands, Failing, images, same, smoother
from torch import Tensor

from pyrobust.errors import InputError, ModelError
from pyrobust.evaluation import Run, certify_dataset, predict_dataset
from pyrobust.smoothing import RandomizedSmoothing


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_failing_model_leaves_whole_chunks_and_a_resumable_run(tmp_path: Path, error: BaseException) -> None:
    data, path = images(), tmp_path / "run.db"
    model = Failing(50, error)
    with pytest.raises(type(error)):
        certify_dataset(smoother(model), data, out=path, **FEW)
    kept = Run(path)
    chunk = kept.parameters["chunk"]
    assert 0 < len(kept) < 40
    assert len(kept) % chunk == 0
    assert list(tmp_path.iterdir()) == [path]
    model.calls.left = 10**9
    run = certify_dataset(smoother(model, batch_size=7), data, out=path, **FEW)
    assert run.parameters == kept.parameters
    assert same(run, certify_dataset(smoother(), data, **FEW))
    assert np.array_equal(run.table["seconds"][: len(kept)], kept.table["seconds"])


@pytest.mark.parametrize("sweep", [certify_dataset, predict_dataset])
def test_a_model_that_fails_on_the_first_image_gives_one_clear_error(tmp_path: Path, sweep: Callable[..., Run]) -> None:
    broken = Failing(0, ValueError("broken\nin many\nlines"))
    words = r"model: failed on one image of shape \(1, 2, 2\): ValueError: broken$"
    with pytest.raises(ModelError, match=words) as caught:
        sweep(smoother(broken), images(), out=tmp_path / "run.db", n=100)
    assert caught.value.__cause__ is broken.error
    silent = Failing(0, ZeroDivisionError())
    with pytest.raises(ModelError, match=r"\(1, 2, 2\): ZeroDivisionError$"):
        sweep(smoother(silent), images(), n=100)
    ours = InputError("normalisation: not for these")
    with pytest.raises(InputError, match="not for these") as caught:
        sweep(smoother(Failing(0, ours)), images(), n=100)
    assert caught.value is ours
    with pytest.raises(KeyboardInterrupt):
        sweep(smoother(Failing(0, KeyboardInterrupt())), images(), n=100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unprobed")
def test_a_model_that_fails_in_the_first_chunk_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"):
        certify_dataset(smoother(Failing(2, ValueError("broken"))), images(), out=tmp_path / "run.db", **FEW)
    assert list(tmp_path.iterdir()) == []


def test_nan_votes_are_counted_and_never_certified() -> None:
    class Nan(Bands):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.where(x.flatten(1)[:, :1] > 0.8, torch.nan, 1.0)

    run = certify_dataset(smoother(Nan()), images(), **FEW)
    bright = run.table["label"] == 2
    assert (run.histogram()[bright, CLASSES] > 50).all()
    assert (run.table["status"][bright] == "abstain").all()
    assert (run.table["radius"][bright] == 0).all()
    assert (run.table["status"][~bright] == "ok").all()


def test_a_batch_halved_for_memory_keeps_the_requested_parameters(tmp_path: Path) -> None:
    class Small(Bands):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 16:
                raise torch.OutOfMemoryError("no memory")
            return super().forward(x)

    mine, path = smoother(Small(), batch_size=64), tmp_path / "run.db"
    for _ in range(2):
        run = certify_dataset(mine, images(), out=path, **FEW)
        assert run.parameters["batch_size"] == 64
    assert same(run, certify_dataset(smoother(), images(), **FEW))


def test_a_model_that_changes_the_working_folder_leaves_the_run_where_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wandering(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            os.chdir("/")
            return torch.nn.functional.pad(x.flatten(1).mean(1, keepdim=True), (0, 1))

    monkeypatch.chdir(tmp_path)
    smoother = RandomizedSmoothing(Wandering(), 2, 0.25)
    certify_dataset(smoother, (torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)), out="run.db", n0=10, n=10)
    assert len(Run(tmp_path / "run.db")) == 2
