"""Work in chunks that fit the memory of a device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import torch

from pyrobust.machine import in_batches

logger = logging.getLogger(__name__)


def free_memory(device: torch.device) -> int:
    """Bytes that are free, or were given back to torch's allocator."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not on every system
        return 1 << 30


def in_chunks(total: int, size: int, step: Callable[[int, int], None]) -> int:
    """Calls ``step(begin, end)`` over [0, total), ``size`` at a time; a chunk that does not fit memory is halved.

    The halved chunk is tried again: a step must be one that can be repeated.

    Args:
        total: how many in all.
        size: how many at once, at first.
        step: what to do with a chunk.

    Returns:
        How many fitted.

    Raises:
        RuntimeError, MemoryError: whatever a step raised, also that one alone does not fit.

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
