"""The native engine: chunks that fit the memory, float64 where float32 has overflowed."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from pyrobust import _C
from pyrobust.bounds.engines.chunks import engine_limit, free_memory, most_live
from pyrobust.bounds.engines.native_packing import Packed, has_offset, native_network
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.nodes import Node, in_order
from pyrobust.bounds.input_set import CPU, Around, InputSet

# Share of the free memory that a call may use by default, and the largest useful chunk: intervals take sixteen examples
# at once for each thread.
_MEMORY_SHARE = 0.25
_EXAMPLES_PER_THREAD = 16
_LEAST_CHUNK = 32
# Bytes of the rows that library products take together (kElements in wide_backward.cpp), with those of the layers
# around, and of a number in them.
_LIBRARY_ITEM = 4
_LIBRARY_ROWS = 4 * (1 << 23) * _LIBRARY_ITEM
_VECTOR = 64  # bytes of one number for each of the examples or rows that a SIMD loop takes together


class Engine:
    """Bounds of one graph's output, on the CPU.

    Args:
        output: the graph.
        dtype: of the model; float64 models are bounded in float64, all others in float32.
    """

    def __init__(self, output: Node, dtype: torch.dtype) -> None:
        self.device = CPU
        self._output = output
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._floats = torch.finfo(self._dtype)
        self.deployable = dtype in (torch.float32, torch.float64)
        self._native = native_network(output, self._dtype)

    @functools.cached_property
    def _deployed(self) -> Packed:
        """The network for ``semantics="float32"``: another one only where a rule depends on that."""
        if not any(map(has_offset, in_order(self._output))):
            return self._native
        return native_network(self._output, self._dtype, self._floats.eps / 2)

    @functools.cached_property
    def _wide(self) -> Packed:
        return native_network(self._output, torch.float64)

    def run(
        self, inputs: InputSet, rows: Tensor | None, query: Query, *, with_upper: bool = True
    ) -> tuple[Tensor, Tensor]:
        """(lower, upper) [B, S] of rows [S, K] or [B, S, K]; without ``with_upper`` upper is +inf.

        Examples without a finite bound in float32 are bounded again in float64, as something may have overflowed; not
        for ``semantics="float32"``, where the deployed model would overflow, too.
        """
        native = self._deployed if query.semantics == "float32" else self._native
        lower, upper = self._call(native, inputs, rows, query, with_upper)
        if query.sound and query.semantics == "real" and self._dtype != torch.float64:
            lost = ~lower.isfinite().all(1)
            if with_upper:
                lost |= ~upper.isfinite().all(1)
            if bool(lost.any()):
                own = rows[lost] if rows is not None and rows.dim() == 3 else rows
                again = self._call(self._wide, inputs.rows(lost), own, query, with_upper)
                lower[lost] = torch.maximum(lower[lost], again[0])
                upper[lost] = torch.minimum(upper[lost], again[1])
        return lower, upper

    def _memory(self, packed: Packed, row_numbers: int) -> tuple[int, int]:
        """(bytes of all threads, bytes of an example) of a network, with our own kernels."""
        item = 4 if packed.network.__class__ is _C.BoundNetwork32 else 8
        lanes = _VECTOR // item
        nodes = in_order(self._output)
        total, largest = sum(node.size for node in nodes), max(node.size for node in nodes)
        # tiles of coefficients, which free blocks may double; the ranges of a group of examples, and its inputs
        thread = 2 * _VECTOR * (most_live(nodes) + total) + 3 * _VECTOR * largest
        # lists of the tiles of a layer's neurons, both signs, held twice, and their bounds
        tiles = 2 * largest * (2 * (32 + 8 * lanes + _VECTOR) + 8 * lanes) // lanes
        return torch.get_num_threads() * thread, packed.network.bytes_per_example() + tiles + row_numbers * (item + 8)

    def _call(
        self, packed: Packed, inputs: InputSet, rows: Tensor | None, query: Query, with_upper: bool
    ) -> tuple[Tensor, Tensor]:
        enough = max(_LEAST_CHUNK, _EXAMPLES_PER_THREAD * torch.get_num_threads())
        row_numbers = self._output.size * (self._output.size if rows is None else rows.shape[-2])
        threads, example = self._memory(packed, row_numbers)
        products = packed.products if packed.products.chosen() else None
        if query.memory_limit is None:
            chunk = max(1, min(enough, int(_MEMORY_SHARE * free_memory(CPU)) // example))
        else:
            limit = engine_limit(query.memory_limit, threads + example)
            own = _LIBRARY_ROWS, example + 16 * _LIBRARY_ITEM * max(node.size for node in in_order(self._output))
            if products is not None and threads + sum(own) <= limit:
                threads, example = threads + own[0], own[1]
            else:
                products = None
            chunk = min(enough, (limit - threads) // example)
        ball = inputs.norm != "linf"  # an l∞ ball is a box
        around = inputs.boxes if isinstance(inputs.boxes, Around) else None
        lower, upper = (inputs.lower, inputs.upper) if around is None else (around.center, around.center)
        results = packed.network.propagate(
            lower.numpy(),
            upper.numpy(),
            inputs.center.numpy() if ball and inputs.center is not None else None,
            inputs.epsilon.numpy() if ball and inputs.epsilon is not None else None,
            None if rows is None else rows.numpy(),
            query.method,
            inputs.norm,
            query.sound,
            self._floats.eps / 2 if query.semantics == "float32" else 0.0,
            self._floats.max,
            with_upper,
            chunk,
            products,
            None if around is None else around.radius.numpy(),
            -math.inf if around is None else around.lowest,
            math.inf if around is None else around.highest,
        )
        lower = torch.from_numpy(results[0])
        upper = torch.from_numpy(results[1]) if with_upper else torch.full_like(lower, torch.inf)
        return lower, upper
