"""Networks of many small nets side by side: values with bounds of their errors, and the bounds that they violate."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from torch import Tensor, nn

from pyrobust.bounds.graph import capture as capture_module
from pyrobust.bounds.graph.nodes import Node

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


def violations(values: Ball, lower: Tensor, upper: Tensor) -> int:
    """Count the bounds [1, K] that some value [P, K] certainly violates."""
    error = values.error * (1 + 2.0**-20) + 4 * U * values.value.abs()
    outside = ((lower - values.value > error).any(0), (values.value - upper > error).any(0))
    nothing = (lower.isnan() | upper.isnan() | (lower == math.inf) | (upper == -math.inf)).sum()
    return int(outside[0].sum() + outside[1].sum() + nothing)


def captured(net: nn.Sequential, x: Tensor, program: Any, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Translate the network with its present weights; its trace does not depend on them."""
    monkeypatch.setattr(capture_module, "_export", lambda *_: program)
    return capture_module.capture(net, x)


def check(tallies: dict[str, Tally], nets: int, finite: float = 0.8) -> None:
    for name, tally in tallies.items():
        assert tally.nets >= nets
        assert tally.outside == 0
        assert tally.finite >= finite * tally.bounds
        assert tally.outside_tightened > 0  # otherwise these tests could not fail
        assert tally.outside_unsound > 0 or name == "torch"
