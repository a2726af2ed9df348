"""Attack sweeps refuse invalid arguments, and attacks that leave their ball."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_runs import EPSILON, Crowd, Mine, digits, pgd
from torch import Tensor, nn

from pyrobust.attacks import AdversarialAttack
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.evaluation import attack_dataset
from pyrobust.metrics import distances
from pyrobust.zoo import load_model


class Returning(AdversarialAttack):
    """Returns the result of a given function."""

    def __init__(self, change: Any, model: Any = None, **options: Any) -> None:
        super().__init__(model or load_model("zoo:digits-smooth-0.25"), **({"epsilon": EPSILON} | options))
        self.change = change

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Any:
        return self.change(x)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x: x.numpy(), InputTypeError, "to return a float tensor, got ndarray"),
        (lambda x: x.long(), InputTypeError, "to return a float tensor, got torch.int64"),
        (lambda x: x[:-1], InputError, r"to return shape \(24, 1, 8, 8\), got \(23, 1, 8, 8\)"),
        (lambda x: x * math.nan, InputError, "finite values"),
        (lambda x: x - 1e-9, InputError, "to stay in the clip range, 0.0 to 1.0, got -9.99"),
        (lambda x: (x + EPSILON + 1e-6).clamp(max=1), InputError, "to stay within linf distance 0.15, got 0.15000"),
        (lambda x: x.add_(0.2).clamp_(max=1), InputError, "to stay within linf distance"),
    ],
)
def test_invalid_adversarial_examples_are_refused(tmp_path: Path, change: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        attack_dataset(Returning(change), digits(), out=tmp_path / "run.db")
    assert list(tmp_path.iterdir()) == []


def test_the_ball_is_checked_in_exact_arithmetic() -> None:
    """A distance that float64 rounds above epsilon is stored as epsilon; one truly above it is refused."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 1, 32, 32)
    data = (torch.zeros(shape), torch.tensor([1]))  # wrong from the start, so that the distance is kept
    rounded = 0
    for _ in range(20):
        z = torch.rand(shape, generator=generator) * 2.0 ** -torch.randint(0, 40, shape, generator=generator)
        computed = float(distances(z, data[0], "l1")[0])
        exact = sum(map(Fraction, z.flatten().tolist()))
        inside = computed
        while Fraction(inside) < exact:
            inside = math.nextafter(inside, math.inf)
        while Fraction(outside := math.nextafter(inside, 0.0)) >= exact:
            inside = outside
        run = attack_dataset(Returning(lambda _, z=z: z, Crowd(), epsilon=inside, norm="l1"), data)
        assert run.table["distance"].tolist() == [min(computed, inside)]
        rounded += computed > inside
        if outside < computed:
            with pytest.raises(InputError, match="to stay within l1 distance"):
                attack_dataset(Returning(lambda _, z=z: z, Crowd(), epsilon=outside, norm="l1"), data)
    assert rounded >= 3


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"attack": load_model}, InputTypeError, "attack: expected an AdversarialAttack"),
        ({"attack": Mine(Crowd(), epsilon=torch.ones(4))}, InputError, "one epsilon for the run, got a tensor of 4"),
        ({"attack": Mine(lambda x: x)}, InputError, "model_name: expected a name"),
        ({"attack": Mine(nn.Linear(3, 2))}, ModelError, r"failed on one image of shape \(1, 8, 8\)"),
        ({"attack": Mine(Crowd())}, InputError, "expected labels of 0 to 1, the model's classes; image 2 has 2"),
        ({"attack": pgd(clip_max=0.5)}, InputError, r"expected pixels in \[0.0, 0.5\]"),
        ({"data": "digits"}, InputTypeError, "data: expected an ImageSet"),
        ({"keep_examples": 1}, InputTypeError, "keep_examples: expected True or False"),
        ({"skip": 0}, InputError, "skip"),
        ({"shard": (3, 2)}, InputError, "shard"),
        ({"batch_size": 0}, InputError, "batch_size"),
        ({"attack": Mine(Crowd(), step="x" * 300)}, InputError, "attack: expected values that a run can store"),
    ],
)
def test_invalid_arguments_leave_no_file(tmp_path: Path, change: dict[str, Any], error: type, words: str) -> None:
    arguments: dict[str, Any] = {"attack": pgd(), "data": digits(), "out": tmp_path / "run.db"}
    if isinstance(change.get("attack"), Mine) and change["attack"].step == "x" * 300:
        arguments["data"] = (torch.zeros(2, 1, 2, 2), torch.tensor([0, 1]))
    with pytest.raises(error, match=words):
        attack_dataset(**(arguments | change))
    assert list(tmp_path.iterdir()) == []
