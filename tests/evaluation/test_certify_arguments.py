"""Arguments of a sweep: accepted forms, and errors for invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sweep_models import FEW, Bands, Failing, images, same, smoother
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError, ModelError, StoreError
from pyrobust.evaluation import Run, certify_dataset, predict_dataset
from pyrobust.smoothing import RandomizedSmoothing


def test_a_callable_needs_a_name_in_a_file(tmp_path: Path) -> None:
    def net(scale: float) -> Callable[[Tensor], Tensor]:
        return lambda x: Bands()(scale * x)

    path = tmp_path / "run.db"
    with pytest.raises(
        InputError, match=r"model_name: expected a name, got none; .*<lambda> is not a torch\.nn\.Module"
    ):
        certify_dataset(smoother(net(1.0)), images(), out=path, **FEW)
    assert not path.exists()
    certify_dataset(smoother(net(1.0)), images(), out=path, model_name="one", **FEW)
    with pytest.raises(StoreError, match="model: 'one' stored, 'two' given"):
        certify_dataset(smoother(net(2.0)), images(), out=path, model_name="two", **FEW)
    assert certify_dataset(smoother(net(1.0)), images(), **FEW).complete


@pytest.mark.parametrize("sweep", [certify_dataset, predict_dataset])
def test_a_sweep_leaves_the_smoother_unchanged(sweep: Callable[..., Run]) -> None:
    mine = smoother(batch_size=7)
    run = sweep(mine, images(), batch_size=32, n=100)
    assert run.parameters["batch_size"] == 32
    assert mine.runner.given_batch_size == 7
    broken = smoother(Failing(0, ValueError("broken")), batch_size=7)
    with pytest.raises(ModelError):
        sweep(broken, images(), batch_size=32, n=100)
    assert broken.runner.given_batch_size == 7


def test_numpy_and_torch_numbers_are_accepted(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"n": np.int64(100), "n0": np.int32(10), "alpha": np.float32(0.001), "skip": np.uint8(2)}
    numbers |= {"max_images": torch.tensor(9), "shard": (np.int64(1), np.int64(2)), "batch_size": np.int64(64)}
    plain: dict[str, Any] = {"n": 100, "n0": 10, "alpha": float(np.float32(0.001)), "skip": 2}
    plain |= {"max_images": 9, "shard": (1, 2), "batch_size": 64}
    run = certify_dataset(smoother(), images(), out=tmp_path / "run.db", **numbers)
    # Written with one kind of numbers, resumed with the other.
    assert same(run, certify_dataset(smoother(), images(), out=tmp_path / "run.db", **plain))
    del numbers["n0"]
    assert predict_dataset(smoother(), images(), out=tmp_path / "p.db", **numbers).complete


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n": 0}, InputError, "n:"),
        ({"n0": 0}, InputError, "n0:"),
        ({"alpha": 0.0}, InputError, "alpha"),
        ({"skip": 0}, InputError, "skip"),
        ({"max_images": 0}, InputError, "max_images"),
        ({"shard": (0, 2)}, InputError, "shard"),
        ({"shard": (3, 2)}, InputError, "shard"),
        ({"shard": "1/2"}, InputTypeError, "shard: expected two integers"),
        ({"shard": (1.0, 2)}, InputTypeError, "shard: expected an integer"),
        ({"shard": (1, 10**10)}, InputError, "shard: expected at most 4294967296"),
        ({"batch_size": 0}, InputError, "batch_size"),
        ({"smoother": smoother(batch_size=10**10)}, InputError, "batch_size: expected at most 4294967296"),
        ({"model_name": 3}, InputTypeError, "model_name: expected a string"),
        ({"data": "digits"}, InputTypeError, "data"),
        ({"data": images(8, classes=4)}, InputError, "image 3 has 3"),
        ({"smoother": Bands()}, InputTypeError, "smoother"),
        ({"smoother": RandomizedSmoothing(Bands(), 4, 0.1)}, InputError, "num_classes"),
        ({"data": (torch.zeros(2, 1, 2, 2), torch.zeros(3, dtype=torch.int64))}, InputError, "same N"),
        ({"data": (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2).long())}, InputTypeError, "float32"),
    ],
)
def test_invalid_arguments_leave_no_file(tmp_path: Path, change: dict[str, Any], error: type, words: str) -> None:
    arguments: dict[str, Any] = {"smoother": smoother(), "data": images(), "out": tmp_path / "run.db", **FEW}
    with pytest.raises(error, match=words):
        certify_dataset(**(arguments | change))
    assert list(tmp_path.iterdir()) == []
