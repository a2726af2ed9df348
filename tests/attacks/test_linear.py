"""Linear models, whose optimal attack has a closed form: attacks succeed if and only if it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_models import halfspace, inside, random
from torch import Tensor

from pyrobust.attacks import APGD, BIM, FGSM, PGD

SIZE, ROWS = 24, 4
L1_OPTIONS: dict[Any, dict[str, Any]] = {
    BIM: {"step_size": 0.375},
    PGD: {"step_size": 0.375},
    APGD: {"restarts": 5, "multi_epsilon": True},
}
UNIT, WIDE = (0.0, 1.0), (-100.0, 100.0)
WEIGHT = random(SIZE, seed=5) * 2 - 1
ATTACKS: list[tuple[Any, dict[str, Any]]] = [
    (FGSM, {}),
    (BIM, {"steps": 20}),
    (PGD, {"steps": 40}),
    (PGD, {"steps": 40, "momentum": 0.75, "loss": "margin"}),
    (APGD, {}),
]


def gain(x: Tensor, norm: str, epsilon: float, low: float, high: float) -> Tensor:
    """Largest decrease of weight·x in ball and clip range, float64 [N]; for l2 the clip range must not bind."""
    weight = WEIGHT.double()
    room = torch.where(weight > 0, x.double() - low, high - x.double())
    if norm == "linf":
        return (weight.abs() * room.clamp(max=epsilon)).sum(1)
    if norm == "l2":
        assert float(room.amin()) > epsilon
        return epsilon * weight.norm().expand(len(x))
    total = torch.zeros(len(x), dtype=torch.float64)
    for row in range(len(x)):  # greedy: the largest weights first
        left = epsilon
        for i in weight.abs().argsort(descending=True).tolist():
            spent = min(left, float(room[row, i]))
            total[row] += spent * abs(float(weight[i]))
            left -= spent
    return total


@pytest.mark.parametrize(("attack", "options"), ATTACKS, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize(
    ("norm", "box"),
    [("linf", UNIT), ("linf", WIDE), ("l2", WIDE), ("l1", UNIT), ("l1", WIDE)],  # l2 has no closed form in a small box
)
def test_linear_models_succeed_iff_the_closed_form_does(
    norm: str, box: tuple[float, float], attack: Any, options: dict[str, Any]
) -> None:
    low, high = box
    epsilon = {"linf": 0.1, "l2": 0.4, "l1": 1.5}[norm]
    x = random(ROWS, SIZE, seed=6)
    x[::4] = x[::4].round()  # no room on one side
    reach = gain(x, norm, epsilon, low, high)
    # The margin is slightly below the reach for one half of the rows, and slightly above it for the other.
    share = torch.where(torch.arange(ROWS) % 2 == 0, 0.98, 1.02)
    bias = share * reach - x.double() @ WEIGHT.double()
    for row in range(ROWS):
        model = halfspace(WEIGHT, float(bias[row]))
        example, label = x[row : row + 1], torch.tensor([0])
        assert int(model(example).argmax()) == 0
        # An l1 step is shared by several coordinates, so it takes more until the largest has the whole budget.
        extra = L1_OPTIONS.get(attack, {}) if norm == "l1" else {}
        attacker = attack(model, epsilon, norm, low, high, **options, **extra)
        x_adv = attacker.generate(example, label)
        assert inside(x_adv, example, norm, epsilon, low, high)
        assert attacker.evaluate(example, label, x_adv)["attack_success_rate"] == float(share[row] < 1), row


def test_fgsm_by_hand() -> None:
    x, y = torch.tensor([[0.5, 0.5, 0.9]]), torch.tensor([0])
    model = halfspace(torch.tensor([3.0, -4.0, 0.0]), 100.0)

    def moved(norm: str, epsilon: float) -> list[float]:
        return (FGSM(model, epsilon, norm).generate(x, y) - x)[0].tolist()

    assert moved("linf", 0.25) == [-0.25, 0.25, 0.0]
    assert moved("l2", 0.25) == pytest.approx([-0.15, 0.2, 0.0], abs=1e-6)
    assert moved("l1", 0.25) == [0.0, 0.25, 0.0]
    assert moved("l1", 0.75) == [-0.25, 0.5, 0.0]  # the second coordinate reaches the clip range
    assert moved("l1", 9.0) == [-0.5, 0.5, 0.0]  # the third coordinate has no derivative
