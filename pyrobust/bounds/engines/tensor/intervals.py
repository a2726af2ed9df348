"""Interval bound propagation, rounded outward; sums of products use center and radius (Gowal et al., 2018)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pyrobust.bounds.engines.tensor.directed_rounding import FLUSHED, Outward, magnitude
from pyrobust.bounds.engines.tensor.matmul import forward
from pyrobust.bounds.engines.tensor.network import ENGINE, Layer
from pyrobust.bounds.graph.activations import LARGEST, required, row_of
from pyrobust.bounds.graph.nodes import Activation, Conv2d, Gather, Linear, MaxPool, Product, Scale, Sort, Sum


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of the forward pass that is bounded, and the arithmetic of the engine.

    Attributes:
        out: directed rounding of the engine.
        deployed: the unit roundoff of the deployed forward pass, whose sums may run in any order; 0 for real numbers.
        deployed_max: largest float of the deployed forward pass.
        unbounded: whether elements of the input may be unbounded, so that 0·∞ has to be 0.
    """

    out: Outward
    deployed: float
    deployed_max: float
    unbounded: bool = False

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product; if ``unbounded``, it is 0 if either factor is 0, even if the other is infinite."""
        return torch.where((a == 0) | (b == 0), 0.0, a * b) if self.unbounded else a * b

    def share(self, roundings: int) -> float:
        """Return the relative error of ``roundings`` roundings in the deployed forward pass."""
        return self.out.gamma(roundings, self.deployed)


@dataclasses.dataclass
class LayerRange:
    """Ranges of the neurons of a layer, [B, size] each; ``sum`` bounds Σ|w|·|z| for affine layers, else it is None.

    ``undefined``, bool [B], marks examples for which the network may have no value; None if there are none.
    """

    lower: Tensor
    upper: Tensor
    sum: Tensor | None = None
    undefined: Tensor | None = None

    def magnitude(self) -> Tensor:
        """Return the largest |z| of each neuron."""
        return magnitude(self.lower, self.upper)


def range_of(layer: Layer, inputs: list[LayerRange], arithmetic: Arithmetic) -> LayerRange:
    """Return a layer's range, given the ranges of its inputs; it is −inf to inf where unknown."""
    result = _range(layer, inputs, arithmetic)
    undefined = _undefined(layer, inputs, result, arithmetic)
    if layer.nonlinear:
        error = deployed_error(layer, result.lower, result.upper, arithmetic)
        if error is not None:
            result = LayerRange(result.lower - error, result.upper + error)
    # Also unknown where the deployed forward pass may overflow. Comparisons with NaN are false.
    usable = result.lower <= result.upper
    if arithmetic.deployed > 0:
        limit = arithmetic.deployed_max
        usable &= (result.lower >= -limit) & (result.upper <= limit)
        if result.sum is not None:
            usable &= ~(result.sum > limit)
    lower, upper = result.lower.where(usable, -torch.inf), result.upper.where(usable, torch.inf)
    least, most = layer.node.known
    lower, upper = lower.clamp(min=least), upper.clamp(max=most)
    return LayerRange(lower, upper, result.sum, undefined)


def _undefined(layer: Layer, inputs: list[LayerRange], result: LayerRange, arithmetic: Arithmetic) -> Tensor | None:
    """Mark where a function has no value, or where a deployed sum may overflow and then become NaN."""
    node = layer.node
    if isinstance(node, Activation):
        lower, upper = inputs[0].lower, inputs[0].upper
        defined = row_of(node, ENGINE).defined(node)
        if defined is not None:
            return ~defined(lower, upper).all(1)
        # At an infinite number, too, a function may have no value.
        overflowed = arithmetic.deployed > 0 and layer.inputs[0] > 0
        return ((lower == -torch.inf) & (upper == torch.inf)).any(1) if overflowed else None
    if arithmetic.deployed == 0 or not (layer.affine or isinstance(node, Product)):
        return None
    size = result.magnitude() if result.sum is None else torch.maximum(result.magnitude(), result.sum)
    return ~(size <= arithmetic.deployed_max).all(1)


def deployed_error(layer: Layer, lower: Tensor, upper: Tensor, arithmetic: Arithmetic) -> Tensor | None:
    """Return the rounding error of a deployed function with values in a range; None stands for 0."""
    node, share = layer.node, arithmetic.share(layer.roundings)
    if share == 0 or not isinstance(node, Activation):
        return None
    row = row_of(node, ENGINE)
    exact_from = row.exact_from(node)
    if exact_from == -torch.inf:
        return None
    size, offset = magnitude(lower, upper), row.offset(node)
    error = share * (size + offset + FLUSHED)
    if offset > 0:  # intermediate results may overflow before the value
        error = error.where(size <= LARGEST * arithmetic.deployed_max, torch.inf)
    return error if exact_from == torch.inf else error.where(lower < exact_from, 0.0)


def _range(layer: Layer, inputs: list[LayerRange], arithmetic: Arithmetic) -> LayerRange:
    node, first = layer.node, inputs[0]
    if isinstance(node, Linear | Conv2d):
        return _products(layer, first, arithmetic)
    if isinstance(node, Scale):
        return _scaled(layer, first, arithmetic)
    if isinstance(node, Gather):
        lower, upper = (gathered(layer, ends) for ends in ([z.lower for z in inputs], [z.upper for z in inputs]))
        if isinstance(node, Sort):
            lower, upper = _sorted(layer, lower, upper, inputs[-1])
        return LayerRange(lower, upper, magnitude(lower, upper))
    if isinstance(node, Sum):
        return _summed(layer, node, inputs, arithmetic)
    if isinstance(node, MaxPool):
        return LayerRange(
            windows(layer, first.lower, -torch.inf).amax(2), windows(layer, first.upper, -torch.inf).amax(2)
        )
    if isinstance(node, Product):
        return _multiplied(first, inputs[1], arithmetic)
    assert isinstance(node, Activation)
    interval = required(row_of(node, ENGINE).interval, node, "interval", ENGINE)
    return LayerRange(*interval(node, first.lower, first.upper, arithmetic.out))


def _unbounded_products(layer: Layer, z: LayerRange, arithmetic: Arithmetic) -> LayerRange:
    """Bound sums of products; each unbounded range is first shrunk to its finite end, or to 0 if it has none.

    A bound of the sum is infinite if an infinite end of a range contributes to it with a nonzero weight.
    """
    below, above = z.lower == -torch.inf, z.upper == torch.inf
    low = z.lower.where(~below, z.upper.where(~above, 0.0))
    high = z.upper.where(~above, low)
    known = _products(layer, LayerRange(low, high), dataclasses.replace(arithmetic, unbounded=False))
    assert known.sum is not None
    both = torch.cat([below, above]).to(low.dtype)
    plus, minus = (forward(layer, sign.to(low.dtype), both) > 0 for sign in (layer.weight > 0, layer.weight < 0))
    count = len(low)
    no_lower, no_upper = plus[:count] | minus[count:], plus[count:] | minus[:count]
    lower, upper = known.lower.where(~no_lower, -torch.inf), known.upper.where(~no_upper, torch.inf)
    return LayerRange(lower, upper, known.sum.where(~(no_lower | no_upper), torch.inf))


def _products(layer: Layer, z: LayerRange, arithmetic: Arithmetic) -> LayerRange:
    if arithmetic.unbounded:
        return _unbounded_products(layer, z, arithmetic)
    out, weight, bias = arithmetic.out, layer.weight, layer.bias
    fan_in = layer.fan_in(backward=False)
    center = z.lower / 2 + z.upper / 2
    radius = torch.maximum(z.upper - center, center - z.lower)
    radius = radius + out.rounding_error(radius)
    size = torch.maximum(z.magnitude(), center.abs())
    if arithmetic.deployed > 0:
        size = size + FLUSHED
    middle = forward(layer, weight, center)
    radius, size = forward(layer, weight.abs(), torch.cat([radius, size])).chunk(2)
    # At least the real sums, because no product is negative; the underflow of ``middle`` is included.
    gamma, deployed = out.gamma(fan_in + 4), arithmetic.share(fan_in + 4)
    radius, size = (term * (1 + 3 * gamma) + out.underflow(2 * fan_in + 8) for term in (radius, size))
    wrong = layer.weight_error if out.sound else 0.0
    unknown = layer.bias_error if out.sound else 0.0
    error = radius + (gamma + wrong + deployed) * size + (deployed * (bias.abs() + FLUSHED) + unknown)
    error = error + out.rounding_error(error + middle.abs() + bias.abs())
    middle = middle + bias
    return LayerRange(middle - error, middle + error, size)


def _scaled(layer: Layer, z: LayerRange, arithmetic: Arithmetic) -> LayerRange:
    out, scale, shift = arithmetic.out, layer.scale, layer.bias
    size = out.up(scale.abs() * z.magnitude())
    at_lower, at_upper = scale * z.lower, scale * z.upper
    lower, upper = out.down(torch.minimum(at_lower, at_upper)), out.up(torch.maximum(at_lower, at_upper))
    lower, upper = out.down(lower + shift), out.up(upper + shift)
    if out.sound:
        error = layer.scale_error * z.magnitude() + layer.bias_error
        error = error + arithmetic.share(layer.roundings) * (size + shift.abs() + FLUSHED * (1 + scale.abs()))
        error = error + out.rounding_error(error)
        lower, upper = out.down(lower - error), out.up(upper + error)
    return LayerRange(lower, upper, size)


def _summed(layer: Layer, node: Sum, inputs: list[LayerRange], arithmetic: Arithmetic) -> LayerRange:
    out = arithmetic.out
    terms = [z if sign > 0 else LayerRange(-z.upper, -z.lower) for sign, z in zip(node.signs, inputs, strict=True)]
    lower, upper, size = terms[0].lower, terms[0].upper, terms[0].magnitude()
    for z in terms[1:]:
        lower, upper, size = out.down(lower + z.lower), out.up(upper + z.upper), out.up(size + z.magnitude())
    share = arithmetic.share(layer.roundings)
    if share > 0:
        error = out.up(share * (size + FLUSHED))
        lower, upper = out.down(lower - error), out.up(upper + error)
    return LayerRange(lower, upper, size)


def _multiplied(x: LayerRange, y: LayerRange, arithmetic: Arithmetic) -> LayerRange:
    out = arithmetic.out
    corners = torch.stack([a * b for a in (x.lower, x.upper) for b in (y.lower, y.upper)])
    lower, upper = out.down(corners.amin(0)), out.up(corners.amax(0))
    error = deployed_product_error(x, y, arithmetic)
    return LayerRange(lower, upper) if error is None else LayerRange(out.down(lower - error), out.up(upper + error))


def deployed_product_error(x: LayerRange, y: LayerRange, arithmetic: Arithmetic) -> Tensor | None:
    """Return the error of a deployed product, from rounding and from flushing factors to zero; None stands for 0."""
    share, out = arithmetic.share(1), arithmetic.out
    if share == 0:
        return None
    a, b = x.magnitude(), y.magnitude()
    size = a * b + FLUSHED * (1 + a + b)
    return out.up(share * (size + out.rounding_error(size)))


def gathered(layer: Layer, inputs: list[Tensor]) -> Tensor:
    """Return the elements [B, size] that a Gather takes from its inputs [B, ...]."""
    flat = torch.cat([*inputs, inputs[0].new_zeros(len(inputs[0]), 1)], 1)
    return flat[:, layer.index]  # -1 is the last


def _sorted(layer: Layer, lower: Tensor, upper: Tensor, z: LayerRange) -> tuple[Tensor, Tensor]:
    """Return the ranges of the minimum or maximum of each pair in ``z``, intersected with the ranges lower to upper."""
    ends = []
    for end in (z.lower, z.upper):
        pair = end[:, layer.pairs]
        ends.append(torch.where(layer.larger, pair.amax(2), pair.amin(2)))
    low, high = torch.maximum(lower, ends[0]), torch.minimum(upper, ends[1])
    # Without directed rounding, the two ranges may be disjoint.
    return torch.where(low <= high, low, ends[0]), torch.where(low <= high, high, ends[1])


def windows(layer: Layer, z: Tensor, outside: float) -> Tensor:
    """Return the elements [B, size, K] of each window of a MaxPool; beyond the border, elements are ``outside``."""
    return torch.cat([z, z.new_full((len(z), 1), outside)], 1)[:, layer.index]  # -1 is the last
