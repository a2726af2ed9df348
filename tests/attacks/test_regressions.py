"""Regression tests of the attacks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pyrobust.attacks import APGD, PGD, AdversarialAttack, AutoAttack, Square
from pyrobust.correctness import Judge
from pyrobust.evaluation import attack_dataset
from pyrobust.runner import Runner


def examples(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(12, 4).to(dtype)
    x = torch.rand(20, 12, dtype=dtype)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("attack", [APGD, AutoAttack])
def test_l1_in_float64(attack: type[AdversarialAttack]) -> None:
    model, x, y = examples(torch.float64)
    options = {"steps": 5} if attack is APGD else {"attacks_to_run": ["apgd-ce"]}
    x_adv = attack(model, 1.0, "l1", **options).generate(x, y)
    assert ((x_adv - x).abs().sum(1) <= 1.0).all()
    assert (model(x_adv).argmax(1) != y).any()


def test_square_in_float16() -> None:
    model, x, y = examples(torch.float16)
    for norm in ("linf", "l2", "l1"):
        x_adv = Square(model, 1.0, norm, n_queries=50).generate(x, y)
        assert x_adv.isfinite().all()
        assert (model(x_adv).argmax(1) != y).any()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_epsilon_beyond_the_range_of_the_dtype(norm: str) -> None:
    model, x, y = examples()
    for epsilon in (1e39, 1e300):
        for attack in (PGD(model, epsilon, norm, steps=5), Square(model, epsilon, norm, n_queries=20)):
            x_adv = attack.generate(x, y)
            assert ((x_adv >= 0) & (x_adv <= 1)).all()


def batch_dependent(x: Tensor) -> Tensor:
    """Correct in a batch, wrong alone, as another summation order can make two nearly tied logits."""
    other = 1000 + (6.2e-5 if len(x) == 1 else -6.2e-5)
    return torch.stack([torch.full((len(x),), 1000.0), torch.full((len(x),), other)], 1) + 0 * x[:, :1]


class Nothing(AdversarialAttack):
    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return x


def test_close_rows_are_confirmed_alone_in_every_rule() -> None:
    x, y = torch.rand(4, 3), torch.zeros(4, dtype=torch.int64)
    assert not Judge(Runner(batch_dependent, batch_size=4)).correct(x, y).any()
    assert Nothing(batch_dependent, 0.1).evaluate(x, y, x)["robust_accuracy"] == 0.0


def test_attack_without_settings_can_be_stored() -> None:
    model, x, y = examples()
    attack = Nothing(nn.Sequential(nn.Flatten(), model), 0.1)
    run = attack_dataset(attack, (x.view(20, 3, 2, 2), y))
    assert run.robust_accuracy().value == 1.0


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_gradients_that_share_memory(norm: str) -> None:
    """The gradient of a sum is one number in every place of an expanded tensor."""

    def brightness(x: Tensor) -> Tensor:
        total = x.sum((1, 2, 3))
        return torch.stack([total, 9 - total], 1)

    x = torch.rand(12, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    for attack in (APGD, PGD):
        x_adv = attack(brightness, 0.01, norm).generate(x, brightness(x).argmax(1))
        assert bool(x_adv.isfinite().all())
