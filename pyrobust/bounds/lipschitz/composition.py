"""The Lipschitz constant of a graph: layers' constants are multiplied along paths and added where paths meet."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations import row_of
from pyrobust.bounds.graph.analysis import origin, seminorm
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Product,
    Reshape,
    Scale,
    Sort,
    Sum,
    in_order,
)
from pyrobust.bounds.lipschitz.operator_norms import Weights, map_norm
from pyrobust.errors import ModelError

#: The name of these bounds in errors.
ENGINE = "the Lipschitz bound"


@dataclasses.dataclass(frozen=True)
class LayerNorm:
    """An upper bound of the Lipschitz constant of one layer.

    Attributes:
        name: "module path (operator)".
        kind: the operation: "linear", "conv2d", "scale", "sum", "gather", "sort", "norm", "maxpool" or "activation".
        value: the bound for the layer as a map of all its inputs, concatenated. For a sum, the value is the number of
            terms instead.
    """

    name: str
    kind: str
    value: float


class Constants:
    """Bounds of |f(x) − f(x′)| / |x − x′| in one norm for every node of a graph.

    - ``Linear`` and ``Conv2d``: the operator norm. If a ``Scale`` before or after such a layer has one factor per
      channel, or the layer is a ``Linear``, the scale is multiplied into the weights. This does not increase the
      constant, because ‖D·W‖ ≤ ‖D‖·‖W‖.
    - ``Scale``: the largest |scale|.
    - ``Sum``: the sum of the constants of its terms, by the triangle inequality.
    - ``Gather``: in l∞, the largest constant of its inputs. In l2 and l1, the constant follows from ‖out‖₂² ≤ Σ
      rᵢ‖zᵢ‖₂² and ‖out‖₁ ≤ Σ rᵢ‖zᵢ‖₁, where each element of input zᵢ is read at most rᵢ times. Several gathers in a row
      count as one, so that splitting a tensor and concatenating its parts again does not increase the constant. If both
      relu(z) and relu(−z) are inputs, they count as the single input z, because only one of them changes at a time.
    - The root of a weighted sum of squares, √(A z² + b) with A ≥ 0: its elements are weighted l2 norms, which change by
      at most √(A Δ²) if z changes by Δ. The constant is √‖A‖₁ in l2, √‖A‖∞ in l∞ and ‖√A‖₁ in l1; hence it is 1 for the
      l2 norms of disjoint windows.
    - ``Sort``: 1, because sorting never increases the distance of two tuples (Anil, Lucas and Grosse, 2019).
    - ``MaxPool``: for two inputs with differences dᵢ, the maxima of a window differ by at most the largest |dᵢ| in the
      window, so the constant is 1 in l∞. If an element is in at most r windows, Σ_w max_{i in w} dᵢ² ≤ r·Σ dᵢ², so the
      constant is √r in l2, and r in l1.
    - ``Activation``: the largest absolute slope.

    Args:
        output: output node of the graph.
        norm: the norm of both inputs and outputs: "linf", "l2" or "l1".

    Raises:
        ModelError: a product of two nodes, an activation without a slope range, or parameters that are not finite.
    """

    def __init__(self, output: Node, norm: str) -> None:
        self.norm = norm
        self.layers: list[LayerNorm] = []
        self.value: dict[Node, float] = {}
        order = _read_nodes(output)
        self._readers = collections.Counter(source for node in order for source in _sources(node))
        self._folds = {node for node in order if self._folded(node) is not None}
        folded = {self._folded(node) for node in self._folds}
        for node in order:
            # If a layer is folded into its scale, its norm is computed there.
            self.value[node] = math.inf if node in folded else self._of(node)

    def of(self, node: Node) -> float:
        """Return the constant of the map from the network's input to a node."""
        return self.value[node]

    def _of(self, node: Node) -> float:
        inputs = [self.value[source] for source in _sources(node)]
        if isinstance(node, Input):
            return 1.0
        if isinstance(node, Reshape):
            return inputs[0]
        if isinstance(node, (Linear, Conv2d)):
            return self._map(node, None)
        if isinstance(node, Scale):
            first = self._folded(node)
            if isinstance(first, (Linear, Conv2d)):
                return self._map(first, _scale(node))
            if node.scale is None:
                return inputs[0]
            return self._layer(node, float(_scale(node).magnitude().amax()) if node.size else 0.0, inputs[0])
        if isinstance(node, Sum):
            self.layers.append(LayerNorm(node.name, "sum", float(len(inputs))))
            total = 0.0
            for value in inputs:
                total = _up(total + value)
            return total
        if isinstance(node, Sort):
            first = node.inputs[-1]
            if not (isinstance(first, Sort) and first.name == node.name):  # a further step of the same sort
                self.layers.append(LayerNorm(node.name, "sort", 1.0))
            return inputs[0]
        if isinstance(node, Gather):
            return self._gather(node)
        if isinstance(node, MaxPool):
            return self._layer(node, self._repeated(_most_windows(node)), inputs[0])
        if isinstance(node, Product):
            raise ModelError(
                f"model: {node.name} has no Lipschitz constant: it multiplies two tensors that depend on the input"
            )
        assert isinstance(node, Activation)
        constant = seminorm(node)
        if constant is not None:
            self.layers.append(LayerNorm(node.name, "norm", self._root_of_squares(constant[0])))
            return _product(self.layers[-1].value, inputs[0])
        steepest = row_of(node, ENGINE).lipschitz(node)
        if steepest is None:
            raise ModelError(
                f"model: {node.name} has no known Lipschitz constant: the activation {node.function!r} jumps, or "
                "has no slope range: pass slope_range to register_rule"
            )
        return self._layer(node, steepest, inputs[0])

    def _layer(self, node: Node, value: float, before: float) -> float:
        self.layers.append(LayerNorm(node.name, type(node).__name__.lower(), value))
        return _product(value, before)

    def _map(self, layer: Linear | Conv2d, after: Weights | None) -> float:
        """Return the constant of a linear or convolution layer, including the scales that are folded into it."""
        weights = Weights.of(*layer.weight.enclosure())
        if after is not None:
            weights = weights.times(_rows(layer, after))
        weights, z = self.with_scale_before(layer, weights)
        value = map_norm(layer, weights, self.norm)
        self.layers.append(LayerNorm(layer.name, type(layer).__name__.lower(), value))
        return _product(value, self.value[z])

    def with_scale_before(self, layer: Linear | Conv2d, weights: Weights) -> tuple[Weights, Node]:
        """Multiply weights by the factors of a scale before the layer; also return the node that the layer then reads.

        The weights stay unchanged in three cases: the layer has no scale before it; the factors of the scale differ
        within a channel; or the scale is folded into the layer before the scale.
        """
        z = layer.inputs[0]
        while _shifts(z):
            z = z.inputs[0]
        if not isinstance(z, Scale) or z in self._folds:
            return weights, z
        scale = _scale(z)
        if isinstance(layer, Linear):
            return weights.times(Weights(scale.middle.reshape(1, -1), scale.radius.reshape(1, -1))), z.inputs[0]
        channels = _per_channel(scale)
        if channels is None:
            return weights, z
        parts = []
        for values in (channels.middle, channels.radius):
            grouped = values.view(layer.groups, 1, -1).expand(-1, layer.shape[0] // layer.groups, -1)
            parts.append(grouped.reshape(layer.shape[0], -1, 1, 1))
        return weights.times(Weights(*parts)), z.inputs[0]

    def _folded(self, node: Node) -> Node | None:
        """Return the layer that a scale can be folded into; None if other nodes read that layer, too."""
        if not isinstance(node, Scale) or node.scale is None:
            return None
        layer = node.inputs[0]
        while _shifts(layer) and self._readers[layer] == 1:
            layer = layer.inputs[0]
        if not isinstance(layer, (Linear, Conv2d)) or self._readers[layer] > 1:
            return None
        return layer if isinstance(layer, Linear) or _per_channel(_scale(node)) is not None else None

    def _root_of_squares(self, chain: list[Node]) -> float:
        """Return the constant of √(A z² + b), computed as a product over the factors of A."""
        factor, norm = 1.0, "linf" if self.norm == "linf" else "l1"
        for node in chain:
            if isinstance(node, (Linear, Conv2d)):
                value = map_norm(node, self._rooted(Weights.of(*node.weight.enclosure())), norm)
            elif isinstance(node, Scale) and node.scale is not None:
                value = float(self._rooted(_scale(node)).magnitude().amax()) if node.size else 0.0
            elif isinstance(node, Gather) and norm == "l1":
                value = float(torch.bincount(node.index.flatten() + 1, minlength=2)[1:].amax())
            else:
                continue
            factor = _product(factor, value)
        return factor if self.norm == "l1" else _root(factor)

    def _rooted(self, weights: Weights) -> Weights:
        """Return upper bounds of the weights; in l1, of their square roots."""
        size = weights.magnitude()
        return Weights(size.sqrt() * (1 + 2.0**-50) if self.norm == "l1" else size, torch.zeros_like(size))

    def _repeated(self, count: int) -> float:
        """Return the factor by which a distance grows if each element occurs ``count`` times."""
        if self.norm == "l2":
            return _root(count)
        return float(count) if self.norm == "l1" else 1.0

    def _gather(self, node: Gather) -> float:
        largest = {source: int(times.amax()) for source, times in _reads(node).items() if bool(times.any())}
        self.layers.append(LayerNorm(node.name, "gather", self._repeated(max(largest.values(), default=0))))
        if self.norm == "linf":
            return max((self.value[source] for source in largest), default=0.0)
        if len(largest) == 1:
            ((source, count),) = largest.items()
            return _product(self._repeated(count), self.value[source])
        total = 0.0
        for source, count in largest.items():
            value = self.value[source]
            total = _up(total + _product(float(count), _product(value, value) if self.norm == "l2" else value))
        return _up(math.sqrt(total)) if self.norm == "l2" else total


def _sources(node: Node) -> tuple[Node, ...]:
    """Return the nodes whose constants determine the constant of a node."""
    if isinstance(node, Sort):
        return node.inputs[-1:]
    constant = seminorm(node)
    if constant is not None:
        return (constant[1],)
    return origin(node).nodes if isinstance(node, Gather) else node.inputs


def _read_nodes(output: Node) -> list[Node]:
    """Return the nodes whose constants determine that of the output, each after its own sources."""
    order = in_order(output)
    read = {output}
    for node in reversed(order):
        if node in read:
            read.update(_sources(node))
    return [node for node in order if node in read]


def _reads(node: Gather) -> dict[Node, Tensor]:
    """Count reads of each element of a gather's nodes; relu(z) and relu(−z) become z, with the larger count."""
    source = origin(node)
    counts = torch.bincount(source.places + 1, minlength=1 + sum(operand.size for operand in source.nodes))[1:]
    read = dict(zip(source.nodes, torch.split(counts, [operand.size for operand in source.nodes]), strict=True))
    for operand in source.nodes:
        opposite = _opposite_relu(operand, read)
        if opposite is not None:
            z, both = operand.inputs[0], torch.maximum(read.pop(operand), read.pop(opposite))
            read[z] = read[z] + both if z in read else both
    return read


def _opposite_relu(node: Node, others: Iterable[Node]) -> Node | None:
    """Return the node relu(−z) among the others, if ``node`` is relu(z); None if there is no such node."""
    return next(
        (other for other in others if _is_relu(node) and _is_relu(other) and _negates(other.inputs[0], node.inputs[0])),
        None,
    )


def _is_relu(node: Node) -> bool:
    return isinstance(node, Activation) and node.function == "leaky_relu" and node.slope == 0


def _negates(node: Node, z: Node) -> bool:
    """Whether a node is −z."""
    if isinstance(node, Sum):
        return node.inputs == (z,) and node.signs == (-1,)
    if not isinstance(node, Scale) or node.scale is None or node.shift is not None or node.inputs[0] is not z:
        return False
    return all(bool((bound == -1).all()) for bound in node.scale.enclosure())


def _most_windows(node: MaxPool) -> int:
    """Return how many windows contain the element that is in the most windows."""
    order = node.windows.sort(1).values
    again = torch.zeros_like(order, dtype=torch.bool)
    again[:, 1:] = order[:, 1:] == order[:, :-1]
    chosen = order[(order >= 0) & ~again]
    return int(torch.bincount(chosen).amax()) if len(chosen) else 0


def _scale(node: Scale) -> Weights:
    """Return the factors of a scale in the shape of its node."""
    assert isinstance(node.scale, Constant)
    return Weights.of(*(bound.expand(1, *node.shape)[0] for bound in node.scale.enclosure()))


def _per_channel(scale: Weights) -> Weights | None:
    """Return one factor per channel; None if factors differ within a channel."""
    if scale.middle.dim() != 3 or not scale.middle.numel():
        return None
    flat = [values.flatten(1) for values in (scale.middle, scale.radius)]
    if not all(bool((values == values[:, :1]).all()) for values in flat):
        return None
    return Weights(*(values[:, 0] for values in flat))


def _rows(layer: Linear | Conv2d, scale: Weights) -> Weights:
    """Return the factors by which a scale multiplies a layer's outputs, in a shape that broadcasts to the weights."""
    if isinstance(layer, Linear):
        return Weights(scale.middle.reshape(-1, 1), scale.radius.reshape(-1, 1))
    channels = _per_channel(scale)
    assert channels is not None
    return Weights(*(values.view(-1, 1, 1, 1) for values in (channels.middle, channels.radius)))


def _shifts(node: Node) -> bool:
    """Whether a node only adds constants."""
    return isinstance(node, Scale) and node.scale is None


def _root(value: float) -> float:
    """Return the square root, rounded up."""
    root = math.sqrt(value)
    return root if root * root == value and root.is_integer() else _up(root)


def _up(value: float) -> float:
    """Return the next larger float; 0 stays 0."""
    return math.nextafter(value, math.inf) if value > 0 else value


def _product(a: float, b: float) -> float:
    """Return the product of numbers of at least 0, rounded up; 0 times inf is 0."""
    if a == 0 or b == 0:
        return 0.0
    return a if b == 1 else b if a == 1 else math.nextafter(a * b, math.inf)
