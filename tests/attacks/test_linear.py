"""Linear models, whose distance has a closed form: attacks succeed if and only if the radius is above it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attack_models import halfspace, inside, random
from support.piecewise_linear import linear_distance

from pyrobust.attacks import APGD, BIM, FGSM, PGD

UNIT, WIDE = (0.0, 1.0), (-100.0, 100.0)
WEIGHT = random(24, seed=5) * 2 - 1


@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (FGSM, {}),
        (BIM, {"steps": 20}),
        (PGD, {"steps": 40}),
        (PGD, {"steps": 40, "momentum": 0.75, "loss": "margin"}),
        (APGD, {}),
    ],
)
@pytest.mark.parametrize(
    ("norm", "box"),
    [("linf", UNIT), ("linf", WIDE), ("l2", WIDE), ("l1", UNIT), ("l1", WIDE)],  # l2 steps are cut off by a small box
)
def test_linear_models_are_fooled_iff_the_radius_is_above_their_distance(
    norm: str, box: tuple[float, float], attack: Any, options: dict[str, Any]
) -> None:
    x, y = random(3, 24, seed=6), torch.tensor([0])
    x[0] = x[0].round()  # no room on one side
    dual = WEIGHT.double().norm(p={"linf": 1, "l2": 2, "l1": torch.inf}[norm])
    for row, share in enumerate((1.02, 0.98, 1.02) if box == UNIT else (1.02, 0.98)):
        example = x[row : row + 1]
        model = halfspace(WEIGHT, 1.0 - float(example[0] @ WEIGHT))
        epsilon = share * (linear_distance(model, example[0], 0, norm) if box == UNIT else float(1 / dual))
        # An l1 step is shared by several coordinates, so it takes more until the largest has the whole budget.
        shared: dict[Any, dict[str, Any]] = {FGSM: {}, APGD: {"restarts": 5, "multi_epsilon": True}}
        extra = shared.get(attack, {"step_size": epsilon / 4}) if norm == "l1" else {}
        attacker = attack(model, epsilon, norm, *box, **options, **extra)
        x_adv = attacker.generate(example, y)
        assert inside(x_adv, example, norm, epsilon, *box)
        assert attacker.evaluate(example, y, x_adv)["attack_success_rate"] == float(share > 1), row
