"""Linear relaxations of layers, with intercepts widened by the rounding error of the backward pass.

A coefficient a of a neuron z in [l, u], where m is the largest |z|, causes these errors:

- at a sum of products: the computed coefficients are taken as exact, which causes an error of at most γ Σ|a w|. After
  multiplication by the inputs, this error is at most |a|·γ·Σ|w|m. Inexact weights, biases and deployed sums are treated
  in the same way;
- at a function or a factor of a product: the product a·slope is rounded, with an error of at most |a|·u·|slope|·m; and
- where several consumers add to one coefficient: one rounding error for each addition.

All these errors are subtracted from lower intercepts and added to upper ones, so that the backward pass need not track
them. Every intercept is also widened by a relative error, which covers the rounding of the pass's own sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.bounds.engines.tensor.directed_rounding import FLUSHED, Outward, magnitude
from pyrobust.bounds.engines.tensor.intervals import (
    Arithmetic,
    LayerRange,
    deployed_error,
    deployed_product_error,
    windows,
)
from pyrobust.bounds.engines.tensor.network import ENGINE, Layer, Network
from pyrobust.bounds.graph.activations import required, row_of
from pyrobust.bounds.graph.nodes import Activation, MaxPool, Scale


class Pair(NamedTuple):
    """The constants [B, size] that coefficients are multiplied by: low for positive, high for negative coefficients."""

    low: Tensor
    high: Tensor


class LayerRelaxation(NamedTuple):
    """Lines around a function f, with terms [B, size]: lower_slope·z + low ≤ f(z) ≤ upper_slope·z + high.

    For a maximum over a window, z is the element of the window that ``chosen`` names.
    """

    lower_slope: Tensor
    upper_slope: Tensor
    low: Tensor
    high: Tensor
    chosen: Tensor | None = None


class Relaxations:
    """The ``Pair`` or relaxation of each layer, for a chunk of examples; each is computed when it is first used.

    Args:
        network: the layers.
        arithmetic: arithmetic of the forward pass that is bounded, and of the engine.
        ranges: ranges of the layers so far; the ranges of a layer's inputs must be final when the layer's ``Pair`` or
            relaxation is first used.
    """

    def __init__(self, network: Network, arithmetic: Arithmetic, ranges: list[LayerRange]) -> None:
        self._network = network
        self._arithmetic = arithmetic
        self._ranges = ranges
        self._pairs: dict[int, Pair] = {}
        self._by_layer: dict[int, LayerRelaxation] = {}
        self._products: dict[int, tuple[LayerRelaxation, LayerRelaxation]] = {}
        self._slopes: dict[int, Tensor] = {}
        out = arithmetic.out
        # the sums of a row: a product and an addition for every intercept
        self._share = out.gamma(2 * network.neurons + 64)

    def pair(self, i: int) -> Pair:
        """Return the bias of an affine layer, minus and plus the error of its step in the backward pass."""
        if i not in self._pairs:
            self._pairs[i] = self._without_nan(self.with_rounding_error(*self._pair(i)))
        return self._pairs[i]

    def relaxation(self, i: int) -> LayerRelaxation:
        """Return the linear relaxation of an activation or a maximum."""
        if i not in self._by_layer:
            node = self._network.layers[i].node
            self._by_layer[i] = self._maximum(i) if isinstance(node, MaxPool) else self._function(i)
        return self._by_layer[i]

    def free_slopes(self, i: int) -> tuple[Tensor, float, float] | None:
        """Return a bool mask [B, size] of neurons whose lower slope is free in an interval, and the interval's ends.

        None for layers without such neurons.
        """
        node = self._network.layers[i].node
        if not isinstance(node, Activation):
            return None
        free = row_of(node, ENGINE).lower_slopes
        if free is None:
            return None
        z = self._ranges[self._network.layers[i].inputs[0]]
        unstable = (z.lower < 0) & (z.upper > 0) & z.lower.isfinite() & z.upper.isfinite()
        return (unstable, *free(node)) if bool(unstable.any()) else None

    def finished(self) -> range:
        """The layers whose ranges are known."""
        return range(len(self._ranges))

    def choose_slopes(self, i: int, slopes: Tensor) -> Tensor:
        """Set the lower slopes [B, size] of the neurons of ``free_slopes``, clamped to valid values; return them."""
        free = self.free_slopes(i)
        assert free is not None
        neurons, least, most = free
        self._slopes[i] = slopes.clamp(least, most).where(neurons, 0.0)
        self._by_layer.pop(i, None)
        return self._slopes[i]

    def product(self, i: int) -> tuple[LayerRelaxation, LayerRelaxation]:
        """Return a linear relaxation in each factor of a product; the sum of both relaxations bounds the product."""
        if i not in self._products:
            self._products[i] = self._product(i)
        return self._products[i]

    def box(self, i: int) -> Pair:
        """Return the range of a layer where a backward pass ends, widened by the rounding error of a row's sums."""
        return self._without_nan(self.with_rounding_error(self._ranges[i].lower, self._ranges[i].upper))

    def _without_nan(self, pair: Pair) -> Pair:
        """Replace NaN, which an unbounded input may cause, by infinite bounds."""
        if not self._arithmetic.unbounded:
            return pair
        return Pair(
            *(end.where(~end.isnan(), unknown) for end, unknown in zip(pair, (-torch.inf, torch.inf), strict=True))
        )

    def with_rounding_error(self, low: Tensor, high: Tensor) -> Pair:
        """Lower ``low`` and raise ``high`` by the rounding error of the sums of a row."""
        out, below, above = self._arithmetic.out, low.abs(), high.abs()
        low = low - (self._share * below + out.rounding_error(below))
        return Pair(low, high + (self._share * above + out.rounding_error(above)))

    def input_error(self, magnitude: Tensor) -> Tensor:
        """Bound the rounding error of a row for a coefficient of 1; the bound also covers differences of inputs."""
        out = self._arithmetic.out
        return out.up(8 * self._share * magnitude + out.rounding_error(magnitude))

    def underflow(self, i: int) -> Tensor:
        """Bound the error that underflow can cause in a row at layer i, [B]."""
        network, out = self._network, self._arithmetic.out
        layer = network.layers[i]
        total = torch.zeros(len(self._ranges[0].lower), dtype=torch.float64, device=network.device)
        operations = layer.fan_in(backward=True) + 8 if layer.products else 8
        for source in layer.inputs:
            # for each coefficient, the smallest product, times the values that it multiplies
            total = total + 2 * (self._finite(self._ranges[source].magnitude()) + 1).sum(1) * out.underflow(operations)
        magnitude_sum = self._ranges[i].sum
        if layer.affine and magnitude_sum is not None:
            # a coefficient that underflows to 0 before the layer loses its share of the bias
            total = total + 2 * (self._finite(magnitude_sum) + layer.bias.abs()).sum(1) * out.underflow(8)
        return out.up(total)

    def _finite(self, magnitudes: Tensor) -> Tensor:
        """Set magnitudes of unbounded neurons to 0: a row with a nonzero coefficient there is unbounded anyway."""
        return magnitudes.nan_to_num(torch.inf, 0.0) if self._arithmetic.unbounded else magnitudes

    def _costs(self, layer: Layer) -> tuple[float, float, float]:
        """Return the error of a step through an affine layer, as shares of Σ|w|m and of |bias|, and a constant."""
        out, adds = self._arithmetic.out, self._network.input_adds(layer)
        if layer.products:
            depth, roundings = layer.fan_in(backward=True) + adds + 4, layer.fan_in(backward=False) + 4
        else:
            depth, roundings = adds + 1 if isinstance(layer.node, Scale) else adds, layer.roundings
        deployed = self._arithmetic.share(roundings)
        return out.gamma(depth) + layer.weight_error + deployed, deployed, deployed * FLUSHED

    def _pair(self, i: int) -> Pair:
        """Return an affine layer's bias, minus and plus the step's error, before a row's rounding error is added."""
        layer, out = self._network.layers[i], self._arithmetic.out
        bias, magnitude_sum = layer.bias, self._ranges[i].sum
        assert magnitude_sum is not None
        bias = bias.expand_as(magnitude_sum)
        if not out.sound:
            return Pair(bias, bias)
        sum_share, bias_share, constant = self._costs(layer)
        if sum_share == 0:  # an exact step, even of an unbounded neuron
            magnitude_sum = torch.zeros_like(magnitude_sum)
        error = sum_share * magnitude_sum + bias_share * bias.abs() + constant + layer.bias_error
        if isinstance(layer.node, Scale):
            error = error + self._arithmetic.times(layer.scale_error, self._ranges[layer.inputs[0]].magnitude())
            error = error + bias_share * FLUSHED * layer.scale.abs()
        error = error + out.rounding_error(error + bias.abs())
        return Pair(bias - error, bias + error)

    def _function(self, i: int) -> LayerRelaxation:
        layer, below = self._network.layers[i], self._network.layers[self._network.layers[i].inputs[0]]
        node, z, arithmetic = layer.node, self._ranges[layer.inputs[0]], self._arithmetic
        assert isinstance(node, Activation)
        relax = required(row_of(node, ENGINE).relaxation, node, "linear relaxation", ENGINE)
        lower_slope, low, upper_slope, high = relax(node, z.lower, z.upper, arithmetic.out)
        free = self.free_slopes(i) if i in self._slopes else None
        if free is not None:
            lower_slope = self._slopes[i].where(free[0], lower_slope)
        relaxation = LayerRelaxation(lower_slope, upper_slope, low, high)
        values = self._ranges[i]
        error = deployed_error(layer, values.lower, values.upper, arithmetic)
        if error is not None:
            out = arithmetic.out
            relaxation = relaxation._replace(low=out.down(relaxation.low - error), high=out.up(relaxation.high + error))
        if arithmetic.unbounded:  # constants where no other line exists
            known_low, known_high = relaxation.low > -torch.inf, relaxation.high < torch.inf
            relaxation = LayerRelaxation(
                relaxation.lower_slope.where(known_low, 0.0),
                relaxation.upper_slope.where(known_high, 0.0),
                relaxation.low.where(known_low, values.lower),
                relaxation.high.where(known_high, values.upper),
            )
        return self._charged(relaxation, z.magnitude(), below, self._pair(layer.inputs[0]) if below.fused else None)

    def _product(self, i: int) -> tuple[LayerRelaxation, LayerRelaxation]:
        """Bound a product by planes, split by factor; the first factor takes intercepts and the deployed error."""
        factors, out = self._network.layers[i].inputs, self._arithmetic.out
        x, y = (self._ranges[source] for source in factors)
        under, over = product_planes(x, y, out)
        least, most = self._network.layers[i].node.known
        lower_x, lower_y, low = _better(under, x, y, least)
        upper_x, upper_y, high = _better(over.negative(), x, y, -most).negative()
        error = deployed_product_error(x, y, self._arithmetic)
        if error is not None:
            low, high = out.down(low - error), out.up(high + error)
        zero = torch.zeros_like(low)
        first = LayerRelaxation(lower_x, upper_x, low, high)
        second = LayerRelaxation(lower_y, upper_y, zero, zero)
        below = [self._network.layers[source] for source in factors]
        return (
            self._charged(first, x.magnitude(), below[0], None),
            self._charged(second, y.magnitude(), below[1], None),
        )

    def _maximum(self, i: int) -> LayerRelaxation:
        """Bound a maximum: any element of the window is a lower bound, and an upper one if no other can exceed it."""
        layer = self._network.layers[i]
        below, z = self._network.layers[layer.inputs[0]], self._ranges[layer.inputs[0]]
        low, high = windows(layer, z.lower, -torch.inf), windows(layer, z.upper, -torch.inf)
        best = low.argmax(2, keepdim=True)
        index = layer.index.expand(len(low), -1, -1)
        chosen = index.gather(2, best)
        others = high.masked_fill(index == chosen, -torch.inf).amax(2)
        is_maximum = others <= low.gather(2, best).squeeze(2)
        chosen = chosen.squeeze(2)
        # Padding may be chosen where the range of a window is unknown; it proves nothing.
        ones, zero = torch.ones_like(others), torch.zeros_like(others)
        lower = zero.where(chosen >= 0, -torch.inf)
        upper = self._ranges[i].upper.where(~is_maximum, 0.0)
        chosen = chosen.clamp(min=0)
        relaxation = LayerRelaxation(ones, is_maximum.to(ones.dtype), lower, upper, chosen)
        return self._charged(relaxation, z.magnitude().gather(1, chosen), below, None)

    def _charged(self, relaxation: LayerRelaxation, m: Tensor, below: Layer, pair: Pair | None) -> LayerRelaxation:
        """Widen intercepts by the step's error for |z| ≤ m; add ``pair``, bias and error of a fused layer below."""
        out, times, s, t = self._arithmetic.out, self._arithmetic.times, relaxation.lower_slope, relaxation.upper_slope
        low, high = relaxation.low, relaxation.high
        low_size, high_size = low.abs(), high.abs()
        if pair is not None:
            # slope·bias − |slope|·error; the rounding of the coefficient also affects the bias
            size = magnitude(*pair)
            low = low + times(s, torch.where(s >= 0, pair.low, pair.high))
            high = high + times(t, torch.where(t >= 0, pair.high, pair.low))
            low_size, high_size, m = low_size + times(s.abs(), size), high_size + times(t.abs(), size), m + size
        added, multiplied = (torch.full_like(m, out.gamma(n)) for n in (below.adds, below.adds + 1))
        low_cost, high_cost = (
            times(times(slope.abs(), m), added.where(slope.abs() == 1, multiplied)) for slope in (s, t)
        )
        low = low - (low_cost + out.rounding_error(low_size + low_cost))
        high = high + (high_cost + out.rounding_error(high_size + high_cost))
        low, high = self._without_nan(self.with_rounding_error(low, high))
        return LayerRelaxation(s.contiguous(), t.contiguous(), low.contiguous(), high.contiguous(), relaxation.chosen)


class Plane(NamedTuple):
    """The plane p·x + q·y + c, a bound of x·y; p, q and c are [B, size]."""

    p: Tensor
    q: Tensor
    c: Tensor

    def negative(self) -> Plane:
        """Return the plane times −1."""
        return Plane(-self.p, -self.q, -self.c)


def product_planes(x: LayerRange, y: LayerRange, out: Outward) -> tuple[Plane, Plane]:
    """Return planes below and above x·y on a box; they are constant and infinite where the box is unbounded.

    McCormick (1976) gives two planes p·x + q·y + c below x·y: one has p = l_y and q = l_x, the other has p = u_y and
    q = u_x. These two planes and all planes between them are equally tight in the middle of the box and on average
    (Shi et al., 2020, appendix B). McCormick's planes, the plane halfway between them, and the planes between them
    with p = 0 or q = 0 are compared; the plane with the largest minimum on the box is used.
    """
    finite = x.lower.isfinite() & x.upper.isfinite() & y.lower.isfinite() & y.upper.isfinite()
    (xl, xu), (yl, yu) = ((z.lower.where(finite, 0), z.upper.where(finite, 0)) for z in (x, y))
    below, negative = _plane_below(xl, xu, yl, yu, out), _plane_below(-xu, -xl, yl, yu, out)
    low = below.c.where(finite & below.c.isfinite(), -torch.inf)
    high = (-negative.c).where(finite & negative.c.isfinite(), torch.inf)
    return below._replace(c=low), Plane(negative.p, -negative.q, high)


def _better(plane: Plane, x: LayerRange, y: LayerRange, least: float) -> Plane:
    """Return ``plane``, or the product's known least value where that is larger in the middle of the box."""
    if least == -torch.inf:
        return plane
    middle_x, middle_y = (z.lower / 2 + z.upper / 2 for z in (x, y))
    higher = plane.p * middle_x + plane.q * middle_y + plane.c >= least  # false for NaN
    return Plane(plane.p.where(higher, 0), plane.q.where(higher, 0), plane.c.where(higher, least))


def _plane_below(xl: Tensor, xu: Tensor, yl: Tensor, yu: Tensor, out: Outward) -> Plane:
    """Return a plane p·x + q·y + c below x·y; c is the least of x·y − p·x − q·y at the corners, rounded down."""
    best, largest = Plane(yl, xl, yl), torch.full_like(xl, -torch.inf)
    level_x, level_y = (
        (-low / (high - low)).nan_to_num(0.5, 0.5, 0.5).clamp(0, 1) for low, high in ((xl, xu), (yl, yu))
    )
    for share in (torch.full_like(xl, 0.5), level_x, level_y, torch.zeros_like(xl), torch.ones_like(xl)):
        p, q = yl + share * (yu - yl), xl + share * (xu - xl)
        c = torch.full_like(xl, torch.inf)
        for a in (xl, xu):
            for b in (yl, yu):
                terms = a * b, p * a, q * b
                size = terms[0].abs() + terms[1].abs() + terms[2].abs()
                c = torch.minimum(c, out.down(terms[0] - terms[1] - terms[2] - out.rounding_error(size)))
        least = torch.minimum(p * xl, p * xu) + torch.minimum(q * yl, q * yu) + c
        better = least > largest
        best = Plane(*(new.where(better, old) for new, old in zip((p, q, c), best, strict=True)))
        largest = least.where(better, largest)
    return best._replace(c=best.c.where(largest > -torch.inf, -torch.inf))
