"""What the backward pass multiplies coefficients with, for each layer and example: intercepts that pay for every error.

A coefficient a of a neuron z in [l, u], m the largest |z|, costs

- at a sum of products: the computed coefficients are taken as exact, which is wrong by at most γ Σ|a w|; times the
  inputs that is |a|·γ·Σ|w|m. The same holds for weights, biases and deployed sums that are not exact;
- at a function: a times a slope is rounded, which is wrong by |a|·u·|slope|·m;
- where several consumers add to one coefficient: a rounding for each addition.

All of it becomes a part of the intercepts, so that the walk over rows is plain arithmetic; its own sums are paid by a
share of every intercept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.bounds.engines.tensor.directed_rounding import FLUSHED, magnitude
from pyrobust.bounds.engines.tensor.intervals import Arithmetic, Range, deployed_error, windows
from pyrobust.bounds.engines.tensor.network import ENGINE, Layer, Network
from pyrobust.bounds.graph.activations import required, row_of
from pyrobust.bounds.graph.nodes import Activation, MaxPool, Scale


class Pair(NamedTuple):
    """What a coefficient is multiplied with at least: low where it is positive, high where negative; [B, size] each."""

    low: Tensor
    high: Tensor


class Lines(NamedTuple):
    """lower_slope·z + low ≤ f(z) ≤ upper_slope·z + high: [B, size] each.

    ``picked``: for a maximum, the element that is z.
    """

    lower_slope: Tensor
    upper_slope: Tensor
    low: Tensor
    high: Tensor
    picked: Tensor | None = None


class Prepared:
    """The pairs and lines of all layers for a chunk of examples, each worked out when it is first asked for.

    Args:
        network: the layers.
        arithmetic: what bounds are to hold for.
        ranges: of the layers so far; those of a layer's inputs are final when its pair or lines are asked for.
    """

    def __init__(self, network: Network, arithmetic: Arithmetic, ranges: list[Range]) -> None:
        self._network = network
        self._arithmetic = arithmetic
        self._ranges = ranges
        self._pairs: dict[int, Pair] = {}
        self._lines: dict[int, Lines] = {}
        out = arithmetic.out
        # of a row's sums: a product, and an addition for every intercept that it meets
        self._share = out.gamma(2 * network.neurons + 64)

    def pair(self, i: int) -> Pair:
        """Of an affine layer: the bias less and plus the error of the step."""
        if i not in self._pairs:
            self._pairs[i] = self.paid(*self._pair(i))
        return self._pairs[i]

    def lines(self, i: int) -> Lines:
        """Of a function or a maximum."""
        if i not in self._lines:
            node = self._network.layers[i].node
            self._lines[i] = self._maximum(i) if isinstance(node, MaxPool) else self._function(i)
        return self._lines[i]

    def box(self, i: int) -> Pair:
        """Of a layer where the walk ends: its range."""
        return self.paid(self._ranges[i].lower, self._ranges[i].upper)

    def paid(self, low: Tensor, high: Tensor) -> Pair:
        """Lowered and raised by the share that sums over rows may lose."""
        out, below, above = self._arithmetic.out, low.abs(), high.abs()
        low = low - (self._share * below + out.few(below))
        return Pair(low, high + (self._share * above + out.few(above)))

    def slack(self, i: int) -> Tensor:
        """What underflow can take from a row at layer i: [B]."""
        network, out = self._network, self._arithmetic.out
        layer = network.layers[i]
        total = torch.zeros(len(self._ranges[0].lower), dtype=torch.float64, device=network.device)
        operations = layer.taps(backward=True) + 8 if layer.products else 8
        for one in layer.inputs:
            # each coefficient can lose a product's worth, times what it meets
            total = total + 2 * (self._ranges[one].magnitude() + 1).sum(1) * out.underflow(operations)
        found = self._ranges[i].sum
        if layer.affine and found is not None:
            # a coefficient that vanishes before the layer takes what it would have got of the bias with it
            total = total + 2 * (found + layer.bias.abs()).sum(1) * out.underflow(8)
        return out.up(total)

    def _costs(self, layer: Layer) -> tuple[float, float, float]:
        """Shares of Σ|w|m and of |bias|, and a constant, that a step at an affine layer costs."""
        out, adds = self._arithmetic.out, self._network.input_adds(layer)
        if layer.products:
            depth, roundings = layer.taps(backward=True) + adds + 4, layer.taps(backward=False) + 4
        else:
            depth, roundings = adds + 1 if isinstance(layer.node, Scale) else adds, layer.roundings
        deployed = self._arithmetic.share(roundings)
        return out.gamma(depth) + layer.weight_error + deployed, deployed, deployed * FLUSHED

    def _pair(self, i: int) -> Pair:
        """Not yet paid for the sums over rows."""
        layer, out = self._network.layers[i], self._arithmetic.out
        bias, found = layer.bias, self._ranges[i].sum
        assert found is not None
        bias = bias.expand_as(found)
        if not out.sound:
            return Pair(bias, bias)
        of_sum, of_bias, constant = self._costs(layer)
        error = of_sum * found + of_bias * bias.abs() + constant + layer.bias_error
        if isinstance(layer.node, Scale):
            error = error + layer.scale_error * self._ranges[layer.inputs[0]].magnitude()
        error = error + out.few(error + bias.abs())
        return Pair(bias - error, bias + error)

    def _function(self, i: int) -> Lines:
        layer, below = self._network.layers[i], self._network.layers[self._network.layers[i].inputs[0]]
        node, z, arithmetic = layer.node, self._ranges[layer.inputs[0]], self._arithmetic
        assert isinstance(node, Activation)
        relax = required(row_of(node, ENGINE).relaxation, node, "linear relaxation", ENGINE)
        lower_slope, low, upper_slope, high = relax(node, z.lower, z.upper, arithmetic.out)
        lines = Lines(lower_slope, upper_slope, low, high)
        found = self._ranges[i]
        error = deployed_error(layer, found.lower, found.upper, arithmetic)
        if error is not None:
            out = arithmetic.out
            lines = lines._replace(low=out.down(lines.low - error), high=out.up(lines.high + error))
        return self._charged(lines, z.magnitude(), below, self._pair(layer.inputs[0]) if below.fused else None)

    def _maximum(self, i: int) -> Lines:
        """Any element of the window is a line below; it is the maximum where no other can be above it."""
        layer = self._network.layers[i]
        below, z = self._network.layers[layer.inputs[0]], self._ranges[layer.inputs[0]]
        low, high = windows(layer, z.lower, -torch.inf), windows(layer, z.upper, -torch.inf)
        best = low.argmax(2, keepdim=True)
        index = layer.index.expand(len(low), -1, -1)
        picked = index.gather(2, best)
        others = high.masked_fill(index == picked, -torch.inf).amax(2)
        settled = others <= low.gather(2, best).squeeze(2)
        picked = picked.squeeze(2)
        # Where nothing is known of a window, what hangs over the border may be picked: that proves nothing.
        one, zero = torch.ones_like(others), torch.zeros_like(others)
        lower = zero.where(picked >= 0, -torch.inf)
        upper = self._ranges[i].upper.where(~settled, 0.0)
        picked = picked.clamp(min=0)
        lines = Lines(one, settled.to(one.dtype), lower, upper, picked)
        return self._charged(lines, z.magnitude().gather(1, picked), below, None)

    def _charged(self, lines: Lines, m: Tensor, below: Layer, pair: Pair | None) -> Lines:
        """Intercepts that pay for the step, and for the one of the layer below where that one is fused.

        Args:
            lines: of the function.
            m: the largest |z| below.
            below: the layer whose values z are.
            pair: of that layer, where it is fused.
        """
        out, s, t = self._arithmetic.out, lines.lower_slope, lines.upper_slope
        low, high = lines.low, lines.high
        low_size, high_size = low.abs(), high.abs()
        if pair is not None:
            # slope·bias − |slope|·error; the rounding of the coefficient meets the bias, too
            size = magnitude(*pair)
            low = low + s * torch.where(s >= 0, pair.low, pair.high)
            high = high + t * torch.where(t >= 0, pair.high, pair.low)
            low_size, high_size, m = low_size + s.abs() * size, high_size + t.abs() * size, m + size
        added, multiplied = (torch.full_like(m, out.gamma(n)) for n in (below.adds, below.adds + 1))
        low_cost, high_cost = (slope.abs() * m * added.where(slope.abs() == 1, multiplied) for slope in (s, t))
        low = low - (low_cost + out.few(low_size + low_cost))
        high = high + (high_cost + out.few(high_size + high_cost))
        low, high = self.paid(low, high)
        return Lines(s.contiguous(), t.contiguous(), low.contiguous(), high.contiguous(), lines.picked)
