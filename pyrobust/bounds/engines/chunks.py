"""Chunks of work that fit the memory of a device."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from pyrobust.bounds.graph.nodes import Node
from pyrobust.errors import InputError, ModelError
from pyrobust.machine import in_batches, total_memory

logger = logging.getLogger(__name__)

#: Share of a memory limit for the engine.
ENGINE_SHARE = 0.75


def engine_limit(limit: int, needed: int) -> int:
    """Return the part of a memory limit that is for the engine; the other part is for input sets.

    Raises:
        InputError: one example, which needs ``needed`` bytes, does not fit.

    >>> engine_limit(1_000_000, 3_000_000)
    Traceback (most recent call last):
    pyrobust.errors.InputError: memory_limit: expected at least 4000000 bytes, which one example needs, got 1000000
    """
    share = int(limit * ENGINE_SHARE)
    if not fits(limit, needed):
        least = math.ceil(needed / ENGINE_SHARE)
        raise InputError("memory_limit", f"at least {least} bytes, which one example needs", limit)
    return share


def check_machine(needed: int) -> None:
    """Raise ModelError if one example needs more bytes than the machine has."""
    if needed > total_memory():
        raise ModelError(
            f"model: the bounds of one example need about {needed / 1e9:.1f} GB, this machine has "
            f"{total_memory() / 1e9:.1f} GB; expected a smaller network, or a cheaper method"
        )


def fits(limit: int, needed: int) -> bool:
    """Whether an engine that needs ``needed`` bytes for one example stays within the memory limit."""
    return int(limit * ENGINE_SHARE) >= needed


def in_chunks(total: int, size: int, step: Callable[[int, int], None]) -> int:
    """Call ``step(begin, end)`` over [0, total), ``size`` items at a time; halve a chunk that does not fit in memory.

    The halved chunk is tried again, so a step must be repeatable. The result is the final chunk size, at which chunks
    fitted. An out-of-memory error is raised only if a single item does not fit. Other errors of a step are raised
    unchanged.

    >>> in_chunks(5, 2, lambda begin, end: print(begin, end))
    0 2
    2 4
    4 5
    2
    """

    def shrink(rows: int, error: Exception) -> None:
        nonlocal size
        if rows == 1:
            raise error
        size = rows // 2
        logger.warning("out of memory at a chunk of %d: chunks of %d from here on", rows, size)

    in_batches(total, lambda: size, step, shrink)
    return size


def most_live(nodes: Sequence[Node]) -> int:
    """Return the largest number of coefficients that a row has at once in a backward pass through ordered nodes."""
    live, peak = {nodes[-1]}, 0
    for node in reversed(nodes):
        below = live | set(node.inputs)
        peak = max(peak, sum(layer.size for layer in below))
        live = below - {node}
    return peak
