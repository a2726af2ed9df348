"""Minimum-norm attacks of torchattacks: distances beside the library's, closed forms, images that are not fooled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchattacks_nets import CLASSES, images, net

import pyrobust.compat.torchattacks as torchattacks
from pyrobust.errors import InputError

BETA = 0.001  # of the elastic net
NAMES = ["CW", "DeepFool", "EADL1", "EADEN"]


def size(name: str, adv: Tensor, x: Tensor) -> Tensor:
    """The distance that the attack minimizes, float64 [N]."""
    delta = (adv.detach().double() - x.double()).flatten(1).abs()
    if name == "EADEN":
        return delta.square().sum(1) + BETA * delta.sum(1)
    return delta.sum(1) if name == "EADL1" else delta.square().sum(1).sqrt()


def fooled(model: nn.Module, adv: Tensor, y: Tensor, target: Tensor | None = None) -> Tensor:
    """Whether each image is adversarial in its batch."""
    with torch.no_grad():
        together = model(adv).argmax(1)
    return together != y if target is None else together == target


def assert_alone(model: nn.Module, adv: Tensor) -> None:
    """Each image has the same class in its batch, in another one and alone."""
    with torch.no_grad():
        together = model(adv).argmax(1)
        for size in (1, 7):
            assert torch.equal(torch.cat([model(part).argmax(1) for part in adv.split(size)]), together)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(
    ("name", "options"), [("CW", {}), ("CW", {"c": 10.0}), ("DeepFool", {}), ("EADL1", {}), ("EADEN", {})]
)
def test_not_worse_than_torchattacks(name: str, options: dict[str, Any], targeted: bool) -> None:
    """At the same settings as many images are fooled, by points that are nearer in the median."""
    library = pytest.importorskip("torchattacks")
    if name == "DeepFool" and targeted:
        pytest.skip("DeepFool has no targeted mode")
    model = net()
    x, y = images(60)
    target = (y + 1) % CLASSES if targeted else None
    success, distance = [], []
    for module in (torchattacks, library):
        atk = getattr(module, name)(model, **options)
        if targeted:
            atk.set_mode_targeted_by_function(lambda _, labels: (labels + 1) % CLASSES, quiet=True)
        adv = atk(x, y)
        success.append(fooled(model, adv, y, target))
        distance.append(size(name, adv, x))
        if module is torchattacks:
            assert_alone(model, adv)
    assert success[0].sum() >= success[1].sum() > 0
    both = success[0] & success[1]
    assert distance[0][both].median() <= distance[1][both].median()
    assert (distance[0] / distance[1])[both].median() < 1


@pytest.mark.parametrize("name", NAMES)
def test_linear_model(name: str) -> None:
    """The distance to a hyperplane is a closed form."""
    model = nn.Linear(4, 2).double()
    w = torch.tensor([1.0, -3.0, 2.0, 0.5]).double()
    with torch.no_grad():
        model.weight.copy_(torch.stack([w, -w]) / 2)
        model.bias.zero_()
    x = torch.tensor([[0.5, 0.45, 0.5, 0.5], [0.4, 0.5, 0.5, 0.3]]).double()
    y = model(x).argmax(1)
    gap = (x @ w).abs()
    expected = {"EADL1": gap / 3}.get(name, gap / w.norm())
    if name == "EADEN":
        # δ = max(λ·|w| − β/2, 0), with λ such that w·δ = gap; every coordinate moves here.
        scale = (gap + BETA / 2 * w.abs().sum()) / w.square().sum()
        delta = scale[:, None] * w.abs() - BETA / 2
        assert (delta > 0).all()
        expected = delta.square().sum(1) + BETA * delta.sum(1)
    options = {"c": 10.0, "steps": 300} if name == "CW" else {}
    adv = getattr(torchattacks, name)(model, **options)(x, y)
    assert fooled(model, adv, y).all()
    assert (size(name, adv, x) >= expected * (1 - 1e-12)).all()
    torch.testing.assert_close(size(name, adv, x), expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_images_that_are_not_fooled_come_back(name: str) -> None:
    """Images without a nearby boundary, and misclassified ones, are returned as they are."""
    x, y = images(6)
    atk = getattr(torchattacks, name)
    constant = nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES))
    with torch.no_grad():
        constant[1].weight.zero_()
        constant[1].bias.copy_(torch.arange(5.0))
    assert torch.equal(atk(constant)(x, torch.full_like(y, CLASSES - 1)), x)
    wrong = (y + 1) % CLASSES
    assert torch.equal(atk(net())(x, wrong), x)
    trained = atk(net())
    trained.set_model_training_mode(True)
    with pytest.raises(InputError, match=f"model_training: expected False for {name}"):
        trained(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_integer_results_fool(name: str) -> None:
    """Points next to the boundary would not survive rounding: the attack searches on the levels."""
    model = net()
    x, y = images(6, model, levels=True)
    few = {"binary_search_steps": 4, "initial_const": 0.1}
    options = {"CW": {"c": 10.0}, "DeepFool": {}}.get(name, few)
    atk = getattr(torchattacks, name)(model, **options)
    atk.set_normalization_used([0.5, 0.25], [0.25, 0.5])
    shifted = nn.Sequential(nn.Module(), model)
    shifted[0].forward = atk.inverse_normalize  # type: ignore[method-assign]
    atk.set_model(shifted)
    atk.set_return_type("int")
    adv = atk(atk.normalize(x), y)
    assert adv.dtype == torch.uint8
    assert fooled(model, adv.float() / 255, y).all()


def test_early_abort_saves_passes() -> None:
    model = net()
    x, y = images(4)
    rows = []
    for early in (True, False):
        passed: list[int] = []
        hook = model.register_forward_hook(lambda module, inputs, output, passed=passed: passed.append(len(output)))
        torchattacks.EADEN(model, abort_early=early, binary_search_steps=4)(x, y)
        hook.remove()
        rows.append(sum(passed))
    assert 2 * rows[0] < rows[1]


def test_a_point_beyond_the_reach_of_rounding() -> None:
    """An image next to the boundary is moved further than its own distance asks."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        model[1].bias.copy_(torch.tensor([10.0, 9.5 - 0.05]))
    x, y = torch.full((3, 1, 1, 2), 0.5), torch.zeros(3, dtype=torch.int64)
    for name in NAMES:
        logits = model(getattr(torchattacks, name)(model, **{"c": 10.0} if name == "CW" else {})(x, y))
        assert (logits[:, 1] - logits[:, 0] > 3e-3).all()  # √ε of float32 times 10


def test_deepfool_considers_every_class() -> None:
    """The class of the smallest of 15 logits has the nearest boundary."""
    model = nn.Linear(2, 15)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[1:, 1] = torch.linspace(0.01, 0.1, 14)
        model.weight[14, 0] = 100.0
        model.bias.copy_(torch.tensor([10.0, *torch.linspace(9.99, 9.9, 13), 10.0 - 51.0]))
    adv = torchattacks.DeepFool(model)(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
    assert model(adv).argmax(1) == 14
    assert float(adv[0, 0]) == pytest.approx(0.51, rel=1e-3)


def test_deepfool_returns_the_classes_it_reached() -> None:
    model = net()
    x, y = images(12)
    atk = torchattacks.DeepFool(model)
    adv, classes = atk.forward_return_target_labels(x, y)
    assert torch.equal(adv, atk(x, y))
    assert torch.equal(classes, model(adv).argmax(1))
    assert (classes != y).all()


def test_bad_settings() -> None:
    model, (x, y) = net(), images(2)
    for name, option, value in [
        ("CW", "c", 0.0),
        ("CW", "lr", -1.0),
        ("CW", "kappa", -1.0),
        ("DeepFool", "overshoot", -0.1),
        ("EADL1", "initial_const", 0.0),
        ("EADL1", "max_iterations", 0),
        ("EADEN", "binary_search_steps", 0),
        ("EADEN", "beta", -1.0),
    ]:
        with pytest.raises(InputError, match=f"{option}: expected"):
            getattr(torchattacks, name)(model, **{option: value})(x, y)
    with pytest.raises(InputError, match="kappa: expected 0 for EADEN, which returns the nearest"):
        torchattacks.EADEN(model, kappa=5)(x, y)
