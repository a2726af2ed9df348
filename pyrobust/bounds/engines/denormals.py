"""Arithmetic that keeps denormal numbers, even where the process is set to flush them to zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pyrobust import _C


@contextlib.contextmanager
def denormals_kept() -> Iterator[None]:
    """Switch ``torch.set_flush_denormal`` off for the block, so that no parameter or input is flushed to zero.

    >>> with denormals_kept():
    ...     float(torch.tensor(1e-310, dtype=torch.float64) * 2)
    2e-310
    """
    flushed = _C.flushes_denormals()
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
