"""Differentiable bounds: equal to the engine up to rounding, with right gradients, and under torch.compile."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.bounds.differentiable import backward, intervals
from pyrobust.errors import InputError, InputTypeError, ModelError

METHODS = ("ibp", "crown-ibp")
BATCH = 5


class Everything(nn.Module):
    """A net with all kinds of nodes: grouped, strided convolutions, batch norm, sum, gathers, clamps, padded maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.last = nn.Linear(16, 5)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)
        nn.init.uniform_(self.norm.weight, -2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = functional.leaky_relu(self.norm(self.first(x)), 0.1)
        z = functional.hardtanh(z - self.second(z), -0.3, 0.4)
        z = self.pool(torch.cat([z, 2 * z.flip(3)], 1))
        z = functional.avg_pool2d(z.clamp(min=0.07), 2, ceil_mode=True)
        return self.last(functional.pad(z.flatten(1), (3, 3))[:, 3:19])


class Scalars(nn.Module):
    """A net with one number an example, [B], before, in and after every kind of elementwise layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(torch.stack([x[:, 1], x[:, 0], x[:, 2]], 1))
        a, b = torch.relu(z[:, 0]), functional.hardtanh(0.5 * z[:, 1] + 1)
        z[:, 2] = torch.maximum(a, b) - a
        return torch.stack([a, b, z[:, 2], z.amax(1)], 1)


@functools.cache
def net(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    """Return a net in evaluation mode and inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(len(name))
        if name == "dense":
            model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.LeakyReLU(0.2), nn.Linear(20, 4))
            shape: tuple[int, ...] = (6,)
        elif name == "convolutions":
            layers = [nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU6(), nn.MaxPool2d(2, 1)]
            model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 5))
            shape = (2, 9, 10)
        elif name == "scalars":
            model, shape = Scalars(), (3,)
        elif name == "affine":
            model, shape = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), (3,)
        else:
            model, shape = Everything(), (2, 9, 9)
        return model.to(dtype).eval(), torch.rand(BATCH, *shape, dtype=dtype)


NETS = ("dense", "convolutions", "everything", "affine")


@functools.cache
def differentiable(name: str, *dtype: torch.dtype) -> DifferentiableBounds:
    """Return the bounds of the net that ``net`` returns for the same arguments."""
    return DifferentiableBounds(*net(name, *dtype))


def labels(classes: int) -> Tensor:
    return torch.arange(BATCH) % classes


def specifications(outputs: int, dtype: torch.dtype) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, outputs), (BATCH, 2, outputs)]
    return [None, *(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "dtype"), [("everything", torch.float32), *((name, torch.float64) for name in (*NETS, "scalars"))]
)
def test_bounds_equal_the_engine_up_to_rounding(name: str, method: str, dtype: torch.dtype) -> None:
    model, x = net(name, dtype)
    bounds, engine = differentiable(name, dtype), BoundedModel(model, x)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    for epsilon in (0.0, 0.02, 0.3, torch.linspace(0, 0.2, BATCH)):
        for clip in (None, (0.0, 1.0)):
            for rows in specifications(bounds.outputs, dtype):
                lower, upper = bounds.bounds(x, epsilon, method=method, C=rows, clip=clip)
                want = engine.bounds(x, epsilon, method=method, C=rows, clip=clip, sound=False)
                torch.testing.assert_close(lower.double(), want.lower, **tolerance)
                torch.testing.assert_close(upper.double(), want.upper, **tolerance)
        y = labels(bounds.outputs)
        want = engine.margins(x, y, epsilon, method=method, sound=False)
        torch.testing.assert_close(bounds.margins(x, y, epsilon, method=method).double(), want.lower, **tolerance)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETS)
def test_other_devices_compute_the_same(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the torch operations of other devices to the CPU's batch-last layout: results and gradients."""
    model, x = net(name, torch.float64)
    bounds, parameters = differentiable(name, torch.float64), list(model.parameters())
    results = []
    for native in (True, False):
        for module in (intervals, backward):
            monkeypatch.setattr(module, "uses_batch_last", lambda _, native=native: native)
        for clip in (None, (0.0, 1.0)):
            margins = bounds.margins(x, labels(bounds.outputs), 0.07, method=method, clip=clip)
            results.append([margins, *torch.autograd.grad(margins.square().sum(), parameters)])
    for native_result, torch_result in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(native_result, torch_result, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "method"),
    [("everything", "ibp"), *((name, "crown-ibp") for name in ("everything", "dense", "convolutions"))],
)
def test_gradcheck(name: str, method: str) -> None:
    model, x = net(name, torch.float64)
    x = x[:1].clone().requires_grad_()
    bounds = differentiable(name, torch.float64)
    y = labels(bounds.outputs)[:1]
    epsilon = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)

    def margins(x: Tensor, epsilon: Tensor, *_: Tensor) -> Tensor:
        return bounds.margins(x, y, epsilon, method=method)

    # along random directions; the parameters are perturbed in place
    parameters = list(model.parameters())
    assert torch.autograd.gradcheck(margins, (x, epsilon, *parameters), fast_mode=True)
    gradients = torch.autograd.grad(margins(x, epsilon).square().sum(), parameters)
    assert all(bool((gradient != 0).any()) for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "method", "backend"),
    [
        ("convolutions", "crown-ibp", "aot_eager"),  # has the intervals of all layers as well
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in itertools.product(["convolutions", "everything"], METHODS, ["inductor"])
        ),
    ],
)
def test_compiles_into_one_graph(name: str, method: str, backend: str) -> None:
    model, x = net(name)
    bounds = differentiable(name)
    y = labels(bounds.outputs)

    def loss(x: Tensor, y: Tensor, epsilon: Tensor) -> Tensor:
        return bounds.margins(x, y, epsilon, method=method, clip=(0.0, 1.0)).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    parameters = list(model.parameters())
    for epsilon in (0.05, 0.1):
        got, want = (f(x, y, torch.tensor(epsilon)) for f in (compiled, loss))
        torch.testing.assert_close(got, want)
        for actual, expected in zip(*(torch.autograd.grad(v, parameters) for v in (got, want)), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_batch_norm_is_that_of_evaluation_mode() -> None:
    torch.manual_seed(0)  # with other weights all ReLUs may be dead, whose outputs never move
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).train()
    x = torch.rand(4, 1, 4, 4)
    bounds = DifferentiableBounds(model, x)
    assert all(module.training for module in model.modules())
    want = bounds.bounds(x, 0.1)
    model.eval()
    assert torch.equal(bounds.bounds(x, 0.1)[0], want[0])
    torch.testing.assert_close(bounds.bounds(x, 0.0)[0], model(x))
    model.train()
    model(x)  # moves the running statistics
    model.eval()
    moved = bounds.bounds(x, 0.0)
    assert not torch.equal(bounds.bounds(x, 0.1)[0], want[0])
    torch.testing.assert_close(moved[0], model(x))


def test_the_share_mixes_the_methods() -> None:
    x, bounds, y = net("dense")[1], differentiable("dense"), labels(4)
    interval, linear = (bounds.margins(x, y, 0.2, method=method) for method in METHODS)
    for share in (0.0, 0.25, torch.tensor(0.25), 1.0):
        got = bounds.margins(x, y, 0.2, method="crown-ibp", share=share)
        torch.testing.assert_close(got, share * linear + (1 - share) * interval)
    assert bool((interval != linear).any())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["everything"])
def test_autocast_leaves_the_bounds_alone(name: str, method: str) -> None:
    model, x = net(name)
    bounds, parameters = differentiable(name), list(model.parameters())
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            margins = bounds.margins(x, labels(bounds.outputs), 0.05, method=method)
            ends = bounds.bounds(x, 0.05, method=method)
        results.append([margins, *ends, *torch.autograd.grad(margins.square().sum(), parameters)])
    assert all(torch.equal(plain, autocast) for plain, autocast in zip(*results, strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["dense", "everything"])
def test_empty_batches_and_no_rows(name: str, method: str) -> None:
    model, x = net(name)
    bounds, parameters = differentiable(name), list(model.parameters())
    k = bounds.outputs
    for clip in (None, (0.0, 1.0)):
        none = [*bounds.bounds(x[:0], 0.1, method=method, clip=clip)]
        assert [t.shape for t in none] == [(0, k)] * 2
        none.append(bounds.margins(x[:0], labels(k)[:0], 0.1, method=method, clip=clip))
        assert none[2].shape == (0, k - 1)
        none += bounds.bounds(x, 0.1, method=method, clip=clip, C=torch.zeros(0, k))
        assert [t.shape for t in none[3:]] == [(BATCH, 0)] * 2
        grads = torch.autograd.grad(sum(t.sum() for t in none), parameters, allow_unused=True)
        assert not any(bool(g.any()) for g in grads if g is not None)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": torch.zeros(5, 7)}, InputError, r"x: expected shape \(B, 6\), got \(5, 7\)"),
    ({"x": torch.zeros(5, 6).half()}, InputTypeError, "x: expected a tensor of float32 or .*got torch.float16"),
    ({"epsilon": -0.1}, InputError, "epsilon: expected a finite number of at least 0"),
    ({"epsilon": torch.zeros(3)}, InputError, r"epsilon: expected a number or a tensor \[5\]"),
    ({"method": "crown"}, InputError, "method: expected one of ibp, crown-ibp, got 'crown'"),
    ({"C": torch.zeros(2, 5)}, InputError, r"C: expected shape \(S, 4\)"),
    ({"C": torch.zeros(3, 2, 4)}, InputError, "C: expected shape"),
    ({"clip": (1.0, 0.0)}, InputError, "clip: expected two finite numbers, low < high"),
    ({"y": torch.zeros(4).long()}, InputError, r"y: expected shape \(5,\), one label per example, got \(4,\)"),
    ({"y": torch.tensor([0, 1, 4, 2, 3])}, InputError, "y: expected labels 0 to 3, got "),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
def test_bad_arguments_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    bounds = differentiable("dense")
    with pytest.raises(error, match=message):
        (bounds.margins if "y" in change else bounds.bounds)(**({"x": net("dense")[1], "epsilon": 0.1} | change))


def test_arrays_and_lists_are_examples_and_labels() -> None:
    x, bounds = net("dense")[1], differentiable("dense")
    y = torch.zeros(len(x)).long()
    for form in (Tensor.numpy, Tensor.tolist):
        got, want = bounds.bounds(form(x), 0.1), bounds.bounds(x, 0.1)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
        assert torch.equal(bounds.margins(form(x), form(y), 0.1), bounds.margins(x, y, 0.1))


def test_models_without_differentiable_bounds_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1)).eval()
    with pytest.raises(ModelError, match=r"model: 1 .*softmax"):
        DifferentiableBounds(model, torch.zeros(1, 2))
