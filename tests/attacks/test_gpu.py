"""Attacks on a GPU against the same attacks on the CPU, on linear float64 nets, whose gradient is a constant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attack_models import NORMS, inside, random
from torch import Tensor, nn

from pyrobust.attacks import APGD, FAB, PGD, BatchAttack, DeepFool, MinimumNormAttack, Square

ROWS, CLASSES, SIDE = 24, 4, 6
EPSILON = {"linf": 0.05, "l2": 0.35, "l1": 2.0}
# The devices sum products in other orders, so the last bits of a logit differ, and with them, rarely, a choice.
CLOSE, SHARE = 1e-9, 0.9

FIXED: dict[str, Callable[[nn.Module, str], BatchAttack]] = {
    "PGD": lambda model, norm: PGD(model, EPSILON[norm], norm, steps=20),
    "APGD": lambda model, norm: APGD(model, EPSILON[norm], norm, steps=20),
    "APGD, DLR": lambda model, norm: APGD(model, EPSILON[norm], norm, steps=20, loss="dlr"),
    "Square": lambda model, norm: Square(model, EPSILON[norm], norm, n_queries=150),
}
MINIMUM: dict[str, Callable[[nn.Module, str], MinimumNormAttack]] = {
    "FAB": lambda model, norm: FAB(model, norm=norm, steps=15),
    "DeepFool": lambda model, norm: DeepFool(model, norm=norm),
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


def rows_close(here: Tensor, there: Tensor) -> float:
    return float(((here - there).abs().flatten(1).amax(1) <= CLOSE).double().mean())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FIXED)
def test_attacks_within_a_radius(cuda: torch.device, name: str, norm: str) -> None:
    model, x, y = linear()
    here = FIXED[name](model, norm).generate(x, y)
    fooled = model(here).argmax(1) != y
    assert int(fooled.sum()) > 0, "an attack that never succeeds compares little"
    model = model.to(cuda)
    there = FIXED[name](model, norm).generate(x.to(cuda), y.to(cuda))
    assert there.device == cuda
    assert torch.equal((model(there).argmax(1).cpu() != y), fooled)
    assert inside(there.cpu(), x, norm, EPSILON[norm])
    assert rows_close(here, there.cpu()) >= SHARE


@pytest.mark.parametrize(
    ("name", "norm"), [*(("FAB", norm) for norm in NORMS), ("DeepFool", "linf"), ("DeepFool", "l2")]
)
def test_nearest_adversarial_examples(cuda: torch.device, name: str, norm: str) -> None:
    model, x, y = linear()
    here = MINIMUM[name](model, norm).minimum(x, y)
    assert here.distance.isfinite().all()
    model = model.to(cuda)
    there = MINIMUM[name](model, norm).minimum(x.to(cuda), y.to(cuda))
    assert there.x_adv.device == cuda
    assert (model(there.x_adv).argmax(1).cpu() != y).all()
    torch.testing.assert_close(there.distance.cpu(), here.distance, rtol=1e-6, atol=CLOSE)
    assert rows_close(here.x_adv, there.x_adv.cpu()) >= SHARE
