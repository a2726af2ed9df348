"""Attacks that users write on AdversarialAttack: attributes, modes, project, evaluate and curves as in the document."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attack_models import NORMS, random, small_net
from torch import Tensor, nn
from torch.nn import functional

from pyrobust import AdversarialAttack, compute_robustness_curve
from pyrobust.attacks import (
    FGSM,
    PGD,
    AdaptedAttack,
    AutoAttack,
    MinimumNormEnsemble,
    UniversalPerturbation,
)
from pyrobust.errors import InputError, InputTypeError

KEYS = {"clean_accuracy", "robust_accuracy", "attack_success_rate", "avg_perturbation"}


def rising(x: Tensor) -> Tensor:
    """Class 1 where the first coordinate is above one half."""
    z = x.flatten(1)[:, :1]
    return torch.cat([0.5 - z, z - 0.5], 1)


def falling(x: Tensor) -> Tensor:
    """Class 0 where the first coordinate is above one half."""
    return rising(x).flip(1)


def steps_on(base: type) -> type:
    """PGD as a reader writes it on a base class: plain torch, ``generate`` only."""

    class Steps(base):
        def __init__(
            self, model, epsilon=8 / 255, norm="linf", clip_min=0.0, clip_max=1.0, device=None, steps=5, alpha=None
        ):
            super().__init__(model, epsilon, norm, clip_min, clip_max, device)
            self.steps = steps
            self.alpha = 2.5 * self.epsilon / steps if alpha is None else alpha

        def generate(self, x, y, targeted=False, target_labels=None):
            x, goal = x.to(self.device), (target_labels if targeted else y).to(self.device)
            delta = torch.zeros_like(x)
            for _ in range(self.steps):
                delta.requires_grad_(True)
                loss = functional.cross_entropy(self.model(x + delta), goal)
                (slope,) = torch.autograd.grad(-loss if targeted else loss, delta)
                delta = self.project(delta.detach() + self.alpha * slope.sign(), x)
            return x + delta

    return Steps


Steps: Any = steps_on(AdversarialAttack)


class Still(AdversarialAttack):
    """Returns x."""

    def generate(self, x, y, targeted=False, target_labels=None):
        return x


@pytest.fixture(scope="module")
def definitions(run_blocks: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """The names in the blocks of the document with the base class."""
    return run_blocks("004")


# --- attributes


@pytest.mark.parametrize("when", ["before", "after", "without"])
def test_attributes_are_set_before_and_after_the_constructor(when: str) -> None:
    """The constructor decides over what was assigned before it; a subclass need not call it."""

    class Assigned(Still):
        def __init__(self, model):
            right, wrong = (model, 0.25, "linf", 0.0, 1.0), (falling, 7.0, "l1", -9.0, 9.0)
            if when == "after":
                super().__init__(*wrong)
            self.model, self.epsilon, self.norm, self.clip_min, self.clip_max = wrong if when == "before" else right
            self.device = torch.device("cpu")
            if when == "before":
                super().__init__(*right)

    attack = Assigned(rising)
    assert (attack.model, attack.epsilon, attack.norm) == (rising, 0.25, "linf")
    assert (attack.clip_min, attack.clip_max, attack.device) == (0.0, 1.0, torch.device("cpu"))
    x = torch.tensor([[0.75, 0.875]])
    assert attack.project(torch.ones_like(x), x).tolist() == [[0.25, 0.125]]
    assert attack.evaluate(x, torch.tensor([1]), x - 0.5)["robust_accuracy"] == 0.0
    assert attack.evaluate(x, torch.tensor([1]), x - 0.125)["robust_accuracy"] == 1.0


def test_attacks_of_users_pickle() -> None:
    attack = pickle.loads(pickle.dumps(Still(rising, 0.25)))
    x = torch.tensor([[0.75, 0.875]])
    assert attack.evaluate(x, torch.tensor([1]), attack(x, torch.tensor([1])))["clean_accuracy"] == 1.0


@pytest.mark.parametrize("base", [AdversarialAttack, PGD])
def test_each_attribute_holds_from_its_assignment_on(base: Any) -> None:
    class Mine(base):
        pass

    Mine.__abstractmethods__ = frozenset()
    attack = Mine(rising, 0.25)
    x, delta, y = torch.full((1, 2), 0.5), torch.tensor([[0.75, -0.75]]), torch.tensor([1])
    attack.epsilon = 0.125
    assert attack.project(delta, x).tolist() == [[0.125, -0.125]]
    attack.epsilon = "1/4"
    assert attack.project(delta, x).tolist() == [[0.25, -0.25]]
    attack.norm = "L1"
    assert attack.norm == "l1"
    assert attack.project(delta, x).tolist() == [[0.125, -0.125]]
    assert attack.evaluate(x, y, x + 0.25)["avg_perturbation"] == 0.5
    attack.epsilon, attack.clip_max = 2.0, 0.75
    assert attack.project(delta, x).tolist() == [[0.25, -0.5]]
    attack.clip_min = 0.375
    assert attack.project(delta, x).tolist() == [[0.25, -0.125]]
    attack.model = falling
    assert attack.evaluate(x + 0.25, y, x + 0.25)["clean_accuracy"] == 0.0


def test_an_assigned_model_is_attacked() -> None:
    x, y = torch.tensor([[0.625]]), torch.tensor([1])
    for attack in (
        FGSM(falling, 0.25),
        AutoAttack(falling, 0.25, attacks_to_run=["apgd-ce"]),
        AdaptedAttack(falling, 0.25, attack=lambda model, x, y: x - 0.25 * (model(x)[:, 1:] > 0)),
        MinimumNormEnsemble(falling, 0.25, attacks=["fmn"]),
    ):
        attack.model = rising
        assert float(attack(x, y)) < 0.5
        attack.clip_min = 0.5625
        assert float(attack(x, y)) >= 0.5625
        assert all(member.model is rising for member in getattr(attack, "attacks", {}).values())
    universal = UniversalPerturbation(falling, 0.25, epochs=1)
    universal.model = rising
    assert float(universal.fit(x, y).delta) < 0


def test_an_assigned_device_moves_the_model() -> None:
    """On the CPU alone, the device of a module that has none of its tensors there tells."""
    model, moved = nn.Linear(2, 2), []
    model.to = lambda *args, **kwargs: moved.append(args) or model  # type: ignore[method-assign]  # mypy forbids replacing any method
    attack = Still(model)
    moved.clear()
    attack.device = "cpu"
    assert moved
    assert attack.device == torch.device("cpu")
    attack.device = None
    assert attack.device == torch.device("cpu")
    with pytest.raises(InputError, match=r"^device: expected cpu or cuda"):
        attack.device = "tpu"


def test_names_of_a_subclass_are_free() -> None:
    class Mine(Still):
        def __init__(self, model, epsilon=0.25):
            super().__init__(model, epsilon)
            self.norms, self.history, self._model, self._device, self._batch = [], {}, 1, "here", 2
            self.seed, self.steps, self.result, self.attacks, self.forwards = None, 3, 4, [5], "many"

    attack = Mine(rising)
    x, y = torch.tensor([[0.75]]), torch.tensor([1])
    assert attack.evaluate(x, y, attack(x, y))["clean_accuracy"] == 1.0
    assert attack.project(x, x).tolist() == [[0.25]]
    assert compute_robustness_curve(Mine, rising, x, y, [0.1, 0.2]) == {0.1: 1.0, 0.2: 1.0}


def test_a_norm_of_ones_own() -> None:
    class Patch(Still):
        def __init__(self, model, epsilon):
            super().__init__(model, epsilon)
            self.norm = "patch"

        def evaluate(self, x, y, x_adv):
            return {"robust_accuracy": 0.75}

    x, y = torch.tensor([[0.75]]), torch.tensor([1])
    assert Patch(rising, 0.1).norm == "patch"
    assert compute_robustness_curve(Patch, rising, x, y, [0.1]) == {0.1: 0.75}
    with pytest.raises(InputError, match=r"^norm: expected one of linf, l2, l1, l0, got 'patch'"):
        Patch(rising, 0.1).project(x, x)


# --- project


@pytest.mark.parametrize("norm", [*NORMS, "l0"])
@pytest.mark.parametrize("spread", [0.8, 1.6])
def test_project_is_differentiable(norm: str, spread: float) -> None:
    """By delta and by x; with the larger spread, examples lie outside the clip range."""
    attack = Still(rising, 2.0 if norm == "l0" else 0.6, norm)
    x = ((random(4, 6, seed=1, dtype=torch.float64) - 0.5) * spread + 0.5).requires_grad_()
    delta = (random(4, 6, seed=2, dtype=torch.float64) * 2 - 1).requires_grad_()
    assert torch.autograd.gradcheck(attack.project, (delta, x))
    assert torch.equal(attack.project(delta, x).detach(), attack.project(delta.detach(), x.detach()))
    with torch.no_grad():
        assert not attack.project(delta, x).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 1.6, 8.0])
def test_project_is_the_document_s(definitions: dict[str, Any], dtype: torch.dtype, spread: float) -> None:
    """l1 is nearer to delta, and inside the ball where the clip range allows it."""

    class Theirs(definitions["AdversarialAttack"]):
        def generate(self, x, y, targeted=False, target_labels=None):
            return x

    eps, met, apart = torch.finfo(dtype).eps, 0, 0
    for seed in range(60):
        x = ((random(3, 5, seed=seed, dtype=torch.float64) - 0.5) * spread + 0.5).to(dtype)
        delta = (random(3, 5, seed=seed + 99, dtype=torch.float64) * 3 - 1.5).to(dtype)
        epsilon = 0.05 + seed / 40
        for norm in NORMS:
            ours = Still(nn.Linear(1, 2), epsilon, norm).project(delta, x)
            theirs = Theirs(nn.Linear(1, 2), epsilon, norm).project(delta.clone(), x)
            assert bool(((x + ours >= 0) & (x + ours <= 1)).all())
            if norm != "l1":
                torch.testing.assert_close(ours, theirs, rtol=0, atol=32 * eps * spread)
                continue
            meet = (x.clamp(0, 1) - x).abs().sum(1) <= epsilon
            length = ours.double().abs().sum(1)
            assert bool((length[meet] <= epsilon + (8 * eps if spread > 1 else 0)).all())
            further = (ours - delta).double().norm(dim=1) - (theirs - delta).double().norm(dim=1)
            allowed = theirs.abs().sum(1) <= epsilon  # beyond the ball, a point may be nearer
            assert bool((further[allowed | ~meet] <= 8192 * eps).all())
            met, apart = met + int(meet.sum()), apart + int((~meet).sum())
    assert met
    assert bool(apart) == (spread > 1)


def test_project_from_outside_by_hand() -> None:
    x, delta = torch.tensor([[1.25, 0.5]]), torch.tensor([[0.5, 0.5]])
    for epsilon, norm, expected in (
        (0.125, "linf", [-0.25, 0.125]),
        (0.5, "l1", [-0.25, 0.25]),  # a quarter is left to spend
        (0.125, "l1", [-0.25, 0.0625]),  # they do not meet
        (1.0, "l0", [-0.25, 0.0]),
        (2.0, "l0", [-0.25, 0.5]),
    ):
        attack = Still(rising, epsilon, norm)
        assert attack.project(delta, x).tolist() == [expected]
        many = random(4, 2, seed=1)  # one perturbation for all examples
        assert torch.equal(attack.project(delta, many), attack.project(delta.expand(4, 2), many))


# --- evaluate


@pytest.mark.parametrize("norm", NORMS)
def test_evaluate_measures_what_it_is_given(definitions: dict[str, Any], norm: str) -> None:
    class Theirs(definitions["AdversarialAttack"]):
        def generate(self, x, y, targeted=False, target_labels=None):
            return x

    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 4)).double()
    for scale in (1, 5):
        x = random(40, 2, 4, seed=3, dtype=torch.float64) * scale - 1
        y, x_adv = model(x).argmax(1), x + 0.5 * random(40, 2, 4, seed=4, dtype=torch.float64)
        ours = Still(model, norm=norm).evaluate(x, y, x_adv.requires_grad_())
        theirs = Theirs(model, norm=norm).evaluate(x, y, x_adv)
        assert set(theirs) == KEYS
        assert set(ours) - KEYS == {"success_rate_on_correct"}
        assert {name: ours[name] for name in KEYS} == pytest.approx(theirs, rel=1e-12)
        assert all(type(value) is float for value in ours.values())


# --- curves


class Judged(Still):
    """Counts by itself, and also points outside the ball."""

    def __init__(self, model, epsilon, alpha=1.0):
        super().__init__(model, epsilon)
        self.alpha = alpha

    def generate(self, x, y, targeted=False, target_labels=None):
        return torch.cat([x[:1] + 2, x[1:2] * torch.nan, x[2:]]) if self.alpha else x

    def evaluate(self, x, y, x_adv):
        assert torch.is_grad_enabled()
        return {"robust_accuracy": torch.tensor(0.5 + self.epsilon)}


def test_an_evaluate_of_ones_own_decides(caplog: pytest.LogCaptureFixture) -> None:
    x, y = random(6, 4), torch.ones(6, dtype=torch.int64)
    curve = compute_robustness_curve(Judged, rising, x, y, [0.5, 0, 0.25], alpha=0)
    assert curve == {0.5: 1.0, 0: 0.5, 0.25: 0.75}
    assert list(curve) == [0.5, 0, 0.25]
    assert curve.outside == {0.5: 0, 0: 0, 0.25: 0}
    assert not caplog.text
    curve = compute_robustness_curve(Judged, rising, x, y, [0.5, 0.25])
    assert curve == {0.5: 1.0, 0.25: 0.75}
    assert curve.outside == pickle.loads(pickle.dumps(curve)).outside == {0.5: 2, 0.25: 2}
    assert "4 of 12 points of Judged lie outside" in caplog.text
    assert "count as Judged.evaluate counts them" in caplog.text


def test_an_evaluate_without_the_key_is_named() -> None:
    class Silent(Still):
        def evaluate(self, x, y, x_adv):
            return {"accuracy": 1.0}

    with pytest.raises(InputError, match=r'expected Silent\.evaluate to return a dictionary with "robust_accuracy"'):
        compute_robustness_curve(Silent, rising, random(2, 3), torch.ones(2, dtype=torch.int64), [0.1])
    with pytest.raises(InputTypeError, match=r"^x: expected a tensor"):
        compute_robustness_curve(Silent, rising, "x", torch.ones(1, dtype=torch.int64), [0.1])


@pytest.mark.parametrize("norm", NORMS)
def test_a_script_of_the_document_runs_on_both(definitions: dict[str, Any], norm: str) -> None:
    """The same script, once on the document's class and function and once on ours."""
    model = small_net(torch.float32).eval()
    x = random(48, 1, 6, 6, seed=1)
    y = model(x).argmax(1)
    epsilons = {"linf": [0.0, 0.02, 0.05], "l2": [0.01, 0.1, 0.3], "l1": [0.01, 0.2, 0.8]}[norm]
    ours = compute_robustness_curve(Steps, model, x, y, epsilons, norm=norm, steps=4)
    theirs_class = steps_on(definitions["AdversarialAttack"])
    theirs = definitions["compute_robustness_curve"](theirs_class, model, x, y, epsilons, norm=norm, steps=4)
    assert list(ours) == list(theirs) == epsilons
    if norm == "l1":  # a step inside ball and box; theirs leaves the box's corner unused
        assert all(ours[epsilon] <= theirs[epsilon] + 0.1 for epsilon in epsilons)
    else:
        assert ours == theirs
    # The document's class runs in our function and decides by its own evaluate, and the other way round.
    assert compute_robustness_curve(theirs_class, model, x, y, epsilons, norm=norm, steps=4) == theirs
    assert definitions["compute_robustness_curve"](Steps, model, x, y, epsilons, norm=norm, steps=4) == ours
