"""An omitted ``clip`` keeps clip_min and clip_max; ``clip=None`` means no limit, where no range is needed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pyrobust.attacks import (
    APGD,
    DDN,
    EAD,
    FAB,
    FGSM,
    FMN,
    PGD,
    AdversarialPatch,
    AutoAttack,
    CarliniWagner,
    DeepFool,
    HopSkipJump,
    MinimumNormEnsemble,
    SigmaZero,
    Square,
    SuperDeepFool,
    UniversalPerturbation,
    diagnose,
    minimum_norm,
)
from pyrobust.attacks.certified_first import proved_robust
from pyrobust.errors import InputError
from pyrobust.metrics.distance import is_within

NET = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
with torch.no_grad():
    generator = torch.Generator().manual_seed(1)
    for parameter in NET.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    X = 4 * torch.randn(12, 5, generator=generator)
    Y = NET(X).argmax(1)


def test_only_an_explicit_none_means_no_limit() -> None:
    omitted, none, spelled = PGD(NET, 0.1), PGD(NET, 0.1, clip=None), PGD(NET, 0.1, "linf", -1.0, 2.0, "cpu")
    assert (omitted.clip_min, omitted.clip_max) == (0.0, 1.0)
    assert (none.clip_min, none.clip_max) == (-math.inf, math.inf)
    assert (spelled.clip_min, spelled.clip_max) == (-1.0, 2.0)
    assert "clip='no limit'" in repr(none)
    with pytest.raises(InputError, match="clip: expected clip, or clip_min and clip_max"):
        PGD(NET, 0.1, clip_min=-1.0, clip=None)


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
    x_adv = attack(NET, epsilon, norm, clip=None, **budget).generate(X, Y)
    assert is_within(x_adv, X, norm, torch.full((len(X),), epsilon, dtype=torch.float64)).all()
    assert (NET(x_adv).argmax(1) != Y).sum() >= 3  # 4 or more in every case
    if attack in (FGSM, PGD, APGD, Square, DeepFool, FAB):  # whose steps have no unit: as in a range without effect
        assert torch.equal(x_adv, attack(NET, epsilon, norm, clip=(-1e6, 1e6), **budget).generate(X, Y))


def test_minimum_norm_reaches_points_outside_the_default_range() -> None:
    line = torch.nn.Linear(1, 2)
    line.load_state_dict({"weight": torch.tensor([[1.0], [-1.0]]), "bias": torch.tensor([0.0, 6.0])})
    x, y = torch.tensor([[0.5]]), torch.tensor([1])  # the boundary is at 3
    fmn = {"attacks": ["fmn"]}
    assert minimum_norm(line, x, y, **fmn).distance.isinf().all()
    assert minimum_norm(line, x, y, clip=None, **fmn).distance.item() == pytest.approx(2.5, rel=0.02)
    assert minimum_norm(line, x, y, clip=(0, 4), **fmn).distance.item() == pytest.approx(2.5, rel=0.02)


def test_ensembles_and_proofs_have_no_limit_either() -> None:
    attack = AutoAttack(NET, 0.5, clip=None, certify_first=True, attacks_to_run=["apgd-ce"])
    assert attack.attacks["apgd-ce"].clip_max == math.inf
    x_adv = attack.generate(X, Y)
    broken = NET(x_adv).argmax(1) != Y
    assert attack.result is not None
    assert any(attack.result.certified_first.proved)
    assert broken.any()
    assert MinimumNormEnsemble(NET, clip=None).attacks["fmn"].clip_min == -math.inf
    with pytest.raises(InputError, match="x: expected values in the clip range"):
        proved_robust(NET, X, Y, 0.5)
    assert proved_robust(NET, X, Y, 0.5, clip=None).proved.any()
    assert UniversalPerturbation(NET, 0.5, clip=None, epochs=1).fit(X, Y).apply(X).amax() > 1


@pytest.mark.parametrize(
    ("make", "needs"),
    [
        (lambda: HopSkipJump(NET, clip=None), "HopSkipJump"),
        (lambda: CarliniWagner(NET, clip=None), "CarliniWagner"),
        (lambda: SigmaZero(NET, clip=None), "norm l0"),
        (lambda: PGD(NET, 2, "l0", clip=None), "norm l0"),
        (lambda: PGD(NET, 0.1, grid="1/255", clip=None), "a grid"),
        (lambda: AdversarialPatch(NET, 2, clip=None), "AdversarialPatch"),
        (lambda: MinimumNormEnsemble(NET, clip=None, attacks=["sampling"]), "sampling as the first attack"),
        (lambda: MinimumNormEnsemble(NET, clip=None, attacks=["cw"], norm="l2"), "CarliniWagner"),
    ],
)
def test_what_needs_a_range_says_so(make: Any, needs: str) -> None:
    with pytest.raises(InputError, match=rf"clip: expected \(low, high\) for {needs}, which needs a range, got None"):
        make()


def test_a_limit_taken_away_later_is_noticed() -> None:
    attack = PGD(NET, 2, "l2", clip=None)
    attack.norm = "l0"
    with pytest.raises(InputError, match="norm l0, which needs a range"):
        attack.generate(X, Y)


def test_a_diagnosis_needs_a_range() -> None:
    with pytest.raises(InputError, match="for a diagnosis, which needs a range"):
        diagnose(NET, X, Y, epsilon=0.1, clip=None)  # type: ignore[arg-type] # what users may pass


def test_random_starts_are_near_where_no_point_is_known() -> None:
    largest = []

    def constant(x: torch.Tensor) -> torch.Tensor:
        largest.append(float(x.detach().abs().max()))
        return torch.stack([x[:, 0] * 0 + 1, x[:, 0] * 0], 1)

    attacks = ["fmn", "sampling", "fab-t"]
    result = minimum_norm(constant, X[:2, :1], torch.tensor([0, 0]), clip=None, attacks=attacks)
    assert result.distance.isinf().all()
    assert max(largest) < 100


def test_half_precision_has_no_limit_either() -> None:
    half = torch.nn.Linear(5, 4).half()
    x = X.half()
    y = half(x).argmax(1)
    x_adv = Square(half, 0.5, clip=None, n_queries=5).generate(x, y)
    assert x_adv.isfinite().all()
    assert (x_adv - x).abs().amax() > 0.4
