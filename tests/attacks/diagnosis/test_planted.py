"""The planted defenses are found, with their causes, and the honest nets are not."""

from __future__ import annotations

import pytest
import torch
from honest_nets import NETS, load_net
from planted_defenses import planted
from torch import nn

from pyrobust import diagnose
from pyrobust.attacks.diagnosis import trials
from pyrobust.zoo import load_data, load_model


def digits_net() -> nn.Sequential:
    net = load_model("zoo:digits-smooth-0.25")
    assert isinstance(net, nn.Sequential)
    return net


@pytest.mark.parametrize("defense", planted(digits_net()))
def test_planted_defenses_are_found(defense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget, value in {"_MORE_STEPS": 20, "_MORE_RESTARTS": 1, "_QUERIES": 200}.items():
        monkeypatch.setattr(trials, budget, value)
    model, name, cause = planted(digits_net())[defense]
    digits = load_data("digits")
    diagnosis = diagnose(model.eval(), digits.x[:24], digits.y[:24], epsilon=0.1)
    assert diagnosis.verdict == ("suspicious" if name == "randomized" else "masked")
    found = {finding.name: finding for finding in diagnosis.findings}
    assert found[name].evidence.get("cause") == cause
    assert "training-mode" not in found
    if name == "randomized":
        assert "EOT" in found[name].remedy
        assert "attacks" in diagnosis.undecided
    elif name == "saturated-loss":
        assert "loss" in found[name].remedy
    elif name in ("zero-gradient", "gradient-mismatch", "no-gradient"):
        assert "BPDA" in found[name].remedy
    if name != "gradient-mismatch":
        assert "gradient-mismatch" not in found


def check_honest(name: str, examples: int) -> None:
    model, x, y, epsilon = load_net(name)
    with torch.no_grad():
        right = model(x).argmax(1) == y
    assert right.double().mean() > 0.55  # the weights belong to the architecture
    diagnosis = diagnose(model, x[:examples], y[:examples], epsilon)
    assert diagnosis.findings == ()
    assert diagnosis.verdict == "nothing found"
    assert not diagnosis.undecided
    assert 0 < diagnosis.fooled["PGD"] < diagnosis.correct


@pytest.mark.parametrize("name", ["mnist_cnn_a_adv", "zoo:digits-smooth-0.25"])
def test_honest_nets(name: str) -> None:
    check_honest(name, 20)


@pytest.mark.full
@pytest.mark.parametrize("name", NETS)
def test_honest_nets_on_more_images(name: str) -> None:
    check_honest(name, 200)
