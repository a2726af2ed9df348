"""The documents' own code gives what pyrobust gives under the same names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrobust
from pyrobust import RandomizedSmoothing, compute_ibp_bounds
from pyrobust.zoo import load_data, load_model

Run = Callable[..., dict[str, Any]]
RADII = [0.0, 0.12, 0.25, 0.5, 0.9]
# The documents average float32 ones and zeros.
FLOAT32 = 1e-6


def linear(inputs: int, classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)).eval()


def convolutional(classes: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, classes)
    ).eval()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "digits": lambda: load_model("zoo:digits-smooth-0.25"),
    "linear": lambda: linear(64, 10),
    "convolutional": lambda: convolutional(10),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_data("digits")
    return data.x[:40], data.y[:40]


class Table:
    """A smoother whose class and radius are functions of the image."""

    def __init__(self, model: nn.Module, radius: Callable[[Tensor], float]) -> None:
        self.model, self.radius = model, radius

    def certify(self, x: Tensor, n: int, alpha: float) -> tuple[int, float]:
        assert x.dim() == 3
        return int(self.model(x[None]).argmax()), self.radius(x)


class Indexed:
    """A smoother that numbers the images in the order in which it is asked."""

    def __init__(self, smoother: RandomizedSmoothing) -> None:
        self.smoother, self.indices = smoother, iter(range(10**6))

    def certify(self, x: Tensor, n: int, alpha: float) -> tuple[int, float]:
        return self.smoother.certify(x, n=n, alpha=alpha, index=next(self.indices))


def test_certified_accuracy_of_a_deterministic_smoother(
    run_blocks: Run, model: nn.Module, digits: tuple[Tensor, Tensor]
) -> None:
    theirs = run_blocks("000")["compute_certified_accuracy"]
    smoother = Table(model, lambda x: 0.25 * round(8 * float(x.mean())))  # exact in float32, and equal to some radii
    expected = theirs(smoother, *digits, n=10, alpha=0.01)
    result = pyrobust.compute_certified_accuracy(smoother, *digits, n=10, alpha=0.01)
    assert list(result) == list(expected)
    assert result == pytest.approx(expected, abs=FLOAT32)


def test_certified_accuracy_of_a_smoother_with_the_same_indices(
    run_blocks: Run, model: nn.Module, digits: tuple[Tensor, Tensor]
) -> None:
    theirs = run_blocks("000")["compute_certified_accuracy"]
    smoother = RandomizedSmoothing(model, num_classes=10, sigma=0.25)
    expected = theirs(Indexed(smoother), *digits, RADII, n=200, alpha=0.01)
    assert pyrobust.compute_certified_accuracy(smoother, *digits, RADII, 200, 0.01) == pytest.approx(
        expected, abs=FLOAT32
    )


def written_out(model: nn.Module, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Interval bounds of a chain of layers, layer by layer."""
    center, radius = x.double(), torch.full_like(x, epsilon, dtype=torch.float64)
    for layer in model.double().children():
        match layer:
            case nn.Linear():
                center, radius = layer(center), radius @ layer.weight.abs().T
            case nn.Conv2d():
                magnitude = nn.functional.conv2d(radius, layer.weight.abs(), stride=layer.stride, padding=layer.padding)
                center, radius = layer(center), magnitude
            case nn.BatchNorm2d():
                assert layer.running_var is not None
                scale = (layer.weight / (layer.running_var + layer.eps).sqrt())[:, None, None]
                center, radius = layer(center), radius * scale.abs()
            case nn.ReLU():
                lower, upper = (center - radius).relu(), (center + radius).relu()
                center, radius = (lower + upper) / 2, (upper - lower) / 2
            case nn.Flatten():
                center, radius = center.flatten(1), radius.flatten(1)
            case _:
                raise AssertionError(layer)
    return center - radius, center + radius


@pytest.mark.parametrize("name", ["linear", "convolutional"])
@pytest.mark.parametrize("epsilon", [0.0, 0.004, 0.02])
def test_certified_accuracy_by_intervals(
    run_blocks: Run, name: str, epsilon: float, digits: tuple[Tensor, Tensor]
) -> None:
    x, _ = digits
    y = MODELS[name]()(x).argmax(1)
    y[::4] = (y[::4] + 1) % 10  # wrong ones
    loader = [(x[:24], y[:24]), (x[24:], y[24:])]
    theirs = run_blocks("000", compute_ibp_bounds=compute_ibp_bounds)["certified_accuracy_ibp"]
    model = MODELS[name]()
    result = pyrobust.certified_accuracy_ibp(model, loader, epsilon, device="cpu")
    assert result == theirs(model, loader, epsilon, device="cpu")
    by_hand = run_blocks("000", compute_ibp_bounds=lambda *arguments: tuple(b.float() for b in written_out(*arguments)))
    copied = MODELS[name]()
    expected = by_hand["certified_accuracy_ibp"](_InDoubles(copied), loader, epsilon, device="cpu")
    assert result == expected
    assert 0 < result["certified_accuracy"] <= 0.75 == result["clean_accuracy"]


class _InDoubles(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.double()

    def children(self) -> Iterator[nn.Module]:
        return self.net.children()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.double())  # type: ignore[no-any-return]  # the document's class has no types


def attack_class(base: type) -> type:
    """A user's projected gradient ascent on a base class; misclassified examples stay as they are."""

    class Ascent(base):  # type: ignore[misc, valid-type]  # a class from the document
        def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
            wrong = self.model(x).argmax(dim=1) != y
            delta = torch.zeros_like(x)
            for _ in range(5):
                delta.requires_grad_()
                loss = nn.functional.cross_entropy(self.model(x + delta), y)
                (gradient,) = torch.autograd.grad(loss, delta)
                step = (
                    gradient.sign()
                    if self.norm == "linf"
                    else gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None, None]
                )
                delta = self.project((delta + self.epsilon / 2 * step).detach().clone(), x)
            return torch.where(wrong[:, None, None, None], x, x + delta).detach()

    return Ascent


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_base_class(run_blocks: Run, model: nn.Module, digits: tuple[Tensor, Tensor], norm: str) -> None:
    names = run_blocks("004")
    x, _ = digits
    y = model(x).argmax(1)
    y[::5] = (y[::5] + 1) % 10
    epsilon = {"linf": 0.03, "l2": 0.4}[norm]
    theirs, ours = (
        attack_class(base)(model, epsilon, norm) for base in (names["AdversarialAttack"], pyrobust.AdversarialAttack)
    )
    x_adv = theirs.generate(x, y)
    assert torch.allclose(ours.generate(x, y), x_adv, atol=1e-6)
    expected, result = theirs.evaluate(x, y, x_adv), ours.evaluate(x, y, x_adv)
    assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-6)
    assert result["attack_success_rate"] == pytest.approx(1 - result["robust_accuracy"])


def test_an_example_that_an_attack_mends_is_not_robust(run_blocks: Run) -> None:
    """The one difference: the ball contains the example itself, so an example wrong without an attack is not robust."""
    names = run_blocks("004")

    class Mend(names["AdversarialAttack"]):  # type: ignore[misc]  # a class from the document
        def generate(self, x: Tensor, y: Tensor, *_: Any) -> Tensor:
            return 1 - x

    class Mended(pyrobust.AdversarialAttack):
        def generate(self, x: Tensor, y: Tensor, *_: Any) -> Tensor:
            return 1 - x

    model = nn.Identity()
    x, y = torch.tensor([[0.4, 0.6], [0.6, 0.4]]), torch.tensor([0, 0])
    theirs = Mend(model, 0.5, device=torch.device("cpu"))
    ours = Mended(model, 0.5, device=torch.device("cpu"))
    assert theirs.evaluate(x, y, 1 - x)["robust_accuracy"] == 0.5
    assert ours.evaluate(x, y, 1 - x)["robust_accuracy"] == 0.0


class Still(pyrobust.AdversarialAttack):
    def generate(self, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        return x


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("epsilon", [0.1, 0.7])
def test_projection(run_blocks: Run, norm: str, epsilon: float) -> None:
    names = run_blocks("004")
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(30, 2, 3, 3, generator=generator)
    delta = torch.randn(30, 2, 3, 3, generator=generator) * torch.linspace(0, 1, 30)[:, None, None, None]
    theirs = names["AdversarialAttack"].project
    attack = Still(nn.Linear(1, 2), epsilon, norm)
    expected = theirs(attack, delta.clone(), x)
    assert torch.allclose(attack.project(delta, x), expected, atol=1e-6)


def test_l1_projection_lies_in_ball_and_box_and_no_farther(run_blocks: Run) -> None:
    """Clipping after projecting leaves the nearest point of both sets."""
    names = run_blocks("004")
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 6, generator=generator, dtype=torch.float64)
    delta = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    for epsilon in (0.2, 1.0, 2.5):
        attack = Still(nn.Linear(1, 2), epsilon, "l1")
        attack._project_l1 = names["AdversarialAttack"]._project_l1  # type: ignore[attr-defined]  # the document's method
        expected = names["AdversarialAttack"].project(attack, delta.clone(), x)
        result = Still(nn.Linear(1, 2), epsilon, "l1").project(delta, x)
        assert (result.abs().sum(1) <= epsilon * (1 + 1e-12)).all()
        assert ((x + result >= 0) & (x + result <= 1)).all()
        distance, theirs = (result - delta).norm(dim=1), (expected - delta).norm(dim=1)
        assert (distance <= theirs + 1e-12).all()
        assert (distance < theirs - 1e-6).any()


def test_the_robustness_curve(run_blocks: Run, model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    names = run_blocks("004")
    x, _ = digits
    y = model(x).argmax(1)
    y[::5] = (y[::5] + 1) % 10
    epsilons = [0, 0.01, 0.03, 0.1]
    expected = names["compute_robustness_curve"](attack_class(names["AdversarialAttack"]), model, x, y, epsilons)
    result = pyrobust.compute_robustness_curve(attack_class(pyrobust.AdversarialAttack), model, x, y, epsilons)
    assert list(result) == list(expected) == epsilons
    # An example that a smaller epsilon breaks stays broken: the curve never rises.
    lowest = math.inf
    for epsilon in epsilons:
        lowest = min(lowest, expected[epsilon])
        assert result[epsilon] == pytest.approx(lowest)
