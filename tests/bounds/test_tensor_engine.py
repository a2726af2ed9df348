"""The engine in torch operations: as tight as the native one in float64, whatever the chunks; and what it refuses."""

from __future__ import annotations

import copy
import functools
from typing import Any

import bound_nets
import numpy as np
import pytest
import torch
from bound_data import NETS, published, trained
from bound_engines import engine_of
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, chunks, tensor_engine, tensor_walk
from pyrobust.bounds.engine import Query
from pyrobust.bounds.graph import Activation, Gather, Input, MaxPool, Node
from pyrobust.bounds.input_set import NORMS, InputSet, ball, box
from pyrobust.bounds.rules import FUNCTIONS, Function
from pyrobust.bounds.tensor_engine import TensorEngine
from pyrobust.bounds.tensor_network import Network
from pyrobust.bounds.tensor_products import backward, check_products, forward, units_backward
from pyrobust.bounds.tensor_window import Window, cropped, moved, reach, tiles
from pyrobust.errors import InputError, ModelError

METHODS = ("ibp", "crown-ibp", "crown")
CPU = torch.device("cpu")


@functools.cache
def images() -> tuple[nn.Module, Tensor]:
    """A model with every kind of step, a function by rule among them; and 23 images."""
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


def some_sets(kind: str, count: int, shape: tuple[int, ...]) -> InputSet:
    """Balls of several sizes in the norm, or boxes."""
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    if kind == "box":
        return box(x, x + 0.1 * x.abs(), shape)
    return ball(x, torch.linspace(0, 0.2, count).double(), kind, None, shape)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    for one, other in ((found.lower, expected.lower), (found.upper, expected.upper)):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("method", METHODS)
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


def test_agrees_on_random_nets() -> None:
    rng = np.random.default_rng(4)
    for i in range(8):
        net, shape = bound_nets.convolutional(rng, ("normal", "stable")[i % 2], torch.float64)
        graph = BoundedModel(net, torch.zeros(1, *shape, dtype=torch.float64)).output
        sets = some_sets((*NORMS, "box")[i % 4], 6, shape)
        for method in METHODS:
            query = Query(method, True, "real", None)
            one, other = (engine_of(graph, torch.float64, name).run(sets, None, query) for name in ("native", "torch"))
            for found, expected in zip(other, one, strict=True):
                # On a tie a slope may flip either way.
                size = 1e-9 * (1 + expected.abs())
                assert float(((found - expected).abs() <= size).double().mean()) >= 0.9, (net, method)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_as_tight_as_published_bounds(name: str, method: str) -> None:
    """Those of auto_LiRPA (Xu et al., 2020), float64 where there are some; and the native engine's."""
    data = published(name)
    radius = min({key.split("/")[0] for key in data if key.startswith("eps")})
    stem = f"{radius}/{method.upper()}/lb_margin"
    exact = f"{stem}_f64" in data
    expected = torch.from_numpy(data[f"{stem}_f64"] if exact else data[stem])[: 2 if name == "cifar_resnet2b" else 20]
    count = len(expected)
    lower, upper = (torch.from_numpy(data[f"{radius}/{key}"][:count]) for key in ("x_L", "x_U"))
    sets = {"y": torch.from_numpy(data["y"][:count]), "x_lower": lower, "x_upper": upper, "method": method}
    net = trained(name)
    ours = BoundedModel(net, lower, engine="torch").margins(**sets).lower
    native = BoundedModel(net.double(), lower.double()).margins(**sets).lower
    size = 1 + expected.abs()
    assert ((native - ours).abs() / size).max() <= 1e-9
    assert ((expected - ours) / size).max() <= (1e-9 if exact else 1e-4)
    assert int((ours.amin(1) > 0).sum()) >= int((expected.amin(1) > 0).sum())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_chunks_and_company_change_nothing_but_rounding(method: str, norm: str) -> None:
    bounded, x = model("torch"), images()[1][:9]
    options = {"norm": norm, "method": method, "clip": (0.0, 1.0)}
    together = bounded.bounds(x, 0.03125, **options)
    for limit in (40_000, 1_000_000):
        assert_close(bounded.bounds(x, 0.03125, memory_limit=limit, **options), together, 1e-12)
    for i in (0, 5):
        alone = bounded.bounds(x[i : i + 1], 0.03125, **options)
        torch.testing.assert_close(alone.lower[0], together.lower[i], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone.upper[0], together.upper[i], rtol=1e-12, atol=1e-12)
    margins = bounded.margins(x, torch.arange(9) % 4, 0.03125, **options)
    limited = bounded.margins(x, torch.arange(9) % 4, 0.03125, memory_limit=100_000, **options)
    torch.testing.assert_close(margins.lower, limited.lower, rtol=1e-12, atol=1e-12)
    assert (margins.upper == torch.inf).all()
    one = bounded.bounds(x[:1], 0.03125, memory_limit=1, **options)  # row by row
    torch.testing.assert_close(one.lower[0], together.lower[0], rtol=1e-12, atol=1e-12)


def fails_above(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[int]:
    """A walk that runs out of memory with more rows; the sizes that were tried."""
    sizes: list[int] = []
    before = tensor_walk.Walk._down

    def down(self: tensor_walk.Walk, coefficients: Any, image: Tensor, total: Tensor, windows: Any) -> Tensor:
        sizes.append(len(image))
        if len(image) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return before(self, coefficients, image, total, windows)

    monkeypatch.setattr(tensor_walk.Walk, "_down", down)
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


def test_memory_that_never_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_other_errors_are_not_taken_for_memory() -> None:
    def step(begin: int, end: int) -> None:
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        chunks.in_chunks(4, 4, CPU, step)


@pytest.mark.parametrize("groups", [1, 2])
def test_products_are_those_of_a_convolution(groups: int) -> None:
    """And of its transpose, for all neurons at once and one by one."""
    generator = torch.Generator().manual_seed(0)
    for kernel, stride, padding, dilation in [((3, 2), (2, 1), (1, 0), (1, 2)), ((1, 1), (1, 3), (0, 0), (1, 1))]:
        conv = nn.Conv2d(4, 6, kernel, stride, padding, dilation, groups, dtype=torch.float64).eval()
        z = torch.randn(5, 4, 7, 9, generator=generator, dtype=torch.float64)
        net = nn.Sequential(conv, nn.Flatten()).eval().requires_grad_(False)
        layer = Network(BoundedModel(net, z).output, CPU).layers[1]
        value = nn.functional.conv2d(z, conv.weight, None, stride, padding, dilation, groups)
        torch.testing.assert_close(forward(layer, layer.weight, z.flatten(1)), value.flatten(1))
        a = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        z.requires_grad_(True)
        value = nn.functional.conv2d(z, conv.weight, None, stride, padding, dilation, groups)
        (want,) = torch.autograd.grad(value, z, a)
        torch.testing.assert_close(backward(layer, a.flatten(1), None, None), want.flatten(1))
        neuron = torch.arange(layer.size)
        sign = torch.where(neuron % 3 == 0, -1.0, 1.0).double()
        expected = backward(layer, torch.diag(sign), None, None)
        assert torch.equal(units_backward(layer, neuron, sign, None, None), expected)
        # neurons in a window, and what they reach, alone and with more around it
        planes, below = layer.node.shape, layer.node.inputs[0].shape
        have = Window(1, planes[1], 0, 2)
        inside = cropped(neuron[None], planes, have)[0]
        reached = reach(layer.node, have).within(below)
        for window in (reached, Window(0, reached.y1, reached.x0, below[2]), None):
            found = units_backward(layer, inside, sign[inside], have, window)
            assert torch.equal(found, cropped(expected[inside], below, window))
            assert torch.equal(moved(found, below, window, None), expected[inside])
            rows = cropped(torch.diag(sign)[inside], planes, have)
            assert torch.equal(backward(layer, rows, have, window), found)


def test_windows_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of residual connections, normalisation, pooling, strides, groups and paddings."""
    rng = np.random.default_rng(8)
    nets = [bound_nets.convolutional(rng, "normal", torch.float64) for _ in range(5)] + [
        (copy.deepcopy(images()[0]).double(), (2, 8, 8))
    ]
    for net, shape in nets:
        engine = engine_of(BoundedModel(net, torch.zeros(1, *shape).double()).output, torch.float64, "torch")
        found = []
        for many in (1, 3, 10**9):
            monkeypatch.setitem(tensor_engine._TILE_ROWS, "cpu", many)
            for norm in NORMS:
                found.append(engine.run(some_sets(norm, 4, shape), None, Query("crown", True, "real", None)))
        for one, whole in zip(found, found[-len(NORMS) :] * 3, strict=True):
            for end, expected in zip(one, whole, strict=True):
                close = (end - expected).abs() <= 1e-11 * (1 + expected.abs())
                assert float(close.double().mean()) >= 0.9, net  # on a tie a slope may flip either way


def test_tiles_hold_every_neuron_once() -> None:
    neuron = torch.arange(2 * 5 * 7).repeat(3)
    for many in (1, 2, 13, 70, 1000):
        order, groups = tiles(neuron, (2, 5, 7), many)
        assert sorted(order.tolist()) == list(range(len(neuron)))
        assert sum(count for count, _ in groups) == len(neuron)
        begin = 0
        for count, window in groups:
            own = neuron[order[begin : begin + count]]
            y, x = own // 7 % 5, own % 7
            assert bool(((y >= window.y0) & (y < window.y1) & (x >= window.x0) & (x < window.x1)).all())
            begin += count
    assert len(tiles(neuron, (2, 5, 7), 1)[1]) == 35


def test_ranges_without_bounds_prove_nothing() -> None:
    """Weights so large that float64 overflows: −inf and inf, or what is true all the same; no NaN."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.LeakyReLU(0.1), nn.Linear(3, 2)).double()
    for parameter in net.parameters():
        parameter.data.fill_(1e200)
    bounded = BoundedModel(net.eval(), torch.zeros(1, 2, dtype=torch.float64), engine="torch")
    for method in METHODS:
        for norm in ("linf", "l2", "l1"):
            bounds = bounded.bounds(torch.ones(2, 2, dtype=torch.float64), 0.5, method=method, norm=norm)
            assert (bounds.lower <= 1e300).all()  # the outputs are above 1e600
            assert (bounds.upper == torch.inf).all()
            assert not bounded.certify(torch.ones(2, 2).double(), torch.zeros(2).long(), 0.5, method=method).any()


def test_a_window_of_which_nothing_is_known() -> None:
    """The padding must not be taken for its largest element."""
    x = Input(name="x", shape=(2,), inputs=())
    above = Activation(name="f", shape=(2,), inputs=(x,), function="none", slope=0.0)
    largest = MaxPool(name="m", shape=(1,), inputs=(above,), windows=torch.tensor([[-1, 1]]))
    nothing = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])
    rule = Function(lambda z: z, lambda low, high: (low * 0, nothing[0], low * 0, nothing[1], *nothing))
    FUNCTIONS["none"] = rule
    try:
        engine = TensorEngine(largest, torch.float32, CPU)
        sets = some_sets("box", 1, (2,))
        for method in METHODS:
            lower, upper = engine.run(sets, None, Query(method, True, "real", None))
            assert lower.item() == -torch.inf
            assert upper.item() == torch.inf
    finally:
        del FUNCTIONS["none"]


@pytest.mark.parametrize(
    "rule",
    [lambda low, high: (low,), lambda low, high: (low[:1],) * 6, lambda low, high: 1 / 0],
    ids=["5", "1", "raise"],
)
def test_a_rule_that_fails(rule: Any) -> None:
    x = Input(name="x", shape=(2,), inputs=())
    FUNCTIONS["bad"] = Function(torch.relu, rule)
    try:
        engine = TensorEngine(Activation(name="f", shape=(2,), inputs=(x,), function="bad"), torch.float32, CPU)
        sets = some_sets("box", 1, (2,))
        with pytest.raises(RuntimeError, match="a bound rule"):
            engine.run(sets, None, Query("ibp", True, "real", None))
    finally:
        del FUNCTIONS["bad"]


def test_layers_that_only_move() -> None:
    """An output that is the input, or a gather of it that takes an element many times, and one that takes none."""
    x = Input(name="x", shape=(3,), inputs=())
    many = Gather(name="g", shape=(5,), inputs=(x, x), index=torch.tensor([0, 3, 0, -1, 2]))
    sets = some_sets("l2", 4, (3,))
    output: Node
    for output in (x, many):
        for method in METHODS:
            lower, upper = TensorEngine(output, torch.float32, CPU).run(sets, None, Query(method, True, "real", None))
            index = torch.tensor([0, 1, 2] if output is x else [0, 0, 0, 0, 2])
            center = sets.center[:, index].clone()
            center[:, 3:4] = 0
            assert (lower <= center).all()
            assert (center <= upper).all()
            assert (upper - lower <= 2 * sets.epsilon[:, None] + 1e-12 * center.abs() + 1e-300).all()


def test_an_empty_batch_and_one_epsilon_each() -> None:
    bounded, (_, x) = model("torch"), images()
    for method in METHODS:
        assert bounded.bounds(x[:0], 0.1, method=method, norm="l2").lower.shape == (0, 4)
        assert bounded.certify(x[:0], torch.zeros(0).long(), 0.1, method=method).shape == (0,)
        for norm in ("linf", "l2", "l1"):
            epsilon = torch.tensor([0.0, 0.125, 0.5], dtype=torch.float64)
            together = bounded.bounds(x[:3], epsilon, norm=norm, method=method)
            for i in range(3):
                alone = bounded.bounds(x[i : i + 1], float(epsilon[i]), norm=norm, method=method)
                torch.testing.assert_close(alone.lower[0], together.lower[i], rtol=1e-12, atol=1e-12)


def test_what_stands_on_it() -> None:
    """Verdicts and radii are those of the native engine."""
    (net, x), y = images(), torch.arange(23) % 4
    y = net(x).argmax(1).where(torch.arange(23) % 5 > 0, y)
    for norm in ("linf", "l2"):
        ours, native = (model(name).verify(x, y, 0.003, norm=norm, clip=(0.0, 1.0)) for name in ("torch", "native"))
        assert ours.status == native.status
        assert ours.stage == native.stage
        assert "verified" in ours.status
        found, expected = (
            model(name).certified_radius(x[:6], y[:6], norm=norm, method="crown-ibp") for name in ("torch", "native")
        )
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-6)


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


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_agrees_with_the_cpu(cuda: torch.device, method: str, norm: str) -> None:
    net, x = copy.deepcopy(images()[0]).to(cuda), images()[1]
    there = BoundedModel(net, x.to(cuda))
    assert there.device.type == "cuda"
    for inputs in (x, x.to(cuda)):
        options = {"norm": norm, "method": method, "clip": (0.0, 1.0)}
        found = there.bounds(inputs, 0.03125, **options)
        assert found.lower.device == CPU
        assert_close(found, model("torch").bounds(x, 0.03125, **options), 1e-11)
    y = net(x.to(cuda)).argmax(1)
    assert there.certify(x.to(cuda), y, 0.0, method=method).all()
    assert there.verify(x.to(cuda), y, 1e-4, norm=norm).verified.any()
    assert (there.certified_radius(x[:4].to(cuda), y[:4], norm=norm, method=method) > 0).all()


def test_a_gpu_that_may_emulate(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(2, 2).eval().to(cuda)
    bounded = BoundedModel(linear, torch.zeros(1, 2, device=cuda))
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    with pytest.raises(ModelError, match="emulate"):
        bounded.bounds(torch.zeros(1, 2), 0.1)
    assert BoundedModel(linear, torch.zeros(1, 2, device=cuda), engine="native").device == CPU
