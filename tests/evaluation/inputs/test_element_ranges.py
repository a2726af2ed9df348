"""Sweeps with a clip range of each element, or none: stored, read again, resumed, judged and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pyrobust.attacks import FGSM, PGD
from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError
from pyrobust.evaluation import Run, attack_dataset, sandwich_dataset, verify_dataset
from pyrobust.report.page import page_html, write_page
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet

pytestmark = pytest.mark.usefixtures("few_steps")

LOW, HIGH = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 0.5, 2.0])  # the last feature is fixed
X = LOW + (HIGH - LOW) * torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
NET = nn.Linear(3, 2)
with torch.no_grad():
    NET.weight.copy_(torch.tensor([[1.0, 2.0, -0.5], [-1.0, 0.5, 0.5]]))
    NET.bias.zero_()
Y = NET(X).argmax(1)
DATA = ImageSet("table", X, Y)


def test_attacks_and_proofs_of_the_same_ranges(tmp_path: Path) -> None:
    attack = PGD(NET, 0.4, clip=(LOW, HIGH), steps=5)
    path = tmp_path / "attack.db"
    attack_dataset(attack, DATA, out=path, max_images=3)
    attack_dataset(attack, DATA, out=path, max_images=3)  # complete
    with pytest.raises(StoreError, match="clip"):
        attack_dataset(PGD(NET, 0.4, clip=(LOW, HIGH + 1), steps=5), DATA, out=path)
    run = Run(path)
    assert run.parameters["clip"] == [LOW.tolist(), HIGH.tolist()]
    run.check()
    x_adv = run.examples()
    assert ((x_adv >= LOW) & (x_adv <= HIGH)).all()
    assert (x_adv[:, 2] == 2).all()
    proof = verify_dataset(NET, DATA, epsilons=[0.05, 0.4], attack="pgd", clip=(LOW, HIGH), out=tmp_path / "proof.db")
    assert Run(tmp_path / "proof.db").parameters["clip"] == run.parameters["clip"]
    assert {"verified", "falsified"} == set(proof.verdicts(0.4)["verdict"])
    assert "the range of each element" in run.header.type.describe(run.header)[1]
    page = page_html([run, proof], data=DATA)
    assert page.count("Without pictures") == 1  # one subject: the same network, data, norm and ranges


def test_examples_outside_of_their_ranges_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    attack_dataset(PGD(NET, 0.4, clip=(LOW, HIGH), steps=5), DATA, out=path)
    run = Run(path)
    run.parameters["clip"][1][1] = 0.25
    with pytest.raises(FileFormatError, match="outside the clip range"):
        run.examples()


def test_data_outside_of_their_ranges_are_named() -> None:
    with pytest.raises(InputError, match="expected values in the attack's clip range of their elements; image 0 has"):
        attack_dataset(PGD(NET, 0.1, clip=(LOW + 1, HIGH + 1)), DATA)


def test_an_attack_without_limits_is_stored_resumed_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "attack.db"
    wide = ImageSet("wide", 3 * X, NET(3 * X).argmax(1))
    attack_dataset(FGSM(NET, 0.5, clip=None), wide, out=path, max_images=4)
    with pytest.raises(StoreError, match="clip"):
        attack_dataset(FGSM(NET, 0.5, clip=(-100, 100)), wide, out=path)
    run = Run(path)
    assert run.parameters["clip"] is None
    assert bool((run.examples().abs() > 1).any())
    assert "no clip range" in run.header.type.describe(run.header)[1]
    write_page(tmp_path / "page.html", [run, verify_dataset(NET, wide, epsilons=0.1, clip=None)], data=wide)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("grid", "clip", "error", "words"),
    [
        (None, (LOW, HIGH), InputTypeError, "clip: expected two finite numbers"),
        ("1/255", None, InputError, r"clip: expected .* for a grid"),
    ],
)
def test_a_sandwich_of_a_smoothed_classifier_has_one_range(grid: Any, clip: Any, error: type, words: str) -> None:
    smoother = RandomizedSmoothing(NET, 2, 0.25, grid=grid, batch_size=64)
    data: Any = (torch.zeros(2, 3), Y[:2]) if clip is None else DATA
    with pytest.raises(error, match=words):
        sandwich_dataset(smoother, data, clip=clip)


def test_radii_end_where_nothing_changes_the_class() -> None:
    constant = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        constant[1].weight.zero_()
        constant[1].bias.copy_(torch.tensor([1.0, 0.0]))
    x = 3 * torch.randn(8, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    run = sandwich_dataset(constant, (x, torch.zeros(8, dtype=torch.int64)), clip=None, max_images=2).run
    width = float(x.max()) - float(x.min())
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
