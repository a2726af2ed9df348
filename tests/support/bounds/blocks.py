"""Networks of many small nets side by side: values with bounds of their errors, and the bounds that they violate."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph import capture as capture_module
from pyrobust.bounds.graph.nodes import Node
from pyrobust.bounds.input_set import InputSet
from pyrobust.errors import ModelError

AnyEngine = Engine | TensorEngine

GROUPS = 32
U = 2.0**-53
#: Bound of the relative and absolute error of a function of torch in float64, far above what any library has.
FUNCTION = 2.0**-42


@dataclasses.dataclass(frozen=True)
class Ball:
    """Real numbers within `error` of `value`."""

    value: Tensor
    error: Tensor

    def map(self, f: Any) -> Ball:
        return Ball(f(self.value), f(self.error))


@dataclasses.dataclass
class Tally:
    nets: int = 0
    bounds: int = 0
    finite: int = 0
    outside: int = 0
    outside_unsound: int = 0
    outside_tightened: int = 0  # of sound bounds, moved inward by a millionth

    def add(self, lower: Tensor, upper: Tensor, outside: int) -> None:
        self.bounds += 2 * lower.numel()
        self.finite += int(lower.isfinite().sum() + upper.isfinite().sum())
        self.outside += outside


def violations(values: Ball, lower: Tensor, upper: Tensor) -> int:
    """Count the bounds [1, K] that some value [P, K] certainly violates."""
    error = values.error * (1 + 2.0**-20) + 4 * U * values.value.abs()
    outside = ((lower - values.value > error).any(0), (values.value - upper > error).any(0))
    nothing = (lower.isnan() | upper.isnan() | (lower == math.inf) | (upper == -math.inf)).sum()
    return int(outside[0].sum() + outside[1].sum() + nothing)


def captured(net: nn.Module, x: Tensor, program: Any, monkeypatch: pytest.MonkeyPatch) -> Node | None:
    """Translate the network with its present weights, on which its trace does not depend.

    None where two forward passes in float32 differ, so badly conditioned are these nets.
    """
    monkeypatch.setattr(capture_module, "_export", lambda *_: program)
    try:
        return capture_module.capture(net, x)
    except ModelError as error:
        assert "other outputs than the module" in str(error)  # noqa: PT017 - most of these raise nothing
        return None


def compare(
    tally: Tally, engine: AnyEngine, inputs: InputSet, values: Ball, methods: Sequence[str], planted: bool, note: object
) -> None:
    """Compare bounds of all nets to values [P, K]; planted also bounds that are unsound, or moved inward."""
    tally.nets += GROUPS
    for method, sound in itertools.product(methods, (True, False) if planted else (True,)):
        lower, upper = engine.run(inputs, None, Query(method, sound, "real", None, iterations=4))
        outside = violations(values, lower, upper)
        if not sound:
            tally.outside_unsound += outside
            continue
        tally.add(lower, upper, outside)
        assert outside == 0, (note, method)
        if planted:
            tally.outside_tightened += violations(values, lower + 1e-6 * lower.abs(), upper - 1e-6 * upper.abs())


def compare_deployed(
    tally: Tally, engine: AnyEngine, inputs: InputSet, outputs: Sequence[Tensor], method: str, note: object
) -> None:
    """Compare bounds of a deployed pass to outputs [P, K] of several."""
    lower, upper = engine.run(inputs, None, Query(method, True, "float32", None))
    outside = sum(violations(Ball(y.double(), torch.zeros(y.shape).double()), lower, upper) for y in outputs)
    tally.add(lower, upper, outside)
    assert outside == 0, (note, "float32", method)


def check(tallies: dict[str, Tally], nets: int, finite: float = 0.8) -> None:
    print(*(f"{name}: {tally}" for name, tally in tallies.items()), sep="\n")
    for name, tally in tallies.items():
        assert tally.nets >= nets
        assert tally.outside == 0
        assert tally.finite >= finite * tally.bounds
        assert tally.outside_tightened > 0  # otherwise these tests could not fail
        assert tally.outside_unsound > 0 or name == "torch"
