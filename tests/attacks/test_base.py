"""AdversarialAttack, the base class for users: the constructor, project and evaluate."""

from __future__ import annotations

import inspect
import math
import pickle
import sys
import types
from typing import Any, get_args, get_type_hints

import pytest
import torch
from attack_models import NORMS, images, inside, random, small_net
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pyrobust import metrics
from pyrobust.attacks import APGD, BIM, FAB, FGSM, PGD, AdversarialAttack, AutoAttack, Square
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


@pytest.mark.parametrize("norm", NORMS)
def test_user_defined_attack(norm: str) -> None:
    attack = Noise(first, 0.3, norm)
    x, y = random(20, 3, seed=1), torch.zeros(20, dtype=torch.int64)
    x_adv = attack.generate(x, y)
    assert inside(x_adv, x, norm, 0.3)
    assert not torch.equal(x_adv, x)
    assert set(attack.evaluate(x, y, x_adv)) == {
        "clean_accuracy",
        "robust_accuracy",
        "attack_success_rate",
        "success_rate_on_correct",
        "avg_perturbation",
    }


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


def test_constructor() -> None:
    model = small_net().train()
    flags = [parameter.requires_grad_(i % 2 == 0).requires_grad for i, parameter in enumerate(model.parameters())]
    attack = Noise(model)
    assert (attack.epsilon, attack.norm, attack.clip_min, attack.clip_max) == (8 / 255, "linf", 0.0, 1.0)
    assert attack.device.type == "cpu"
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert Noise(first, device="cpu").device.type == "cpu"


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


@pytest.mark.parametrize("attack_class", [OwnSteps, FGSM, BIM, PGD, APGD, FAB, Square, AutoAttack])
def test_every_submodule_gets_its_mode_back(attack_class: type[AdversarialAttack]) -> None:
    model = Modes()
    attack = attack_class(model, 0.1)
    model.train()  # after the constructor, which left evaluation mode
    model.layers[2].eval()
    before = [module.training for module in model.modules()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    for name in ("steps", "n_queries"):
        for part in (attack, *getattr(attack, "attacks", {}).values()):
            if hasattr(part, name):
                setattr(part, name, 2)
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


@pytest.mark.parametrize("attack_class", [PGD, FAB, AutoAttack])
def test_attacks_run_inside_inference_mode(attack_class: type[AdversarialAttack]) -> None:
    net = small_net()
    attack = attack_class(net, 0.02)
    for part in (attack, *getattr(attack, "attacks", {}).values()):
        for name in ("steps", "n_queries"):
            if hasattr(part, name):
                setattr(part, name, 2)
    expected = attack.generate(*images(4))
    with torch.inference_mode():
        x, y = images(4)
        x_adv = attack.generate(x, y)
        rates = attack.evaluate(x, y, x_adv)
    assert torch.equal(x_adv, expected)
    assert rates == attack.evaluate(*images(4), expected)


def test_generate_of_a_subclass_keeps_its_signature_and_text() -> None:
    assert list(inspect.signature(OwnSteps.generate).parameters) == ["self", "x", "y", "targeted", "target_labels"]
    assert OwnSteps.generate.__doc__ == "Take one step."


@pytest.mark.parametrize("attack_class", ATTACKS)
def test_options_are_named_and_typed(attack_class: type[AdversarialAttack]) -> None:
    """So that editors complete them."""
    parameters = inspect.signature(attack_class).parameters
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())
    assert {"clip", "seed", "batch_size", "dtype", "memory_format", "progress", "callback"} <= set(parameters)
    hints = get_type_hints(attack_class.__init__, vars(sys.modules[attack_class.__module__]))
    assert set(get_args(get_args(hints["norm"])[0])) == set(NORMS)  # beside other spellings
    with pytest.raises(TypeError, match="step_sizes"):
        attack_class(first, step_sizes=0.1)


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
    assert repr(OwnSteps(first, 0.5)) == "OwnSteps(model='first', epsilon=0.5, norm='linf', clip=(0.0, 1.0))"


@pytest.mark.parametrize("attack_class", ATTACKS)
@pytest.mark.parametrize("norm", NORMS)
def test_attacks_pickle(attack_class: type[AdversarialAttack], norm: str) -> None:
    x, y = images(6)
    attack = attack_class(small_net(), 0.02, norm, seed=3)
    for part in (attack, *getattr(attack, "attacks", {}).values()):
        for name in ("steps", "n_queries"):
            if hasattr(part, name):
                setattr(part, name, 2)
    before = attack.generate(x, y)
    copied = pickle.loads(pickle.dumps(attack))
    assert copied.model is copied.runner.model
    assert repr(copied) == repr(attack)
    assert torch.equal(copied.generate(x, y), before)


def test_evaluate_by_hand() -> None:
    x = torch.tensor([[0.75, 0.5], [0.75, 0.5], [0.25, 0.5], [0.5, 0.5]])
    y = torch.tensor([0, 0, 0, 0])  # correct, correct, wrong, correct (a tie goes to class 0)
    x_adv = torch.tensor([[0.25, 0.5], [0.75, 0.25], [0.25, 0.5], [0.5, 0.0]])
    rates = {
        "clean_accuracy": 0.75,
        "robust_accuracy": 0.5,
        "attack_success_rate": 0.5,
        "success_rate_on_correct": 1 / 3,
    }
    for norm, mean in (("linf", 1.25 / 4), ("l2", 1.25 / 4), ("l1", 1.25 / 4)):
        result = Noise(first, norm=norm).evaluate(x, y, x_adv)
        assert result == rates | {"avg_perturbation": mean}
        assert all(type(value) is float for value in result.values())
    x_adv = x + torch.tensor([0.125, -0.25])
    distances = {norm: Noise(first, norm=norm).evaluate(x, y, x_adv)["avg_perturbation"] for norm in NORMS}
    assert distances == {"linf": 0.25, "l2": pytest.approx(0.3125**0.5 / 2, rel=1e-15), "l1": 0.375}


def test_robust_is_right_with_and_without_the_attack() -> None:
    """Neither an example that the attack corrects nor one that was wrong before counts, as in ``pyrobust.metrics``."""

    def model(x: Tensor) -> Tensor:
        return torch.cat([0.5 - x, x - 0.5], 1)

    x, x_adv, y = torch.tensor([[0.4], [0.7], [0.9]]), torch.tensor([[0.6], [0.3], [0.9]]), torch.tensor([1, 1, 1])
    result = Noise(model).evaluate(x, y, x_adv)
    clean, adversarial = (model(points).argmax(1) for points in (x, x_adv))
    assert result["robust_accuracy"] == float(metrics.robust_accuracy(clean, adversarial, y)) == 1 / 3
    assert result["attack_success_rate"] == float(metrics.attack_success_rate(clean, adversarial, y)) == 2 / 3
    assert result["success_rate_on_correct"] == float(metrics.success_rate_on_correct(clean, adversarial, y)) == 1 / 2
    wrong = Noise(model).evaluate(x, 1 - model(x).argmax(1), x_adv)
    assert wrong["clean_accuracy"] == wrong["robust_accuracy"] == 0
    assert wrong["attack_success_rate"] == 1
    assert math.isnan(wrong["success_rate_on_correct"])


def test_evaluate_measures_in_float64() -> None:
    x, x_adv = torch.zeros(1, 3), torch.full((1, 3), 1e-30)  # the squares underflow in float32
    assert Noise(first, norm="l2").evaluate(x, torch.tensor([1]), x_adv)["avg_perturbation"] == pytest.approx(
        3**0.5 * 1e-30, rel=1e-6
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_without_a_winner_are_never_correct(bad: float) -> None:
    def model(x: Tensor) -> Tensor:
        logits = torch.tensor([[1.0, 0.0]]).repeat(len(x), 1)
        logits[x[:, 0] > 0.5, 1] = bad
        return logits

    x = torch.tensor([[0.25], [0.75]])
    for label in (0, 1):
        result = Noise(model).evaluate(x, torch.tensor([label, label]), x)
        assert result["clean_accuracy"] == result["robust_accuracy"] == (0.5 if label == 0 else 0.0)


def test_close_logits_are_confirmed_in_a_batch_of_one() -> None:
    """A model whose prediction depends on the batch size, by less than rounding."""

    def model(x: Tensor) -> Tensor:
        sway = 1e-6 if len(x) > 1 else -1e-6
        return torch.tensor([[0.0, sway, -1.0]]).repeat(len(x), 1)

    x, y = torch.rand(3, 2), torch.tensor([0, 0, 0])
    assert Noise(model).evaluate(x, y, x)["clean_accuracy"] == 1.0


def test_objects_with_logits() -> None:
    x, y = random(6, 2), torch.zeros(6, dtype=torch.int64)
    wrapped = Noise(lambda batch: types.SimpleNamespace(logits=first(batch))).evaluate(x, y, x)
    assert wrapped == Noise(first).evaluate(x, y, x)


@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data())
def test_x_plus_projection_is_exactly_feasible(norm: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    low, high = data.draw(st.sampled_from([(0.0, 1.0), (-1.0, 2.0), (-0.1, 0.7), (-1e5, 1e5)]))
    size = data.draw(st.integers(1, 8))
    epsilon = data.draw(st.sampled_from([0.0, 1e-7, 0.031372549, 0.1, 1 / 3, 1.0, 7.0]))
    seed = data.draw(st.integers(0, 9999))
    share = random(3, size, seed=seed, dtype=torch.float64)
    share = torch.where(random(3, size, seed=seed + 1) < 0.2, share.round(), share)
    x = (low + share * (high - low)).to(dtype)
    x = torch.where((x.double() >= low) & (x.double() <= high), x, torch.zeros_like(x))
    scale = data.draw(st.sampled_from([0.0, 1e-6, 0.03, 1.0, 100.0]))
    delta = ((random(3, size, seed=seed + 2) - 0.5) * scale).to(dtype)
    attack = Noise(first, epsilon, norm, low, high)
    moved = attack.project(delta, x)
    assert moved.dtype == dtype
    assert inside(x + moved, x, norm, epsilon, low, high)
    assert inside(moved, torch.zeros_like(moved), norm, epsilon, -1e9, 1e9)
    if norm != "l2" or scale < 1:  # projecting again changes nothing beyond rounding
        again = attack.project(moved, x)
        tolerance = 4 * torch.finfo(dtype).eps * (abs(low) + abs(high) + 1)
        torch.testing.assert_close(again, moved, rtol=0, atol=tolerance)


def test_project_by_hand() -> None:
    x = torch.tensor([[0.5, 0.5, 0.0]])
    delta = torch.tensor([[0.75, -0.25, -0.5]])
    assert Noise(first, 0.25, "linf").project(delta, x).tolist() == [[0.25, -0.25, 0.0]]
    assert Noise(first, 4.0, "linf").project(delta, x).tolist() == [[0.5, -0.25, 0.0]]
    assert Noise(first, 0.5, "l1").project(delta, x).tolist() == [[0.5, 0.0, 0.0]]
    moved = Noise(first, 0.5, "l2").project(delta, x)[0]
    torch.testing.assert_close(moved, torch.tensor([0.75, -0.25, 0.0]) * (0.5 / 0.875**0.5))


def test_project_accepts_a_radius_per_example() -> None:
    x, delta = torch.full((3, 4), 0.5), torch.full((3, 4), 0.4)
    for norm in NORMS:
        radii = torch.tensor([0.0, 0.1, 0.3])
        together = Noise(first, radii, norm).project(delta, x)
        for row, radius in enumerate(radii.tolist()):
            alone = Noise(first, radius, norm).project(delta[row : row + 1], x[row : row + 1])
            assert torch.equal(together[row : row + 1], alone)
        with pytest.raises(InputError, match=r"^epsilon: expected one radius for each of the 2 examples"):
            Noise(first, radii, norm).project(delta[:2], x[:2])


def test_project_l1_of_rows() -> None:
    v = torch.tensor([[3.0, -1.0], [0.25, 0.25]])
    assert AdversarialAttack._project_l1(v, 1.0).tolist() == [[1.0, 0.0], [0.25, 0.25]]
