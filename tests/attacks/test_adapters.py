"""Attacks of other libraries under this library's evaluation: the ball, the judgement, seeds, settings, runs."""

from __future__ import annotations

import functools
import random as python_random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_models import fooled_alone, images, inside, small_net
from torch import Tensor, nn

from pyrobust.attacks import AdaptedAttack
from pyrobust.errors import InputError
from pyrobust.evaluation import attack_dataset

EPSILON = {"linf": 0.1, "l2": 0.5, "l1": 2.0, "l0": 6.0}


def far(model: nn.Module, x: Tensor, y: Tensor, *, size: float = 0.4) -> Tensor:
    """One signed step, usually outside the ball and the clip range."""
    leaf = x.clone().requires_grad_()
    nn.functional.cross_entropy(model(leaf), y).backward()
    assert leaf.grad is not None
    return (leaf + size * leaf.grad.sign()).detach()


def noisy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Random numbers of every generator."""
    shift = float(np.random.rand()) + python_random.random()
    return x + 0.05 * torch.randn_like(x) + 0.01 * shift


def outcome(attack: AdaptedAttack, x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
    """The points of a call, and its result."""
    x_adv = attack(x, y)
    assert attack.result is not None
    return x_adv, attack.result


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_points_outside_are_projected_and_judged_there(norm: str, dtype: torch.dtype) -> None:
    net, (x, y) = small_net(dtype), images(16, dtype)
    attack = AdaptedAttack(net, EPSILON[norm], norm, attack=far, batch_size=16)
    x_adv, result = outcome(attack, x, y)
    assert inside(x_adv, x, norm, EPSILON[norm])
    assert x_adv.dtype == dtype
    wrong = fooled_alone(net, x, y)
    assert result.examples == 16 - sum(wrong) == result.outside
    assert all(parameter.grad is None for parameter in net.parameters())
    if dtype == torch.float32:  # of others, a function's runs differ, and close logits are confirmed alone
        _, of_function = outcome(AdaptedAttack(lambda z: net(z), EPSILON[norm], norm, attack=far), x, y)
        assert result.forwards == of_function.forwards == 16 + result.examples
    assert result.largest_excess > 0
    assert attack.evaluate(x, y, x_adv)["robust_accuracy"] == 1 - sum(fooled_alone(net, x_adv, y)) / 16
    assert torch.equal(x_adv[wrong], x[wrong])


def test_points_inside_are_kept_bit_by_bit_and_the_smallest_excess_is_seen() -> None:
    net, (x, y) = small_net(torch.float32), images(8, torch.float32)
    points: list[Tensor] = []

    def mine(model: nn.Module, clean: Tensor, labels: Tensor) -> Tensor:
        points.append((clean + 0.03 * torch.randn_like(clean)).clamp(0, 1))
        return points[-1]

    x_adv, result = outcome(AdaptedAttack(net, 0.5, attack=mine), x, y)
    right = [not wrong for wrong in fooled_alone(net, x, y)]
    assert torch.equal(x_adv[right], torch.cat(points))
    assert (result.outside, result.largest_excess) == (0, 0)
    # float32(0.1) is above 0.1: a step from 0 is outside by 1.5e-9, and is taken back to the number below.
    x, y = torch.zeros(1, 4), torch.tensor([0])
    attack = AdaptedAttack(
        lambda z: torch.stack([1 - z[:, 0], z[:, 0]], 1), 0.1, attack=lambda _, clean, labels: clean + 0.1
    )
    x_adv, result = outcome(attack, x, y)
    assert x_adv.tolist() == [[float(torch.tensor(0.1).nextafter(torch.tensor(0.0)))] * 4]
    assert result.outside == 1
    assert result.largest_excess == pytest.approx(float(torch.tensor(0.1)) - 0.1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_points_that_are_not_finite_are_the_image(bad: float) -> None:
    net, (x, _) = small_net(torch.float32), images(4, torch.float32)

    def broken(model: nn.Module, clean: Tensor, labels: Tensor) -> Tensor:
        points = clean + 0.01
        points[0, 0, 0, 0] = bad
        return points

    x_adv, result = outcome(AdaptedAttack(net, 0.5, attack=broken), x, net(x).argmax(1))
    assert torch.equal(x_adv[0], x[0])
    assert bool((x_adv[1] >= x[1]).all())
    assert result.outside == 4 - int((x.flatten(1).amax(1)[1:] + 0.01 <= 1).sum())


def test_seeds_repeat_and_leave_the_generators_alone() -> None:
    net, (x, y) = small_net(torch.float32), images(6, torch.float32)
    torch.manual_seed(3)
    np.random.seed(3)
    python_random.seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), python_random.getstate()  # type: ignore[index]  # a tuple here
    first = AdaptedAttack(net, 0.5, attack=noisy)(x, y)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]  # as above
    assert python_random.getstate() == states[2]
    assert torch.equal(AdaptedAttack(net, 0.5, attack=noisy)(x, y), first)
    assert not torch.equal(AdaptedAttack(net, 0.5, attack=noisy, seed=1)(x, y), first)
    shifted = AdaptedAttack(net, 0.5, attack=noisy)(x, y, indices=range(6, 12))
    assert not torch.equal(shifted, first)


def test_targets_modes_and_errors() -> None:
    net, (x, y) = small_net(torch.float32), images(6, torch.float32)
    goal = (y + 1) % 5
    not_there = (net(x).argmax(1) != goal).tolist()

    def mine(model: nn.Module, clean: Tensor, labels: Tensor, targeted: bool = False) -> Tensor:
        assert not model.training
        assert not net.training
        if not targeted:
            raise LookupError("inside")
        assert labels.tolist() == goal[not_there].tolist()
        return clean

    attack = AdaptedAttack(net, 0.1, attack=mine)
    net.train()  # after the constructor, which leaves evaluation mode
    attack(x, y, targeted=True, target_labels=goal)
    with pytest.raises(LookupError, match="inside"):
        attack(x, y)
    assert all(module.training for module in net.modules())
    assert not net._forward_pre_hooks


def test_runs_are_stored_and_compare_settings(tmp_path: Path) -> None:
    net, (x, y) = small_net(torch.float32), images(10, torch.float32)

    class Holder(SimpleNamespace):
        """An attack as a callable object."""

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return far(model, x, y, size=self.size)

    def run(attack: Any, name: str = "run.db") -> Any:
        return attack_dataset(AdaptedAttack(net, 0.1, attack=attack), (x, y), out=tmp_path / name, batch_size=4)

    first = run(functools.partial(far, size=0.2))
    assert first.parameters["attack"] == "far"
    assert first.parameters["settings"]["size"] == 0.2
    assert set(first.table["broken_by"]) <= {"far", "clean", ""}
    run(functools.partial(far, size=0.2))
    for other, name in ((0.3, "size"), (torch.tensor(0.2), "size|parts")):
        with pytest.raises(RuntimeError, match=name):
            run(functools.partial(far, size=other))
    run(Holder(size=0.2), "holder.db")
    with pytest.raises(RuntimeError, match="size"):
        run(Holder(size=0.3), "holder.db")


# --- the other libraries


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    return small_net(torch.float32).eval()


def check(attack: Any, net: nn.Module, norm: str, epsilon: float, *, least: int = 1) -> AdaptedAttack:
    """Run the attack; check the ball, and that at least some images are broken beside the misclassified ones."""
    x, y = images(12, torch.float32)
    adapted = AdaptedAttack(net, epsilon, norm, attack=attack)
    x_adv = adapted(x, y)
    assert inside(x_adv, x, norm, epsilon)
    broken = sum(fooled_alone(net, x_adv, y)) - sum(fooled_alone(net, x, y))
    assert broken >= least
    run = attack_dataset(adapted, (x, y), batch_size=12)
    assert int((~run.robust).sum()) == broken + sum(fooled_alone(net, x, y))
    return adapted


def test_foolbox(net: nn.Sequential) -> None:
    foolbox = pytest.importorskip("foolbox", exc_type=ImportError)
    adapted = check(foolbox.attacks.LinfPGD(steps=10), net, "linf", 0.1)
    assert adapted.name == "foolbox LinfProjectedGradientDescentAttack"
    assert adapted.settings()["steps"] == 10
    check(foolbox.attacks.L2FMNAttack(steps=20), net, "l2", 0.5)
    check(foolbox.attacks.SaltAndPepperNoiseAttack(steps=20), net, "l2", 3.0)
    nested = [
        AdaptedAttack(net, attack=foolbox.attacks.BoundaryAttack(init_attack=foolbox.attacks.L2DeepFoolAttack(steps=n)))
        for n in (3, 4)
    ]
    assert nested[0].settings() != nested[1].settings()
    x, y = images(8, torch.float32)
    goal = net(x).topk(2).indices[:, 1]
    x_adv = AdaptedAttack(net, 0.5, attack=foolbox.attacks.LinfPGD(steps=20))(x, y, True, goal)
    assert float((net(x_adv).argmax(1) == goal).float().mean()) > 0.7


def test_torchattacks(net: nn.Sequential) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    theirs = torchattacks.PGD(net, eps=0.1, alpha=0.02, steps=10)
    adapted = check(theirs, net, "linf", 0.1)
    assert (adapted.name, adapted.settings()["eps"]) == ("torchattacks PGD", 0.1)
    check(torchattacks.CW(net, c=5, lr=0.05, steps=20), net, "l2", 0.8)
    x, y = images(8, torch.float32)
    goal = net(x).topk(2).indices[:, 1]
    strong = torchattacks.PGD(net, eps=0.5, alpha=0.1, steps=20)
    x_adv = AdaptedAttack(net, 0.5, attack=strong)(x, y, True, goal)
    assert float((net(x_adv).argmax(1) == goal).float().mean()) > 0.7
    assert strong.attack_mode == "default"
    assert not strong.targeted
    with pytest.raises(InputError, match=r"^attack: expected the model of the torchattacks attack to be the attacked"):
        AdaptedAttack(small_net(torch.float32), 0.1, attack=theirs)
    with pytest.raises(InputError, match=r"^clip_min: expected \[0, 1\] for torchattacks"):
        AdaptedAttack(net, 0.1, attack=theirs, clip=(-1, 1))


def test_art(net: nn.Sequential) -> None:
    evasion = pytest.importorskip("art.attacks.evasion", exc_type=ImportError)
    classification = pytest.importorskip("art.estimators.classification", exc_type=ImportError)
    estimator = classification.PyTorchClassifier(
        net, loss=nn.CrossEntropyLoss(), input_shape=(1, 6, 6), nb_classes=5, clip_values=(0, 1), device_type="cpu"
    )
    options: dict[str, Any] = {"eps": 0.1, "eps_step": 0.02, "max_iter": 10, "verbose": False}
    adapted = check(evasion.ProjectedGradientDescent(estimator, **options), net, "linf", 0.1)
    before = adapted.settings()
    assert (adapted.name, before["eps"]) == ("art ProjectedGradientDescent", 0.1)
    x, y = images(6, torch.float32)
    adapted(x, y)
    assert adapted.settings() == before
    with pytest.raises(InputError, match=r"^targeted: expected False, as in the ART attack, got True"):
        adapted(x, y, True, (y + 1) % 5)
    with pytest.raises(InputError, match=r"^attack: expected the model of the attack's estimator to be the attacked"):
        AdaptedAttack(small_net(torch.float32), 0.1, attack=evasion.FastGradientMethod(estimator))


def test_adversarial_library(net: nn.Sequential) -> None:
    attacks = pytest.importorskip("adv_lib.attacks", exc_type=ImportError)
    adapted = check(functools.partial(attacks.ddn, steps=20), net, "l2", 0.5)
    assert (adapted.name, adapted.settings()["steps"]) == ("ddn", 20)
