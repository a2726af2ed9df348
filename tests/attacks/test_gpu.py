"""Attacks on a GPU against the same attacks on the CPU, on linear float64 nets, whose gradient is a constant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.attack_models import NORMS, inside, random
from torch import Tensor, nn

from pyrobust.attacks import APGD, FAB, PGD, BatchAttack, DeepFool, MinimumNormAttack, Square

ROWS, CLASSES, SIDE = 24, 4, 6
EPSILON = {"linf": 0.05, "l2": 0.35, "l1": 2.0}
# The devices sum products in other orders, so the last bits of a logit differ, and with them, rarely, a choice.
CLOSE, SHARE = 1e-9, 0.9

#: Attack → how it is made, and its norms; FAB and DeepFool search for nearest points.
ATTACKS: dict[str, tuple[Callable[[nn.Module, str], BatchAttack], list[str]]] = {
    "PGD": (lambda model, norm: PGD(model, EPSILON[norm], norm, steps=20), NORMS),
    "APGD": (lambda model, norm: APGD(model, EPSILON[norm], norm, steps=20), NORMS),
    "APGD, DLR": (lambda model, norm: APGD(model, EPSILON[norm], norm, steps=20, loss="dlr"), NORMS),
    "Square": (lambda model, norm: Square(model, EPSILON[norm], norm, n_queries=150), NORMS),
    "FAB": (lambda model, norm: FAB(model, norm=norm, steps=15), NORMS),
    "DeepFool": (lambda model, norm: DeepFool(model, norm=norm), ["linf", "l2"]),
}


def linear() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a linear classifier, images away from the ends of the clip range, and its answers."""
    layer = nn.Linear(SIDE * SIDE, CLASSES).double()
    with torch.no_grad():
        layer.weight.copy_(random(CLASSES, SIDE * SIDE, seed=1, dtype=torch.float64) * 2 - 1)
        layer.bias.zero_()
    x = random(ROWS, 1, SIDE, SIDE, seed=2, dtype=torch.float64) * 0.6 + 0.2
    model = nn.Sequential(nn.Flatten(), layer).eval()
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize(("name", "norm"), [(name, norm) for name, (_, norms) in ATTACKS.items() for norm in norms])
def test_attacks_find_the_points_that_they_find_on_the_cpu(cuda: torch.device, name: str, norm: str) -> None:
    def points(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        """The points of the attack, on the CPU, and which of them fool the model."""
        attack = ATTACKS[name][0](model, norm)
        if isinstance(attack, MinimumNormAttack):
            result = attack.minimum(*arguments)
            distances.append(result.distance.cpu())
            x_adv = result.x_adv
        else:
            x_adv = attack.generate(*arguments)
        assert x_adv.device == arguments[0].device
        return x_adv.cpu(), (model(x_adv).argmax(1) != arguments[1]).cpu()

    distances: list[Tensor] = []
    model, x, y = linear()
    here, fooled = points(x, y)
    assert int(fooled.sum()) > 0, "an attack that never succeeds compares little"
    model = model.to(cuda)
    there, fooled_there = points(x.to(cuda), y.to(cuda))
    assert torch.equal(fooled_there, fooled)
    if distances:
        assert fooled.all()
        torch.testing.assert_close(*distances, rtol=1e-6, atol=CLOSE)
    else:
        assert inside(there, x, norm, EPSILON[norm])
    assert float(((here - there).abs().flatten(1).amax(1) <= CLOSE).double().mean()) >= SHARE
