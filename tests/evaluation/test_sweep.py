"""Sweeps: what is covered, the same results however the work is split, and what a failure leaves."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError, StoreError
from pyrobust.evaluation import Run, SweepProgress, certify_dataset, merge_runs, predict_dataset
from pyrobust.evaluation import sweep as sweep_module
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet, load_data, load_model

CLASSES = 3


class Bands(nn.Module):
    """Three classes by mean brightness; exact arithmetic does not depend on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.tensor([0.0, 0.5, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return -(x.flatten(1)[:, :1] - self.centres).abs()


def images(count: int = 40, classes: int = CLASSES) -> ImageSet:
    y = torch.arange(count) % classes
    x = (y.float() / 2).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return ImageSet("bands", x, y)


def smoother(model: Any = None, **options: Any) -> RandomizedSmoothing:
    return RandomizedSmoothing(model or Bands(), CLASSES, 0.1, **({"batch_size": 64} | options))


FEW = {"n0": 10, "n": 100}


def same(one: Run, other: Run) -> bool:
    names = [name for name in one.table if name != "seconds"]
    return all(np.array_equal(one.table[name], other.table[name]) for name in names) and np.array_equal(
        one.histogram(), other.histogram()
    )


def test_results_are_those_of_the_smoother(tmp_path: Path) -> None:
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


def test_predictions_are_those_of_the_smoother() -> None:
    data = images()
    run = predict_dataset(smoother(), data, n=50, alpha=0.01)
    expected = smoother().predict_batch(data.x, n=50, alpha=0.01)
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


def test_tensors_and_memory_are_enough() -> None:
    data = images()
    run = certify_dataset(smoother(), (data.x, data.y), **FEW)
    assert run.path is None
    assert same(run, certify_dataset(smoother(), data, **FEW))
    assert run.to_dict()["radius"] == run.table["radius"].tolist()
    assert run.to_dict()["parameters"]["n"] == 100


def test_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    run = certify_dataset(smoother(), images(4), **FEW)
    pytest.importorskip("pandas", reason="to_pandas needs it")
    frame = run.to_pandas()
    assert frame["radius"].tolist() == run.table["radius"].tolist()
    assert frame.attrs["parameters"]["sigma"] == 0.1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        run.to_pandas()


def test_certified_accuracy_counts_the_radius_itself() -> None:
    run = certify_dataset(smoother(), images(), **FEW)
    radii = np.sort(run.table["radius"][run.right])
    assert len(radii) > 0
    middle = float(radii[len(radii) // 2])
    at, above = run.certified_accuracy([middle, float(np.nextafter(middle, 9.0))])
    assert at == (radii >= middle).sum() / 40
    assert above == (radii > middle).sum() / 40
    assert at > above


class Failing(Bands):
    """Stops working after some calls."""

    def __init__(self, calls: int, error: BaseException) -> None:
        super().__init__()
        self.calls, self.error = calls, error

    def forward(self, x: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise self.error
        return super().forward(x)


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_failing_model_leaves_whole_chunks_and_the_run_goes_on(tmp_path: Path, error: BaseException) -> None:
    data, path = images(), tmp_path / "run.db"
    model = Failing(50, error)
    with pytest.raises(type(error)):
        certify_dataset(smoother(model), data, out=path, **FEW)
    kept = Run(path)
    chunk = kept.parameters["chunk"]
    assert 0 < len(kept) < 40
    assert len(kept) % chunk == 0
    assert list(tmp_path.iterdir()) == [path]
    model.calls = 10**9
    run = certify_dataset(smoother(model), data, out=path, **FEW)
    assert same(run, certify_dataset(smoother(), data, **FEW))
    assert np.array_equal(run.table["seconds"][: len(kept)], kept.table["seconds"])


def test_a_model_that_fails_at_once_leaves_no_file(tmp_path: Path) -> None:
    for calls in (0, 1, 2):
        with pytest.raises(ValueError, match="broken"):
            certify_dataset(smoother(Failing(calls, ValueError("broken"))), images(), out=tmp_path / "run.db", **FEW)
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


def test_a_finished_run_is_not_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = certify_dataset(smoother(), images(), out=path, **FEW)
    second = certify_dataset(smoother(), images(), out=path, **FEW)
    # Times measured anew would differ.
    assert np.array_equal(first.table["seconds"], second.table["seconds"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: {"n": 101}, "n: 100 there, 101 now"),
        (lambda: {"alpha": 0.01}, "alpha: 0.001 there, 0.01 now"),
        (lambda: {"skip": 2}, "skip: 1 there, 2 now"),
        (lambda: {"max_images": 5}, "max: None there, 5 now"),
        (lambda: {"shard": (1, 2)}, "shard: None there"),
        (lambda: {"batch_size": 32}, "batch_size: 64 there, 32 now"),
        (lambda: {"data": images(41)}, "hash of the data.*images: 40 there, 41 now"),
        (lambda: {"smoother": smoother(seed=1)}, "seed: 0 there, 1 now"),
        (lambda: {"smoother": smoother(nn.Sequential(Bands()))}, "hash of the model"),
    ],
)
def test_other_parameters_are_refused(tmp_path: Path, change: Callable[[], dict[str, Any]], words: str) -> None:
    path = tmp_path / "run.db"
    arguments: dict[str, Any] = {"smoother": smoother(), "data": images(), "out": path, **FEW}
    certify_dataset(**arguments)
    with pytest.raises(StoreError, match=words):
        certify_dataset(**(arguments | change()))
    with pytest.raises(StoreError, match="kind: 'certify' there, 'predict' now"):
        predict_dataset(smoother(), images(), out=path, n=100)
    assert certify_dataset(**arguments).complete


def test_a_resumed_run_keeps_its_batch_size_and_chunk(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with pytest.raises(ValueError, match="broken"):
        certify_dataset(smoother(Failing(60, ValueError("broken"))), images(), out=path, **FEW)
    before = Run(path).parameters
    other = smoother(Failing(10**9, ValueError("broken")), batch_size=7)
    run = certify_dataset(other, images(), out=path, **FEW)
    assert run.parameters == before
    assert other.runner.batch_size((1, 2, 2)) == 64


def test_part_of_a_chunk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), images(), out=path, **FEW)
    assert run.parameters["chunk"] > 1
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM result WHERE idx = 1")
    connection.close()
    with pytest.raises(FileFormatError, match="part of a chunk"):
        certify_dataset(smoother(), images(), out=path, **FEW)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n": 0}, InputError, "n:"),
        ({"n0": 0}, InputError, "n0:"),
        ({"n": 1.5}, InputTypeError, "n:"),
        ({"alpha": 0.0}, InputError, "alpha"),
        ({"alpha": float("nan")}, InputError, "alpha"),
        ({"skip": 0}, InputError, "skip"),
        ({"max_images": 0}, InputError, "max_images"),
        ({"shard": (0, 2)}, InputError, "shard"),
        ({"shard": (3, 2)}, InputError, "shard"),
        ({"batch_size": 0}, InputError, "batch_size"),
        ({"data": "digits"}, InputTypeError, "data"),
        ({"data": images(8, classes=4)}, InputError, "image 3 has 3"),
        ({"smoother": Bands()}, InputTypeError, "smoother"),
        ({"smoother": RandomizedSmoothing(Bands(), 4, 0.1)}, InputError, "num_classes"),
        ({"data": (torch.zeros(2, 1, 2, 2), torch.zeros(3, dtype=torch.int64))}, InputError, "same N"),
        ({"data": (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2).long())}, InputTypeError, "float32"),
        ({"data": (torch.full((2, 1, 2, 2), torch.nan), torch.zeros(2).long())}, InputError, "NaN"),
    ],
)
def test_wrong_arguments_leave_no_file(tmp_path: Path, change: dict[str, Any], error: type, words: str) -> None:
    arguments: dict[str, Any] = {"smoother": smoother(), "data": images(), "out": tmp_path / "run.db", **FEW}
    with pytest.raises(error, match=words):
        certify_dataset(**(arguments | change))
    assert list(tmp_path.iterdir()) == []


def test_empty_shard_is_a_complete_run() -> None:
    run = certify_dataset(smoother(), images(), max_images=1, shard=(2, 2), **FEW)
    assert run.complete
    assert len(run) == 0
    with pytest.raises(InputError, match="no image yet"):
        run.certified_accuracy([0.0])


def test_progress_is_told_and_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[SweepProgress] = []
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), images(), out=path, progress=seen.append, **FEW)
    done = [now.images for now in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0.0, 40.0)
    assert any(now.images % 1 for now in seen)
    assert seen[-1].right == run.right.sum()
    assert seen[-1].certified == (run.right & (run.table["radius"] >= 0.1)).sum()
    seen.clear()
    certify_dataset(smoother(), images(), out=path, progress=seen.append, **FEW)
    assert [(now.done, now.right) for now in seen] == [(40, run.right.sum())]


def test_the_bar_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    certify_dataset(smoother(), images(4), progress=True, **FEW)
    output = capsys.readouterr()
    assert output.out == ""
    assert "4/4 images" in output.err
    certify_dataset(smoother(), images(4), **FEW)
    assert capsys.readouterr() == ("", "")


def test_real_net_does_not_depend_on_the_batch() -> None:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25")
    runs = [
        certify_dataset(RandomizedSmoothing(net, 10, 0.25, batch_size=size), data, n0=20, n=500, max_images=6)
        for size in (100, 256)
    ]
    assert same(*runs)


# -- merging ----------------------------------------------------------------------------------------------------------


def shard_files(folder: Path, count: int = 3, **options: Any) -> list[Path]:
    paths = [folder / f"shard{index}.db" for index in range(1, count + 1)]
    for index, path in enumerate(paths, start=1):
        certify_dataset(smoother(), images(), out=path, shard=(index, count), **(FEW | options))
    return paths


def test_missing_and_repeated_shards_are_named(tmp_path: Path) -> None:
    first, second, third = shard_files(tmp_path)
    with pytest.raises(InputError, match=r"missing shards: 2/3;"):
        merge_runs([first, third])
    with pytest.raises(InputError, match=r"shard 2/3 is given twice: .*shard2\.db and .*shard2\.db"):
        merge_runs([first, second, second, third])
    assert merge_runs([second]).parameters["shard"] == [2, 3]


def test_shards_of_other_sweeps_are_named(tmp_path: Path) -> None:
    for name in ("other", "more"):
        (tmp_path / name).mkdir()
    first, second, _ = shard_files(tmp_path)
    other = shard_files(tmp_path / "other", n=50)
    with pytest.raises(InputError, match=r"n: 100 there, 50 now"):
        merge_runs([first, second, other[2]])
    more = shard_files(tmp_path / "more", count=4)
    with pytest.raises(InputError, match=r"shard: of 3 there, of 4 now"):
        merge_runs([first, second, more[2]])
    whole = tmp_path / "whole.db"
    certify_dataset(smoother(), images(), out=whole, **FEW)
    with pytest.raises(InputError, match="is not a shard"):
        merge_runs([first, whole])
    assert merge_runs([whole]).complete


def test_chunks_fill_batches() -> None:
    run = certify_dataset(smoother(batch_size=64), images(), n0=10, n=90)
    assert run.parameters["chunk"] == -(-sweep_module._BATCHES * 64 // 100)
    assert certify_dataset(smoother(batch_size=1), images(2), n0=10, n=90).parameters["chunk"] == 1
