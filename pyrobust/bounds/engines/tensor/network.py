"""The network of the torch engine: a list of layers with flat neurons, and with float64 constants on one device."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.bounds.graph.activations import required, row_of
from pyrobust.bounds.graph.analysis import (
    Analysis,
    Step,
    is_affine,
    is_nonlinear,
    is_partial,
    needs_interval_bounds,
    representatives,
)
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
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
from pyrobust.bounds.graph.rounded_constants import SCALE_ROUNDINGS, bias_of, rounded, weights_of

#: The name of this engine in errors.
ENGINE = "the torch engine"

_NONE = torch.empty(0, dtype=torch.float64, device="cpu")


@dataclasses.dataclass(eq=False, kw_only=True)
class Layer:
    """A node as a layer; its tensors are empty if the node does not use them, and float64 if they hold constants.

    Attributes:
        node: the operation.
        inputs: indices of earlier layers.
        weight: weight of a Linear [M, N], or of a Conv2d [groups, O / groups, (C / groups)·kh·kw]. The exact weights
            are weight·(1 + e), |e| ≤ weight_error.
        bias: bias of an affine layer [size]; the shift of a Scale.
        bias_error: the largest distance of the exact bias from ``bias``; for a Scale, one number per neuron.
        scale: factors of a Scale [size].
        scale_error: [size], the largest distance of the exact factors from ``scale``.
        index: index of a Gather [size], or windows of a MaxPool [size, K].
        pairs: [size, 2], the indices of the two elements that are compared for each element of a Sort.
        larger: bool [size], whether each element of a Sort is the larger of its pair.
        roundings: number of roundings of each value in the deployed forward pass; not set for a sum of products.
        adds: number of additions to each of the layer's coefficients in a backward pass; 0 if a single consumer adds to
            each of them at most once.
        fused: see ``Analysis``.
    """

    node: Node
    inputs: tuple[int, ...]
    weight: Tensor = _NONE
    weight_error: float = 0.0
    bias: Tensor = _NONE
    bias_error: float | Tensor = 0.0
    scale: Tensor = _NONE
    scale_error: Tensor = _NONE
    index: Tensor = _NONE
    pairs: Tensor = _NONE
    larger: Tensor = _NONE
    roundings: int = 0
    adds: int = 0
    fused: bool = False

    @property
    def size(self) -> int:
        """Number of neurons."""
        return self.node.size

    @property
    def products(self) -> bool:
        """Whether the layer is a sum of products."""
        return isinstance(self.node, Linear | Conv2d)

    @property
    def affine(self) -> bool:
        """Whether the layer is an affine map and not the input."""
        return is_affine(self.node)

    @property
    def nonlinear(self) -> bool:
        """Whether the layer is an activation, a maximum or a product of two layers."""
        return is_nonlinear(self.node)

    def fan_in(self, *, backward: bool) -> int:
        """Number of products that are summed for one value or, with ``backward``, for one coefficient of an input."""
        if isinstance(self.node, Conv2d):
            kernel = self.node.weight.shape[2:].numel()
            return self.weight.shape[1] * kernel if backward else self.weight.shape[2]
        return self.weight.shape[0 if backward else 1]


class Network:
    """The layers of a graph, each after its inputs; the first is the input.

    Args:
        output: the graph.
        device: device of the constants.

    Raises:
        ModelError: a parameter is not finite, a parameter that is not known exactly rounds to zero (so its relative
            error is undefined), or an activation has no interval or no relaxation.
    """

    def __init__(self, output: Node, device: torch.device) -> None:
        self.device = device
        self.layers: list[Layer] = []
        number: dict[Node, int] = {}
        for node in in_order(output):
            inputs = tuple(number[source] for source in node.inputs)
            if isinstance(node, Reshape):  # neurons are flat, so nothing moves
                number[node] = inputs[0]
                continue
            number[node] = len(self.layers)
            self.layers.append(self._layer(node, inputs))
        self.output = number[output]
        self.neurons = sum(layer.size for layer in self.layers)
        self.analysis = Analysis([Step(layer.node, layer.inputs) for layer in self.layers], self.output)
        self.intersects = needs_interval_bounds(layer.node for layer in self.layers)
        self.partial = any(is_partial(layer.node) for layer in self.layers)
        self._representatives: dict[int, tuple[Tensor, Tensor] | None] = {}
        self._count_additions()

    def _layer(self, node: Node, inputs: tuple[int, ...]) -> Layer:
        layer = Layer(node=node, inputs=inputs)
        if isinstance(node, Linear | Conv2d):
            weight, layer.weight_error = weights_of(node, node.weight, np.float64)
            if isinstance(node, Conv2d):
                weight = weight.reshape(node.groups, len(weight) // node.groups, -1)
            layer.weight = self._tensor(weight)
            bias, layer.bias_error = bias_of(node.bias)
            channels = bias if len(bias) else np.zeros(node.shape[0])
            layer.bias = self._tensor(channels).repeat_interleave(node.size // max(1, node.shape[0]))
        elif isinstance(node, Scale):
            scale, shift = (
                rounded(constant, node.shape, default, np.float64)
                for constant, default in ((node.scale, 1), (node.shift, 0))
            )
            layer.scale, layer.scale_error = self._tensor(scale.value).flatten(), self._tensor(scale.error).flatten()
            layer.bias, layer.bias_error = self._tensor(shift.value).flatten(), self._tensor(shift.error).flatten()
            layer.roundings = SCALE_ROUNDINGS
        elif isinstance(node, Gather | Sum):
            layer.bias = torch.zeros(node.size, dtype=torch.float64, device=self.device)
            if isinstance(node, Gather):
                layer.index = node.index.flatten().to(self.device)
                if isinstance(node, Sort):
                    layer.pairs, layer.larger = node.pairs.to(self.device), node.larger.to(self.device)
            else:
                layer.roundings = len(inputs) - 1
        elif isinstance(node, MaxPool):
            layer.index = node.windows.to(self.device)
        elif isinstance(node, Product):
            layer.roundings = 1
        elif isinstance(node, Activation):
            row = row_of(node, ENGINE)
            required(row.interval, node, "interval", ENGINE)
            required(row.relaxation, node, "linear relaxation", ENGINE)
            layer.roundings = row.roundings(node)
        return layer

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.tensor(array, dtype=torch.float64, device=self.device)  # a copy: parameters may change

    def _count_additions(self) -> None:
        for i, layer in enumerate(self.layers):
            layer.fused = self.analysis.fused[i]
            repeats: dict[int, int] = {}
            for source, times in zip(layer.inputs, self.analysis.repeats(i), strict=True):
                repeats[source] = max(times, repeats.get(source, 1))
            for source, times in repeats.items():
                if times > 1 or len(self.analysis.consumers[source]) > 1:
                    self.layers[source].adds += times * layer.inputs.count(source)

    def representatives(self, i: int) -> tuple[Tensor, Tensor] | None:
        """Return which neurons of layer i are equal or opposite, as in ``representatives``, on the network's device."""
        if i not in self._representatives:
            representative = representatives(self.layers[i].node)
            self._representatives[i] = (
                None
                if representative is None
                else (representative[0].to(self.device), representative[1].to(self.device))
            )
        return self._representatives[i]

    def input_adds(self, layer: Layer) -> int:
        """Return the largest number of additions to any one coefficient of a layer's inputs."""
        return max((self.layers[source].adds for source in layer.inputs), default=0)
