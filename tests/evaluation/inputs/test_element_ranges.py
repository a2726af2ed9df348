"""Sweeps with a clip range of each element: stored, read again, resumed, judged and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pyrobust.attacks import PGD
from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError
from pyrobust.evaluation import Run, attack_dataset, sandwich_dataset, verify_dataset
from pyrobust.report.page import page_html
from pyrobust.runs.kinds.values import is_clip
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


def test_a_sandwich_of_a_smoothed_classifier_has_one_range() -> None:
    smoother = RandomizedSmoothing(NET, 2, 0.25, grid=None)
    with pytest.raises(InputTypeError, match="clip: expected two finite numbers"):
        sandwich_dataset(smoother, DATA, clip=(LOW, HIGH))


@pytest.mark.parametrize(
    "value",
    [[[0.0], 1.0], [[1.0], [0.0]], [[0.0], [float("inf")]], [[[0.0], [1.0, 2.0]], [[1.0], [2.0]]], [["a"], ["b"]]],
)
def test_ranges_in_files_are_checked(value: object) -> None:
    assert not is_clip(value)
