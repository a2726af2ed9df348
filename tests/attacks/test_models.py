"""Models of every kind: formats, callables, randomized ones, NaN, and modules without a gradient of use (BPDA)."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from support.attack_models import NORMS, fooled_alone, images, inside, made, random, small_net
from torch import Tensor, nn

from pyrobust import BPDA
from pyrobust.attacks import APGD, BIM, EOT, FGSM, PGD, TransferAttack
from pyrobust.errors import InputError, ModelError
from pyrobust.zoo import load_data, load_model


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


@pytest.mark.parametrize(("attack", "norm", "epsilon"), [(FGSM, "l1", 0.8), (PGD, "linf", 0.05), (APGD, "l2", 0.25)])
def test_channels_last(attack: Any, norm: str, epsilon: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)).double()
    x = random(10, 3, 6, 6, dtype=torch.float64)
    y = net(x).argmax(1)
    plain = attack(net, epsilon, norm).generate(x, y)
    attacker = attack(net, epsilon, norm, memory_format=torch.channels_last, batch_size=7)
    seen = []
    handle = net.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    x_adv = attacker.generate(x, y)
    handle.remove()
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in seen)
    assert inside(x_adv, x, norm, epsilon)
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


LEVELS = 8


def quantize(x: Tensor) -> Tensor:
    return (x * LEVELS).round() / LEVELS


def thermometer(x: Tensor) -> Tensor:
    """[N, 1, 8, 8] → one channel for each threshold below the pixel."""
    return (x > torch.linspace(0.05, 0.95, LEVELS).view(1, -1, 1, 1)).to(x.dtype)


def smooth_thermometer(x: Tensor) -> Tensor:
    return torch.sigmoid(10 * (x - torch.linspace(0.05, 0.95, LEVELS).view(1, -1, 1, 1)))


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    data = load_data("digits")
    net = load_model("zoo:digits-smooth-0.25")
    x, y = data.x[:40], data.y[:40]
    right = net(quantize(x)).argmax(1) == y
    return net, x[right], y[right]


@pytest.mark.parametrize("attack", [PGD, APGD])
def test_attacks_succeed_through_it(attack: Any, digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    net, x, y = digits
    options = {"steps": 20, **({"random_start": False} if attack is PGD else {})}
    through = attack(nn.Sequential(BPDA(quantize), net), 0.25, **options)
    rates = [
        each.evaluate(x, y, each.generate(x, y))["attack_success_rate"]
        for each in (attack(net, 0.25, **options), attack(lambda z: net(quantize(z)), 0.25, **options), through)
    ]
    assert rates[0] > 0.9
    assert rates[1] < 0.3  # a random start of APGD alone breaks some
    assert rates[2] > 0.9
    assert inside(through.generate(x, y), x, "linf", 0.25)


def test_a_thermometer_code_needs_its_own_backward(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    net, x, y = digits

    def decoded(encode: Any) -> Any:
        return lambda z: net(encode(z).mean(1, keepdim=True))

    with pytest.raises(ModelError, match="expected logits differentiable"):
        PGD(decoded(thermometer), 0.2, steps=2).generate(x, y)
    with pytest.raises(ModelError, match=r"^BPDA: backward: expected the shape of module's output, \(2, 8, 8, 8\), "):
        decoded(BPDA(thermometer))(x[:2])
    attack = PGD(decoded(BPDA(thermometer, smooth_thermometer)), 0.3, steps=20)
    assert attack.evaluate(x, y, attack.generate(x, y))["attack_success_rate"] > 0.9


def test_gradient_is_that_of_the_surrogate() -> None:
    def surrogate(x: Tensor) -> Tensor:
        return x.sin() * x[:, :1]

    x = random(3, 4, seed=2, dtype=torch.float64).requires_grad_()
    weight = random(4, 4, seed=3, dtype=torch.float64)
    bpda = BPDA(lambda x: x.round() * x[:, :1], backward=surrogate)
    (gradient,) = torch.autograd.grad(((bpda(x) @ weight) ** 2).sum(), x)
    # the chain rule by hand: the outer gradient at the module's output, then the surrogate's Jacobian
    value = bpda(x).detach().requires_grad_()
    (outer,) = torch.autograd.grad(((value @ weight) ** 2).sum(), value)
    _, expected = torch.autograd.functional.vjp(surrogate, x, outer)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    # where module and surrogate agree, numerical differentiation agrees too
    assert torch.autograd.gradcheck(BPDA(surrogate, backward=surrogate), (x,))


def test_output_is_exactly_that_of_the_module() -> None:
    x = random(5, 3, seed=4).requires_grad_()
    bpda = BPDA(lambda x: x * 1e-12 + 1)  # x + (g(x) - x).detach() would round
    assert torch.equal(bpda(x).detach(), x.detach() * 1e-12 + 1)
    with torch.no_grad():
        assert not bpda(x).requires_grad
    (gradient,) = torch.autograd.grad(BPDA(lambda x: x)(x).sum(), x)  # returns its input itself
    assert torch.equal(gradient, torch.ones_like(x))
    with pytest.raises(ModelError, match=r"^BPDA: expected first derivatives, got create_graph=True"):
        torch.autograd.grad((BPDA(quantize)(x) ** 2).sum(), x, create_graph=True)
    assert repr(BPDA(quantize)).startswith("BPDA(module=quantize, backward=identity)")
    assert "Linear" in repr(BPDA(nn.Linear(2, 2), quantize))


def test_parameters_of_the_module_receive_no_gradient() -> None:
    layer, surrogate, head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
    net = nn.Sequential(BPDA(layer, surrogate), head)
    net(random(4, 3)).sum().backward()
    assert layer.weight.grad is None
    assert surrogate.weight.grad is not None
    assert head.weight.grad is not None
    assert len(list(net.parameters())) == 6
    restored = copy.deepcopy(net)
    restored.load_state_dict(net.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), BPDA(lambda x: (x * 4).round() / 4), nn.Linear(4, 3))
    x = random(5, 4).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        output = net(x)
    assert output.dtype == dtype
    (gradient,) = torch.autograd.grad(output.float().sum(), x)
    assert gradient.dtype == torch.float32
    assert bool((gradient != 0).any())
    first = BPDA(nn.Linear(4, 4))  # computes in 16 bits what the identity leaves in 32
    with torch.autocast("cpu", dtype=dtype):
        value = first(x)
    assert value.dtype == dtype
    (gradient,) = torch.autograd.grad(value.float().sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))
    y = net(x.detach()).argmax(1)
    assert inside(PGD(net, 0.3, dtype=dtype, steps=3).generate(x.detach(), y), x.detach(), "linf", 0.3)
