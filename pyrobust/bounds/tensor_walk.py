"""Linear bounds of packed rows, from a layer back to the input (Zhang et al., 2018).

A row is a linear function of one layer's neurons; each belongs to an example. Rows of all examples lie one after the
other, so that every step is one operation for all of them, and the lines of an example are read where its rows need
them. A row's coefficients reach over the whole layer: dense planes for convolutions.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pyrobust.ops.relax_rows import least_of_rows, relax_rows

from .graph import Conv2d, Gather, Input, Linear, MaxPool, Scale, Sum
from .tensor_intervals import Arithmetic
from .tensor_lines import Pair, Prepared
from .tensor_network import Layer, Network
from .tensor_outward import ROUNDOFF
from .tensor_products import backward, patches_of, units_backward


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

    def from_neurons(self, i: int, image: Tensor, neuron: Tensor) -> tuple[Tensor, Tensor]:
        """(lower, upper) [R] of neurons [R] of layer i, an affine one, each for one example."""
        layer, count = self.network.layers[i], len(neuron)
        sign = torch.ones(2 * count, dtype=torch.float64, device=image.device)
        sign[count:] = -1
        both, neurons = image.repeat(2), neuron.repeat(2)
        if not layer.products:
            a = sign.new_zeros(2 * count, layer.size).scatter_(1, neurons.unsqueeze(1), sign.unsqueeze(1))
            bounds = self.from_rows(i, both, a)
        else:
            pair = self.prepared.pair(i)
            total = torch.cat([pair.low[image, neuron], -pair.high[image, neuron]])
            bounds = self._down(layer.inputs[0], both, units_backward(layer, neurons, sign), total)
        return bounds[:count], -bounds[count:]

    def from_rows(self, i: int, image: Tensor, a: Tensor) -> Tensor:
        """Lower bounds [R] of rows a [R, size] of layer i, which are used up."""
        layer = self.network.layers[i]
        total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
        if layer.affine and layer.fused:  # else the walk does it
            total = least_of_rows(a, image, *self.prepared.pair(i))
        return self._down(i, image, a, total)

    def _down(self, first: int, image: Tensor, a: Tensor, total: Tensor) -> Tensor:
        """From coefficients of layer ``first`` to bounds."""
        coefficients = {first: a}
        for i in range(first, -1, -1):
            if i not in coefficients:
                continue
            layer, a = self.network.layers[i], coefficients.pop(i)
            if isinstance(layer.node, Input):
                total = self._least(image, a, total)
                continue
            if self.stop and layer.nonlinear:
                total = total + least_of_rows(a, image, *self.prepared.box(i))
                continue
            if layer.affine and not layer.fused:
                total = total + least_of_rows(a, image, *self.prepared.pair(i))
            elif layer.nonlinear:
                *lines, _ = self.prepared.lines(i)
                total = total + relax_rows(a, image, *lines)
            for one, part in zip(layer.inputs, self._handed_down(i, layer, image, a), strict=True):
                coefficients[one] = coefficients[one].add_(part) if one in coefficients else part
        total = self.arithmetic.out.down(total - self.slack[image])
        return total.where(total.isfinite(), -torch.inf)

    def _handed_down(self, i: int, layer: Layer, image: Tensor, a: Tensor) -> list[Tensor]:
        """The coefficients of a layer's inputs, each in memory of its own."""
        node = layer.node
        if isinstance(node, Linear | Conv2d):
            return [backward(layer, a)]
        if isinstance(node, Scale):
            return [a.mul_(layer.scale)]
        if isinstance(node, Sum):
            parts = [a] + [a.clone() for _ in node.signs[1:]]
            return [part if sign > 0 else part.neg_() for sign, part in zip(node.signs, parts, strict=True)]
        if isinstance(node, Gather):
            return self._returned(layer, a)
        if isinstance(node, MaxPool):
            picked = self.prepared.lines(i).picked
            assert picked is not None
            out = a.new_zeros(len(a), self.network.layers[layer.inputs[0]].size)
            return [out.scatter_add_(1, picked[image], a)]
        return [a]  # a function

    def _returned(self, layer: Layer, a: Tensor) -> list[Tensor]:
        """Coefficients of gathered elements, back where the elements came from."""
        sizes = [self.network.layers[one].size for one in layer.inputs]
        # the number 0 takes what nobody reads
        index = layer.index.where(layer.index >= 0, sum(sizes))
        flat = a.new_zeros(len(a), sum(sizes) + 1).index_add_(1, index, a)
        return [part.contiguous() for part in torch.split(flat[:, :-1], sizes, 1)]

    def _least(self, image: Tensor, a: Tensor, total: Tensor) -> Tensor:
        """The least value on the box and, where there is a ball, the better of that and the least value on the ball."""
        box = total + least_of_rows(a, image, *self.prepared.box(0))
        if self.ball is None:
            return box
        out = self.arithmetic.out
        ball = total + least_of_rows(a, image, *self.ball.center)
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


def row_numbers(network: Network, i: int) -> int:
    """Numbers that a row needs at most on its way from layer i: coefficients, and what a step takes beside them."""
    live, most = {i: network.layers[i].size}, 0
    for j in range(i, -1, -1):
        if j not in live:
            continue
        layer = network.layers[j]
        here = sum(live.values())
        own = live.pop(j)
        for one in layer.inputs:
            live[one] = network.layers[one].size
        # a sum's parts, windows' indices and patches are there at the same time as what goes in and what comes out
        extra = patches_of(layer) + own * (len(layer.inputs) if layer.affine else 2)
        most = max(most, here + extra + sum(network.layers[one].size for one in layer.inputs))
    return most
