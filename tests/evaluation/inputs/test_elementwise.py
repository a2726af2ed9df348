"""Radii and clip ranges of elements, and ``clip=None``: attacks stay in exactly the boxes that bounds prove."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyrobust.attacks import (
    APGD,
    BIM,
    DDN,
    EAD,
    FAB,
    FGSM,
    FMN,
    PGD,
    SPSA,
    AdversarialPatch,
    AutoAttack,
    CarliniWagner,
    DeepFool,
    HopSkipJump,
    MinimumNormEnsemble,
    SigmaZero,
    Square,
    SuperDeepFool,
    TransferAttack,
    UniversalPerturbation,
    diagnose,
    minimum_norm,
)
from pyrobust.attacks.certified_first import proved_robust
from pyrobust.attacks.minimum.sampling import Sampling
from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError
from pyrobust.metrics import distances_above
from pyrobust.metrics.distance import box_distances_above, is_within, is_within_box


def network(generator: torch.Generator) -> torch.nn.Sequential:
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return net


GENERATOR = torch.Generator().manual_seed(5)
NET = network(GENERATOR)
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
    (FAB, {"steps": 5, "targets": 2}),
    (FMN, {"steps": 10, "restarts": 2}),
    (DeepFool, {"norm": "linf"}),
    (Sampling, {"points": 100}),
    (TransferAttack, {"surrogate": NET, "neighbors": 1, "nesterov": True}),
]
# Minimum-norm attacks in the norms in which only the clip range has elements of its own.
IN_OTHER_NORMS: list[tuple[Any, str, float, dict[str, Any]]] = [
    (FMN, "l2", 1.0, {"steps": 30}),
    (FMN, "l1", 2.0, {"steps": 30}),
    (FAB, "l2", 1.0, {"steps": 5, "targets": 2}),
    (FAB, "l1", 2.0, {"steps": 5, "targets": 2}),
    (DDN, "l2", 1.0, {"steps": 10}),
    (DeepFool, "l2", 1.0, {}),
    (SuperDeepFool, "l2", 1.0, {}),
    (EAD, "l1", 2.0, {"steps": 50, "constant": 1.0, "searches": 3}),
    (TransferAttack, "l2", 1.0, {"surrogate": NET}),
]


def outside(x_adv: Tensor, x: Tensor, radii: Tensor, low: Tensor, high: Tensor) -> int:
    """Number of elements outside of their intervals, in rational numbers."""
    wrong = 0
    for row, clean in zip(x_adv.tolist(), x.tolist(), strict=True):
        for z, c, r, a, b in zip(row, clean, radii.tolist(), low.tolist(), high.tolist(), strict=True):
            wrong += abs(Fraction(z) - Fraction(c)) > Fraction(r) or not Fraction(a) <= Fraction(z) <= Fraction(b)
    return wrong


@pytest.mark.parametrize(
    ("attack", "budget", "dtype"),
    [
        *((*each, torch.float32) for each in ATTACKS),
        (PGD, {"steps": 5}, torch.float64),
        (FAB, {"steps": 5}, torch.float64),
    ],
)
def test_points_are_in_the_boxes_in_exact_arithmetic(attack: Any, budget: dict[str, Any], dtype: torch.dtype) -> None:
    net = copy.deepcopy(NET).to(dtype)
    if "surrogate" in budget:
        budget = budget | {"surrogate": net}
    x, low, high = X.to(dtype), LOW.double(), HIGH.double()
    x_adv = attack(net, RADII, clip=(LOW, HIGH), **budget).generate(x, Y)
    assert outside(x_adv, x, RADII[0], low, high) == 0
    broken = net(x_adv).argmax(1) != Y
    assert broken.sum() >= 3
    largest = (x_adv - x).abs()[broken].amax(0)
    assert largest[1] == 0  # fixed
    assert (largest[[0, 4]] > 0.5 * RADII[0, [0, 4]].to(dtype)).all()  # a radius of 0.1 for all would be less


@pytest.mark.parametrize(("attack", "norm", "epsilon", "budget"), IN_OTHER_NORMS)
def test_elements_with_equal_ends_stay(attack: Any, norm: str, epsilon: float, budget: dict[str, Any]) -> None:
    x, low, high = X.clone(), LOW.clone(), HIGH.clone()
    x[:, 1] = low[1] = high[1] = 0.1
    y = NET(x).argmax(1)
    made = attack(NET, epsilon, norm, clip=(low, high), **budget)
    points = [made.generate(x, y)]
    assert (distances_above(points[0], x, norm) <= epsilon).all()
    if hasattr(made, "minimum"):
        result = made.minimum(x, y)
        points.append(result.x_adv)
        assert result.success.sum() >= 8
    for x_adv in points:
        assert torch.equal(x_adv[:, 1], x[:, 1])
        assert ((x_adv >= low) & (x_adv <= high)).all()
        assert (NET(x_adv).argmax(1) != y).sum() >= 3


@pytest.mark.parametrize(
    ("attack", "budget"), [(FMN, {"steps": 30}), (FAB, {"steps": 20, "targets": 3}), (DeepFool, {})]
)
def test_distances_in_radii_are_those_of_the_model_in_these_units(attack: Any, budget: dict[str, Any]) -> None:
    radii = torch.tensor([[0.5, 0.25, 2.0, 0.125, 1.0]], dtype=torch.float64)  # powers of 2: divisions are exact
    scaled = torch.nn.Sequential(torch.nn.Linear(5, 16), *NET[1:]).eval()
    scaled.load_state_dict(NET.state_dict() | {"0.weight": NET[0].weight * radii.float()})
    elementwise = attack(NET, radii, "linf", clip=(LOW, HIGH), **budget).minimum(X, Y)
    low, high, x = (values / radii.float()[0] for values in (LOW, HIGH, X))
    other = attack(scaled, 1.0, "linf", clip=(low, high), **budget).minimum(x, Y)
    assert elementwise.distance.numpy() == pytest.approx(other.distance.numpy(), rel=0.02)
    assert torch.equal(elementwise.distance, box_distances_above(elementwise.x_adv, X, radii[0]))
    assert elementwise.box is not None


def test_distances_in_radii_are_rounded_up() -> None:
    x_adv, x = torch.tensor([[0.3, 1.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    box = torch.tensor([0.7, 0.1], dtype=torch.float64)
    above = box_distances_above(x_adv, x, box)
    exact = [Fraction(x_adv[0, 0].item()) / Fraction(0.7), Fraction(1) / Fraction(0.1)]
    for value, true in zip(above.tolist(), exact, strict=True):
        assert Fraction(np.nextafter(value, 0)) < true <= Fraction(value)
    assert is_within_box(x_adv, x, box, above).all()
    assert not is_within_box(x_adv, x, box, torch.nextafter(above, torch.zeros(2).double())).any()
    assert box_distances_above(x_adv, x, torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist()[1] == math.inf


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


# -- no limit

SEED = torch.Generator().manual_seed(1)
FAR = network(SEED)
FAR_X = 4 * torch.randn(12, 5, generator=SEED)
FAR_Y = FAR(FAR_X).argmax(1)


def test_only_an_explicit_none_means_no_limit() -> None:
    omitted, none, spelled = PGD(FAR, 0.1), PGD(FAR, 0.1, clip=None), PGD(FAR, 0.1, "linf", -1.0, 2.0, "cpu")
    assert (omitted.clip_min, omitted.clip_max) == (0.0, 1.0)
    assert (none.clip_min, none.clip_max) == (-math.inf, math.inf)
    assert (spelled.clip_min, spelled.clip_max) == (-1.0, 2.0)
    assert "clip='no limit'" in repr(none)


BOUNDED: list[tuple[Any, dict[str, Any]]] = [
    (FGSM, {}),
    (PGD, {"steps": 5}),
    (APGD, {"steps": 10}),
    (Square, {"n_queries": 20}),
    (DeepFool, {}),
    (FAB, {"steps": 5}),
    (FMN, {"steps": 5}),
    (DDN, {"steps": 5}),
    (EAD, {"steps": 5}),
    (SuperDeepFool, {}),
]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(("attack", "budget"), BOUNDED)
def test_points_stay_in_the_ball_alone(attack: Any, budget: dict[str, Any], norm: str) -> None:
    if norm not in attack.norms:
        return
    epsilon = {"linf": 1.0, "l2": 2.0, "l1": 4.0}[norm]
    x_adv = attack(FAR, epsilon, norm, clip=None, **budget).generate(FAR_X, FAR_Y)
    assert is_within(x_adv, FAR_X, norm, torch.full((len(FAR_X),), epsilon, dtype=torch.float64)).all()
    assert (FAR(x_adv).argmax(1) != FAR_Y).sum() >= 3  # 4 or more in every case
    if attack in (FGSM, PGD, APGD, Square, DeepFool, FAB):  # whose steps have no unit: as in a range without effect
        assert torch.equal(x_adv, attack(FAR, epsilon, norm, clip=(-1e6, 1e6), **budget).generate(FAR_X, FAR_Y))


def test_minimum_norm_reaches_points_outside_the_default_range() -> None:
    line = torch.nn.Linear(1, 2)
    line.load_state_dict({"weight": torch.tensor([[1.0], [-1.0]]), "bias": torch.tensor([0.0, 6.0])})
    x, y = torch.tensor([[0.5]]), torch.tensor([1])  # the boundary is at 3
    fmn = {"attacks": ["fmn"]}
    assert minimum_norm(line, x, y, **fmn).distance.isinf().all()
    assert minimum_norm(line, x, y, clip=None, **fmn).distance.item() == pytest.approx(2.5, rel=0.02)
    assert minimum_norm(line, x, y, clip=(0, 4), **fmn).distance.item() == pytest.approx(2.5, rel=0.02)


def test_ensembles_and_proofs_have_no_limit_either() -> None:
    attack = AutoAttack(FAR, 0.5, clip=None, certify_first=True, attacks_to_run=["apgd-ce"])
    assert attack.attacks["apgd-ce"].clip_max == math.inf
    x_adv = attack.generate(FAR_X, FAR_Y)
    broken = FAR(x_adv).argmax(1) != FAR_Y
    assert attack.result is not None
    assert any(attack.result.certified_first.proved)
    assert broken.any()
    assert MinimumNormEnsemble(FAR, clip=None).attacks["fmn"].clip_min == -math.inf
    assert proved_robust(FAR, FAR_X, FAR_Y, 0.5, clip=None).proved.any()
    assert UniversalPerturbation(FAR, 0.5, clip=None, epochs=1).fit(FAR_X, FAR_Y).apply(FAR_X).amax() > 1


def test_a_limit_taken_away_later_is_noticed() -> None:
    attack = PGD(FAR, 2, "l2", clip=None)
    attack.norm = "l0"
    with pytest.raises(InputError, match="norm l0, which needs a range"):
        attack.generate(FAR_X, FAR_Y)


def test_random_starts_are_near_where_no_point_is_known() -> None:
    largest = []

    def constant(x: torch.Tensor) -> torch.Tensor:
        largest.append(float(x.detach().abs().max()))
        return torch.stack([x[:, 0] * 0 + 1, x[:, 0] * 0], 1)

    attacks = ["fmn", "sampling", "fab-t"]
    result = minimum_norm(constant, FAR_X[:2, :1], torch.tensor([0, 0]), clip=None, attacks=attacks)
    assert result.distance.isinf().all()
    assert max(largest) < 100


def test_half_precision_has_no_limit_either() -> None:
    half = torch.nn.Linear(5, 4).half()
    x = FAR_X.half()
    y = half(x).argmax(1)
    x_adv = Square(half, 0.5, clip=None, n_queries=5).generate(x, y)
    assert x_adv.isfinite().all()
    assert (x_adv - x).abs().amax() > 0.4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FAB(NET, RADII, "l2"), "epsilon: expected numbers in l2, got a tensor for the elements"),
        (lambda: HopSkipJump(NET, clip=(LOW, HIGH)), "clip: expected numbers for HopSkipJump, .*; its probes"),
        (lambda: CarliniWagner(NET, clip=(LOW, HIGH)), "clip: expected numbers for CarliniWagner, .*; its change of"),
        (lambda: SigmaZero(NET, clip=(LOW, HIGH)), "clip: expected numbers for SigmaZero, .*; it counts"),
        (lambda: FMN(NET, 2, "l0", clip=(LOW, HIGH)), "clip: expected numbers in l0"),
        (lambda: MinimumNormEnsemble(NET, norm="l2", attacks=["cw"], clip=(LOW, HIGH)), "numbers for CarliniWagner"),
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
        (lambda: HopSkipJump(NET, clip=None), "clip: .* for HopSkipJump, which needs a range"),
        (lambda: CarliniWagner(NET, clip=None), "clip: .* for CarliniWagner, which needs a range"),
        (lambda: SigmaZero(NET, clip=None), "clip: .* for norm l0, which needs a range"),
        (lambda: PGD(NET, 2, "l0", clip=None), "clip: .* for norm l0, which needs a range"),
        (lambda: PGD(NET, 0.1, grid="1/255", clip=None), "clip: .* for a grid, which needs a range"),
        (lambda: AdversarialPatch(NET, 2, clip=None), "clip: .* for AdversarialPatch, which needs a range"),
        (
            lambda: MinimumNormEnsemble(NET, clip=None, attacks=["sampling"]),
            "clip: .* for sampling as the first attack, which needs a range",
        ),
        (
            lambda: MinimumNormEnsemble(NET, clip=None, attacks=["cw"], norm="l2"),
            "clip: .* for CarliniWagner, which needs a range",
        ),
        (lambda: PGD(NET, 0.1, clip_min=-1.0, clip=None), "clip: expected clip, or clip_min and clip_max"),
        (lambda: diagnose(NET, X, Y, epsilon=0.1, clip=None), "for a diagnosis, which needs a range"),  # type: ignore[arg-type]  # a wrong type
        (lambda: proved_robust(NET, X, Y, 0.5), "x: expected values in the clip range"),
    ],
)
def test_what_needs_a_range_or_has_none_of_elements_says_so(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
