"""Minimum-norm attacks of torchattacks: closed forms, images that are not fooled, and integer results."""

from __future__ import annotations

import pytest
import torch
from support.torchattacks_nets import CLASSES, MEAN, STD, images, net, shifted
from torch import Tensor, nn

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


def fooled(model: nn.Module, adv: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(adv).argmax(1) != y


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
    atk = getattr(torchattacks, name)(shifted(model), **{"CW": {"c": 10.0}, "DeepFool": {}}.get(name, few))
    atk.set_normalization_used(MEAN, STD)
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


def test_deepfool_considers_every_class_and_returns_those_it_reached() -> None:
    """The class of the smallest of 15 logits has the nearest boundary."""
    model = nn.Linear(2, 15)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[1:, 1] = torch.linspace(0.01, 0.1, 14)
        model.weight[14, 0] = 100.0
        model.bias.copy_(torch.tensor([10.0, *torch.linspace(9.99, 9.9, 13), 10.0 - 51.0]))
    atk, x = torchattacks.DeepFool(model), torch.tensor([[0.5, 0.0]])
    adv, classes = atk.forward_return_target_labels(x, torch.tensor([0]))
    assert torch.equal(adv, atk(x, torch.tensor([0])))
    assert model(adv).argmax(1).tolist() == classes.tolist() == [14]
    assert float(adv[0, 0]) == pytest.approx(0.51, rel=1e-3)


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
