"""Bounding methods by linear relaxation: what a method is to an engine, and what an engine offers a method.

Every engine computes the ranges of all layers in order, by intervals, and bounds linear functions of a layer's neurons
by a backward pass through the relaxations below. A method says which of these bounds it takes. All else, such as input
sets, rounding errors, memory and the choice of kernels, belongs to the engines: a method that consists of these steps
is one row here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyrobust.bounds.engines.engine_bounds import EngineBounds
    from pyrobust.bounds.engines.query import Query
    from pyrobust.bounds.input_set import InputSet
    from pyrobust.bounds.specification import Rows


@dataclasses.dataclass(frozen=True)
class SlopeSearch:
    """How slopes are sought: Adam (Kingma and Ba, 2015), its rate falling by ``decay`` at each step.

    Attributes:
        rate: of the first step, in slopes.
        decay: factor of the rate.
        moments: decay of the mean and of the mean square of the gradient.
        least_gain: a gain of less than this share of 1 + |bound| is none.
        patience: a row ends after more steps than these without a gain.
    """

    rate: float
    decay: float
    moments: tuple[float, float]
    least_gain: float
    patience: int


@dataclasses.dataclass(frozen=True)
class Method:
    """A bounding method, as an engine sees it.

    Attributes:
        name: as users write it.
        refines: whether a backward pass replaces the ranges of neurons that are unstable for a function that reads
            them; other hidden neurons keep the ranges of intervals. The layers above see the refined ranges.
        to_input: whether the backward pass of the specification is concretized on the input set, with the relaxation
            of every function on the way; otherwise on the ranges of the first functions that it meets.
        slope_search: how each row of the specification seeks the lower slopes of its own, from those of the other
            methods on; None where all rows share those.
    """

    name: str
    refines: bool
    to_input: bool
    slope_search: SlopeSearch | None = None


IBP = Method("ibp", refines=False, to_input=False)
CROWN_IBP = Method("crown-ibp", refines=False, to_input=True)
CROWN = Method("crown", refines=True, to_input=True)
ALPHA_CROWN = Method(
    "alpha-crown",
    refines=True,
    to_input=True,
    slope_search=SlopeSearch(rate=0.5, decay=0.98, moments=(0.9, 0.999), least_gain=1e-5, patience=5),
)

#: The methods by name, each usually tighter and slower than the one before.
METHODS = {method.name: method for method in (IBP, CROWN_IBP, CROWN, ALPHA_CROWN)}


class BoundEngine(Protocol):
    """An engine: bounds of specification rows of one graph, by any method."""

    def run(self, inputs: InputSet, rows: Rows, query: Query, *, with_upper: bool = True) -> EngineBounds:
        """Bounds [B, S], on the CPU, of rows [S, K] or [B, S, K]; without ``with_upper`` upper ones are +inf.

        Without rows, of the outputs themselves. Where the query's watch ends the work, bounds that were not reached are
        infinite, or those of intervals.
        """
