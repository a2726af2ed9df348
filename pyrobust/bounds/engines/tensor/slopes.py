"""Search for the lower slopes that make the bound of each row largest (α-CROWN; Xu et al., 2021).

Every line through zero with a slope in [0, 1] is a lower bound of an unstable ReLU, so each row may have slopes of its
own. The ranges of the neurons, from which the relaxations are computed, do not change during the search. A row's
minimiser is the input at which the row's linear bound is smallest. It is carried forward through the same relaxations,
which gives a value z for each neuron. If a neuron has the coefficient a > 0 in the row's bound, the derivative of the
bound with respect to the neuron's slope is a·z. So one backward pass and one forward pass give the gradient of all
rows. The sound backward pass computes the bounds for every iterate, and the best bound of each row is kept, so badly
chosen slopes can only make bounds looser, never unsound.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor.backward import BackwardPass
from pyrobust.bounds.engines.tensor.matmul import forward
from pyrobust.bounds.engines.tensor.network import Layer
from pyrobust.bounds.engines.tensor.relaxations import LayerRelaxation, Relaxations
from pyrobust.bounds.graph.nodes import Gather, Input, MaxPool, Product, Scale, Sum
from pyrobust.bounds.methods import SlopeSearch


@dataclasses.dataclass
class _Slopes:
    """The slopes [R, size] of a layer's rows, with the moments of their gradient (Adam; Kingma and Ba, 2015)."""

    value: Tensor
    mean: Tensor
    square: Tensor

    def climb(self, gradient: Tensor, step: int, search: SlopeSearch) -> None:
        """Take a step along the gradient; the first step has number 1."""
        (first, second), rate = search.moments, search.rate * search.decay ** (step - 1)
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = (self.square / (1 - second**step)).sqrt_().add_(torch.finfo(gradient.dtype).tiny)
        self.value = self.value + rate * (self.mean / (1 - first**step)) / scale


class SlopeSearching:
    """A search for the lower slopes of rows; each row is an example of its own in the backward pass."""

    def __init__(self, backward_pass: BackwardPass, rows: int, query: Query) -> None:
        self.backward_pass = backward_pass
        self.every = torch.arange(rows, device=backward_pass.underflow.device)
        self._query = query
        assert query.bounding.slope_search is not None
        self._search = query.bounding.slope_search
        self._slopes: dict[int, _Slopes] = {}
        relaxations = backward_pass.relaxations
        for i in relaxations.finished():
            free = relaxations.free_slopes(i)
            if free is not None:
                initial = relaxations.relaxation(i).lower_slope
                self._slopes[i] = _Slopes(initial, torch.zeros_like(initial), torch.zeros_like(initial))

    def improve(
        self, bound: Callable[[dict[int, Tensor]], Tensor], bounds: Tensor, *, decides: bool | None = None
    ) -> Tensor:
        """Return the best lower bounds [R] of rows, which are at least ``bounds``.

        Args:
            bound: computes the bounds with the current slopes, and stores the coefficients of the backward pass in its
                argument.
            bounds: the bounds that are already known.
            decides: whether a row is finished once its bound is positive; default: the query's ``decides``.
        """
        search, query = self._search, self._query
        decides = query.decides if decides is None else decides
        best, idle = bounds, torch.zeros_like(self.every)
        coefficients: dict[int, Tensor] = {}
        relaxations = self.backward_pass.relaxations
        for step in range(query.iterations + 1):
            ended = (idle >= search.patience) | ((best > 0) & decides)
            late = query.deadline is not None and time.monotonic() >= query.deadline
            if late or not self._slopes or bool(ended.all()):
                break
            if step > 0:
                for i, gradient in self.gradient(coefficients).items():
                    slopes = self._slopes[i]
                    slopes.climb(gradient.nan_to_num(0.0, 0.0, 0.0), step, search)
                    slopes.value = relaxations.choose_slopes(i, slopes.value)
            coefficients = {}
            bounds = bound(coefficients)
            if step > 0:
                idle = torch.where(bounds > best + search.least_gain * (1 + best.abs()), 0, idle + 1)
            best = torch.where(bounds > best, bounds, best)
        return best

    def gradient(self, coefficients: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return derivatives [R, size] of bounds with respect to each layer's slopes, from coefficients of a pass."""
        layers, relaxations = self.backward_pass.network.layers, self.backward_pass.relaxations
        minimiser = self.backward_pass.minimiser(self.every, coefficients[0])
        values = _values(relaxations, layers[: max(self._slopes) + 1], coefficients, minimiser)
        result = {}
        for i in self._slopes.keys() & coefficients.keys():
            below = layers[i].inputs[0]
            bias = layers[below].bias if layers[below].fused else 0.0
            result[i] = coefficients[i].clamp(min=0) * (values[below] + bias)
        return result


def _values(
    relaxations: Relaxations, layers: list[Layer], coefficients: dict[int, Tensor], minimiser: Tensor
) -> list[Tensor]:
    """Return all layers' values [R, size] at the minimisers [R, n], with functions replaced by each row's lines.

    The bias of fused layers is left out, because the relaxation of their only consumer contains it.
    """
    values: list[Tensor] = []
    for i, layer in enumerate(layers):
        bias = 0.0 if layer.fused else layer.bias
        inputs = [values[source] for source in layer.inputs]
        a = coefficients.get(i)
        if isinstance(layer.node, Input):
            values.append(minimiser)
        elif layer.products:
            values.append(forward(layer, layer.weight, inputs[0]) + bias)
        elif isinstance(layer.node, Scale):
            values.append(inputs[0] * layer.scale + bias)
        elif isinstance(layer.node, Sum):
            values.append(
                torch.stack([z if sign > 0 else -z for z, sign in zip(inputs, layer.node.signs, strict=True)]).sum(0)
            )
        elif isinstance(layer.node, Gather):
            joined = torch.cat([*inputs, torch.zeros_like(inputs[0][:, :1])], 1)
            values.append(joined[:, layer.index.where(layer.index >= 0, joined.shape[1] - 1)])
        elif a is None:  # no row depends on the layer
            values.append(torch.zeros(len(minimiser), layer.size, dtype=minimiser.dtype, device=minimiser.device))
        elif isinstance(layer.node, Product):
            (first, second), (x, y) = relaxations.product(i), inputs
            values.append(_taken(first, a, x) + _taken(second, a, y))
        else:
            relaxation, z = relaxations.relaxation(i), inputs[0]
            if isinstance(layer.node, MaxPool):
                assert relaxation.chosen is not None
                z = z.gather(1, relaxation.chosen)
            values.append(_taken(relaxation, a, z))
    return values


def _taken(relaxation: LayerRelaxation, a: Tensor, z: Tensor) -> Tensor:
    """Return the line that a backward pass uses: the lower line unless the coefficient is negative."""
    below = relaxation.lower_slope * z + relaxation.low
    return below.where(a >= 0, relaxation.upper_slope * z + relaxation.high)
