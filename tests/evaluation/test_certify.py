"""Certification sweeps: the same results however the work is split, their arguments, and models that fail."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.damage import change
from support.sweep_models import CLASSES, FEW, Bands, Failing, images, same, smoother
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError, ModelError, StoreError
from pyrobust.evaluation import Run, certify_dataset, merge_runs, predict_dataset
from pyrobust.evaluation import certify as certify_module
from pyrobust.smoothing import RandomizedSmoothing


def test_results_match_the_smoother(tmp_path: Path) -> None:
    data = images()
    run = certify_dataset(smoother(), data, out=tmp_path / "run.db", **FEW, alpha=0.01, skip=3, max_images=7)
    expected = smoother().certify_batch(data.x[:21:3], indices=range(0, 21, 3), alpha=0.01, **FEW)
    assert run.table["index"].tolist() == list(range(0, 21, 3))
    assert run.table["label"].tolist() == data.y[:21:3].tolist()
    assert run.table["radius"].tobytes() == expected.radius.tobytes()
    assert run.table["p_lower"].tobytes() == expected.p_lower.tobytes()
    assert np.array_equal(run.table["prediction"], expected.prediction)
    assert np.array_equal(run.histogram("counts"), expected.counts)
    assert np.array_equal(run.histogram("counts0"), expected.counts0)
    assert run.header.guarantee == expected.guarantee
    assert run.parameters["norm"] == expected.norm
    assert run.parameters["method"] == expected.method
    assert run.header.data_sha256 == data.sha256
    assert run.complete


def test_predictions_match_the_smoother() -> None:
    data = images()
    run = predict_dataset(smoother(), data, n=50, alpha=0.01)
    expected = smoother().predict_batch(data.x, n=50, alpha=0.01, indices=range(len(data)))
    assert np.array_equal(run.table["prediction"], expected.prediction)
    assert run.table["p_value"].tobytes() == expected.p_value.tobytes()
    assert np.array_equal(run.histogram(), expected.counts)
    with pytest.raises(InputError, match="expected a run of kind certify"):
        run.certified_accuracy([0.0])


def test_any_split_gives_the_same_results(tmp_path: Path) -> None:
    data = images()
    whole = certify_dataset(smoother(), data, **FEW)
    for batch_size in (1, 7, 1000):
        assert same(certify_dataset(smoother(batch_size=batch_size), data, **FEW), whole)
    paths = [tmp_path / f"{index}.db" for index in (1, 2, 3)]
    for index, path in enumerate(paths, start=1):
        # Batch sizes may differ from shard to shard, like the devices they run on.
        certify_dataset(smoother(batch_size=10 * index), data, out=path, shard=(index, 3), **FEW)
    merged = merge_runs(paths[::-1])
    assert merged.complete
    assert same(merged, whole)
    assert np.array_equal(merged.histogram("counts0"), whole.histogram("counts0"))
    assert merged.parameters["shard"] is None


def test_a_run_in_memory_as_dictionary_frame_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    data = images()
    run = certify_dataset(smoother(), (data.x, data.y), **FEW)
    assert run.path is None
    assert same(run, certify_dataset(smoother(), data, **FEW))
    assert run.to_dict()["radius"] == run.table["radius"].tolist()
    assert run.to_dict()["parameters"]["n"] == 100
    radii = np.sort(run.table["radius"][run.correct])
    middle = float(radii[len(radii) // 2])
    at, above = run.certified_accuracy([middle, float(np.nextafter(middle, 9.0))])
    assert (at, above) == ((radii >= middle).sum() / 40, (radii > middle).sum() / 40)
    assert at > above
    pytest.importorskip("pandas", reason="to_pandas needs it")
    frame = run.to_pandas()
    assert frame["radius"].tolist() == run.table["radius"].tolist()
    assert frame.attrs["parameters"]["sigma"] == 0.1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="needs pandas; install it with"):
        run.to_pandas()


def test_damaged_chunks_are_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), images(), out=path, **FEW)
    assert run.parameters["chunk"] > 1
    with pytest.raises(StoreError, match="a run of kind certify, expected predict"):
        predict_dataset(smoother(), images(), out=path, n=100)
    for statement, words in (
        ("DELETE FROM result WHERE idx = 1", "part of a chunk"),
        ("UPDATE result SET label = 99", re.escape(f"{path}: damaged: holds a label out of range")),
    ):
        change(path, statement)
        with pytest.raises(FileFormatError, match=words):
            certify_dataset(smoother(), images(), out=path, **FEW)


def test_empty_shard_is_a_complete_run() -> None:
    run = certify_dataset(smoother(), images(), max_images=1, shard=(2, 2), **FEW)
    assert run.complete
    assert len(run) == 0
    options: dict[str, Any] = {"method": "sequential", "radii": [0.1], **FEW}
    assert len(certify_dataset(smoother(), images(), max_images=1, shard=(2, 2), **options)) == 0
    with pytest.raises(InputError, match="run is empty"):
        run.certified_accuracy([0.0])


def test_chunks_fill_batches() -> None:
    run = certify_dataset(smoother(batch_size=64), images(), n0=10, n=90)
    assert run.parameters["chunk"] == -(-certify_module._BATCHES * 64 // 100)
    assert certify_dataset(smoother(batch_size=1), images(2), n0=10, n=90).parameters["chunk"] == 1


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
        ({"skip": 0}, InputError, "skip"),
        ({"max_images": 0}, InputError, "max_images"),
        ({"shard": (0, 2)}, InputError, "shard"),
        ({"shard": (3, 2)}, InputError, "shard"),
        ({"shard": (1,)}, InputTypeError, r"shard: expected two integers \(I, K\), got \(1,\)"),
        ({"shard": (1.0, 2)}, InputTypeError, "shard: expected an integer"),
        ({"shard": (1, 10**10)}, InputError, "shard: expected at most 4294967296"),
        ({"smoother": smoother(batch_size=10**10)}, InputError, "batch_size: expected at most 4294967296"),
        ({"method": "sequential"}, InputError, "radii: expected at least one radius"),
        ({"method": "sequential", "radii": [1.0], "hybrid": 1}, InputError, "hybrid: expected a share"),
        ({"radii": [1.0]}, InputError, 'radii: expected none with method "fixed", got '),
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


# -- models that fail, change, return NaN or do not fit memory


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_failing_model_leaves_whole_chunks_and_a_resumable_run(tmp_path: Path, error: BaseException) -> None:
    data, path = images(), tmp_path / "run.db"
    with pytest.raises(type(error)):
        certify_dataset(smoother(Failing(2, error)), data, out=path, **FEW)
    assert list(tmp_path.iterdir()) == []  # it failed in the first chunk
    model = Failing(50, error)
    with pytest.raises(type(error)):
        certify_dataset(smoother(model), data, out=path, **FEW)
    kept = Run(path)
    chunk = kept.parameters["chunk"]
    assert 0 < len(kept) < 40
    assert len(kept) % chunk == 0
    assert list(tmp_path.iterdir()) == [path]
    model.calls.remaining = 10**9
    run = certify_dataset(smoother(model, batch_size=7), data, out=path, **FEW)
    assert run.parameters == kept.parameters
    assert same(run, certify_dataset(smoother(), data, **FEW))
    assert np.array_equal(run.table["seconds"][: len(kept)], kept.table["seconds"])


@pytest.mark.parametrize("sweep", [certify_dataset, predict_dataset])
def test_a_model_that_fails_on_the_first_image_gives_one_clear_error(tmp_path: Path, sweep: Callable[..., Run]) -> None:
    ours = InputError("normalisation: not for these")
    failures: list[tuple[BaseException, type[BaseException], str | None]] = [
        (ValueError("broken\nin many\nlines"), ModelError, r"^model: failed .* shape \(1, 2, 2\): ValueError: broken$"),
        (ZeroDivisionError(), ModelError, r"\(1, 2, 2\): ZeroDivisionError$"),
        (ours, InputError, "not for these"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ]
    for error, kind, words in failures:
        with pytest.raises(kind, match=words) as caught:
            sweep(smoother(Failing(0, error)), images(), out=tmp_path / "run.db", n=100)
        assert caught.value is error if kind is not ModelError else caught.value.__cause__ is error
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
