"""Sweeps of inputs without limits: stored as such, read again, resumed, and put on a page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pyrobust.attacks import FGSM
from pyrobust.errors import InputError, StoreError
from pyrobust.evaluation import Run, attack_dataset, sandwich_dataset, verify_dataset
from pyrobust.report.page import write_page
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet

pytestmark = pytest.mark.usefixtures("few_steps")


def net() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


NET = net()
X = 3 * torch.randn(8, 1, 2, 2, generator=torch.Generator().manual_seed(3))
DATA = ImageSet("wide", X, NET(X).argmax(1))


def test_an_attack_is_stored_resumed_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "attack.db"
    attack = FGSM(NET, 0.5, clip=None)
    attack_dataset(attack, DATA, out=path, max_images=4)
    with pytest.raises(StoreError, match="clip"):
        attack_dataset(FGSM(NET, 0.5, clip=(-100, 100)), DATA, out=path)
    run = Run(path)
    assert run.parameters["clip"] is None
    assert bool((run.examples().abs() > 1).any())
    assert "no clip range" in run.header.type.describe(run.header)[1]
    page = tmp_path / "page.html"
    write_page(page, [run, verify_dataset(NET, DATA, epsilons=0.1, clip=None)], data=DATA)
    assert page.exists()


def test_radii_end_where_nothing_changes_the_class() -> None:
    constant = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        constant[1].weight.zero_()
        constant[1].bias.copy_(torch.tensor([1.0, 0.0]))
    run = sandwich_dataset(constant, (X, torch.zeros(8, dtype=torch.int64)), clip=None, max_images=2).run
    width = float(X.max()) - float(X.min())
    assert run.table["lower"] == pytest.approx(width)
    assert (run.table["upper"] == float("inf")).all()


def test_radii_may_exceed_the_range_of_the_data() -> None:
    far = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        far[1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        far[1].bias.copy_(torch.tensor([0.0, 20.0]))  # the boundary is at 10
    x = torch.tensor([[0.25], [0.5]])
    table = sandwich_dataset(far, (x, torch.tensor([1, 1])), clip=None).run.table
    assert table["lower"] == pytest.approx([9.75, 9.5], rel=1e-3)
    assert table["upper"] == pytest.approx([9.75, 9.5], rel=0.02)


def test_noise_on_a_grid_needs_a_range() -> None:
    on_grid = RandomizedSmoothing(NET, 3, 0.5, grid="1/255", batch_size=64)
    with pytest.raises(InputError, match=r"clip: expected .* for a grid"):
        sandwich_dataset(on_grid, (torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)), clip=None)
