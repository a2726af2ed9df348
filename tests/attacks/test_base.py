"""AdversarialAttack, the base class for users: the constructor, project and evaluate."""

from __future__ import annotations

import inspect
import math
import pickle
from typing import Any

import pytest
import torch
from attack_models import NORMS, images, inside, random, shortened, small_net
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pyrobust.attacks import APGD, BIM, DDN, FAB, FGSM, PGD, AdversarialAttack, AutoAttack, Square
from pyrobust.errors import InputError

ATTACKS = [FGSM, BIM, PGD, APGD, FAB, Square, AutoAttack]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Noise(AdversarialAttack):
    """A user-defined attack: a single random point."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return x + self.project(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x), x)


def first(x: Tensor) -> Tensor:
    """Class 0 where the first coordinate is at least one half."""
    z = x.flatten(1)[:, 0]
    return torch.stack([z, 1 - z], 1)


def test_adversarial_attack_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AdversarialAttack(first)


def test_an_attack_is_called_as_it_generates() -> None:
    """Also one of a user whose ``generate`` takes no targets."""

    class Shift(AdversarialAttack):
        def generate(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
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


class Modes(nn.Module):
    """Records whether each forward pass is in training mode; its dropout is frozen by the user."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout().eval(), nn.Linear(4, 3))
        self.seen: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(any(module.training for module in self.modules()))
        return self.layers(x)


class OwnSteps(AdversarialAttack):
    """A user's attack, which runs the model itself."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        """Take one step."""
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(self.model(leaf), y), leaf)
        return x + self.project(self.epsilon * gradient.sign(), x)


@pytest.mark.parametrize("attack_class", [OwnSteps, PGD, FAB, Square, AutoAttack])
def test_every_submodule_gets_its_mode_back(attack_class: type[AdversarialAttack]) -> None:
    model = Modes()
    attack = shortened(attack_class(model, 0.1), 2)
    model.train()  # after the constructor, which left evaluation mode
    model.layers[2].eval()
    before = [module.training for module in model.modules()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    x, y = random(3, 1, 2, 2), torch.tensor([0, 1, 2])
    x_adv = attack.generate(x, y)
    attack.evaluate(x, y, x_adv)
    if attack_class is FAB:
        attack.minimum(x, y)
    assert model.seen == {False}
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), buffers, strict=True))
    with pytest.raises(InputError):
        attack.generate(x * math.nan, y)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("attack_class", [PGD, DDN, AutoAttack])
def test_attacks_run_inside_inference_mode(attack_class: type[AdversarialAttack]) -> None:
    attack = shortened(attack_class(small_net(), 0.02, "l2"), 2)
    expected = attack.generate(*images(4))
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            x, y = images(4)
            x_adv = attack.generate(x, y)
            rates = attack.evaluate(x, y, x_adv)
        assert torch.equal(x_adv, expected)
        assert rates == attack.evaluate(*images(4), expected)
    x, y = images(4)
    users = OwnSteps(small_net(), 0.02)
    expected = users.generate(x, y)
    with torch.inference_mode():
        assert torch.equal(users.generate(x, y), expected)


def test_generate_of_a_subclass_keeps_its_signature_and_text() -> None:
    assert list(inspect.signature(OwnSteps.generate).parameters) == ["self", "x", "y", "targeted", "target_labels"]
    assert OwnSteps.generate.__doc__ == "Take one step."


@pytest.mark.parametrize("attack_class", [Noise, *ATTACKS])
def test_clip_is_another_spelling_of_clip_min_and_clip_max(attack_class: type[AdversarialAttack]) -> None:
    for attack in (attack_class(first, clip=(-1, 2)), attack_class(first, clip_min=-1.0, clip_max=2.0)):
        assert (attack.clip_min, attack.clip_max) == (-1.0, 2.0)
        for part in getattr(attack, "attacks", {}).values():
            assert (part.clip_min, part.clip_max) == (-1.0, 2.0)
    assert attack_class(first, clip_min=-1, clip_max=2, clip=(-1, 2)).clip_max == 2.0
    with pytest.raises(InputError, match=r"^clip: expected clip, or clip_min and clip_max, got \(0, 2\) and 0\.5, 1"):
        attack_class(first, clip_min=0.5, clip=(0, 2))


@pytest.mark.parametrize("attack_class", ATTACKS)
def test_repr_shows_the_settings(attack_class: type[AdversarialAttack]) -> None:
    shown = repr(attack_class(small_net(), 0.25, "l2", clip=(0, 2), seed=7, progress=True))
    start = f"{attack_class.__name__}(model='Sequential', epsilon=0.25, norm='l2', clip=(0.0, 2.0), progress=True, "
    assert shown.startswith(start)
    assert "object at" not in shown
    assert "progress" not in repr(attack_class(small_net()))


def test_repr_by_hand() -> None:
    assert repr(PGD(first, torch.tensor([0.1, 0.2]), steps=5)) == (
        "PGD(model='first', epsilon='2 radii', norm='linf', clip=(0.0, 1.0), seed=0, steps=5, random_start=True, "
        "restarts=1, momentum=0.0, loss='ce')"
    )
    assert repr(AutoAttack(first, 0.1, attacks_to_run=["apgd-ce", "square"])) == (
        "AutoAttack(model='first', epsilon=0.1, norm='linf', clip=(0.0, 1.0), version='standard', "
        "attacks=('apgd-ce', 'square'))"
    )
    assert repr(OwnSteps(first)) == f"OwnSteps(model='first', epsilon={8 / 255}, norm='linf', clip=(0.0, 1.0))"


@pytest.mark.parametrize(("attack_class", "norm"), list(zip(ATTACKS, 3 * NORMS, strict=False)))
def test_attacks_pickle(attack_class: Any, norm: str) -> None:
    x, y = images(6)
    attack = shortened(attack_class(small_net(), 0.02, norm, seed=3), 2)
    before = attack.generate(x, y)
    copied = pickle.loads(pickle.dumps(attack))
    assert copied.model is copied.runner.model
    assert repr(copied) == repr(attack)
    assert torch.equal(copied.generate(x, y), before)


def test_evaluate_by_hand() -> None:
    x = torch.tensor([[0.75, 0.5], [0.75, 0.5], [0.25, 0.5], [0.5, 0.5]])
    y = torch.tensor([0, 0, 0, 0])  # correct, correct, wrong, correct (a tie goes to class 0)
    x_adv = torch.tensor([[0.25, 0.5], [0.75, 0.25], [0.75, 0.5], [0.5, 0.0]])  # the attack corrects the wrong one
    rates = {
        "clean_accuracy": 0.75,
        "robust_accuracy": 0.5,
        "attack_success_rate": 0.5,
        "success_rate_on_correct": 1 / 3,
    }
    for norm, mean in (("linf", 1.75 / 4), ("l2", 1.75 / 4), ("l1", 1.75 / 4)):
        result = Noise(first, norm=norm).evaluate(x, y, x_adv)
        assert result == rates | {"avg_perturbation": mean}
        assert all(type(value) is float for value in result.values())
    wrong = Noise(first).evaluate(x, 1 - first(x).argmax(1), x_adv)
    assert (wrong["clean_accuracy"], wrong["robust_accuracy"], wrong["attack_success_rate"]) == (0, 0, 1)
    assert math.isnan(wrong["success_rate_on_correct"])
    x_adv = x + torch.tensor([0.125, -0.25])
    distances = {norm: Noise(first, norm=norm).evaluate(x, y, x_adv)["avg_perturbation"] for norm in NORMS}
    assert distances == {"linf": 0.25, "l2": pytest.approx(0.3125**0.5 / 2, rel=1e-15), "l1": 0.375}


def test_evaluate_measures_in_float64() -> None:
    x, x_adv = torch.zeros(1, 3), torch.full((1, 3), 1e-30)  # the squares underflow in float32
    assert Noise(first, norm="l2").evaluate(x, torch.tensor([1]), x_adv)["avg_perturbation"] == pytest.approx(
        3**0.5 * 1e-30, rel=1e-6
    )


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


def test_project_l1_of_rows() -> None:
    v = torch.tensor([[3.0, -1.0], [0.25, 0.25]])
    assert AdversarialAttack._project_l1(v, 1.0).tolist() == [[1.0, 0.0], [0.25, 0.25]]
