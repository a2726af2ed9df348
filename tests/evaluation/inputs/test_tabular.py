"""Sweeps of tabular inputs [N, D], from tensors and from files, and their pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust.attacks import FGSM
from pyrobust.errors import FileFormatError, InputError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    certify_dataset,
    predict_dataset,
    sandwich_dataset,
)
from pyrobust.report.page import page_html
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet, load_data

pytestmark = pytest.mark.usefixtures("few_steps")

FEATURES, SHAPE = 6, [6]


GENERATOR = torch.Generator().manual_seed(0)
NET = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
with torch.no_grad():
    for parameter in NET.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=GENERATOR))
X = 2 * torch.randn(6, FEATURES, generator=torch.Generator().manual_seed(3))
Y = NET(X).argmax(1)
SMOOTHER = RandomizedSmoothing(NET, 3, 0.25, grid=None, batch_size=64)

SWEEPS = {
    "attack": lambda data, **more: attack_dataset(FGSM(NET, 0.3, clip=None), data, **more),
    "certify": lambda data, **more: certify_dataset(SMOOTHER, data, n0=10, n=100, **more),
    "sequential": lambda data, **more: certify_dataset(
        SMOOTHER, data, n0=10, n=100, method="sequential", radii=[0.1], **more
    ),
    "predict": lambda data, **more: predict_dataset(SMOOTHER, data, n=100, **more),
    "smoothed sandwich": lambda data, **more: (
        sandwich_dataset(SMOOTHER, data, n0=10, n=50, n_attack=50, steps=2, draws=4, clip=None, **more).run
    ),
}


@pytest.mark.parametrize("kind", SWEEPS)
def test_sweeps_take_tabular_inputs(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    SWEEPS[kind]((X, Y), out=path, max_images=2)
    run = Run(path)
    run.check()
    assert len(run) == 2
    if run.parameters.get("examples"):
        assert run.parameters["shape"] == SHAPE
        assert run.examples().shape == (2, FEATURES)
    page = page_html(run, data=ImageSet("mine", X, Y))
    assert "Without pictures: the inputs are not images but 6 numbers each." in page


def test_npz_files_hold_features_of_any_range(tmp_path: Path) -> None:
    np.savez(tmp_path / "table.npz", x=X.numpy(), y=Y.numpy())
    data = load_data(f"npz:{tmp_path / 'table.npz'}")
    assert data.shape == (FEATURES,)
    assert torch.equal(data.read(range(6))[0], X)
    np.savez(tmp_path / "images.npz", x=X.view(6, 2, 3).numpy(), y=Y.numpy())
    with pytest.raises(FileFormatError, match=r"expected pixels in \[0, 1\]"):
        load_data(f"npz:{tmp_path / 'images.npz'}")


def test_rows_and_batches_of_features_are_read() -> None:
    rows = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4)
    for data in (rows, batches):
        run = attack_dataset(FGSM(NET, 0.3, clip=None), data)
        assert run.examples().shape == X.shape


def test_features_are_no_images_and_other_shapes_neither(tmp_path: Path) -> None:
    x = (255 * torch.rand(6, FEATURES)).round() / 255
    with pytest.raises(InputError, match="save_images: expected none for inputs that are not images"):
        attack_dataset(FGSM(NET, 0.1, grid="1/255"), (x, Y), save_images=tmp_path / "images")
    with pytest.raises(InputError, match=r"x \[N, C, H, W\] or \[N, D\]"):
        ImageSet("cube", torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.int64))


def test_features_are_normalized_one_by_one() -> None:
    mean, std = torch.arange(FEATURES) / 4, 1 + torch.arange(FEATURES) / 8
    inside = RandomizedSmoothing(lambda x: NET((x - mean) / std), 3, 0.25, grid=None, batch_size=64)
    outside = RandomizedSmoothing(NET, 3, 0.25, normalize=(mean, std), grid=None, batch_size=64)
    votes = [smoother.votes(X, n=50, indices=range(len(X))) for smoother in (inside, outside)]
    assert torch.equal(*map(torch.as_tensor, votes))
