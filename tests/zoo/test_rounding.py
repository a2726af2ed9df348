"""float64 values that float32 does not hold: one rule for every form of a data set."""

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

from pyrobust import FGSM, RandomizedSmoothing, attack_dataset, certify_dataset, sandwich_dataset, verify_dataset
from pyrobust.errors import InputError
from pyrobust.zoo import LabelledImages, LazyImages, as_image_set, load_data

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
