"""Whether a model is right at an input: close logits are judged alone, and every row is counted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyrobust import metrics
from pyrobust.attacks import AdversarialAttack
from pyrobust.correctness import Judge
from pyrobust.errors import InputError
from pyrobust.evaluation import attack_dataset, calculate_empirical_robustness, compute_robustness_curve
from pyrobust.runner import Runner


def rounding(batch):
    """Class 0 where x > 0, except that a batch of several loses a little of it."""
    loss = 1e-5 if len(batch) > 1 else 0.0
    return torch.cat([batch - loss, -batch + loss, torch.full_like(batch, -1.0)], 1)


def test_a_close_example_is_judged_alone():
    x = torch.tensor([[5e-6], [0.5], [-0.5], [-5e-6], [0.2]])
    y = torch.tensor([0, 0, 0, 1, 1])
    judge = Judge(Runner(rounding, batch_size=5))
    assert (rounding(x).argmax(1) == y).tolist() == [False, True, False, True, False]
    assert judge.right(x, y).tolist() == [True, True, False, True, False]
    assert judge.rows == 5 + 2


def test_a_batch_of_one_runs_once():
    judge = Judge(Runner(rounding, batch_size=1))
    assert judge.right(torch.tensor([[5e-6], [-5e-6]]), torch.tensor([0, 0])).tolist() == [True, False]
    assert judge.rows == 2


def test_logits_without_a_largest_are_never_right():
    rows = torch.tensor([[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf], [0.0, 0.0], [1.0, -math.inf]])
    right = Judge(Runner(lambda x: x)).right(rows, torch.zeros(5, dtype=torch.int64))
    assert right.tolist() == [False, False, False, True, True]


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InputError, match="dataset: expected labels 0 to 2, the model's classes, got 3"):
        Judge(Runner(rounding)).right(torch.zeros(2, 1), torch.tensor([0, 3]), "dataset")


class Moves(AdversarialAttack):
    """Corrects the first example, breaks the second, and leaves the third alone."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return torch.where(x < 0.5, x + 0.2, torch.where(x < 0.8, x - 0.4, x))


def test_every_robust_accuracy_is_right_at_x_and_at_x_adv() -> None:
    def model(x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return torch.stack([0.5 - mean, mean - 0.5], 1)

    x, y = torch.tensor([0.4, 0.7, 0.9]).view(3, 1, 1, 1), torch.tensor([1, 1, 1])
    attack = Moves(model, epsilon=0.5)
    x_adv = attack.generate(x, y)
    clean, adversarial = model(x).argmax(1), model(x_adv).argmax(1)
    run = attack_dataset(attack, (x, y), batch_size=1)
    curve = compute_robustness_curve(Moves, model, x, y, [0.5])
    rates = [
        attack.evaluate(x, y, x_adv)["robust_accuracy"],
        float(metrics.robust_accuracy(clean, adversarial, y)),
        1 - float(metrics.robust_risk(clean, adversarial, y)),
        float(run.robust_accuracy()),
        curve[0.5],
        float(metrics.clean_accuracy(clean, y))
        * calculate_empirical_robustness(model, (x, y), lambda model, x, y, budget: attack.generate(x, y), 0.5),
    ]
    assert rates == pytest.approx([1 / 3] * 6)
