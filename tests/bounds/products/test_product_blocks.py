"""Very many small nets of products: attention, normalization, gates and recurrence, each with its own box."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds.blocks import FUNCTION, GROUPS, Ball, Tally, U, captured, check, compare, compare_deployed
from support.bounds.engines import engine_of
from torch import Tensor, nn

from pyrobust.bounds.graph import capture as capture_module
from pyrobust.bounds.graph.evaluate import forward_all
from pyrobust.bounds.graph.nodes import Node
from pyrobust.bounds.input_set import box

METHODS = ("ibp", "crown-ibp", "crown", "alpha-crown")
_LIMIT = 1e30  # of values that are checked: far from where float32 overflows
Value = Any  # a tensor, or a Ball of tensors


def move(z: Value, f: Callable[[Tensor], Tensor]) -> Value:
    """Apply a function that moves numbers alone."""
    return z.map(f) if isinstance(z, Ball) else f(z)


def multiply(x: Value, y: Value, f: Callable[[Tensor, Tensor], Tensor] = torch.mul, count: int = 1) -> Value:
    """Apply a bilinear function, sums of `count` products; y may be a constant."""
    if not isinstance(x, Ball):
        return f(x, y)
    other = y if isinstance(y, Ball) else Ball(y.double(), torch.zeros_like(y, dtype=torch.float64))
    sizes, share = (x.value.abs(), other.value.abs()), 4 * (count + 2) * U
    error = f(sizes[0], other.error) + f(x.error, sizes[1]) + f(x.error, other.error) + share * f(*sizes)
    return Ball(f(x.value, other.value), error * (1 + 2 * share))


def add(x: Value, y: Value) -> Value:
    if not isinstance(x, Ball):
        return x + y
    other = y if isinstance(y, Ball) else Ball(y.double(), torch.zeros_like(y, dtype=torch.float64))
    total = x.value + other.value
    return Ball(total, (x.error + other.error) * (1 + 4 * U) + 2 * U * total.abs())


def apply(function: Callable[[Tensor], Tensor], z: Value) -> Value:
    """Apply a function whose slope is at most 2."""
    if not isinstance(z, Ball):
        return function(z)
    return Ball(function(z.value), 2 * z.error + FUNCTION * (1 + z.value.abs()))


def softmax(z: Value) -> Value:
    if not isinstance(z, Ball):
        return z.softmax(-1)
    shares = z.value.softmax(-1)
    return Ball(shares, shares * torch.expm1(3 * z.error.amax(-1, keepdim=True)) + FUNCTION)


def normalize(z: Value, centered: bool) -> Value:
    """Layer norm without weights, or RMS norm; an error moves the root of the mean square by no more than itself."""
    if not isinstance(z, Ball):
        shape = z.shape[-1:]
        return nn.functional.layer_norm(z, shape) if centered else nn.functional.rms_norm(z, shape, eps=1e-5)
    value = z.value - z.value.mean(-1, keepdim=True) if centered else z.value
    root = (value.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    error = (2 * z.error.amax(-1, keepdim=True) + 64 * U * z.value.abs().amax(-1, keepdim=True)) * (1 + 64 * U)
    least = (root - error).clamp(min=1e-5**0.5 * (1 - FUNCTION))
    return Ball(value / root, (error + (value / root).abs() * (error + 64 * U * root)) / least)


class Layer(nn.Module):
    """A linear map of the features of each step, one for each net."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(GROUPS, features, out))
        self.bias = nn.Parameter(torch.zeros(GROUPS, 1, out))

    def forward(self, z: Value) -> Value:
        return add(multiply(z, self.weight, torch.matmul, self.weight.shape[1]), self.bias)


class Attention(nn.Module):
    def __init__(self, features: int, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (Layer(features, features) for _ in range(3))
        self.causal = causal

    def forward(self, z: Value) -> Value:
        scores = multiply(self.query(z), move(self.key(z), lambda t: t.mT), torch.matmul, self.query.weight.shape[1])
        if self.causal:
            steps = (scores.value if isinstance(scores, Ball) else scores).shape[-1]
            scores = add(scores, torch.full((steps, steps), -1e4).triu(1))
        shares = softmax(scores)
        steps = (shares.value if isinstance(shares, Ball) else shares).shape[-1]
        return add(z, multiply(shares, self.value(z), torch.matmul, steps))


class Gate(nn.Module):
    def __init__(self, features: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.value, self.gate, self.function = Layer(features, features), Layer(features, features), function

    def forward(self, z: Value) -> Value:
        return add(z, multiply(self.value(z), apply(self.function, self.gate(z))))


class Norm(nn.Module):
    def __init__(self, features: int, centered: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(GROUPS, 1, features)), nn.Parameter(torch.zeros(1))
        self.centered = centered

    def forward(self, z: Value) -> Value:
        return add(multiply(normalize(z, self.centered), self.weight), self.bias)


class Recurrence(nn.Module):
    """A long short-term memory's cell with coupled gates, one step after the other."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.forget, self.candidate = Layer(2 * features, features), Layer(2 * features, features)

    def forward(self, z: Value) -> Value:
        count = (z.value if isinstance(z, Ball) else z).shape[2]
        state = move(z, lambda t: t[:, :, :1] * 0)
        for step in range(count):
            now = move(z, lambda t, step=step: t[:, :, step : step + 1])
            joined = self._join(now, apply(torch.tanh, state))
            keep = apply(torch.sigmoid, self.forget(joined))
            less = apply(torch.sigmoid, multiply(self.forget(joined), -torch.ones(1)))  # 1 - keep
            state = add(multiply(keep, state), multiply(less, apply(torch.tanh, self.candidate(joined))))
        return state

    @staticmethod
    def _join(a: Value, b: Value) -> Value:
        if isinstance(a, Ball):
            return Ball(torch.cat([a.value, b.value], 3), torch.cat([a.error, b.error], 3))
        return torch.cat([a, b], 3)


class Nets(nn.Module):
    """GROUPS nets of a few steps, with two outputs each."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.steps, self.features = int(rng.integers(1, 4)), int(rng.integers(2, 4))
        layers: list[nn.Module] = []
        for _ in range(int(rng.integers(1, 3))):
            kind = rng.integers(5)
            if kind <= 1:
                layers.append(Attention(self.features, bool(rng.integers(2))))
            elif kind == 2:
                functions = (torch.sigmoid, torch.tanh, nn.functional.gelu, torch.relu)
                layers.append(Gate(self.features, functions[rng.integers(4)]))
            else:
                layers.append(Norm(self.features, bool(rng.integers(2))))
        if rng.random() < 0.25:
            layers.append(Recurrence(self.features))
            self.head = Layer(self.features, 2)
        else:
            self.head = Layer(self.steps * self.features, 2)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Value) -> Value:
        z = move(x, lambda t: t.view(-1, GROUPS, self.steps, self.features))
        for layer in self.layers:
            z = layer(z)
        return move(self.head(move(z, lambda t: t.flatten(2).unsqueeze(2))), lambda t: t.flatten(1))


def fill(net: nn.Module, rng: np.random.Generator) -> None:
    """Draw all weights; some nets nearly cancel, some have large weights."""
    cancels, large = rng.random((2, GROUPS)) < 0.2
    for parameter in net.parameters():
        values = rng.standard_normal(tuple(parameter.shape))
        if values.ndim == 3:
            values[large] *= 8.0
            odd = values[:, 1::2]
            odd[cancels] = -values[:, 0::2][:, : odd.shape[1]][cancels] * (1 + 1e-6)
        parameter.data.copy_(torch.from_numpy(values))


def draw_box(net: Nets, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return both ends [1, ...] of a box; some are wide, some a point."""
    block = (1, GROUPS, net.steps * net.features)
    x = rng.standard_normal(block) * 10.0 ** rng.choice([-4, -2, 0, 0, 1], size=(1, GROUPS, 1))
    reach = 10.0 ** rng.uniform(-7, 0.3, size=(1, GROUPS, 1)) * (rng.random((1, GROUPS, 1)) > 0.1)
    lower = torch.from_numpy(x).float().view(1, -1)
    return lower, lower.maximum(torch.from_numpy(x + np.abs(x) * reach * rng.random(block)).float().view(1, -1))


def extreme_points(net: Nets, lower: Tensor, upper: Tensor, rng: np.random.Generator) -> Tensor:
    """Return points [P, ...] of the box, in float32: steps of a sign ascent of each output, corners and the rest."""
    ends = lower.double(), upper.double()
    points = [lower, upper, (lower / 2 + upper / 2).clamp(lower, upper)]
    draws = torch.from_numpy(rng.random((4, lower.shape[1]))).float()
    points += [torch.where(draws[:2] < 0.5, lower, upper), (lower + (upper - lower) * draws[2:]).clamp(lower, upper)]
    for sign, k in itertools.product((1, -1), (0, 1)):
        x = points[2]
        for _ in range(3):
            z = x.double().requires_grad_(True)
            slope = torch.autograd.grad(net(Ball(z, torch.zeros_like(z))).value[:, k::2].sum(), z)[0]
            x = torch.where(sign * slope.nan_to_num(0) < 0, *ends).float()
            points.append(x)
    return torch.cat(points)


def run(seed: int, nets: int, monkeypatch: pytest.MonkeyPatch, *, settings: int = 40) -> dict[str, Tally]:
    """Check bounds of `nets` nets by the native engine, `settings` draws for each architecture; of some by torch's."""
    rng = np.random.default_rng(seed)
    tallies = {name: Tally() for name in ("native", "torch")}
    export = capture_module._export
    for step in itertools.count():
        if tallies["native"].nets >= nets:
            break
        if step % settings == 0:
            net = Nets(rng).eval().requires_grad_(False)
            program = export(capture_module._Classifier(net), torch.zeros(2, GROUPS * net.steps * net.features))
        fill(net, rng)
        lower, upper = draw_box(net, rng)
        output = captured(net, lower, program, monkeypatch)
        if output is None:
            continue
        points = extreme_points(net, lower, upper, rng)
        if step % 4 == 0:
            check_known_ranges(output, points)
        values = net(Ball(points.double(), torch.zeros_like(points, dtype=torch.float64)))
        usable = values.error.isfinite() & (values.value.abs() < _LIMIT)
        values = Ball(values.value.where(usable, 0), values.error.where(usable, torch.inf))
        inputs = box(lower, upper, tuple(lower.shape[1:]))
        for name, tally in tallies.items():
            if name == "torch" and step % 64:  # a hundred times as slow
                continue
            engine, note = engine_of(output, torch.float32, name), (seed, step, name, net)
            methods = METHODS[: 4 if step % 4 == 0 else 3] if name == "native" else METHODS[step // 64 % 3 :][:1]
            compare(tally, engine, inputs, values, methods, step % 8 == 0, note)
            if name == "native" and step % 4 == 2:  # at eight batch shapes
                outputs = [torch.cat([net(chunk) for chunk in points.split(batch)]) for batch in range(1, 9)]
                compare_deployed(tally, engine, inputs, outputs, METHODS[rng.integers(3)], note)
    return tallies


def check_known_ranges(output: Node, points: Tensor) -> None:
    for node, values in forward_all(output, points.double()).items():
        low, high = node.known
        slack = FUNCTION * (1 + values.abs().amax())
        assert bool(((values >= low - slack) & (values <= high + slack) | values.isnan()).all()), node.name


def test_nets_of_products_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    check(run(1, 640, monkeypatch, settings=4), 32, 0.5)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3000, 3040))
def test_a_million_nets_of_products(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(run(seed, 25_000, monkeypatch), 300, 0.5)
