"""Bounds by a search, never looser than those that it starts from."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.input_set import InputSet
from pyrobust.bounds.methods import CROWN

#: (inputs, rows, query, with_upper) → (lower, upper).
Run = Callable[[InputSet, Tensor | None, Query, bool], tuple[Tensor, Tensor]]


def improved(run: Run, inputs: InputSet, rows: Tensor | None, query: Query, with_upper: bool) -> tuple[Tensor, Tensor]:
    """The better of CROWN's bounds and those of a method that searches, where these are needed and time is left.

    Its search may end worse, as ranges that it tightens change the slopes that it starts from.
    """
    lower, upper = run(inputs, rows, dataclasses.replace(query, method=CROWN.name), with_upper)
    left = ~(lower > 0).all(1) if query.decides else torch.ones(len(lower), dtype=torch.bool)
    if not bool(left.any()) or (query.deadline is not None and time.monotonic() >= query.deadline):
        return lower, upper
    whole = bool(left.all())
    low, high = run(inputs if whole else inputs.rows(left), rows if whole else rows_of(rows, left), query, with_upper)
    lower[left] = low.where(low > lower[left], lower[left])
    upper[left] = high.where(high < upper[left], upper[left])
    return lower, upper


def rows_of(rows: Tensor | None, chosen: Tensor) -> Tensor | None:
    """The rows of the chosen sets, where each set has its own."""
    return rows[chosen] if rows is not None and rows.dim() == 3 else rows
