"""The planted defenses are found, with their causes, and nets without a defense are not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.planted_defenses import Defended, planted
from torch import Tensor, nn

from pyrobust import diagnose
from pyrobust.attacks.diagnosis import surrogate, trials
from pyrobust.zoo import load_data, load_model

DIGITS = load_data("digits")
PLANTED = planted(load_model("zoo:digits-smooth-0.25"))  # type: ignore[arg-type]  # load_model's type is wider


@pytest.mark.parametrize("defense", PLANTED)
def test_planted_defenses_are_found(defense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget, value in {
        "_STEPS": 20,
        "_MORE_STEPS": 20,
        "_MORE_RESTARTS": 1,
        "_QUERIES": 200,
        "_TRANSFER_STEPS": 5,
    }.items():
        monkeypatch.setattr(trials, budget, value)
    monkeypatch.setattr(surrogate, "_STEPS_PER_ROUND", 3)
    model, name, cause = PLANTED[defense]
    diagnosis = diagnose(model.eval(), DIGITS.x[:24], DIGITS.y[:24], epsilon=0.1)
    assert diagnosis.verdict == ("suspicious" if name == "randomized" else "masked")
    findings = {finding.name: finding for finding in diagnosis.findings}
    assert findings[name].evidence.get("cause") == cause
    assert "training-mode" not in findings
    if name == "randomized":
        assert "EOT" in findings[name].remedy
        assert "attacks" in diagnosis.undecided
    elif name == "saturated-loss":
        assert "loss" in findings[name].remedy
    elif name in ("zero-gradient", "gradient-mismatch", "no-gradient"):
        assert "BPDA" in findings[name].remedy
    if name != "gradient-mismatch":
        assert "gradient-mismatch" not in findings


def convolutional(inputs: int, first: int, flat: int) -> nn.Sequential:
    features = [nn.Conv2d(inputs, first, 4, 2, 1), nn.ReLU(), nn.Conv2d(first, 2 * first, 4, 2, 1), nn.ReLU()]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat, 100), nn.ReLU(), nn.Linear(100, 10))


def honest_net(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A net without a defense, its images and their labels."""
    if name.startswith("zoo:"):
        return load_model(name), DIGITS.x, DIGITS.y
    folder = os.environ.get("PYROBUST_DATA")
    if not folder:
        pytest.skip("PYROBUST_DATA is not set")
    hidden = [layer for _ in range(4) for layer in (nn.Linear(100, 100), nn.ReLU())]
    net, images = {
        "mnist_cnn_a_adv": (convolutional(1, 16, 1568), "mnist_sdp"),
        "mnist_6_100": (
            nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), *hidden, nn.Linear(100, 10)),
            "mnist_eran",
        ),
        "oval_base": (convolutional(3, 8, 1024), "cifar_sdp"),
    }[name]
    weights = torch.load(Path(folder) / "nets" / f"{name}.pt", weights_only=True)
    net.load_state_dict(dict(zip(net.state_dict(), weights.values(), strict=True)))
    with np.load(Path(folder) / "images" / f"{images}.npz") as arrays:
        x, y = torch.from_numpy(arrays["X"]).float(), torch.from_numpy(arrays["y"]).long()
    if name == "oval_base":
        mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        return Defended(net.eval(), lambda net, x: net((x - mean) / 0.225)).eval(), x, y
    return net.eval(), x, y


def check_honest(name: str, epsilon: float, examples: int) -> None:
    model, x, y = honest_net(name)
    with torch.no_grad():
        right = model(x).argmax(1) == y
    assert right.double().mean() > 0.55  # the weights belong to the architecture
    diagnosis = diagnose(model, x[:examples], y[:examples], epsilon)
    assert diagnosis.findings == ()
    assert diagnosis.verdict == "nothing found"
    assert not diagnosis.undecided
    assert 0 < diagnosis.fooled["PGD"] < diagnosis.correct


@pytest.mark.parametrize(("name", "epsilon"), [("mnist_cnn_a_adv", 0.3), ("zoo:digits-smooth-0.25", 0.1)])
def test_honest_nets(name: str, epsilon: float) -> None:
    check_honest(name, epsilon, 14)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "epsilon"),
    [("mnist_cnn_a_adv", 0.3), ("mnist_6_100", 0.03), ("oval_base", 2 / 255), ("zoo:digits-smooth-0.25", 0.1)],
)
def test_honest_nets_on_more_images(name: str, epsilon: float) -> None:
    check_honest(name, epsilon, 200)
