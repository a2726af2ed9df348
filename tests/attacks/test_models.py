"""Models of every kind: channels_last, callables, randomized, and with NaN or inf in logits or gradients."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from attack_models import NORMS, fooled_alone, images, inside, made, random, small_net
from torch import Tensor, nn

from pyrobust.attacks import APGD, BIM, EOT, FGSM, PGD, TransferAttack
from pyrobust.errors import InputError

EPSILON = {"linf": 0.05, "l2": 0.25, "l1": 0.8}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", [FGSM, PGD, APGD, TransferAttack])
def test_nan_gradients(attack: Any, norm: str) -> None:
    """√|x₀·0| has derivative NaN at 0: that coordinate, or that step, is skipped."""

    def model(x: Tensor) -> Tensor:
        z = x[:, 1] - 0.5 + (x[:, 0] * 0).sqrt()
        return torch.stack([z, -z], 1)

    x, y = torch.full((4, 3), 0.6), torch.zeros(4, dtype=torch.int64)
    x_adv = made(attack, model, 0.3, norm).generate(x, y)
    assert inside(x_adv, x, norm, 0.3)
    if norm == "linf":
        assert bool((x_adv[:, 1] < 0.5).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_inf_logits(bad: float) -> None:
    x, y = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
    for attack in (FGSM, PGD, APGD):
        x_adv = attack(lambda batch: batch[:, :2] * 0 + bad).generate(x, y)
        assert torch.equal(x_adv, x)  # wrong from the start

    def sometimes(batch: Tensor) -> Tensor:
        logits = torch.stack([batch[:, 0], 0.25 + 0 * batch[:, 0]], 1)
        return logits.masked_fill(batch[:, :1] < 0.5, bad)

    x = torch.full((2, 3), 0.55)
    x_adv = PGD(sometimes, 0.2).generate(x, torch.zeros(2, dtype=torch.int64))
    assert bool((x_adv[:, 0] < 0.5).all())  # NaN and inf are not correct
    goal = torch.ones(2, dtype=torch.int64)
    x_adv = PGD(sometimes, 0.2).generate(x, goal, targeted=True, target_labels=goal)
    assert bool(x_adv.isfinite().all())  # NaN and inf are not the target either
    assert inside(x_adv, x, "linf", 0.2)


@pytest.mark.parametrize(("attack", "norm"), [(FGSM, "l1"), (PGD, "linf"), (APGD, "l2")])
def test_channels_last(attack: Any, norm: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)).double()
    x = random(10, 3, 6, 6, dtype=torch.float64)
    y = net(x).argmax(1)
    plain = attack(net, EPSILON[norm], norm).generate(x, y)
    attacker = attack(net, EPSILON[norm], norm, memory_format=torch.channels_last, batch_size=7)
    seen = []
    handle = net.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    x_adv = attacker.generate(x, y)
    handle.remove()
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in seen)
    assert inside(x_adv, x, norm, EPSILON[norm])
    assert fooled_alone(net, x_adv, y) == fooled_alone(net, plain, y)
    if attack is not APGD:  # APGD's choices may depend on the last digit
        torch.testing.assert_close(x_adv, plain, rtol=0, atol=1e-9)
    kept = attacker.generate(x.to(memory_format=torch.channels_last), y)
    assert kept.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(InputError, match=r"^x: expected \[N, C, H, W\] for channels_last"):
        attacker.generate(x.flatten(1), y)


def test_callables_and_objects_with_logits() -> None:
    x, y = images(10)
    net = small_net()
    expected = PGD(net, 0.05, steps=5).generate(x, y)
    for model in (net.forward, lambda batch: types.SimpleNamespace(logits=net(batch))):
        attacker = PGD(model, 0.05, steps=5, dtype=torch.float64)
        assert attacker.device.type == "cpu"
        torch.testing.assert_close(attacker.generate(x, y), expected, rtol=0, atol=1e-9)


def test_eot_averages_loss_and_gradient() -> None:
    """Two draws with opposite shifts average to the model without shift."""
    shifts = [0.25, -0.25]

    class Shifting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            shifts.append(shifts.pop(0))
            z = 4 * (x[:, 0] - 0.5)
            return torch.stack([z + shifts[-1] * 8, -z], 1)

    model = EOT(Shifting(), samples=2)
    x, y = torch.tensor([[0.6], [0.9]]), torch.zeros(2, dtype=torch.int64)
    attack = BIM(model, 0.2, steps=5)
    x_adv = attack.generate(x, y)
    assert float(x_adv[0]) < 0.5
    assert float(x_adv[1]) == pytest.approx(0.7)
    assert attack.evaluate(x, y, x_adv)["robust_accuracy"] == 0.5
    assert attack.forwards % 2 == 0
    noisy = EOT(small_net(), 3, transform=lambda x: x + 0.01 * torch.randn_like(x))
    x, y = images(6)
    assert inside(PGD(noisy, 0.05, steps=3).generate(x, y), x, "linf", 0.05)


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_that_share_memory(norm: str) -> None:
    """The gradient of a sum is one number in every place of an expanded tensor."""

    def brightness(x: Tensor) -> Tensor:
        total = x.sum((1, 2, 3))
        return torch.stack([total, 9 - total], 1)

    x = random(12, 1, 3, 3, seed=1)
    for attack in (APGD, PGD):
        x_adv = attack(brightness, 0.01, norm).generate(x, brightness(x).argmax(1))
        assert bool(x_adv.isfinite().all())
