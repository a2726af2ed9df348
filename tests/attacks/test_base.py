"""AdversarialAttack, the base class: the constructor, modes, settings, evaluate and project."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attack_models import NORMS, images, inside, random, shortened, small_net
from torch import Tensor, nn

import pyrobust
from pyrobust import compute_robustness_curve, robustness_curve
from pyrobust.attacks import (
    APGD,
    BIM,
    DDN,
    FAB,
    FGSM,
    PGD,
    AdaptedAttack,
    AdversarialAttack,
    AdversarialPatch,
    AutoAttack,
    MinimumNormEnsemble,
    Square,
    UniversalPerturbation,
    diagnose,
    minimum_norm,
)
from pyrobust.compat import autoattack, torchattacks
from pyrobust.errors import InputError

ATTACKS = [FGSM, BIM, PGD, APGD, FAB, Square, AutoAttack]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Noise(AdversarialAttack):
    """A user-defined attack: a single random point."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        """Take one step."""
        return x + self.project(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x), x)


def first(x: Tensor) -> Tensor:
    """Class 0 where the first coordinate is at least one half."""
    z = x.flatten(1)[:, 0]
    return torch.stack([z, 1 - z], 1)


def test_generate_is_abstract_and_keeps_its_signature_and_text() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AdversarialAttack(first)
    assert list(inspect.signature(Noise.generate).parameters) == ["self", "x", "y", "targeted", "target_labels"]
    assert Noise.generate.__doc__ == "Take one step."


def test_an_attack_is_called_as_it_generates() -> None:
    """Also one of a user whose ``generate`` takes no targets."""

    class Shift(AdversarialAttack):
        def generate(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]  # as users write it
            return x + self.project(torch.ones_like(x), x)

    net = small_net()
    x, y = images(6)
    goal = (y + 1) % 5
    attack = PGD(net, 0.1, steps=3)
    assert torch.equal(attack(x, y), attack.generate(x, y))
    keywords: dict[str, Any] = {"targeted": True, "target_labels": goal, "indices": range(6, 12), "epsilon": 0.2}
    expected = attack.generate(x, y, **keywords)
    assert torch.equal(attack(x, y, **keywords), expected)
    assert torch.equal(attack(x, y, True, goal, indices=range(6, 12), epsilon=0.2), expected)
    assert not torch.equal(attack(x, y), expected)
    shift = Shift(net, 0.1)
    assert torch.equal(shift(x, y), shift.generate(x, y))


# --- modes


class Modes(nn.Module):
    """Records whether each forward pass is in training mode; its dropout is frozen by the user."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout().eval(), nn.Linear(4, 4))
        self.seen: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(any(module.training for module in self.modules()))
        return self.layers(x)


class OwnSteps(AdversarialAttack):
    """A user's attack, which runs the model itself."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(self.model(leaf), y), leaf)
        return x + self.project(self.epsilon * gradient.sign(), x)


X, Y = random(4, 1, 2, 2), torch.tensor([0, 1, 2, 3])


def curve(model: nn.Module) -> None:
    compute_robustness_curve(OwnSteps, model, X, Y, [0.01, 0.02])
    robustness_curve(OwnSteps, model, X, Y, [0.01])


def sweep(model: nn.Module) -> None:
    attack = OwnSteps(model)
    model.train()
    model.layers[2].eval()
    pyrobust.attack_dataset(attack, (X, Y), model_name="net")


def reference(model: nn.Module) -> None:
    adversary = autoattack.AutoAttack(model, eps=0.01, version="custom", attacks_to_run=["apgd-ce"], verbose=False)
    adversary.apgd.n_iter = adversary.fab.n_iter = 2
    adversary.run_standard_evaluation(X, Y, bs=4)
    adversary.apgd.perturb(X, Y)
    adversary.apgd.attack_single_run(X, Y)
    adversary.fab.attack_single_run(X, Y)


#: Attacks, whose constructors leave evaluation mode, and how they run; functions that put the mode back.
ATTACKS_BY_USE: list[tuple[Any, Any]] = [
    *((attack, None) for attack in (OwnSteps, PGD, Square, AutoAttack, MinimumNormEnsemble)),
    (FAB, lambda attack: attack.minimum(X, Y)),
    (lambda model: AdaptedAttack(model, attack=lambda model, x, y: x), None),
    (lambda model: UniversalPerturbation(model, epochs=1), lambda attack: attack.evaluate(X, Y, attack.fit(X, Y))),
    (lambda model: AdversarialPatch(model, 1, epochs=1), lambda attack: attack.evaluate(X, Y, attack.fit(X, Y))),
]
FUNCTIONS: list[Callable[[nn.Module], Any]] = [
    curve,
    sweep,
    reference,
    lambda model: minimum_norm(model, X, Y, attacks=["fmn"]),
    lambda model: diagnose(model, X, Y, 0.01),
    lambda model: torchattacks.PGD(model, steps=2)(X, Y),
]


@pytest.mark.parametrize(("make", "use"), ATTACKS_BY_USE)
@pytest.mark.usefixtures("few_steps")
def test_constructors_leave_evaluation_mode_and_calls_the_mode_that_they_meet(make: Any, use: Any) -> None:
    model = Modes()
    attack = shortened(make(model), 2)
    assert not any(module.training for module in model.modules())
    model.train()
    model.layers[2].eval()
    before = [module.training for module in model.modules()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    if use is not None:
        use(attack)
    if isinstance(attack, AdversarialAttack):
        attack.evaluate(X, Y, attack.generate(X, Y))
        with pytest.raises(InputError):
            attack.generate(X * math.nan, Y)
    assert model.seen == {False}
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), buffers, strict=True))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_put_the_mode_back(function: Callable[[nn.Module], Any]) -> None:
    model = Modes()
    before = [module.training for module in model.modules()]
    function(model)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("attack_class", [OwnSteps, PGD, DDN, AutoAttack])
def test_attacks_run_in_inference_mode_and_on_tensors_made_there(attack_class: type[AdversarialAttack]) -> None:
    attack = shortened(attack_class(small_net(), 0.02, "l2"), 2)
    expected = attack.generate(*images(4))
    for mode in (torch.inference_mode, torch.no_grad)[: 1 if attack_class is OwnSteps else 2]:
        with mode():
            x, y = images(4)
            x_adv = attack.generate(x, y)
            rates = attack.evaluate(x, y, x_adv)
        assert torch.equal(x_adv, expected)
        assert rates == attack.evaluate(*images(4), expected)
        outside = attack.generate(x, y)
        assert torch.equal(outside, expected)
        assert not outside.is_inference()


# --- settings


@pytest.mark.parametrize("attack_class", [Noise, *ATTACKS])
def test_clip_is_another_spelling_of_clip_min_and_clip_max(attack_class: type[AdversarialAttack]) -> None:
    for attack in (attack_class(first, clip=(-1, 2)), attack_class(first, clip_min=-1.0, clip_max=2.0)):
        assert (attack.clip_min, attack.clip_max) == (-1.0, 2.0)
        for member in getattr(attack, "attacks", {}).values():
            assert (member.clip_min, member.clip_max) == (-1.0, 2.0)
    assert attack_class(first, clip_min=-1, clip_max=2, clip=(-1, 2)).clip_max == 2.0
    with pytest.raises(InputError, match=r"^clip: expected clip, or clip_min and clip_max, got \(0, 2\) and 0\.5, 1"):
        attack_class(first, clip_min=0.5, clip=(0, 2))


def test_repr_by_hand() -> None:
    assert repr(PGD(first, torch.tensor([0.1, 0.2]), clip=(0, 2), steps=5, progress=print)) == (
        "PGD(model='first', epsilon='2 radii', norm='linf', clip=(0.0, 2.0), progress=True, seed=0, steps=5, "
        "random_start=True, restarts=1, momentum=0.0, loss='ce')"
    )
    assert repr(AutoAttack(first, 0.1, attacks_to_run=["apgd-ce", "square"])) == (
        "AutoAttack(model='first', epsilon=0.1, norm='linf', clip=(0.0, 1.0), version='standard', "
        "attacks=('apgd-ce', 'square'))"
    )
    assert (
        repr(OwnSteps(small_net())) == f"OwnSteps(model='Sequential', epsilon={8 / 255}, norm='linf', clip=(0.0, 1.0))"
    )


@pytest.mark.parametrize(("attack_class", "norm"), list(zip(ATTACKS, 3 * NORMS, strict=False)))
def test_attacks_pickle(attack_class: Any, norm: str) -> None:
    x, y = images(6)
    attack = shortened(attack_class(small_net(), 0.02, norm, seed=3), 2)
    before = attack.generate(x, y)
    copied = pickle.loads(pickle.dumps(attack))
    assert copied.model is copied.runner.model
    assert repr(copied) == repr(attack)
    assert torch.equal(copied.generate(x, y), before)


# --- evaluate and project


def test_evaluate_by_hand() -> None:
    x = torch.tensor([[0.75, 0.5], [0.75, 0.5], [0.25, 0.5], [0.5, 0.5]])
    y = torch.tensor([0, 0, 0, 0])  # correct, correct, wrong, correct (a tie goes to class 0)
    x_adv = torch.tensor([[0.25, 0.5], [0.75, 0.25], [0.75, 0.5], [0.5, 0.0]])  # the attack corrects the wrong one
    result = Noise(first).evaluate(x, y, x_adv)
    assert all(type(value) is float for value in result.values())
    assert result == {
        "clean_accuracy": 0.75,
        "robust_accuracy": 0.5,
        "attack_success_rate": 0.5,
        "success_rate_on_correct": 1 / 3,
        "avg_perturbation": 1.75 / 4,
    }
    wrong = Noise(first).evaluate(x, 1 - first(x).argmax(1), x_adv)
    assert (wrong["clean_accuracy"], wrong["robust_accuracy"], wrong["attack_success_rate"]) == (0, 0, 1)
    assert math.isnan(wrong["success_rate_on_correct"])
    x_adv = x + torch.tensor([0.125, -0.25])
    distances = {norm: Noise(first, norm=norm).evaluate(x, y, x_adv)["avg_perturbation"] for norm in NORMS}
    assert distances == {"linf": 0.25, "l2": pytest.approx(0.3125**0.5 / 2, rel=1e-15), "l1": 0.375}
    x, x_adv = torch.zeros(1, 3), torch.full((1, 3), 1e-30)  # the squares underflow in float32
    tiny = Noise(first, norm="l2").evaluate(x, y[:1], x_adv)["avg_perturbation"]
    assert tiny == pytest.approx(3**0.5 * 1e-30, rel=1e-6)


def test_project_l1_of_rows() -> None:
    v = torch.tensor([[3.0, -1.0], [0.25, 0.25]])
    assert AdversarialAttack._project_l1(v, 1.0).tolist() == [[1.0, 0.0], [0.25, 0.25]]


@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data())
def test_x_plus_projection_is_exactly_feasible(norm: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    low, high = data.draw(st.sampled_from([(0.0, 1.0), (-1.0, 2.0), (-0.1, 0.7), (-1e5, 1e5)]))
    size = data.draw(st.integers(1, 8))
    radius = st.sampled_from([0.0, 1e-7, 0.031372549, 0.1, 1 / 3, 1.0, 7.0])
    radii = [data.draw(radius) for _ in range(3)] if data.draw(st.booleans()) else [data.draw(radius)] * 3
    seed = data.draw(st.integers(0, 9999))
    share = random(3, size, seed=seed, dtype=torch.float64)
    share = torch.where(random(3, size, seed=seed + 1) < 0.2, share.round(), share)
    x = (low + share * (high - low)).to(dtype)
    x = torch.where((x.double() >= low) & (x.double() <= high), x, torch.zeros_like(x))
    scale = data.draw(st.sampled_from([0.0, 1e-6, 0.03, 1.0, 100.0]))
    delta = ((random(3, size, seed=seed + 2) - 0.5) * scale).to(dtype)
    attack = Noise(first, torch.tensor(radii, dtype=torch.float64), norm, low, high)
    moved = attack.project(delta, x)
    assert moved.dtype == dtype
    assert inside(x + moved, x, norm, radii, low, high)
    assert inside(moved, torch.zeros_like(moved), norm, radii, -1e9, 1e9)
    alone = Noise(first, radii[1], norm, low, high).project(delta[1:2], x[1:2])
    assert torch.equal(alone, moved[1:2])
    if norm != "l2" or scale < 1:  # projecting again changes nothing beyond rounding
        again = attack.project(moved, x)
        tolerance = 4 * torch.finfo(dtype).eps * (abs(low) + abs(high) + 1)
        torch.testing.assert_close(again, moved, rtol=0, atol=tolerance)
