"""The native engine, which works in chunks that fit the memory, and in float64 where float32 has overflowed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pyrobust.bounds.engines.chunks import check_machine, engine_limit, fits, most_live
from pyrobust.bounds.engines.engine_bounds import NUMBERS, EngineBounds
from pyrobust.bounds.engines.improved import improved, rows_of
from pyrobust.bounds.engines.library_products import LibraryProducts
from pyrobust.bounds.engines.native_packing import Packed, has_offset, native_network
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.watch import EVERY
from pyrobust.bounds.graph.analysis import is_nonlinear, needs_interval_bounds
from pyrobust.bounds.graph.nodes import Conv2d, Linear, Node, Reshape, in_order
from pyrobust.bounds.input_set import CPU, Around, InputSet
from pyrobust.bounds.methods import IBP
from pyrobust.bounds.specification import Margins, Rows
from pyrobust.machine import free_memory

# Share of the free memory that a call may use by default, and the largest useful chunk: intervals take sixteen examples
# per thread at once.
_MEMORY_SHARE = 0.25
_EXAMPLES_PER_THREAD = 16
_LEAST_CHUNK = 32
_FEW = 3  # examples of a thread that are bounded one by one: kFew in csrc/bounds/engine/propagate.cpp

# Estimated loss of a lower bound by rounding errors of float32, relative to its distance from the value at the center,
# for a network with one layer of weights; the loss grows with the square of the number of these layers, as measured on
# trained nets of four to eighteen. The estimate only decides what is tried; bounds are proved in any case.
_LOSS = 1e-5
# The same loss where the engine measures neurons from zero (see csrc/bounds/engine/relaxation.cpp).
_LOSS_FROM_ZERO = 4e-4
# The value at the center is computed only for bounds nearer to zero than the loss at this distance, which exceeds most
# distances.
_LARGE_MARGIN = 64
# Bytes of the rows that library products take together (kElements in wide/backward.cpp), including the rows of adjacent
# layers; and bytes of a number in them.
_LIBRARY_ITEM = 4
_LIBRARY_ROWS = 4 * (1 << 21) * _LIBRARY_ITEM
_CALL = 1 << 19  # bytes of the library's own objects, whatever the network
_FREE_SLOPE = 80  # bytes for a neuron whose slopes are chosen
_ROW = 64  # bytes for a row of the specification, besides its coefficients
_VECTOR = 64  # bytes of a SIMD vector: one number for each example or row that a loop takes together
# Multiplications per thread between two looks at the clock: intervals of a chunk are not interrupted.
_STRETCH = 1e9
# Elements of the largest layer in a chunk of a wide network: more would not fit the cache and gain nothing.
_WIDE_ELEMENTS = 1 << 20


class Engine:
    """Bounds of one graph's output, on the CPU.

    Args:
        output: the graph.
        dtype: dtype of the model; float64 models are bounded in float64, all others in float32.
    """

    def __init__(self, output: Node, dtype: torch.dtype) -> None:
        self.device = CPU
        self._output = output
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._floats = torch.finfo(self._dtype)
        self.deployable = dtype in (torch.float32, torch.float64)
        self._native = native_network(output, self._dtype)
        self._cancels = needs_interval_bounds(in_order(output))
        self._depth = sum(isinstance(node, Linear | Conv2d) for node in in_order(output))

    @functools.cached_property
    def _deployed(self) -> Packed:
        """The network for ``semantics="float32"``, a separate one if an activation's bounds depend on semantics."""
        if not any(map(has_offset, in_order(self._output))):
            return self._native
        return native_network(self._output, self._dtype, self._floats.eps / 2)

    @functools.cached_property
    def _wide(self) -> Packed:
        return native_network(self._output, torch.float64)

    @functools.cached_property
    def _deployed_wide(self) -> Packed:
        if not any(map(has_offset, in_order(self._output))):
            return self._wide
        return native_network(self._output, torch.float64, self._floats.eps / 2)

    def run(self, inputs: InputSet, rows: Rows, query: Query, *, with_upper: bool = True) -> EngineBounds:
        """Return bounds [B, S] of rows [S, K] or [B, S, K] times the output; upper ones are inf without ``with_upper``.

        Sound float32 bounds are recomputed in float64, example by example, in three cases. First, a bound is not
        finite, because a number may have overflowed. (With ``semantics="float32"`` it is not recomputed, since the
        deployed model would overflow, too.) Second, in CROWN-IBP, CROWN and alpha-CROWN with rows and without
        ``with_upper``, rounding errors may be the only reason why a lower bound is not positive; only the sign of these
        bounds matters. Third, in networks with reciprocals and roots of wide ranges, the interval bounds were tighter
        than the bounds of the backward pass, whose coefficients may be so large that only float64 is precise enough for
        them to cancel.
        """
        if query.bounding.slope_search is not None:
            if query.memory_limit is not None:  # before CROWN, which needs less
                engine_limit(query.memory_limit, sum(self._memory(self._native, rows, query, inputs.norm)))
            return improved(self._run, inputs, rows, query, with_upper)
        return self._run(inputs, rows, query, with_upper)

    def _run(self, inputs: InputSet, rows: Rows, query: Query, with_upper: bool) -> EngineBounds:
        deployed = query.semantics == "float32"
        bounds = self._call(self._deployed if deployed else self._native, inputs, rows, query, with_upper)
        if not query.sound or self._dtype == torch.float64 or query.ended:
            return bounds
        decides = not with_upper and rows is not None and query.bounding.to_input
        if not decides and not self._cancels and _finite(bounds, with_upper):
            return bounds
        again = torch.zeros(len(inputs), dtype=torch.bool, device=CPU)
        if decides and rows is not None:
            again = self._undecided(inputs, rows, query, bounds.lower)
        if self._cancels and query.bounding.to_input:
            by = torch.cat([bounds.lower_by, bounds.upper_by], 1) if with_upper else bounds.lower_by
            again |= (by == NUMBERS[IBP.name]).any(1)
        if not deployed:
            again |= ~_finite_sets(bounds, with_upper)
        if not bool(again.any()):
            return bounds
        wide = self._deployed_wide if deployed else self._wide
        chosen = inputs.rows(again)
        if query.memory_limit is None or fits(query.memory_limit, sum(self._memory(wide, rows, query, chosen.norm))):
            bounds.improve(self._call(wide, chosen, rows_of(rows, again), query, with_upper), again)
        return bounds

    def _undecided(self, inputs: InputSet, rows: Tensor | Margins, query: Query, lower: Tensor) -> Tensor:
        """Whether lower bounds of a set may fail to be positive because of rounding errors alone, bool [B]."""
        from_zero = query.semantics == "float32" or self._products(self._native, query) is not None
        loss = (_LOSS_FROM_ZERO if from_zero else _LOSS) * self._depth**2
        undecided = (lower <= 0).any(1) & (lower > -_LARGE_MARGIN * loss).all(1)
        if bool(undecided.any()):
            chosen = inputs.rows(undecided)
            points = InputSet(chosen.points(), "linf", None, None)
            plain = Query("ibp", False, "real", query.memory_limit)
            value = self._call(self._native, points, rows_of(rows, undecided), plain, False).lower
            bound = lower[undecided]
            undecided[undecided.clone()] = (bound + loss * (value - bound) > 0).all(1)
        return undecided

    @functools.cached_property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Numbers of elements per example: of all nodes, of the largest, and the most that two backward passes hold.

        The first of these passes is a full one. The second, for interval bounds, goes only to the first nonlinear
        functions. It ends above them, at a layer of sums, if the ranges of this layer make the bounds no looser.
        """
        nodes, reached = in_order(self._output), {self._output}
        readers = collections.Counter(source for node in nodes for source in node.inputs)
        stopping = []
        for node in reversed(nodes):
            if node in reached and not is_nonlinear(node) and not (node in readers and _separate(node, readers)):
                stopping.append(node)
                reached.update(node.inputs)
        live = most_live(stopping[::-1]) if stopping else self._output.size
        return sum(node.size for node in nodes), max(node.size for node in nodes), most_live(nodes), live

    @functools.cached_property
    def _lists(self) -> int:
        """Bytes of a thread's lists of the products in backward steps of all convolutions, kept for later tiles."""
        convs = [node for node in in_order(self._output) if isinstance(node, Conv2d)]
        kernels = [math.prod(node.weight.value().shape[2:]) for node in convs]
        return sum(8 * k * node.size + 16 * node.inputs[0].size for k, node in zip(kernels, convs, strict=True))

    @staticmethod
    def _state(packed: Packed, rows: Rows, query: Query, norm: str, *, library: bool) -> tuple[int, int]:
        """Return (bytes of an example's ranges and relaxations, bytes of the library's copies of weights)."""
        return packed.network.memory(
            to_input=query.bounding.to_input,
            ball=norm != "linf",
            sound=query.sound,
            deployed=query.semantics == "float32",
            library=library,
            rows=rows is not None,
        )

    def _memory(self, packed: Packed, rows: Rows, query: Query, norm: str, *, few: bool = True) -> tuple[int, int]:
        """Return the bytes of all threads and of an example, without a library; ``few``: at most _FEW sets a thread."""
        item, intervals = packed.item, rows is None and not query.bounding.to_input
        row_numbers = self._output.size * (rows.shape[-2] if isinstance(rows, Tensor) else 1)
        lanes = _VECTOR // item
        total, largest, live, _ = self._sizes
        # tiles of coefficients, up to doubled by free blocks; ranges, inputs and sums of a group of examples
        groups = 0 if query.bounding.to_input or norm != "linf" else total
        thread = 0 if intervals else 2 * _VECTOR * live
        thread += item * (2 * groups + 9 * largest) if few else _VECTOR * (2 * groups + 3 * largest)
        thread += 0 if groups else self._lists
        count = self._output.size if rows is None else rows.shape[-2]
        example, _ = self._state(packed, rows, query, norm, library=False)
        example += row_numbers * (item + 8) + _ROW * count
        if query.bounding.refines or norm != "linf":
            # lists of the tiles of a layer's neurons, both signs, held twice, and their bounds
            example += 2 * largest * (2 * (32 + 8 * lanes + _VECTOR) + 8 * lanes) // lanes
        if query.bounding.slope_search is not None:  # for each neuron of a row: slope, two moments, coefficient, value
            thread += 5 * _VECTOR * total
            example += _FREE_SLOPE * total
        return torch.get_num_threads() * thread, example

    def _library_memory(self, packed: Packed, rows: Rows, query: Query, norm: str) -> tuple[int, int]:
        """Return the bytes as ``_memory`` does, but with a library, and also with our kernels if sets are not boxes."""
        _, largest, whole, stopping = self._sizes
        kernels = (0, 0) if norm == "linf" else self._memory(packed, rows, query, norm)
        example, weights = self._state(packed, rows, query, norm, library=True)
        count = self._output.size if rows is None else rows.shape[-2]
        coefficients = 0
        if rows is not None or query.bounding.to_input:  # rows of both signs
            live = whole if query.bounding.to_input else stopping
            coefficients = min(_LIBRARY_ROWS, 4 * count * live * _LIBRARY_ITEM)
        row_numbers = rows.shape[-2] * self._output.size if isinstance(rows, Tensor) else 0
        example += max(16 * _LIBRARY_ITEM * largest, coefficients) + row_numbers * (packed.item + 8) + _ROW * count
        return _CALL + kernels[0] + weights, max(kernels[1], example)

    @staticmethod
    def _search(query: Query) -> tuple[int, int, float, float, float, float, float, bool, float] | None:
        """Return the engine's arguments for a search for slopes."""
        search = query.bounding.slope_search
        if search is None:
            return None
        seconds = math.inf if query.deadline is None else query.deadline - time.monotonic()
        return (
            query.iterations,
            search.patience,
            search.rate,
            search.decay,
            *search.moments,
            search.least_gain,
            query.decides,
            seconds,
        )

    @staticmethod
    def _products(packed: Packed, query: Query) -> LibraryProducts | None:
        """Return the library's products; None if it is not used, as for refined neurons, whose bounds it loosens."""
        return packed.products if not query.bounding.refines and packed.products.chosen() else None

    def _call(self, packed: Packed, inputs: InputSet, rows: Rows, query: Query, with_upper: bool) -> EngineBounds:
        enough = max(_LEAST_CHUNK, _EXAMPLES_PER_THREAD * torch.get_num_threads())
        few = _FEW * torch.get_num_threads()
        threads, example = self._memory(packed, rows, query, inputs.norm, few=len(inputs) <= few)
        if query.memory_limit is not None and not fits(query.memory_limit, threads + example):
            threads, example = self._memory(packed, rows, query, inputs.norm)
            enough = min(enough, few)
        products = self._products(packed, query)
        if products is not None:
            enough = max(1, _WIDE_ELEMENTS // products.largest)
        if products is not None:
            wide = self._library_memory(packed, rows, query, inputs.norm)
            if query.memory_limit is None or fits(query.memory_limit, sum(wide)) or sum(wide) <= threads + example:
                threads, example = wide
            else:
                products = None
        if query.deadline is not None and query.bounding.refines:
            enough = max(1, min(enough, int(_STRETCH * torch.get_num_threads() / max(1.0, packed.work.intervals))))
        if query.memory_limit is None:
            check_machine(threads + example)
            chunk = max(1, min(enough, int(_MEMORY_SHARE * free_memory(CPU)) // example))
        else:
            limit = engine_limit(query.memory_limit, threads + example)
            chunk = min(enough, (limit - threads) // example)
        watch, count = query.watch, self._output.size if rows is None else rows.shape[-2]
        if watch is not None:
            if not watch.goes_on():
                return EngineBounds.unknown(query.method, len(inputs), count)
            wanted = 0 if rows is None and not query.bounding.to_input else count * (1 + with_upper)
            memory = threads + min(chunk, len(inputs)) * example
            watch.begin(packed.work, query, inputs.norm, len(inputs), wanted, memory)
        ball = inputs.norm != "linf"  # an l∞ ball is a box
        around = inputs.boxes if isinstance(inputs.boxes, Around) else None
        lower, upper = (inputs.lower, inputs.upper) if around is None else (around.center, around.center)
        with contextlib.nullcontext() if products is None else products.computing():
            results = packed.network.propagate(
                lower.numpy(),
                upper.numpy(),
                inputs.center.numpy() if ball and inputs.center is not None else None,
                inputs.epsilon.numpy() if ball and inputs.epsilon is not None else None,
                rows=rows.numpy() if isinstance(rows, Tensor) else None,
                labels=rows.y.numpy() if isinstance(rows, Margins) else None,
                refines=query.bounding.refines,
                to_input=query.bounding.to_input,
                norm=inputs.norm,
                sound=query.sound,
                deployed=self._floats.eps / 2 if query.semantics == "float32" else 0.0,
                deployed_max=self._floats.max,
                with_upper=with_upper,
                chunk=chunk,
                product=products,
                product_least=0 if products is None else products.least,
                radius=None if around is None else around.radius.numpy(),
                clip_low=-math.inf if around is None else around.lowest,
                clip_high=math.inf if around is None else around.highest,
                search=self._search(query),
                watch=None if watch is None else (watch, EVERY),
            )
        lower, upper = map(torch.from_numpy, results[:2])
        bounds = EngineBounds.by(query.method, lower, upper if with_upper else torch.full_like(lower, torch.inf))
        if not (query.bounding.to_input and any(by.any() for by in results[2:])):
            return bounds
        number, ibp = np.uint8(NUMBERS[query.method]), np.uint8(NUMBERS[IBP.name])
        numbers = [torch.from_numpy(np.where(by, ibp, number)) for by in results[2:]]
        return dataclasses.replace(bounds, lower_by=numbers[0], upper_by=numbers[1] if with_upper else bounds.upper_by)


def _separate(node: Node, readers: Mapping[Node, int]) -> bool:
    """Whether a layer's ranges give interval bounds without loss, like ``separate`` in csrc/bounds/engine/network.h."""
    if not isinstance(node, Conv2d) or node.groups != node.shape[0]:
        return False
    extents = [dilation * (k - 1) + 1 for k, dilation in zip(node.weight.shape[2:], node.dilation, strict=True)]
    if any(n > 1 and step < extent for n, step, extent in zip(node.shape[1:], node.stride, extents, strict=True)):
        return False
    source = node.inputs[0]
    while isinstance(source, Reshape) and readers[source] == 1:
        source = source.inputs[0]
    return is_nonlinear(source) and readers[source] == 1


def _finite(bounds: EngineBounds, with_upper: bool) -> bool:
    """Whether all bounds are finite, found from their sum; False also if a sum of finite bounds overflows."""
    return all(math.isfinite(float(end.sum())) for end in (bounds.lower, bounds.upper)[: 1 + with_upper])


def _finite_sets(bounds: EngineBounds, with_upper: bool) -> Tensor:
    """Whether all bounds of a set are finite, bool [B]; usually, one sum over all bounds already shows this."""
    if _finite(bounds, with_upper):
        return torch.ones(len(bounds.lower), dtype=torch.bool, device=CPU)
    lower = bounds.lower.isfinite().all(1)
    return lower & bounds.upper.isfinite().all(1) if with_upper else lower
