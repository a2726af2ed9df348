"""Random graphs against exact arithmetic, with layers read by several others and elements read repeatedly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.bounds.engines import ENGINES, LIBRARY, PATHS, engine_of
from support.bounds.exact import Exact, exact_of, joined
from support.bounds.sets import KINDS, Sets, directions, points, random_sets, violated, within
from torch import Tensor

from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.evaluate import forward
from pyrobust.bounds.graph.lowering.registry import Lowering
from pyrobust.bounds.graph.lowering.sorting import exchanged
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Product,
    Scale,
    Sort,
    Sum,
    in_order,
)

METHODS = ("ibp", "crown-ibp", "crown")


def evaluate(output: Node, x: Exact) -> Exact:
    """Return the output [P, n] for inputs [P, n]; constants are exact floats."""
    values: dict[Node, Exact] = {}
    for node in in_order(output):
        inputs = [values[source] for source in node.inputs]
        values[node] = x if isinstance(node, Input) else _value(node, inputs)
    return values[output]


def _value(node: Node, inputs: list[Exact]) -> Exact:
    z = inputs[0]
    if isinstance(node, Linear):
        out = z.times(node.weight.value())
        return out if node.bias is None else out + exact_of(node.bias.value()[None])
    if isinstance(node, Conv2d):
        out = z.times(dense_weight(node))
        bias = node.bias.value()[:, None].expand(-1, node.shape[1] * node.shape[2]).flatten()
        return out + exact_of(bias[None])
    if isinstance(node, Scale):
        return z * exact_of(node.scale.value()[None]) + exact_of(node.shift.value()[None])
    if isinstance(node, Sum):
        terms = [term if sign > 0 else -term for sign, term in zip(node.signs, inputs, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total
    if isinstance(node, Sort):
        pairs, larger = node.pairs.numpy(), node.larger.numpy()
        return inputs[-1].map(lambda n: np.where(larger, n[:, pairs].max(2), n[:, pairs].min(2)))
    if isinstance(node, (Gather, MaxPool)):
        zero = Exact.rational(np.full((len(z.lower), 1), 0, dtype=object), 1)
        every = joined([*inputs, zero], 1)
        if isinstance(node, Gather):
            return every.map(lambda n: n[:, node.index.flatten().numpy()])
        return every.map(lambda n: np.stack([n[:, [i for i in w if i >= 0]].max(1) for w in node.windows.tolist()], 1))
    if isinstance(node, Product):
        return inputs[0] * inputs[1]
    assert isinstance(node, Activation)
    if node.function == "clamp":
        low, high = exact_of(torch.tensor([[node.lower, node.upper]], dtype=torch.float64)).over(2**80).lower[0]
        return z.over(z.divisor * 2**80).map(lambda n: np.minimum(np.maximum(n, low * z.divisor), high * z.divisor))
    p, q = node.slope.as_integer_ratio()
    scaled = z.map(lambda n: np.maximum(n * q, n * p))
    return Exact(scaled.lower, scaled.upper, z.divisor * q)


def dense_weight(node: Conv2d) -> Tensor:
    """Return the matrix of a convolution: its values at unit images."""
    shape = node.inputs[0].shape
    units = torch.eye(int(np.prod(shape)), dtype=torch.float64).view(-1, *shape)
    weight = node.weight.value().double()
    return (
        torch.nn.functional.conv2d(units, weight, None, node.stride, node.padding, node.dilation, node.groups)
        .flatten(1)
        .T
    )


class Maker:
    """Builder of random graphs; constants are float32 numbers of several scales."""

    def __init__(self, rng: np.random.Generator, *, products: bool = False) -> None:
        self.rng = rng
        self.kinds = 12 if products else 10
        self.scale = 10.0 ** rng.integers(-12, 13) if rng.random() < 0.3 else 1.0
        self.nodes: list[Node] = [Input(name="x", shape=(int(rng.integers(1, 9)),), inputs=())]

    def constant(self, *shape: int) -> Constant:
        size = self.scale if self.rng.random() < 0.5 else 1.0
        return Constant.of(torch.from_numpy(self.rng.standard_normal(shape) * size).float())

    def any(self) -> Node:
        recent = self.nodes[-3:] if self.rng.random() < 0.7 else self.nodes
        return recent[self.rng.integers(len(recent))]

    def add(self) -> None:
        z, rng = self.any(), self.rng
        size = int(rng.integers(1, 9))
        flat = {"name": "node", "shape": z.shape, "inputs": (z,)}
        kind = rng.integers(self.kinds)
        node: Node
        if kind == 0:
            node = Linear(
                name="l", shape=(size,), inputs=(z,), weight=self.constant(size, z.size), bias=self.constant(size)
            )
        elif kind == 1 and z.size >= 4:
            planes = Gather(name="g", shape=(2, 2, 3), inputs=(z,), index=self.index(z.size, (2, 2, 3)))
            groups = int(rng.integers(1, 3))
            conv = Conv2d(
                name="c",
                shape=(4, 3, 2),
                inputs=(planes,),
                weight=self.constant(4, 2 // groups, 2, 2),
                bias=self.constant(4),
                stride=(1, 2),
                padding=(1, 1),
                dilation=(1, 1),
                groups=groups,
            )
            node = Gather(name="g", shape=(size,), inputs=(conv,), index=self.index(24, (size,)))
        elif kind == 2:
            node = Scale(**flat, scale=self.constant(*z.shape), shift=self.constant(*z.shape))
        elif kind == 3:
            others = self.like(z)
            chosen = tuple(others[i] for i in rng.integers(len(others), size=rng.integers(1, 5)))
            signs = tuple(int(s) for s in rng.choice([1, -1], size=len(chosen)))
            node = Sum(name="s", shape=z.shape, inputs=chosen, signs=signs)
        elif kind == 4:
            inputs = tuple(self.any() for _ in range(rng.integers(1, 4)))
            total = sum(source.size for source in inputs)
            node = Gather(name="g", shape=(size,), inputs=inputs, index=self.index(total, (size,)))
        elif kind == 5:
            windows = torch.cat(
                [self.index(z.size, (size, 3)), torch.from_numpy(rng.integers(z.size, size=(size, 1)))], 1
            )
            node = MaxPool(name="m", shape=(size,), inputs=(z,), windows=windows)
        elif kind == 6 and z.size >= 2:
            places = torch.from_numpy(rng.permutation(z.size)[: z.size // 2 * 2]).view(2, -1)
            count = int(rng.integers(1, places.shape[1] + 1))
            node = exchanged(Lowering(torch.float32), z, *places[:, :count])
        elif kind == 7:
            low = float(rng.choice([-1.0, 0.0, 0.3]))
            node = Activation(**flat, function="clamp", lower=low, upper=low + float(rng.choice([0.0, 0.5, 3.0])))
        elif kind >= 10:
            others = self.like(z)
            node = Product(name="p", shape=z.shape, inputs=(z, others[int(rng.integers(len(others)))]))
        else:
            node = Activation(**flat, function="leaky_relu", slope=float(rng.choice([0, 0, 0, 0.1, 0.7])))
        self.nodes.append(node)

    def like(self, z: Node) -> list[Node]:
        """Return the nodes of the same shape."""
        return [other for other in self.nodes if other.shape == z.shape]

    def index(self, total: int, shape: tuple[int, ...]) -> Tensor:
        """Draw element indices with repetition; -1 stands for no element."""
        return torch.from_numpy(self.rng.integers(-1, total, size=shape))

    def output(self) -> Node:
        """Build an output that reads the last nodes."""
        inputs = tuple(self.nodes[-4:])
        total = sum(source.size for source in inputs)
        every = Gather(name="g", shape=(total,), inputs=inputs, index=torch.arange(total))
        return Linear(name="l", shape=(3,), inputs=(every,), weight=self.constant(3, total), bias=self.constant(3))


def slopes(output: Node, sets: Sets) -> np.ndarray:
    x = sets.x.double()
    if sets.kind == "box":
        x = x / 2 + sets.x_upper.double() / 2
    x.requires_grad_(True)
    values = forward(output, x)
    per_row = [torch.autograd.grad(values[:, s].sum(), x, retain_graph=True, allow_unused=True)[0] for s in range(3)]
    return np.stack([np.zeros(x.shape) if g is None else g.nan_to_num(0, 1, -1).numpy() for g in per_row])


def run(
    seed: int, graphs: int, count: int, names: Sequence[str] = PATHS, *, products: bool = False
) -> dict[tuple[str, bool], int]:
    """Return the number of violated bounds by engine and soundness."""
    rng = np.random.default_rng(seed)
    outside = dict.fromkeys(itertools.product(names, (True, False)), 0)
    for _ in range(graphs):
        maker = Maker(rng, products=products)
        for _ in range(rng.integers(2, 12)):
            maker.add()
        output = maker.output()
        sets = random_sets(str(rng.choice(KINDS)), count, maker.nodes[0].shape, torch.float32, rng)
        along = slopes(output, sets) if output.size else np.zeros((3, count, 1))
        both = np.concatenate([along, -along]).reshape(-1, along.shape[2])
        parts = [directions(sets.kind, both, rng), within(sets.kind, count, along.shape[2], rng)]
        values = evaluate(output, points(sets, joined(parts, 0), 7)).map(lambda v: v.reshape(7, count, 3))
        inputs = sets.of_engine()
        for name in names:
            engine = engine_of(output, torch.float32, name)
            for method, sound in itertools.product(METHODS, (True, False)):
                lower, upper = engine.run(inputs, None, Query(method, sound, "real", None))
                violations = violated(values, lower, upper)
                outside[name, sound] += violations
                kinds = [type(node).__name__ for node in in_order(output)]
                assert not (sound and violations), (seed, name, method, kinds, sets)
    print(f"{graphs * count} cases; bounds outside, by engine and soundness: {outside}")
    return outside


@pytest.mark.parametrize(("seed", "names", "products"), [(21, PATHS, False), (23, ENGINES, True)])
def test_random_graphs(seed: int, names: Sequence[str], products: bool) -> None:
    outside = run(seed, 14, 6, names, products=products)
    for name in names:
        assert outside[name, True] == 0
        assert outside[name, False] > 0


def test_random_graphs_at_every_level(simd_level: str) -> None:
    outside = run(22, 12, 4, ["native", LIBRARY])
    assert outside["native", True] == outside[LIBRARY, True] == 0
    assert outside[LIBRARY, False] > 0


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 110))
def test_random_graphs_at_length(seed: int) -> None:
    outside = run(seed, 2000, 8)
    assert all(outside[name, True] == 0 for name in PATHS)
    outside = run(seed, 2000, 8, ENGINES, products=True)
    assert all(outside[name, True] == 0 for name in ENGINES)
