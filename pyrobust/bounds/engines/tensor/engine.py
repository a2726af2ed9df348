"""The engine of float64 torch operations on the model's device, in chunks of examples and rows that fit its memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pyrobust.bounds.engines.chunks import engine_limit, in_chunks
from pyrobust.bounds.engines.engine_bounds import NUMBERS, EngineBounds
from pyrobust.bounds.engines.improved import improved, rows_of
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor.backward import BackwardPass, FiniteSets, NormBalls, row_size
from pyrobust.bounds.engines.tensor.directed_rounding import Outward
from pyrobust.bounds.engines.tensor.intervals import Arithmetic, LayerRange, range_of, windows
from pyrobust.bounds.engines.tensor.matmul import check_products, patches_of
from pyrobust.bounds.engines.tensor.network import ENGINE, Layer, Network
from pyrobust.bounds.engines.tensor.receptive_field import Window, Windows, tiles, windows_below
from pyrobust.bounds.engines.tensor.relaxations import Relaxations
from pyrobust.bounds.engines.tensor.slopes import SlopeSearching
from pyrobust.bounds.engines.work import Work
from pyrobust.bounds.graph.activations import row_of
from pyrobust.bounds.graph.analysis import Step
from pyrobust.bounds.graph.nodes import Activation, MaxPool, Node, Product
from pyrobust.bounds.input_set import InputSet
from pyrobust.bounds.methods import IBP
from pyrobust.bounds.specification import Margins, Rows
from pyrobust.errors import ModelError
from pyrobust.machine import free_memory, is_out_of_memory

# Share of the free memory that a call may use by default, and chunk sizes beyond which larger chunks gain nothing.
_MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.6}
_MAX_EXAMPLES = 1024
_MAX_ROW_BYTES = {"cpu": 64 << 20, "cuda": 16 << 30}
_MAX_ROWS = 65535  # also the largest batch of matrix products on every device
# Least number of neurons for a window of their own: with fewer, launching a loop costs more than the window saves.
_TILE_ROWS = {"cpu": 64, "cuda": 4096}
# Number of tensors of a layer's size that each example needs: a range and its sum, a pair, a relaxation, and
# temporaries.
_KEPT = 16


class TensorEngine:
    """Bounds of one graph's output, in float64 torch operations on a device.

    Args:
        output: the graph.
        dtype: dtype of the model; ``semantics="float32"`` refers to the model's deployed forward pass in this dtype.
        device: device of the computation and of input sets; results are on the CPU.

    Raises:
        ModelError: a parameter is not finite, a parameter that is not known exactly rounds to zero (so its relative
            error is undefined), or an activation has no interval or no relaxation.
    """

    def __init__(self, output: Node, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._network = Network(output, device)
        self._floats = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
        self.deployable = dtype in (torch.float32, torch.float64)
        self._fitting: dict[int, int] = {}  # bytes of rows from a layer that fit the memory
        layers = self._network.layers
        self._work = Work([Step(layer.node, layer.inputs) for layer in layers])

    def run(self, inputs: InputSet, rows: Rows, query: Query, *, with_upper: bool = True) -> EngineBounds:
        """Return bounds [B, S] of rows [S, K] or [B, S, K] times the output; upper ones are inf without ``with_upper``.

        Only "ibp" without rows gives upper bounds in any case.

        Raises:
            ModelError: matrix products on this device may not be IEEE float64, or one example does not fit into memory.
        """
        if query.bounding.slope_search is not None:
            return improved(self._run, inputs, rows, query, with_upper)
        return self._run(inputs, rows, query, with_upper)

    def _run(self, inputs: InputSet, rows: Rows, query: Query, with_upper: bool) -> EngineBounds:
        network = self._network
        count = network.layers[network.output].size if rows is None else rows.shape[-2]
        bounds = EngineBounds.unknown(query.method, len(inputs), count)

        def work(chunk: _Chunk, span: slice) -> None:
            bounds.store(span, chunk.run(rows_of(rows, span), with_upper))

        sides = 0 if rows is None and not query.bounding.to_input else 1 + with_upper
        self._in_parts(inputs, query, work, count * sides)
        if not inputs.bounded and query.bounding.to_input:
            # a backward pass may charge unlimited rounding errors where intervals still know one end
            bounds.improve(self.run(inputs, rows, dataclasses.replace(query, method=IBP.name), with_upper=with_upper))
        return bounds

    def ranges(self, inputs: InputSet, query: Query) -> Iterator[tuple[Node, Tensor, Tensor]]:
        """Yield (layer, lower, upper) for each layer but the input, in order: bounds [B, size] on the CPU."""
        layers = self._network.layers[1:]
        lower = [torch.full((len(inputs), layer.size), -torch.inf, dtype=torch.float64) for layer in layers]
        upper = [torch.full_like(low, torch.inf) for low in lower]

        def work(chunk: _Chunk, span: slice) -> None:
            for k, z in enumerate(chunk.ranges()[1:]):
                lower[k][span], upper[k][span] = z.lower.cpu(), z.upper.cpu()

        self._in_parts(inputs, query, work)
        return zip((layer.node for layer in layers), lower, upper, strict=True)

    def linear(self, inputs: InputSet, rows: Tensor | None, query: Query) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return lower and upper linear bounds A·x + b of rows on each set: A [B, S, n] and b [B, S], on the CPU."""
        network = self._network
        if rows is None:
            rows = torch.eye(network.layers[network.output].size, dtype=torch.float64, device=network.device)
        sizes = (2, len(inputs), rows.shape[-2])
        a = torch.zeros(*sizes, network.layers[0].size, dtype=torch.float64)
        b = torch.full(sizes, -torch.inf, dtype=torch.float64)

        def work(chunk: _Chunk, span: slice) -> None:
            subset_rows = rows_of(rows, span)
            assert isinstance(subset_rows, Tensor)
            for sign, signed in enumerate((subset_rows, -subset_rows)):
                chunk.linear(signed, a[sign, span], b[sign, span])

        self._in_parts(inputs, query, work)
        return a[0], b[0], -a[1], -b[1]

    def _in_parts(self, inputs: InputSet, query: Query, work: Callable[[_Chunk, slice], None], rows: int = 0) -> None:
        """Call ``work`` on chunks of sets that fit into memory, with the slice of each chunk's positions.

        If the query has a watch, tell the watch that ``rows`` linear functions are to be bounded for each set.
        """
        network = self._network
        check_products(network.device)
        out = Outward(query.sound)
        deployed = self._floats.eps / 2 if query.semantics == "float32" and query.sound else 0.0
        arithmetic = Arithmetic(out, deployed, self._floats.max, not inputs.bounded)
        device = network.device
        kept = 8 * (_KEPT * network.neurons + 3 * max(patches_of(layer, None) for layer in network.layers))
        if inputs.choices is not None:
            kept += 8 * 3 * math.prod(inputs.choices.points.shape[1:])
        if query.memory_limit is None:
            limit = int(_MEMORY_SHARE[device.type] * free_memory(device))
        else:
            row = row_size(network, network.output, windows_below(network, network.output, None))
            limit = engine_limit(query.memory_limit, kept + 2 * 8 * row)
        size = max(1, min(_MAX_EXAMPLES, limit // 2 // kept))
        row_bytes = max(limit // 2, limit - size * kept)

        watch = query.watch
        if watch is not None:
            memory = min(size, len(inputs)) * kept + min(row_bytes, _MAX_ROW_BYTES[device.type])
            watch.begin(self._work, query, inputs.norm, len(inputs), rows, memory)

        def step(begin: int, end: int) -> None:
            if query.ended:
                return
            span = slice(begin, end)
            work(_Chunk(network, inputs.rows(span), query, arithmetic, self._fitting, row_bytes), span)
            if watch is not None:
                watch.add(network.output, examples=end - begin)

        try:
            with contextlib.nullcontext() if watch is None else watch.keeping():
                in_chunks(len(inputs), size, step)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(f"model: the bounds of one example do not fit the memory of {device}") from error


class _Chunk:
    """Bounds of a chunk of examples, from the input to the output."""

    def __init__(
        self,
        network: Network,
        inputs: InputSet,
        query: Query,
        arithmetic: Arithmetic,
        fitting: dict[int, int],
        row_bytes: int,
    ) -> None:
        self._network = network
        self._inputs = inputs
        self._query = query
        # Plain floating-point bounds are compared with those of other programs, method by method.
        self._intersects = network.intersects or query.sound
        self._arithmetic = arithmetic
        self._fitting = fitting
        self._row_bytes = row_bytes
        self._ranges = [LayerRange(inputs.lower.double(), inputs.upper.double())]
        self._relaxations = Relaxations(network, arithmetic, self._ranges)
        self._underflow = torch.zeros(len(inputs), dtype=torch.float64, device=network.device)
        self._undefined = torch.zeros(len(inputs), dtype=torch.bool, device=network.device)
        self._may_be_undefined = network.partial or arithmetic.deployed > 0
        self._subset: NormBalls | FiniteSets | None = None
        if inputs.choices is not None:
            points = inputs.choices.points.double().transpose(1, 2).flatten(3)
            error = self._relaxations.input_error(points.abs().amax(2).flatten(1))
            self._subset = FiniteSets(points.contiguous(), inputs.choices.changes, error)
        elif inputs.norm != "linf":
            assert inputs.center is not None
            assert inputs.epsilon is not None
            self._subset = NormBalls(
                inputs.norm, self._relaxations.with_rounding_error(inputs.center, inputs.center), inputs.epsilon
            )

    def run(self, rows: Rows, with_upper: bool) -> EngineBounds:
        """Bounds of specification rows: [B, S]."""
        self._propagate()
        return self._finish(rows, with_upper)

    def ranges(self) -> list[LayerRange]:
        """Ranges of all layers; for the output, the bounds of ``run``."""
        self._propagate()
        self._ranges[self._network.output] = LayerRange(*self._finish(None, True))
        return self._ranges

    def linear(self, rows: Tensor, a: Tensor, b: Tensor) -> None:
        """Write linear lower bounds of specification rows to a [B, S, n] and b [B, S]."""
        network, batch, count = self._network, len(self._inputs), rows.shape[-2]
        if len(self._ranges) == 1:
            self._propagate()
        backward_pass = self._backward_pass()
        every = torch.arange(batch * count, device=network.device)
        image, row = every // max(1, count), every % max(1, count)

        def step(begin: int, end: int) -> None:
            chosen = image[begin:end], row[begin:end]
            span = rows[chosen] if rows.dim() == 3 else rows[chosen[1]]  # a copy
            slopes, intercepts = backward_pass.to_input(chosen[0], span)
            defined = ~self._undefined[chosen[0]]
            to_input = slopes.where(defined.unsqueeze(1), 0.0), intercepts.where(defined, -torch.inf)
            for target, values in zip((a, b), to_input, strict=True):
                target[chosen[0].cpu(), chosen[1].cpu()] = values.cpu()

        self._in_chunks(network.output, batch * count, 1, windows_below(network, network.output, None), step)

    def _propagate(self) -> None:
        """Compute the ranges of all layers."""
        network, ranges = self._network, self._ranges
        # coefficients and sums of every layer, and intercepts of the input
        self._underflow += self._arithmetic.out.underflow(64 * network.neurons)
        for i, layer in enumerate(network.layers):
            if i > 0:
                ranges.append(
                    self._where_defined(range_of(layer, [ranges[source] for source in layer.inputs], self._arithmetic))
                )
            self._underflow += self._relaxations.underflow(i)
            refines, subset = self._query.bounding.refines, self._subset
            everywhere = isinstance(subset, FiniteSets) or (subset and (not refines or self._intersects))
            if network.analysis.ends_affine_part[i] and everywhere:
                # Intervals see only the box of a set: the set itself enters where the network is still affine.
                self._bound_neurons(i, torch.ones_like(ranges[i].lower, dtype=torch.bool))
            elif refines:
                self._refine(i)

    def _where_defined(self, z: LayerRange) -> LayerRange:
        """Return the layer's range, or an unknown range where the network may have no value at or before the layer."""
        if z.undefined is not None:
            self._undefined |= z.undefined
        if not self._may_be_undefined:
            return z
        defined = ~self._undefined.unsqueeze(1)
        return LayerRange(z.lower.where(defined, -torch.inf), z.upper.where(defined, torch.inf), z.sum)

    def _refine(self, i: int) -> None:
        """Run backward passes for the neurons of a layer that are unstable for a nonlinear layer above.

        Only affine layers and products are refined, because the range of a monotone function follows from the range of
        its input.
        """
        network = self._network
        if not (network.layers[i].affine or isinstance(network.layers[i].node, Product)):
            return
        readers, z, wanted = network.analysis.consumers, self._ranges[i], []
        for j in dict.fromkeys(readers[i]):
            function = network.layers[j]
            if function.nonlinear:
                wanted.append(_unstable(function, z))
            if isinstance(function.node, Activation) and function.node.function in ("leaky_relu", "clamp"):
                # A maximum of values of an increasing function makes its choice by the inputs of this function.
                maxima = [network.layers[k] for k in readers[j] if isinstance(network.layers[k].node, MaxPool)]
                after = range_of(function, [z], self._arithmetic) if maxima else z
                wanted += [_unstable_windows(maximum, after) for maximum in maxima]
        if wanted:
            self._bound_neurons(i, torch.stack(wanted).any(0))

    def _bound_neurons(self, i: int, wanted: Tensor) -> None:
        """Replace the ranges of the wanted neurons [B, size] of layer i; bound equal or opposite neurons only once."""
        same = self._network.representatives(i)
        if same is None:
            self._bound_each(i, wanted)
            return
        first, sign = same
        chosen = torch.zeros_like(wanted)
        image, neuron = wanted.nonzero(as_tuple=True)
        chosen[image, first[neuron]] = True
        self._bound_each(i, chosen)
        z = self._ranges[i]
        low, high = z.lower[:, first], z.upper[:, first]
        low, high = low.where(sign > 0, -high), high.where(sign > 0, -low)
        self._ranges[i] = LayerRange(low.where(wanted, z.lower), high.where(wanted, z.upper), z.sum)

    def _bound_each(self, i: int, wanted: Tensor) -> None:
        """Replace the ranges of the wanted neurons [B, size] of layer i by bounds from a backward pass."""
        network = self._network
        image, neuron = wanted.nonzero(as_tuple=True)  # synchronises with the device: the number of rows is needed
        watch = self._query.watch
        if watch is not None:
            watch.add(i, spared=2 * (wanted.numel() - len(image)))
        old, backward_pass, shape = self._ranges[i], self._backward_pass(), network.layers[i].node.shape
        groups: Sequence[tuple[int, Window | None]] = [(len(image), None)]
        if len(shape) == 3 and not self._searches:  # a search takes whole layers to the minimiser and back
            order, groups = tiles(neuron, shape, _TILE_ROWS[network.device.type])
            image, neuron = image[order], neuron[order]
        first, windows = 0, windows_below(network, i, None)

        def step(begin: int, end: int) -> None:
            chosen = image[first + begin : first + end], neuron[first + begin : first + end]
            low, high = backward_pass.from_neurons(i, *chosen, windows)
            if self._searches:
                search, sign = self._search(chosen[0].repeat(2)), torch.ones_like(low)
                bounds = search.improve(
                    functools.partial(
                        search.backward_pass.from_units,
                        i,
                        search.every,
                        chosen[1].repeat(2),
                        torch.cat([sign, -sign]),
                        windows,
                    ),
                    torch.cat([low, -high]),
                    decides=True,
                )
                low, high = bounds[: len(low)], -bounds[len(low) :]
            # A bound that is not finite leaves the range as it was, and so does a bound of real numbers that may
            # overflow.
            usable = low.isfinite() & high.isfinite() & (low <= high)
            if self._arithmetic.deployed > 0:
                usable &= (old.lower[chosen] > -torch.inf) | (old.upper[chosen] < torch.inf)
            if self._intersects:
                low, high = torch.maximum(low, old.lower[chosen]), torch.minimum(high, old.upper[chosen])
                usable &= low <= high
            lower[chosen] = low.where(usable, old.lower[chosen])
            upper[chosen] = high.where(usable, old.upper[chosen])

        lower, upper = old.lower.clone(), old.upper.clone()
        for count, window in groups:
            windows = windows_below(network, i, window)
            self._in_chunks(i, count, 2, windows, step)
            first += count
        self._ranges[i] = LayerRange(lower, upper, old.sum)

    def _finish(self, rows: Rows, with_upper: bool) -> EngineBounds:
        network = self._network
        output = network.output
        if rows is None and not self._query.bounding.to_input:
            return EngineBounds.by(self._query.method, self._ranges[output].lower, self._ranges[output].upper)
        batch, count = len(self._inputs), network.layers[output].size if rows is None else rows.shape[-2]
        lower = torch.full((batch * count,), -torch.inf, dtype=torch.float64, device=network.device)
        upper = torch.full_like(lower, torch.inf)
        number, ibp = NUMBERS[self._query.method], NUMBERS[IBP.name]
        lower_by, upper_by = (torch.full(lower.shape, number, dtype=torch.uint8, device=lower.device) for _ in range(2))
        to_input = self._query.bounding.to_input
        intersects = self._intersects and to_input
        stops = [not to_input, True] if intersects else [not to_input]
        passes = [self._backward_pass(stop=stop) for stop in stops]
        every = torch.arange(batch * count, device=network.device)
        image, row = every // max(1, count), every % max(1, count)

        def step(begin: int, end: int) -> None:
            images, indices = image[begin:end], row[begin:end]
            if isinstance(rows, Margins):
                a = rows.some(images, indices)
            elif rows is None:
                a = torch.zeros(len(indices), count, dtype=torch.float64, device=network.device)
                a.scatter_(1, indices[:, None], 1.0)
            else:
                a = rows[images, indices] if rows.dim() == 3 else rows[indices]
            if with_upper:
                images, a = images.repeat(2), torch.cat([a, -a])
            # the better of linear and interval bounds, where both are computed; once the time has ended, only the
            # latter
            results = [one.from_specification(images, a.clone()) for one in passes[self._query.ended and intersects :]]
            both = torch.stack(results).amax(0)
            linear = results[0] if len(results) == len(passes) else torch.full_like(both, -torch.inf)
            if self._searches and not self._query.ended:
                search = self._search(images)
                sought = search.improve(
                    lambda kept: search.backward_pass.from_specification(search.every, a.clone(), kept), both
                )
                both, linear = sought, sought.where(sought > both, linear)
            by = torch.where(linear >= both, number, ibp).to(torch.uint8)
            lower[begin:end], lower_by[begin:end] = both[: end - begin], by[: end - begin]
            if with_upper:
                upper[begin:end], upper_by[begin:end] = -both[end - begin :], by[end - begin :]

        windows = windows_below(network, output, None)
        self._in_chunks(output, batch * count, 2 if with_upper else 1, windows, step, always=intersects)
        defined = ~self._undefined.unsqueeze(1)
        lower, upper = lower.view(batch, count), upper.view(batch, count)
        lower, upper = lower.where(defined, -torch.inf), upper.where(defined, torch.inf)
        return EngineBounds(lower, upper, lower_by.view(batch, count), upper_by.view(batch, count))

    @property
    def _searches(self) -> bool:
        return self._query.bounding.slope_search is not None and not self._arithmetic.unbounded

    def _search(self, image: Tensor) -> SlopeSearching:
        """Return a search for the slopes of rows that treats each row as a separate example."""
        network, arithmetic, subset = self._network, self._arithmetic, self._subset
        ranges = [
            LayerRange(z.lower[image], z.upper[image], None if z.sum is None else z.sum[image]) for z in self._ranges
        ]
        relaxations = Relaxations(network, arithmetic, ranges)
        subset = None if subset is None else subset.rows(image)
        backward_pass = BackwardPass(network, arithmetic, relaxations, self._underflow[image], subset)
        return SlopeSearching(backward_pass, len(image), self._query)

    def _backward_pass(self, *, stop: bool = False) -> BackwardPass:
        return BackwardPass(self._network, self._arithmetic, self._relaxations, self._underflow, self._subset, stop)

    def _in_chunks(
        self,
        i: int,
        total: int,
        rows: int,
        windows: Windows,
        step: Callable[[int, int], None],
        *,
        always: bool = False,
    ) -> None:
        """Split ``total`` items into chunks and call ``step`` on each; an item takes ``rows`` rows from layer i.

        Chunks after the time limit are skipped, unless ``always``.
        """
        device = self._network.device
        elements = row_size(self._network, i, windows)
        if self._searches:
            elements += _KEPT * sum(layer.size for layer in self._network.layers[: i + 1])
        each, watch = 8 * rows * elements, self._query.watch
        limit = min(self._row_bytes, _MAX_ROW_BYTES[device.type], self._fitting.get(i, self._row_bytes))
        size = max(1, min(limit // each, _MAX_ROWS // rows))

        def watched(begin: int, end: int) -> None:
            if watch is None:
                return step(begin, end)
            if always or watch.goes_on():
                step(begin, end)
                watch.add(i, rows=rows * (end - begin))

        fitting = in_chunks(total, size, watched)
        if fitting < size:  # memory ran out
            self._fitting[i] = fitting * each


def _unstable(function: Layer, z: LayerRange) -> Tensor:
    """Return whether a neuron's range holds a kink, or more than a point of a curved function; bool [B, size]."""
    node, lower, upper = function.node, z.lower, z.upper
    if isinstance(node, MaxPool):
        return _unstable_windows(function, z)
    if isinstance(node, Product):
        return lower < upper
    assert isinstance(node, Activation)
    kinks = row_of(node, ENGINE).kinks
    if kinks is None:
        return lower < upper
    unstable = torch.zeros_like(lower, dtype=torch.bool)
    for kink in kinks(node):
        unstable |= (lower < kink) & (upper > kink)
    return unstable


def _unstable_windows(maximum: Layer, z: LayerRange) -> Tensor:
    """Mark the possible maxima of every window that has more than one possible maximum; bool [B, size]."""
    low, high = windows(maximum, z.lower, -torch.inf), windows(maximum, z.upper, -torch.inf)
    best = low.argmax(2, keepdim=True)
    others = high.scatter(2, best, -torch.inf).amax(2, keepdim=True)
    # all other elements go to a column that is cut off
    index = maximum.index.where((others > low.gather(2, best)) & (high > low.gather(2, best)), z.lower.shape[1])
    wanted = torch.zeros(len(low), z.lower.shape[1] + 1, dtype=torch.bool, device=z.lower.device)
    return wanted.scatter_(1, index.flatten(1), True)[:, :-1]
