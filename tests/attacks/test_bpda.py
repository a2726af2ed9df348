"""BPDA: the module's own output, the surrogate's gradient, and attacks that work through it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from attack_models import inside, random
from torch import Tensor, nn

from pyrobust import BPDA
from pyrobust.attacks import APGD, PGD
from pyrobust.errors import ModelError
from pyrobust.zoo import load_data, load_model

LEVELS = 8


def quantize(x: Tensor) -> Tensor:
    return (x * LEVELS).round() / LEVELS


def thermometer(x: Tensor) -> Tensor:
    """[N, 1, 8, 8] → one channel for each threshold below the pixel."""
    return (x > torch.linspace(0.05, 0.95, LEVELS).view(1, -1, 1, 1)).to(x.dtype)


def smooth_thermometer(x: Tensor) -> Tensor:
    return torch.sigmoid(10 * (x - torch.linspace(0.05, 0.95, LEVELS).view(1, -1, 1, 1)))


def mean_level(code: Tensor) -> Tensor:
    return code.mean(1, keepdim=True)


class Stack(nn.Module):
    """Steps in order, modules or functions."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.steps = steps
        self.modules_of_steps = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


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
    plain = attack(net, 0.25, **options)
    shattered = attack(Stack(quantize, net), 0.25, **options)
    through = attack(nn.Sequential(BPDA(quantize), net), 0.25, **options)
    rates = [each.evaluate(x, y, each.generate(x, y))["attack_success_rate"] for each in (plain, shattered, through)]
    assert rates[0] > 0.9
    assert rates[1] < 0.3  # a random start of APGD alone breaks some
    assert rates[2] > 0.9
    assert inside(through.generate(x, y), x, "linf", 0.25)


def test_a_thermometer_code_needs_its_own_backward(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    net, x, y = digits
    with pytest.raises(ModelError, match="expected logits differentiable"):
        PGD(Stack(thermometer, mean_level, net), 0.2, steps=2).generate(x, y)
    with pytest.raises(ModelError, match=r"^BPDA: backward: expected the shape of module's output, \(2, 8, 8, 8\), "):
        Stack(BPDA(thermometer), mean_level, net)(x[:2])
    attack = PGD(Stack(BPDA(thermometer, smooth_thermometer), mean_level, net), 0.3, steps=20)
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
    x = random(5, 3, seed=4)
    bpda = BPDA(lambda x: x * 1e-12 + 1)  # x + (g(x) - x).detach() would round
    assert torch.equal(bpda(x.requires_grad_()).detach(), x.detach() * 1e-12 + 1)
    with torch.no_grad():
        assert not bpda(x).requires_grad
    same = BPDA(lambda x: x)  # returns its input itself
    (gradient,) = torch.autograd.grad(same(x).sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))


def test_parameters_of_the_module_receive_no_gradient() -> None:
    part, surrogate, head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
    net = nn.Sequential(BPDA(part, surrogate), head)
    net(random(4, 3)).sum().backward()
    assert part.weight.grad is None
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


def test_second_derivatives_are_refused() -> None:
    x = random(2, 3).requires_grad_()
    with pytest.raises(ModelError, match=r"^BPDA: expected first derivatives, got create_graph=True"):
        torch.autograd.grad((BPDA(quantize)(x) ** 2).sum(), x, create_graph=True)


def test_repr() -> None:
    assert repr(BPDA(quantize)).startswith("BPDA(module=quantize, backward=identity)")
    assert "Linear" in repr(BPDA(nn.Linear(2, 2), quantize))
