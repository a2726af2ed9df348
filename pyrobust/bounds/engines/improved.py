"""Bounds by a search, never looser than the bounds that the search starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.bounds.engines.engine_bounds import EngineBounds
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.input_set import InputSet
from pyrobust.bounds.methods import CROWN
from pyrobust.bounds.specification import Rows

#: (inputs, rows, query, with_upper) → the bounds.
Run = Callable[[InputSet, Rows, Query, bool], EngineBounds]


def improved(run: Run, inputs: InputSet, rows: Rows, query: Query, with_upper: bool) -> EngineBounds:
    """Return the better of CROWN's bounds and a search's bounds; search only where needed and while time is left.

    The search may end with looser bounds than CROWN's, because tightening a range changes the initial slopes.
    """
    bounds = run(inputs, rows, dataclasses.replace(query, method=CROWN.name), with_upper)
    undecided = ~(bounds.lower > 0).all(1) if query.decides else torch.ones(len(bounds.lower), dtype=torch.bool)
    if not bool(undecided.any()) or query.ended:
        return bounds
    whole = bool(undecided.all())
    better = run(
        inputs if whole else inputs.rows(undecided), rows if whole else rows_of(rows, undecided), query, with_upper
    )
    bounds.improve(better, undecided)
    return bounds


def rows_of(rows: Rows, chosen: Tensor | slice) -> Rows:
    """Return the rows of the chosen sets if each set has its own rows, else all rows."""
    return rows if rows is None or (isinstance(rows, Tensor) and rows.dim() == 2) else rows[chosen]
