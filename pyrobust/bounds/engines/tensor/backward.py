"""Backward passes of linear bounds, in packed rows, from a layer to the input (Zhang et al., 2018).

A row is a linear function of one layer's neurons and belongs to one example. The rows of all examples lie one after the
other, so that each step is one operation for all rows. For each row, the step reads the relaxations of the row's
example. Rows that start at neighbouring neurons of a convolution have coefficients only in a window that holds their
receptive fields; all other rows have coefficients for the whole layer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.engines.tensor.directed_rounding import ROUNDOFF
from pyrobust.bounds.engines.tensor.intervals import Arithmetic
from pyrobust.bounds.engines.tensor.matmul import backward, patches_of, units_backward
from pyrobust.bounds.engines.tensor.network import Layer, Network
from pyrobust.bounds.engines.tensor.receptive_field import Window, Windows, cropped, moved, units, windows_below
from pyrobust.bounds.engines.tensor.relaxations import Pair, Relaxations
from pyrobust.bounds.graph.nodes import Conv2d, Gather, Input, Linear, MaxPool, Product, Scale, Sum
from pyrobust.ops.relax_rows import concretize_rows, relax_rows

_LARGEST = torch.finfo(torch.float64).max
# Number of products of coefficients and points that are in memory at once.
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class NormBalls:
    """Balls of radii epsilon [B] in a norm, around ``center``, a ``Pair`` that includes the rounding error of a row."""

    norm: str
    center: Pair
    epsilon: Tensor

    def rows(self, chosen: Tensor) -> NormBalls:
        """Select sets by indices."""
        return NormBalls(self.norm, Pair(*(bound[chosen] for bound in self.center)), self.epsilon[chosen])


@dataclasses.dataclass(frozen=True)
class FiniteSets:
    """Input sets whose parts each take finitely many values; rows are concretized exactly, part by part.

    Attributes:
        points: [B, P, K, m], the K points of each of P parts.
        changes: [B], the largest number of parts of an input that may differ from their first points at the same time.
        error: [B, P·m], for each element, the rounding error of a row whose coefficient at this element is 1.
    """

    points: Tensor
    changes: Tensor
    error: Tensor

    def rows(self, chosen: Tensor) -> FiniteSets:
        """Select sets by indices."""
        return FiniteSets(self.points[chosen], self.changes[chosen], self.error[chosen])

    def minimum(self, a: Tensor, image: Tensor) -> Tensor:
        """Return lower bounds [R], over all inputs, of the sums Σ aᵢ·xᵢ, for rows of coefficients a [R, P·m]."""
        total = -concretize_rows(a.abs(), image, self.error, self.error)
        size = max(1, _BLOCK // self.points[0, :, :, 0].numel())
        for i in image.bincount().nonzero().squeeze(1).tolist():
            for rows in (image == i).nonzero().squeeze(1).split(size):
                total[rows] += self._minimum(a[rows], i)
        return total

    def minimiser(self, a: Tensor, image: Tensor) -> Tensor:
        """Return the elements [R, P·m] of the inputs for which the sums of ``minimum`` are smallest."""
        rows = []
        for row, i in zip(a, image.tolist(), strict=True):
            points, changes = self.points[i], int(self.changes[i])  # [P, K, m]
            values = (points * row.view(len(points), 1, -1)).sum(2)
            least = values.min(1)
            chosen = least.indices
            worth = (values[:, 0] - least.values).topk(min(changes, len(points))).indices
            kept = torch.zeros_like(chosen).index_copy(0, worth, chosen[worth])
            rows.append(points[torch.arange(len(points), device=a.device), kept].flatten())
        return torch.stack(rows) if rows else torch.zeros_like(a)

    def _minimum(self, a: Tensor, i: int) -> Tensor:
        points, changes = self.points[i], int(self.changes[i])
        values = torch.bmm(a.view(len(a), len(points), -1).transpose(0, 1), points.transpose(1, 2))  # [P, R, K]
        values = values.where(values.isfinite(), -torch.inf)
        least = values.amin(2)
        if changes >= len(points):
            return least.sum(0)
        first = values[:, :, 0]
        # −∞ − −∞
        gains = (least - first).nan_to_num(-torch.inf, None, -torch.inf)
        return first.sum(0) + gains.topk(changes, 0, largest=False, sorted=False).values.sum(0)


@dataclasses.dataclass(frozen=True)
class BackwardPass:
    """A backward pass through a network.

    Attributes:
        network: the layers.
        arithmetic: the arithmetic that bounds hold for.
        relaxations: the pair of constants (``Pair``) of each affine layer, or the linear relaxation of each other
            layer.
        underflow: the error that underflow can cause in a row, [B].
        subset: the input set, if it is smaller than its box.
        stop: whether to stop at activations and concretize on their ranges, which gives interval bounds of the rows.
    """

    network: Network
    arithmetic: Arithmetic
    relaxations: Relaxations
    underflow: Tensor
    subset: NormBalls | FiniteSets | None
    stop: bool = False

    def from_neurons(self, i: int, image: Tensor, neuron: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        """Return bounds (lower, upper) [R] of neurons [R] of layer i, which is affine or a product.

        ``image`` [R] holds the example of each neuron; for ``windows``, see ``Windows``.
        """
        sign = torch.ones_like(neuron, dtype=torch.float64)
        bounds = self.from_units(i, image.repeat(2), neuron.repeat(2), torch.cat([sign, -sign]), windows)
        return bounds[: len(neuron)], -bounds[len(neuron) :]

    def from_units(
        self,
        i: int,
        image: Tensor,
        neuron: Tensor,
        sign: Tensor,
        windows: Windows,
        kept: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return lower bounds [R] of neurons times signs [R], ±1; other arguments are as in ``from_neurons``."""
        layer = self.network.layers[i]
        if isinstance(layer.node, Product):
            start = units(neuron, sign, layer.node.shape, windows[i], layer.size)
            return self._propagate({i: start}, image, torch.zeros_like(sign), windows, kept)
        pair = self.relaxations.pair(i)
        total = torch.where(sign > 0, pair.low[image, neuron], -pair.high[image, neuron])
        if layer.products:
            first = layer.inputs[0]
            below = {first: units_backward(layer, neuron, sign, windows[i], windows[first])}
        else:
            below = self._to_inputs(i, image, units(neuron, sign, layer.node.shape, windows[i], layer.size), windows)
        return self._propagate(below, image, total, windows, kept)

    def from_specification(self, image: Tensor, a: Tensor, kept: dict[int, Tensor] | None = None) -> Tensor:
        """Return lower bounds [R] of specification rows a [R, size], which are overwritten.

        ``kept`` receives the coefficients of the input and of each layer with a relaxation, by the layer's number.
        """
        output = self.network.output
        total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
        return self._propagate({output: a}, image, total, windows_below(self.network, output, None), kept)

    def to_input(self, image: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return A [R, n] and b [R] with A·x + b ≤ a·output for rows ``a`` [R, size], which are overwritten.

        A is returned as computed; b is lowered to account for all rounding errors.
        """
        output, n = self.network.output, self.network.layers[0].size
        total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
        kept = {0: a.new_zeros(len(a), n)}  # stays 0 for a network that does not read its input
        windows = windows_below(self.network, output, None)
        b = self._propagate({output: a}, image, total, windows, kept, concretizes=False)
        finite = kept[0].isfinite().all(1) & b.isfinite()
        return kept[0].where(finite.unsqueeze(1), 0.0), b.where(finite, -torch.inf)

    def minimiser(self, image: Tensor, a: Tensor) -> Tensor:
        """Return the points [R, n] of the input sets at which rows of coefficients are smallest, up to rounding."""
        low, high = (bound[image] for bound in self.relaxations.box(0))
        corner = torch.where(a > 0, low, high)
        if self.subset is None:
            return corner
        if isinstance(self.subset, FiniteSets):
            return self.subset.minimiser(a, image)
        center, epsilon = self.subset.center.low[image], self.subset.epsilon[image].unsqueeze(1)
        if self.subset.norm == "l1":
            direction = torch.zeros_like(a).scatter_(1, a.abs().argmax(1, keepdim=True), 1) * a.sgn()
        else:
            direction = functional.normalize(a, dim=1, eps=torch.finfo(a.dtype).tiny)
        point = center - epsilon * direction
        # the bound is the better of the two
        return torch.where((a * (corner - point)).sum(1, keepdim=True) >= 0, corner, point)

    def _propagate(
        self,
        coefficients: dict[int, Tensor],
        image: Tensor,
        total: Tensor,
        windows: Windows,
        kept: dict[int, Tensor] | None = None,
        *,
        concretizes: bool = True,
    ) -> Tensor:
        """Return lower bounds of rows; without ``concretizes``, the input's coefficients are left out of the bounds."""
        for i in range(max(coefficients), -1, -1):
            if i not in coefficients:
                continue
            layer, a = self.network.layers[i], coefficients.pop(i)
            shape, window = layer.node.shape, windows[i]
            if kept is not None and not layer.affine and (concretizes or i == 0):
                kept[i] = moved(a.clone(), shape, window, None)  # a stride may leave elements unread
            if isinstance(layer.node, Input):
                total = self._concretize(image, a, total, window) if concretizes else total
                continue
            if self.stop and layer.nonlinear:
                total = total + self._dot(a, image, *self.relaxations.box(i))
                continue
            if layer.affine and not layer.fused:
                total = total + self._dot(a, image, *(cropped(t, shape, window) for t in self.relaxations.pair(i)))
            elif isinstance(layer.node, Product):
                constant, below = self._to_factors(i, image, a, windows)
                total = total + constant
                _accumulate(coefficients, below)
                continue
            elif layer.nonlinear:
                *relaxation, _ = self.relaxations.relaxation(i)
                total = total + self._relax(a, image, *(cropped(values, shape, window) for values in relaxation))
            _accumulate(coefficients, self._to_inputs(i, image, a, windows))
        total = self.arithmetic.out.down(total - self.underflow[image])
        return total.where(total.isfinite(), -torch.inf)

    def _dot(self, a: Tensor, image: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Call ``concretize_rows`` so that 0·∞ = 0 where the input is unbounded."""
        if not self.arithmetic.unbounded:
            return concretize_rows(a, image, low, high)
        return self._unknown(a, image, low, concretize_rows(a, image, low.clamp(min=-_LARGEST), high))

    def _relax(
        self, a: Tensor, image: Tensor, lower_slope: Tensor, upper_slope: Tensor, low: Tensor, high: Tensor
    ) -> Tensor:
        """Call ``relax_rows`` so that 0·∞ = 0 where the input is unbounded."""
        if not self.arithmetic.unbounded:
            return relax_rows(a, image, lower_slope, upper_slope, low, high)
        positive = a > 0  # a is overwritten
        total = relax_rows(a, image, lower_slope, upper_slope, low.clamp(min=-_LARGEST), high)
        return self._unknown(positive, image, low, total)

    @staticmethod
    def _unknown(a: Tensor, image: Tensor, low: Tensor, total: Tensor) -> Tensor:
        """Return ``total``, but −inf for rows in which a positive coefficient meets a low of −inf."""
        return total.where(~((a > 0) & (low[image] == -torch.inf)).any(1), -torch.inf)

    def _to_inputs(self, i: int, image: Tensor, a: Tensor, windows: Windows) -> dict[int, Tensor]:
        """Return the coefficients of a layer's inputs, in separate memory; ``a`` is overwritten, and may be reused."""
        layer = self.network.layers[i]
        node, window, first = layer.node, windows[i], layer.inputs[0]
        if isinstance(node, Linear | Conv2d):
            return {first: backward(layer, a, window, windows[first])}
        if isinstance(node, Gather | MaxPool):
            a = moved(a, node.shape, window, None)
            return self._scatter(layer, a) if isinstance(node, Gather) else self._to_chosen(i, image, a)
        if isinstance(node, Scale):
            a.mul_(cropped(layer.scale, node.shape, window))
        coefficients: dict[int, Tensor] = {}
        signs = node.signs if isinstance(node, Sum) else (1,)
        for k, (source, sign) in enumerate(zip(layer.inputs, signs, strict=True)):
            part = moved(a, node.shape, window, windows[source])
            part = part.clone() if k < len(signs) - 1 else part  # the last part reuses the memory
            part = part if sign > 0 else part.neg_()
            coefficients[source] = coefficients[source].add_(part) if source in coefficients else part
        return coefficients

    def _to_factors(self, i: int, image: Tensor, a: Tensor, windows: Windows) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the constant [R] and the coefficients of the two factors of a product; ``a`` is overwritten."""
        layer, window = self.network.layers[i], windows[i]
        shape = layer.node.shape
        total, coefficients = a.new_zeros(len(a)), dict[int, Tensor]()
        factors = zip(layer.inputs, (a.clone(), a), self.relaxations.product(i), strict=True)
        for source, coefficient, (*relaxation, _) in factors:
            total = total + self._relax(coefficient, image, *(cropped(term, shape, window) for term in relaxation))
            _accumulate(coefficients, {source: moved(coefficient, shape, window, windows[source])})
        return total, coefficients

    def _to_chosen(self, i: int, image: Tensor, a: Tensor) -> dict[int, Tensor]:
        """Move the coefficient of each maximum to the element that its relaxation uses."""
        first, chosen = self.network.layers[i].inputs[0], self.relaxations.relaxation(i).chosen
        assert chosen is not None
        out = a.new_zeros(len(a), self.network.layers[first].size)
        return {first: out.scatter_add_(1, chosen[image], a)}

    def _scatter(self, layer: Layer, a: Tensor) -> dict[int, Tensor]:
        """Move the coefficients of a Gather's elements to the input elements from which these are read."""
        sizes = [self.network.layers[source].size for source in layer.inputs]
        # the number 0 takes coefficients of padding
        index = layer.index.where(layer.index >= 0, sum(sizes))
        flat = a.new_zeros(len(a), sum(sizes) + 1).index_add_(1, index, a)
        coefficients: dict[int, Tensor] = {}
        for source, term in zip(layer.inputs, torch.split(flat[:, :-1], sizes, 1), strict=True):
            coefficients[source] = coefficients[source].add_(term) if source in coefficients else term.contiguous()
        return coefficients

    def _concretize(self, image: Tensor, a: Tensor, total: Tensor, window: Window | None) -> Tensor:
        """Return lower bounds over the input's box or, for a smaller input set, the better of those over both."""
        shape = self.network.layers[0].node.shape
        box = total + self._dot(a, image, *(cropped(t, shape, window) for t in self.relaxations.box(0)))
        if self.subset is None:
            return box
        if isinstance(self.subset, FiniteSets):
            bound = total + self.subset.minimum(moved(a, shape, window, None), image)
        else:
            bound = total + concretize_rows(a, image, *(cropped(t, shape, window) for t in self.subset.center))
            out = self.arithmetic.out
            bound = out.down(bound - out.up(self.subset.epsilon[image] * self._dual_norm(a, self.subset.norm)))
        return torch.where(box.isfinite() & ((box >= bound) | ~bound.isfinite()), box, bound)

    def _dual_norm(self, a: Tensor, norm: str) -> Tensor:
        """Return the dual norm of each row, rounded up: the largest |coefficient| for l1, the l2 norm for l2."""
        if a.shape[1] == 0:
            return a.new_zeros(len(a))
        largest = a.abs().amax(1)
        if norm == "l1":
            return largest
        # after division by the largest, no square overflows, and squares that underflow do not matter beside 1
        out = self.arithmetic.out
        squares = (a / torch.where(largest > 0, largest, 1).unsqueeze(1)).square_().sum(1)
        root = squares.sqrt() * (1 + (2 * (a.shape[1] + 8) * ROUNDOFF if out.sound else 0.0))
        return out.up(out.up(root) * largest)


def _accumulate(coefficients: dict[int, Tensor], terms: dict[int, Tensor]) -> None:
    """Add terms to the coefficients of their layers, in place."""
    for source, term in terms.items():
        coefficients[source] = coefficients[source].add_(term) if source in coefficients else term


def row_size(network: Network, i: int, windows: Windows) -> int:
    """Return the most elements that a row from layer i needs in memory: coefficients, and temporaries of a step."""

    def size(j: int) -> int:
        window, layer = windows[j], network.layers[j]
        return layer.size if window is None else window.size(layer.node.shape)

    live, peak = {i}, 0
    for j in range(i, -1, -1):
        if j not in live:
            continue
        layer = network.layers[j]
        below = set(layer.inputs)
        # parts of a sum, indices of windows, and patches are held in addition to the coefficients above and below
        extra = patches_of(layer, windows[j]) + size(j) * (len(layer.inputs) if layer.affine else 2)
        peak = max(peak, sum(map(size, live | below)) + sum(map(size, below)) + extra)
        live = live - {j} | below
    return peak
