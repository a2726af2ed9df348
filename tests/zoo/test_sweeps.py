"""Sweeps over files: float64 that float32 rounds, and images that are read as needed; as of those in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pyrobust import RandomizedSmoothing, sandwich_dataset
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
from pyrobust.zoo import ImageSet, LabelledImages, LazyImages, as_image_set, load_data, load_model, load_parquet

Array = npt.NDArray[Any]


def npz(folder: Path, x: Array, y: Array) -> LabelledImages:
    np.savez(folder / "a.npz", x=x, y=y)
    return load_data(f"npz:{folder / 'a.npz'}")


def table(x: Array, y: Array) -> Any:
    pa = pytest.importorskip("pyarrow", reason="the extra parquet")
    return pa.table({"x": pa.array(x.tolist()), "y": y})  # Python's floats become doubles


def parquet(folder: Path, x: Array, y: Array) -> LabelledImages:
    content = table(x, y)
    pytest.importorskip("pyarrow.parquet").write_table(content, folder / "a.parquet", row_group_size=1)
    load_data(f"parquet:{folder}")
    return load_data(f"parquet:{folder}")  # of the manifest that the first load kept


def hf(folder: Path, x: Array, y: Array) -> LabelledImages:
    content = table(x, y)
    with pytest.importorskip("pyarrow").ipc.new_stream(folder / "a.arrow", content.schema) as writer:
        writer.write_table(content, max_chunksize=1)
    return load_data(f"hf:{folder}")


def rows(folder: Path, x: Array, y: Array) -> LabelledImages:
    return LazyImages(list(zip(torch.from_numpy(x), y.tolist(), strict=True)), "rows")


def memory(folder: Path, x: Array, y: Array) -> LabelledImages:
    return as_image_set(zip(x, y, strict=True), "memory")


def module(folder: Path, x: Array, y: Array) -> LabelledImages:
    np.savez(folder / "m.npz", x=x, y=y)
    (folder / "own_rounding.py").write_text(
        f"import numpy as np\ndef load():\n    m = np.load({str(folder / 'm.npz')!r})\n    return m['x'], m['y']\n"
    )
    return load_data("own_rounding:load")


def pair(folder: Path, x: Array, y: Array) -> Any:
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Load two images of float64 that float32 holds ("no"), or rounds, on the "grid" of bytes or not ("yes")."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rounding", raising=False)

    def load(form: Callable[[Path, Array, Array], Any], rounded: str) -> Any:
        levels = np.random.default_rng(0).integers(0, 256, (2, 1, 4, 4)) / 255
        x = {"no": levels.astype(np.float32).astype(np.float64), "grid": levels, "yes": levels.copy()}[rounded]
        if rounded == "yes":
            x[1, 0, 2, 3] *= 1 - 1e-12  # in one image alone, the last to be read
        return form(tmp_path, x, np.array([0, 9]))

    return load


@pytest.mark.parametrize("rounded", ["no", "grid", "yes"])
@pytest.mark.parametrize("form", [npz, parquet, hf, rows, memory, module])
def test_every_form_tells_what_float32_rounds(written: Callable[..., Any], form: object, rounded: str) -> None:
    assert written(form, rounded).rounded == rounded


@pytest.mark.parametrize("rounded", ["no", "grid", "yes"])
@pytest.mark.parametrize("form", [memory, pair])
@pytest.mark.usefixtures("few_steps")
def test_float64_that_float32_rounds_is_certified_on_its_grid_alone(
    written: Callable[..., Any], form: object, rounded: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Attacks warn once, certificates refuse, and a smoother on the grid takes levels of its grid."""
    images = written(form, rounded)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 10)).eval()
    on_grid = RandomizedSmoothing(net, 10, 0.25, grid="1/255")
    off_grid = RandomizedSmoothing(net, 10, 0.25, grid=None)
    attack_dataset(FGSM(net), images)
    assert caplog.text.count("rounded to float32") == (rounded != "no")
    for certify, taken in (
        (lambda: verify_dataset(net, images, epsilons=0.1), rounded == "no"),
        (lambda: sandwich_dataset(net, images, epsilons=0.1), rounded == "no"),
        (lambda: certify_dataset(off_grid, images, n0=10, n=10), rounded == "no"),
        (lambda: certify_dataset(on_grid, images, n0=10, n=10), rounded != "yes"),
    ):
        with nullcontext() if taken else pytest.raises(InputError, match="a certificate at a rounded x"):
            certify()


# --- images that are read as needed


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
