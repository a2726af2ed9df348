"""The Lipschitz constant of a graph: those of its layers, multiplied along paths and added where paths meet."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations import row_of
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Reshape,
    Scale,
    Sum,
    in_order,
)
from pyrobust.bounds.lipschitz.operator_norms import Weights, map_norm
from pyrobust.errors import ModelError

#: The name of these bounds in errors.
ENGINE = "the Lipschitz bound"


@dataclasses.dataclass(frozen=True)
class LayerNorm:
    """The Lipschitz constant of one layer, at least.

    Attributes:
        name: "module path (operator)".
        kind: what it does: "linear", "conv2d", "scale", "sum", "gather", "maxpool" or "activation".
        value: the bound, from its inputs one after the other to its output; of a sum the number of its terms.
    """

    name: str
    kind: str
    value: float


class Constants:
    """Bounds of |f(x) − f(x′)| / |x − x′| in one norm for every node of a graph.

    - ``Linear`` and ``Conv2d``: times the operator norm. A ``Scale`` before or after them is multiplied into the
      weights, where that is one number for each channel, or the layer is linear: ‖D·W‖ ≤ ‖D‖·‖W‖.
    - ``Scale``: the largest |scale|.
    - ``Sum``: constants of the terms add up, by the triangle inequality.
    - ``Gather``: with an element of input i read at most rᵢ times, ‖out‖₂² ≤ Σ rᵢ‖zᵢ‖₂² and ‖out‖₁ ≤ Σ rᵢ‖zᵢ‖₁; in l∞
      the largest of its inputs.
    - ``MaxPool``: maxima of a window differ by at most the largest difference in it, so that in l∞ nothing grows; with
      an element in at most r windows Σ_w max_{i in w} dᵢ² ≤ r·Σ dᵢ², so √r in l2, and r in l1.
    - ``Activation``: the steepest slope.

    Args:
        output: of the graph.
        norm: "linf", "l2" or "l1", of both sides.

    Raises:
        ModelError: a function whose steepest slope is not known, or parameters that are not finite.
    """

    def __init__(self, output: Node, norm: str) -> None:
        self.norm = norm
        self.layers: list[LayerNorm] = []
        self.value: dict[Node, float] = {}
        order = in_order(output)
        self._readers = Counter(one for node in order for one in node.inputs)
        self._folds = {node for node in order if self._folded(node) is not None}
        folded = {self._folded(node) for node in self._folds}
        for node in order:
            # What a scale takes up and nothing else reads has its norm worked out there.
            self.value[node] = math.inf if node in folded else self._of(node)

    def of(self, node: Node) -> float:
        """Of the node as a function of the input."""
        return self.value[node]

    def _of(self, node: Node) -> float:
        inputs = [self.value[one] for one in node.inputs]
        if isinstance(node, Input):
            return 1.0
        if isinstance(node, Reshape):
            return inputs[0]
        if isinstance(node, (Linear, Conv2d)):
            return self._map(node, node, None)
        if isinstance(node, Scale):
            first = self._folded(node)
            if isinstance(first, (Linear, Conv2d)):
                return self._map(node, first, _scale(node))
            if node.scale is None:
                return inputs[0]
            return self._layer(node, float(_scale(node).magnitude().amax()) if node.size else 0.0, inputs[0])
        if isinstance(node, Sum):
            self.layers.append(LayerNorm(node.name, "sum", float(len(inputs))))
            total = 0.0
            for one in inputs:
                total = _up(total + one)
            return total
        if isinstance(node, Gather):
            return self._gather(node)
        if isinstance(node, MaxPool):
            return self._layer(node, self._repeated(_most_windows(node)), inputs[0])
        assert isinstance(node, Activation)
        steepest = row_of(node, ENGINE).lipschitz(node)
        if steepest is None:
            raise ModelError(
                f"model: {node.name} has no known Lipschitz constant: the activation {node.function!r} gives no range "
                "of slopes; pass slope_range to register_rule"
            )
        return self._layer(node, steepest, inputs[0])

    def _layer(self, node: Node, value: float, before: float) -> float:
        self.layers.append(LayerNorm(node.name, type(node).__name__.lower(), value))
        return _product(value, before)

    def _map(self, node: Node, layer: Linear | Conv2d, after: Weights | None) -> float:
        """A linear or convolution layer, with the scale that follows it and the one before it, if they fit."""
        weights = Weights.of(*layer.weight.enclosure())
        if after is not None:
            weights = weights.times(_rows(layer, after))
        weights, z = self.with_scale_before(layer, weights)
        value = map_norm(layer, weights, self.norm)
        self.layers.append(LayerNorm(layer.name, type(layer).__name__.lower(), value))
        return _product(value, self.value[z])

    def with_scale_before(self, layer: Linear | Conv2d, weights: Weights) -> tuple[Weights, Node]:
        """The weights times the factors of a scale before the layer, and the node that they are applied to.

        As they are where there is no scale, its factors do not fit, or the layer before it has taken it up.
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
        for part in (channels.middle, channels.radius):
            grouped = part.view(layer.groups, 1, -1).expand(-1, layer.shape[0] // layer.groups, -1)
            parts.append(grouped.reshape(layer.shape[0], -1, 1, 1))
        return weights.times(Weights(*parts)), z.inputs[0]

    def _folded(self, node: Node) -> Node | None:
        """The layer that a scale can be multiplied into, if nothing else reads that."""
        if not isinstance(node, Scale) or node.scale is None:
            return None
        layer = node.inputs[0]
        while _shifts(layer) and self._readers[layer] == 1:
            layer = layer.inputs[0]
        if not isinstance(layer, (Linear, Conv2d)) or self._readers[layer] > 1:
            return None
        return layer if isinstance(layer, Linear) or _per_channel(_scale(node)) is not None else None

    def _repeated(self, count: int) -> float:
        """What elements that occur so many times stretch a distance by."""
        if self.norm == "l2":
            root = math.sqrt(count)
            return root if root * root == count and root.is_integer() else _up(root)
        return float(count) if self.norm == "l1" else 1.0

    def _gather(self, node: Gather) -> float:
        counts = torch.bincount(node.index.flatten() + 1, minlength=1 + sum(one.size for one in node.inputs))[1:]
        read: dict[Node, Tensor] = {}
        for one, part in zip(node.inputs, torch.split(counts, [one.size for one in node.inputs]), strict=True):
            read[one] = read[one] + part if one in read else part
        most = {one: int(part.amax()) for one, part in read.items() if part.numel() and bool(part.any())}
        self.layers.append(LayerNorm(node.name, "gather", self._repeated(max(most.values(), default=0))))
        if self.norm == "linf":
            return max((self.value[one] for one in most), default=0.0)
        if len(most) == 1:
            ((one, count),) = most.items()
            return _product(self._repeated(count), self.value[one])
        total = 0.0
        for one, count in most.items():
            value = self.value[one]
            total = _up(total + _product(float(count), _product(value, value) if self.norm == "l2" else value))
        return _up(math.sqrt(total)) if self.norm == "l2" else total


def _most_windows(node: MaxPool) -> int:
    """In how many windows an element is, at most; twice in one counts once."""
    order = node.windows.sort(1).values
    again = torch.zeros_like(order, dtype=torch.bool)
    again[:, 1:] = order[:, 1:] == order[:, :-1]
    chosen = order[(order >= 0) & ~again]
    return int(torch.bincount(chosen).amax()) if len(chosen) else 0


def _scale(node: Scale) -> Weights:
    """Its factors, in the shape of the node."""
    assert isinstance(node.scale, Constant)
    return Weights.of(*(end.expand(1, *node.shape)[0] for end in node.scale.enclosure()))


def _per_channel(scale: Weights) -> Weights | None:
    """One factor for each channel, if it is that."""
    if scale.middle.dim() != 3 or not scale.middle.numel():
        return None
    flat = [part.flatten(1) for part in (scale.middle, scale.radius)]
    if not all(bool((part == part[:, :1]).all()) for part in flat):
        return None
    return Weights(*(part[:, 0] for part in flat))


def _rows(layer: Linear | Conv2d, scale: Weights) -> Weights:
    """Factors of the outputs, to be multiplied with the weights."""
    if isinstance(layer, Linear):
        return Weights(scale.middle.reshape(-1, 1), scale.radius.reshape(-1, 1))
    channels = _per_channel(scale)
    assert channels is not None
    return Weights(*(part.view(-1, 1, 1, 1) for part in (channels.middle, channels.radius)))


def _shifts(node: Node) -> bool:
    """Whether a node adds constants only."""
    return isinstance(node, Scale) and node.scale is None


def _up(value: float) -> float:
    """The next number above; 0 stays."""
    return math.nextafter(value, math.inf) if value > 0 else value


def _product(a: float, b: float) -> float:
    """Of numbers of at least 0, rounded up; 0 times what is too large to be known is 0."""
    if a == 0 or b == 0:
        return 0.0
    return a if b == 1 else b if a == 1 else math.nextafter(a * b, math.inf)
