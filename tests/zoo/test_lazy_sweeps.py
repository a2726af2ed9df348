"""Sweeps over images that are read as needed: the rows, hashes and pages of the same images in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyrobust import RandomizedSmoothing
from pyrobust.attacks import FGSM, PGD
from pyrobust.errors import InputError
from pyrobust.evaluation import (
    attack_dataset,
    certify_dataset,
    merge_runs,
    predict_dataset,
    verify_dataset,
)
from pyrobust.report.page import page_html
from pyrobust.runs.run import Run
from pyrobust.zoo import ImageSet, LazyImages, load_data, load_model, load_parquet

pa = pytest.importorskip("pyarrow", reason="the extra parquet")
pq = pytest.importorskip("pyarrow.parquet", reason="the extra parquet")

MODEL = "zoo:digits-smooth-0.25"


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    data = load_data("digits")
    assert isinstance(data, ImageSet)
    return data


@pytest.fixture(scope="module")
def stored(digits: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> LazyImages:
    folder = tmp_path_factory.mktemp("data")
    path = folder / "digits.parquet"
    pq.write_table(pa.table({"x": pa.array(digits.x.tolist()), "y": digits.y.numpy()}), path, row_group_size=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return load_parquet(path)


def check_same(first: Run, second: Run) -> None:
    assert not first.header.differences(second.header)
    for name in first.table:
        if name != "seconds":
            np.testing.assert_array_equal(first.table[name], second.table[name], name)


def test_sweeps_of_every_kind_are_the_same(digits: ImageSet, stored: LazyImages) -> None:
    net = load_model(MODEL)
    smoother = RandomizedSmoothing(net, 10, 0.25, grid="auto")
    few: dict[str, Any] = {"skip": 30, "max_images": 6}
    for sweep in (
        lambda data: certify_dataset(smoother, data, n=200, **few),
        lambda data: certify_dataset(smoother, data, n=200, order="random", shard=(2, 3), max_images=12),
        lambda data: certify_dataset(smoother, data, n=500, method="sequential", radii=[0.1], **few),
        lambda data: predict_dataset(smoother, data, n=200, **few),
        lambda data: attack_dataset(PGD(net, 0.1, steps=2), data, **few),
        lambda data: attack_dataset(FGSM(net, 0.125, grid="auto"), data, **few),
        lambda data: verify_dataset(net, data, epsilons=[0.01], **few),
    ):
        runs = [sweep(data) for data in (digits, stored)]
        check_same(*runs)
        assert len(runs[0]) >= 4


def test_shards_over_files_and_memory_are_merged(digits: ImageSet, stored: LazyImages, tmp_path: Path) -> None:
    smoother = RandomizedSmoothing(load_model(MODEL), 10, 0.25)
    paths = [tmp_path / name for name in ("1.db", "2.db")]
    for shard, (path, data) in enumerate(zip(paths, (digits, stored), strict=True), 1):
        certify_dataset(smoother, data, n=100, max_images=8, shard=(shard, 2), out=path)
    check_same(merge_runs(paths), certify_dataset(smoother, stored, n=100, max_images=8))
    # Files resume what memory began.
    assert len(certify_dataset(smoother, stored, n=100, max_images=8, shard=(1, 2), out=paths[0])) == 4


@pytest.mark.full
def test_workers_read_for_themselves(stored: LazyImages) -> None:
    smoother = RandomizedSmoothing(load_model(MODEL), 10, 0.25)
    few: dict[str, Any] = {"n": 100, "max_images": 8, "batch_size": 200, "threads": 1}
    check_same(certify_dataset(smoother, stored, executor="cpu:2", **few), certify_dataset(smoother, stored, **few))


def test_page_of_a_run(digits: ImageSet, stored: LazyImages) -> None:
    run = attack_dataset(FGSM(load_model(MODEL), 0.1), stored, max_images=3)
    pages = [page_html(run, data=data) for data in (digits, stored)]
    assert pages[0] == pages[1]
    assert "data:image/png" in pages[0]


def test_images_out_of_range_are_named(stored: LazyImages) -> None:
    with pytest.raises(InputError, match=r"expected pixels in \[0\.0, 0\.5\], .* image 0 are 0\.0 to 1\.0"):
        attack_dataset(FGSM(load_model(MODEL), 0.1, clip_max=0.5), stored)
    with pytest.raises(InputError, match=r"image 0: x: expected the floats nearest to multiples of 1/255"):
        certify_dataset(RandomizedSmoothing(load_model(MODEL), 10, 0.25, grid="1/255"), stored)
