"""Linear bounds of packed rows, from a layer back to the input (Zhang et al., 2018).

A row is a linear function of one layer's neurons; each belongs to an example. Rows of all examples lie one after the
other, so that every step is one operation for all of them, and the lines of an example are read where its rows need
them. The coefficients of rows from neighbouring neurons of a convolution are those of a window that holds all that they
reach; of any others, those of the whole layer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pyrobust.bounds.engines.tensor.directed_rounding import ROUNDOFF
from pyrobust.bounds.engines.tensor.intervals import Arithmetic
from pyrobust.bounds.engines.tensor.matmul import backward, patches_of, units_backward
from pyrobust.bounds.engines.tensor.network import Layer, Network
from pyrobust.bounds.engines.tensor.receptive_field import Window, Windows, cropped, moved, units, windows_below
from pyrobust.bounds.engines.tensor.relaxations import Pair, Prepared
from pyrobust.bounds.graph.nodes import Conv2d, Gather, Input, Linear, MaxPool, Scale, Sum
from pyrobust.ops.relax_rows import concretize_rows, relax_rows


@dataclasses.dataclass(frozen=True)
class Ball:
    """Balls in a norm, of radii epsilon [B]; ``center``: what a coefficient is multiplied with at least."""

    norm: str
    center: Pair
    epsilon: Tensor


@dataclasses.dataclass(frozen=True)
class Walk:
    """What a backward pass goes through.

    Attributes:
        network: the layers.
        arithmetic: what bounds are to hold for.
        prepared: pairs and lines of the layers.
        slack: what underflow can take from a row: [B].
        ball: the input set, where it is less than its box.
        stop: whether to minimise over the ranges of functions already: interval bounds of the rows.
    """

    network: Network
    arithmetic: Arithmetic
    prepared: Prepared
    slack: Tensor
    ball: Ball | None
    stop: bool = False

    def from_neurons(self, i: int, image: Tensor, neuron: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        """(lower, upper) [R] of neurons [R] of layer i, an affine one, each for one example.

        ``windows``: how far they reach, with those that they are in themselves.
        """
        layer, count = self.network.layers[i], len(neuron)
        sign = torch.ones(2 * count, dtype=torch.float64, device=image.device)
        sign[count:] = -1
        both, neurons = image.repeat(2), neuron.repeat(2)
        pair = self.prepared.pair(i)
        total = torch.cat([pair.low[image, neuron], -pair.high[image, neuron]])
        if layer.products:
            first = layer.inputs[0]
            below = {first: units_backward(layer, neurons, sign, windows[i], windows[first])}
        else:
            below = self._handed_down(i, both, units(neurons, sign, layer.node.shape, windows[i], layer.size), windows)
        bounds = self._down(below, both, total, windows)
        return bounds[:count], -bounds[count:]

    def from_rows(self, image: Tensor, a: Tensor) -> Tensor:
        """Lower bounds [R] of rows a [R, size] of the output, which are used up."""
        output = self.network.output
        total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
        return self._down({output: a}, image, total, windows_below(self.network, output, None))

    def _down(self, coefficients: dict[int, Tensor], image: Tensor, total: Tensor, windows: Windows) -> Tensor:
        """From coefficients of layers, and what they come with, to bounds."""
        for i in range(max(coefficients), -1, -1):
            if i not in coefficients:
                continue
            layer, a = self.network.layers[i], coefficients.pop(i)
            shape, window = layer.node.shape, windows[i]
            if isinstance(layer.node, Input):
                total = self._least(image, a, total, window)
                continue
            if self.stop and layer.nonlinear:
                total = total + concretize_rows(a, image, *self.prepared.box(i))
                continue
            if layer.affine and not layer.fused:
                total = total + concretize_rows(a, image, *(cropped(t, shape, window) for t in self.prepared.pair(i)))
            elif layer.nonlinear:
                *lines, _ = self.prepared.lines(i)
                total = total + relax_rows(a, image, *(cropped(line, shape, window) for line in lines))
            for one, part in self._handed_down(i, image, a, windows).items():
                coefficients[one] = coefficients[one].add_(part) if one in coefficients else part
        total = self.arithmetic.out.down(total - self.slack[image])
        return total.where(total.isfinite(), -torch.inf)

    def _handed_down(self, i: int, image: Tensor, a: Tensor, windows: Windows) -> dict[int, Tensor]:
        """The coefficients of a layer's inputs, each in memory of its own; ``a`` is used up."""
        layer = self.network.layers[i]
        node, window, first = layer.node, windows[i], layer.inputs[0]
        if isinstance(node, Linear | Conv2d):
            return {first: backward(layer, a, window, windows[first])}
        if isinstance(node, Gather | MaxPool):
            a = moved(a, node.shape, window, None)
            return self._returned(layer, a) if isinstance(node, Gather) else self._picked(i, image, a)
        if isinstance(node, Scale):
            a.mul_(cropped(layer.scale, node.shape, window))
        found: dict[int, Tensor] = {}
        signs = node.signs if isinstance(node, Sum) else (1,)
        for k, (one, sign) in enumerate(zip(layer.inputs, signs, strict=True)):
            part = moved(a, node.shape, window, windows[one])
            part = part.clone() if k < len(signs) - 1 else part  # the last takes the memory
            part = part if sign > 0 else part.neg_()
            found[one] = found[one].add_(part) if one in found else part
        return found

    def _picked(self, i: int, image: Tensor, a: Tensor) -> dict[int, Tensor]:
        """Coefficients of maxima, back where their lines are."""
        first, picked = self.network.layers[i].inputs[0], self.prepared.lines(i).picked
        assert picked is not None
        out = a.new_zeros(len(a), self.network.layers[first].size)
        return {first: out.scatter_add_(1, picked[image], a)}

    def _returned(self, layer: Layer, a: Tensor) -> dict[int, Tensor]:
        """Coefficients of gathered elements, back where the elements came from."""
        sizes = [self.network.layers[one].size for one in layer.inputs]
        # the number 0 takes what nobody reads
        index = layer.index.where(layer.index >= 0, sum(sizes))
        flat = a.new_zeros(len(a), sum(sizes) + 1).index_add_(1, index, a)
        found: dict[int, Tensor] = {}
        for one, part in zip(layer.inputs, torch.split(flat[:, :-1], sizes, 1), strict=True):
            found[one] = found[one].add_(part) if one in found else part.contiguous()
        return found

    def _least(self, image: Tensor, a: Tensor, total: Tensor, window: Window | None) -> Tensor:
        """The least value on the box and, where there is a ball, the better of that and the least value on the ball."""
        shape = self.network.layers[0].node.shape
        box = total + concretize_rows(a, image, *(cropped(t, shape, window) for t in self.prepared.box(0)))
        if self.ball is None:
            return box
        out = self.arithmetic.out
        ball = total + concretize_rows(a, image, *(cropped(t, shape, window) for t in self.ball.center))
        ball = out.down(ball - out.up(self.ball.epsilon[image] * self._dual_norm(a)))
        return torch.where(box.isfinite() & ((box >= ball) | ~ball.isfinite()), box, ball)

    def _dual_norm(self, a: Tensor) -> Tensor:
        """At least the dual norm of each row: the largest coefficient for l1, the root of the sum of squares for l2."""
        assert self.ball is not None
        if a.shape[1] == 0:
            return a.new_zeros(len(a))
        largest = a.abs().amax(1)
        if self.ball.norm == "l1":
            return largest
        # over the largest, so that no square can overflow, and those that vanish do not matter beside the one that is 1
        out = self.arithmetic.out
        squares = (a / torch.where(largest > 0, largest, 1).unsqueeze(1)).square_().sum(1)
        root = squares.sqrt() * (1 + (2 * (a.shape[1] + 8) * ROUNDOFF if out.sound else 0.0))
        return out.up(out.up(root) * largest)


def row_numbers(network: Network, i: int, windows: Windows) -> int:
    """Numbers that a row needs at most on its way from layer i: coefficients, and what a step takes beside them."""

    def size(j: int) -> int:
        window, layer = windows[j], network.layers[j]
        return layer.size if window is None else window.size(layer.node.shape)

    live, most = {i}, 0
    for j in range(i, -1, -1):
        if j not in live:
            continue
        layer = network.layers[j]
        below = set(layer.inputs)
        # a sum's parts, windows' indices and patches are there at the same time as what goes in and what comes out
        extra = patches_of(layer, windows[j]) + size(j) * (len(layer.inputs) if layer.affine else 2)
        most = max(most, sum(map(size, live | below)) + sum(map(size, below)) + extra)
        live = live - {j} | below
    return most
