"""Radii and clip ranges of elements: attacks stay in exactly the boxes that bounds prove."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyrobust.attacks import (
    APGD,
    BIM,
    FAB,
    FGSM,
    PGD,
    SPSA,
    AutoAttack,
    HopSkipJump,
    Square,
    TransferAttack,
    UniversalPerturbation,
)
from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError

GENERATOR = torch.Generator().manual_seed(5)
NET = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
with torch.no_grad():
    for parameter in NET.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=GENERATOR) / 2)
LOW, HIGH = torch.tensor([-3.0, -2.0, 0.0, -0.1, -5.0]), torch.tensor([3.0, 2.1, 1.0, 0.1, 5.0])
X = LOW + (HIGH - LOW) * torch.rand(10, 5, generator=GENERATOR)
Y = NET(X).argmax(1)
RADII = torch.tensor([[0.7, 0.0, 0.3, 0.1, 1.3]], dtype=torch.float64)  # the second feature is fixed

ATTACKS: list[tuple[Any, dict[str, Any]]] = [
    (FGSM, {}),
    (BIM, {"steps": 5}),
    (PGD, {"steps": 5}),
    (APGD, {"steps": 10}),
    (SPSA, {"steps": 5, "samples": 8, "step_size": 0.5}),
    (Square, {"n_queries": 30}),
    (AutoAttack, {"attacks_to_run": ["apgd-ce"]}),
]


def outside(x_adv: Tensor, x: Tensor, radii: Tensor, low: Tensor, high: Tensor) -> int:
    """Number of elements outside of their intervals, in rational numbers."""
    wrong = 0
    for row, clean in zip(x_adv.tolist(), x.tolist(), strict=True):
        for z, c, r, a, b in zip(row, clean, radii.tolist(), low.tolist(), high.tolist(), strict=True):
            wrong += abs(Fraction(z) - Fraction(c)) > Fraction(r) or not Fraction(a) <= Fraction(z) <= Fraction(b)
    return wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("attack", "budget"), ATTACKS)
def test_points_are_in_the_boxes_in_exact_arithmetic(attack: Any, budget: dict[str, Any], dtype: torch.dtype) -> None:
    net = torch.nn.Sequential(*NET).to(dtype) if dtype == torch.float32 else _double(NET)
    x, low, high = X.to(dtype), LOW.double(), HIGH.double()
    x_adv = attack(net, RADII, clip=(LOW, HIGH), **budget).generate(x, Y)
    assert outside(x_adv, x, RADII[0], low, high) == 0
    broken = net(x_adv).argmax(1) != Y
    assert broken.sum() >= 3
    largest = (x_adv - x).abs()[broken].amax(0)
    assert largest[1] == 0  # fixed
    assert (largest[[0, 4]] > 0.5 * RADII[0, [0, 4]].to(dtype)).all()  # a radius of 0.1 for all would be less


def _double(net: torch.nn.Module) -> torch.nn.Module:
    double = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).double().eval()
    double.load_state_dict(net.state_dict())
    return double


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_clip_range_of_elements_holds_in_every_norm(norm: str) -> None:
    epsilon = {"linf": 0.5, "l2": 1.0, "l1": 2.0}[norm]
    attack = PGD(NET, epsilon, norm, clip_min=LOW, clip_max=HIGH, steps=5)
    x_adv = attack.generate(X, Y)
    assert outside(x_adv, X, torch.full((5,), epsilon), LOW, HIGH) == 0
    order = {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    assert (torch.linalg.vector_norm((x_adv - X).double(), order, dim=1) <= epsilon * (1 + 1e-12)).all()
    assert ((x_adv == HIGH) | (x_adv == LOW)).any()
    delta = attack.project(torch.full_like(X, 9.0), X)
    assert outside(X + delta, X, torch.full((5,), epsilon), LOW, HIGH) == 0


def test_equal_radii_are_the_ball_of_one() -> None:
    for attack in (PGD(NET, 0.25, steps=5, clip=None), FGSM(NET, 0.25, clip=None)):
        one = attack.generate(X, Y)
        attack.epsilon = torch.full((1, 5), 0.25, dtype=torch.float64)
        assert torch.allclose(attack.generate(X, Y), one, atol=1e-6)


def test_projections_are_differentiable() -> None:
    attack = PGD(NET, RADII, clip=(LOW, HIGH))
    delta = torch.tensor([[0.1, 0.1, 9.0, 0.0, -9.0]]).requires_grad_()
    attack.project(delta, (LOW + HIGH)[None] / 2).sum().backward()
    assert delta.grad is not None
    assert delta.grad.tolist() == [[1.0, 0.0, 0.0, 1.0, 0.0]]


def test_channels_have_radii() -> None:
    radii = torch.tensor([0.0, 0.1, 0.2]).view(3, 1, 1)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    x = torch.rand(4, 3, 4, 4, generator=GENERATOR)
    x_adv = PGD(net, radii, steps=3).generate(x, net(x).argmax(1))
    assert (x_adv - x).abs().amax((0, 2, 3)).tolist() == pytest.approx([0.0, 0.1, 0.2], abs=1e-6)


def test_what_bounds_prove_no_attack_breaks() -> None:
    bounded = BoundedModel(NET, X)
    for scale in (0.3, 1.0):
        verdicts = bounded.verify(
            X, Y, scale * RADII, clip=(LOW, HIGH), attack=PGD(NET, scale * RADII, clip=(LOW, HIGH)).generate
        )
        assert "verified" in verdicts.status if scale < 1 else "falsified" in verdicts.status
    attack = AutoAttack(NET, 0.3 * RADII, clip=(LOW, HIGH), attacks_to_run=["apgd-ce"], certify_first=True)
    x_adv = attack.generate(X, Y)
    assert attack.result is not None
    proved = torch.tensor(attack.result.certified_first.proved)
    assert proved.any()
    assert torch.equal(x_adv[proved], X[proved])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FAB(NET, RADII), "epsilon: expected numbers for FAB, got a tensor for the elements; use PGD"),
        (lambda: HopSkipJump(NET, clip=(LOW, HIGH)), "clip: expected numbers for HopSkipJump"),
        (lambda: TransferAttack(NET, RADII, surrogate=NET), "epsilon: expected numbers for TransferAttack"),
        (lambda: AutoAttack(NET, RADII), "epsilon: expected numbers for FAB"),
        (lambda: UniversalPerturbation(NET, 0.1, clip=(LOW, HIGH)), "clip: expected numbers for UniversalPerturbation"),
        (lambda: PGD(NET, RADII, "l2"), "epsilon: expected numbers in l2"),
        (lambda: APGD(NET, 0.1, "l1", clip=(LOW, HIGH)), "clip: expected numbers in l1"),
        (lambda: PGD(NET, RADII, grid="1/255"), "epsilon: expected numbers with a grid"),
        (lambda: PGD(NET, -RADII), "epsilon: expected finite numbers of at least 0"),
        (lambda: PGD(NET, 0.1, clip=(HIGH, LOW)), "clip: expected low <= high for every element"),
        (lambda: PGD(NET, RADII[0], clip=None).generate(X, Y), r"radii of elements have the shape \(1, 5\)"),
        (lambda: PGD(NET, RADII[:, :4], clip=None).generate(X, Y), "epsilon: expected a number"),
        (lambda: PGD(NET, 0.1, clip=(LOW[:4], HIGH[:4])).generate(X / 9, Y), "clip: expected numbers, or tensors"),
        (lambda: PGD(NET, RADII, clip=(LOW, HIGH)).generate(X + 9, Y), "x: expected values in the clip range"),
        (lambda: PGD(NET, X.abs().double(), clip=None).generate(X, Y), "the same radii of elements"),
    ],
)
def test_what_has_no_radii_of_elements_says_so(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
