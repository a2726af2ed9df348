"""The torch engine: agreement with the native one in float64, chunks, windows, unbounded ranges, and errors."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds import nets as bound_nets
from support.bounds.engines import engine_of
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines import chunks
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor import backward as tensor_backward
from pyrobust.bounds.engines.tensor import engine as tensor_engine
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.engines.tensor.matmul import check_products
from pyrobust.bounds.engines.tensor.network import Network
from pyrobust.bounds.graph.activations import ACTIVATIONS, row_from_rule
from pyrobust.bounds.graph.nodes import Activation, Input, MaxPool
from pyrobust.bounds.input_set import InputSet, ball, box
from pyrobust.checks import NORMS
from pyrobust.errors import InputError, ModelError

METHODS = ("ibp", "crown-ibp", "crown")
CPU = torch.device("cpu")


@functools.cache
def images() -> tuple[nn.Module, Tensor]:
    """Return a model that uses every kind of step, one numpy rule included, and 23 images."""
    generator = torch.Generator().manual_seed(6)
    body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1))
    layers = [nn.Conv2d(2, 4, 3, 2, 1), nn.LeakyReLU(0.1), bound_nets.Residual(body, -1), nn.MaxPool2d(3, 2, 1)]
    net = nn.Sequential(*layers, nn.Hardtanh(), nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)).eval()
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return net.requires_grad_(False), torch.rand(23, 2, 8, 8, generator=generator)


@functools.cache
def model(engine: str, dtype: torch.dtype = torch.float32) -> BoundedModel:
    net, x = images()
    return BoundedModel(copy.deepcopy(net).to(dtype), x.to(dtype), engine=engine)


def sets_of(kind: str, count: int, shape: tuple[int, ...]) -> InputSet:
    """Return balls of several radii in the norm, or boxes."""
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    if kind == "box":
        return box(x, x + 0.1 * x.abs(), shape)
    return ball(x, torch.linspace(0, 0.2, count).double(), kind, None, shape)


def assert_close(bounds: Any, expected: Any, tolerance: float = 1e-9) -> None:
    for actual, wanted in ((bounds.lower, expected.lower), (bounds.upper, expected.upper)):
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


#: Every norm with CROWN, whose first ranges are those of the other methods.
METHODS_AND_NORMS = [("ibp", "linf"), ("crown-ibp", "l1"), ("crown", "linf"), ("crown", "l2"), ("crown", "l1")]


@pytest.mark.parametrize(("method", "norm"), METHODS_AND_NORMS)
def test_agrees_with_the_native_engine_in_float64(method: str, norm: str) -> None:
    _, x = images()
    rows = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for C in (None, rows[0], rows[:1].expand(23, -1, -1)):
        options = {"norm": norm, "method": method, "C": C, "clip": (0.0, 1.0)}
        for sound, semantics in ((True, "real"), (True, "float32"), (False, "real")):
            native, ours = (
                model(name, torch.float64).bounds(x, 0.02, sound=sound, semantics=semantics, **options)
                for name in ("native", "torch")
            )
            assert native.lower.isfinite().all()
            assert_close(ours, native)
            if not sound:
                assert_close(ours, native, 1e-12)


def test_fan_in_counts_all_products_of_a_window() -> None:
    net, x = nn.Sequential(nn.Conv2d(4, 6, (3, 2), groups=2), nn.Flatten()), torch.zeros(1, 4, 5, 5)
    layer = Network(BoundedModel(net, x).output, CPU).layers[1]
    assert layer.products
    assert (layer.fan_in(backward=False), layer.fan_in(backward=True)) == (2 * 3 * 2, 3 * 3 * 2)


def test_windows_change_only_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover residual connections, normalisation, pooling, strides, groups and paddings."""
    rng = np.random.default_rng(8)
    nets = [bound_nets.convolutional(rng, "normal", torch.float64) for _ in range(3)] + [
        (copy.deepcopy(images()[0]).double(), (2, 8, 8))
    ]
    for net, shape in nets:
        engine = engine_of(BoundedModel(net, torch.zeros(1, *shape).double()).output, torch.float64, "torch")
        results = []
        for tile_rows in (1, 3, 10**9):
            monkeypatch.setitem(tensor_engine._TILE_ROWS, "cpu", tile_rows)
            for norm in NORMS:
                results.append(engine.run(sets_of(norm, 4, shape), None, Query("crown", True, "real", None)))
        for result, whole in zip(results, results[-len(NORMS) :] * 3, strict=True):
            for bound, expected in zip(result, whole, strict=True):
                close = (bound - expected).abs() <= 1e-11 * (1 + expected.abs())
                assert float(close.double().mean()) >= 0.9, net  # on a tie a slope may flip either way


def fails_above(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[int]:
    """Make backward passes with more rows run out of memory; return the attempted sizes."""
    sizes: list[int] = []
    before = tensor_backward.BackwardPass._propagate

    def propagate(self: tensor_backward.BackwardPass, coefficients: Any, image: Tensor, *others: Any) -> Tensor:
        sizes.append(len(image))
        if len(image) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return before(self, coefficients, image, *others)

    monkeypatch.setattr(tensor_backward.BackwardPass, "_propagate", propagate)
    return sizes


def test_rows_that_do_not_fit_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = images()
    bounded = BoundedModel(net, x, engine="torch")
    expected = bounded.bounds(x, 0.03125)
    sizes = fails_above(monkeypatch, 20)
    assert_close(bounded.bounds(x, 0.03125), expected, 1e-12)
    failed = sum(size > 20 for size in sizes)
    assert failed > 0
    again = len(sizes)
    assert_close(bounded.bounds(x, 0.03125), expected, 1e-12)
    assert all(size <= 20 for size in sizes[again:])  # remembered


def test_an_example_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, (_, x) = model("torch"), images()
    fails_above(monkeypatch, 0)
    with pytest.raises(ModelError, match="one example do not fit the memory of cpu"):
        bounded.bounds(x[:3], 0.03125)


def test_examples_that_do_not_fit_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = images()
    bounded = BoundedModel(net, x, engine="torch")
    expected = bounded.bounds(x, 0.03125, method="ibp")
    before = tensor_engine.range_of

    def ranges(layer: Any, inputs: Any, arithmetic: Any) -> Any:
        if len(inputs[0].lower) > 4:
            raise MemoryError
        return before(layer, inputs, arithmetic)

    monkeypatch.setattr(tensor_engine, "range_of", ranges)
    assert_close(bounded.bounds(x, 0.03125, method="ibp"), expected, 1e-12)


def test_other_errors_are_not_treated_as_out_of_memory() -> None:
    def step(begin: int, end: int) -> None:
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        chunks.in_chunks(4, 4, step)


@pytest.mark.parametrize(
    "rule",
    [lambda low, high: (low,), lambda low, high: (low[:1],) * 6, lambda low, high: 1 / 0],
    ids=["5", "1", "raise"],
)
def test_a_failing_rule_is_an_error(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Input(name="x", shape=(2,), inputs=())
    monkeypatch.setitem(ACTIVATIONS, "bad", row_from_rule(torch.relu, rule))
    engine = TensorEngine(Activation(name="f", shape=(2,), inputs=(x,), function="bad"), torch.float32, CPU)
    sets = sets_of("box", 1, (2,))
    with pytest.raises(RuntimeError, match="a bound rule"):
        engine.run(sets, None, Query("ibp", True, "real", None))


def test_padding_of_an_unbounded_window_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that padding is not taken for a window's largest element."""
    x = Input(name="x", shape=(2,), inputs=())
    above = Activation(name="f", shape=(2,), inputs=(x,), function="none", slope=0.0)
    largest = MaxPool(name="m", shape=(1,), inputs=(above,), windows=torch.tensor([[-1, 1]]))
    nothing = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])
    row = row_from_rule(lambda z: z, lambda low, high: (low * 0, nothing[0], low * 0, nothing[1], *nothing))
    monkeypatch.setitem(ACTIVATIONS, "none", row)
    engine = TensorEngine(largest, torch.float32, CPU)
    sets = sets_of("box", 1, (2,))
    for method in METHODS:
        lower, upper = engine.run(sets, None, Query(method, True, "real", None))
        assert lower.item() == -torch.inf
        assert upper.item() == torch.inf


class _Attention(nn.Module):
    """One head of self-attention over three tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query = nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.query(x) @ x.transpose(1, 2), -1)
        return (weights @ x).flatten(1)[:, :2]


def test_of_equal_and_opposite_neurons_one_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the differences of scores half are the negatives of others: they get the same bits by half of the rows."""
    x = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    engine = engine_of(BoundedModel(_Attention().eval(), x).output, torch.float64, "torch")
    assert isinstance(engine, TensorEngine)
    rows = []
    original = tensor_engine.BackwardPass.from_neurons
    monkeypatch.setattr(
        tensor_engine.BackwardPass,
        "from_neurons",
        lambda self, i, image, *arguments: rows.append(len(image)) or original(self, i, image, *arguments),
    )
    results = {}
    for name in ("representatives", "each"):
        with monkeypatch.context() as patch:
            if name == "each":
                patch.setattr(Network, "representatives", lambda self, i: None)
            rows.clear()
            ranges = engine.ranges(sets_of("linf", 2, (3, 4)), Query("crown", True, "real", None))
            results[name] = [torch.stack(ends) for _, *ends in ranges], sum(rows)
    (got, few), (want, many) = results.values()
    assert few <= many / 2
    assert all(map(torch.equal, got, want))


def test_the_engine_by_name() -> None:
    net, x = images()
    assert isinstance(BoundedModel(net, x, engine="torch")._engine, TensorEngine)
    assert not isinstance(BoundedModel(net, x)._engine, TensorEngine)
    with pytest.raises(InputError, match="engine: expected one of native, torch or None, got 'cuda'"):
        BoundedModel(net, x, engine="cuda")


def test_emulated_products_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    with pytest.raises(ModelError, match="CUBLAS_EMULATE_DOUBLE_PRECISION is '1'"):
        check_products(gpu)
    check_products(CPU)
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "0")
    check_products(gpu)
    monkeypatch.delenv("CUBLAS_EMULATE_DOUBLE_PRECISION")
    check_products(gpu)


@pytest.mark.parametrize(("method", "norm"), METHODS_AND_NORMS)
def test_a_gpu_agrees_with_the_cpu(cuda: torch.device, method: str, norm: str) -> None:
    net, x = copy.deepcopy(images()[0]).to(cuda), images()[1]
    there = BoundedModel(net, x.to(cuda))
    assert there.device.type == "cuda"
    for inputs in (x, x.to(cuda)):
        options = {"norm": norm, "method": method, "clip": (0.0, 1.0)}
        bounds = there.bounds(inputs, 0.03125, **options)
        assert bounds.lower.device == CPU
        assert_close(bounds, model("torch").bounds(x, 0.03125, **options), 1e-11)
    y = net(x.to(cuda)).argmax(1)
    assert there.certify(x.to(cuda), y, 0.0, method=method).all()
    assert there.verify(x.to(cuda), y, 1e-4, norm=norm).verified.any()
    assert (there.certified_radius(x[:4].to(cuda), y[:4], norm=norm, method=method) > 0).all()


def test_a_gpu_with_emulation_is_refused(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(2, 2).eval().to(cuda)
    bounded = BoundedModel(linear, torch.zeros(1, 2, device=cuda))
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    with pytest.raises(ModelError, match="emulate"):
        bounded.bounds(torch.zeros(1, 2), 0.1)
    assert BoundedModel(linear, torch.zeros(1, 2, device=cuda), engine="native").device == CPU


def test_inputs_without_elements() -> None:
    x = torch.zeros(2, 0)
    net = nn.Sequential(nn.ConstantPad1d((0, 2), 0.5), nn.ReLU(), nn.Linear(2, 3)).eval()
    bounds = BoundedModel(net, x, engine="torch").bounds(x, 0.1, norm="l2")
    torch.testing.assert_close(bounds.lower, net(x).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(bounds.upper, net(x).double(), rtol=0, atol=1e-6)
