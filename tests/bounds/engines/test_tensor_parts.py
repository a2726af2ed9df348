"""The parts of the torch engine: products, windows and tiles, unbounded ranges."""

from __future__ import annotations

import copy

import bound_nets
import numpy as np
import pytest
import torch
from bound_engines import engine_of
from test_tensor_engine import CPU, METHODS, images, sets_of
from torch import nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor import engine as tensor_engine
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.engines.tensor.matmul import backward, forward, units_backward
from pyrobust.bounds.engines.tensor.network import Network
from pyrobust.bounds.engines.tensor.receptive_field import Window, cropped, moved, reach, tiles
from pyrobust.bounds.graph.activations import ACTIVATIONS, row_from_rule
from pyrobust.bounds.graph.analysis import representatives
from pyrobust.bounds.graph.evaluate import forward_all
from pyrobust.bounds.graph.nodes import Activation, Input, MaxPool, Sum
from pyrobust.checks import NORMS


@pytest.mark.parametrize("groups", [1, 2])
def test_products_are_those_of_a_convolution(groups: int) -> None:
    """Compare convolutions and their transpose to torch, for all neurons at once and one by one."""
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
        # neurons of a window, with their receptive field alone and with a margin
        planes, below = layer.node.shape, layer.node.inputs[0].shape
        have = Window(1, planes[1], 0, 2)
        inside = cropped(neuron[None], planes, have)[0]
        reached = reach(layer.node, have).within(below)
        for window in (reached, Window(0, reached.y1, reached.x0, below[2]), None):
            product = units_backward(layer, inside, sign[inside], have, window)
            assert torch.equal(product, cropped(expected[inside], below, window))
            assert torch.equal(moved(product, below, window, None), expected[inside])
            rows = cropped(torch.diag(sign)[inside], planes, have)
            assert torch.equal(backward(layer, rows, have, window), product)


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
            for end, expected in zip(result, whole, strict=True):
                close = (end - expected).abs() <= 1e-11 * (1 + expected.abs())
                assert float(close.double().mean()) >= 0.9, net  # on a tie a slope may flip either way


def test_tiles_hold_every_neuron_once() -> None:
    neuron = torch.arange(2 * 5 * 7).repeat(3)
    for size in (1, 2, 13, 70, 1000):
        order, groups = tiles(neuron, (2, 5, 7), size)
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
    """Overflow float64 by large weights: bounds are infinite or still valid, never NaN."""
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
        lambda self, i, image, *rest: rows.append(len(image)) or original(self, i, image, *rest),
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


def test_representatives_are_equal_or_opposite() -> None:
    x = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = 0
    for node, value in forward_all(BoundedModel(_Attention().eval(), x).output, x).items():
        same = representatives(node)
        if same is None:
            continue
        value = value.flatten()
        assert torch.equal(value, value[same[0]] * same[1])
        assert len(same[0].unique()) == len(value.abs().unique())  # no two others are
        found += isinstance(node, Sum)
    assert found
