"""Descriptions of the bounding methods based on linear relaxation, and the interface of the engines that run them.

Every engine computes two kinds of bounds. Interval arithmetic gives the ranges of all layers, one layer after another.
A backward pass gives bounds of linear functions of a layer's neurons; it goes through the relaxations of earlier
layers. A ``Method`` states which of these bounds are used. The engines handle everything else: input sets, rounding
errors, memory and the choice of kernels. So a method that uses only these bounds is defined by its ``Method``.
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
    """Search for slopes by Adam (Kingma and Ba, 2015), with a learning rate that decays at each step.

    Attributes:
        rate: learning rate of the first step.
        decay: factor by which each step multiplies the learning rate.
        moments: decay rates of the mean and of the mean square of the gradient.
        least_gain: gains below this share of 1 + |bound| do not count.
        patience: the search for the slopes of a row ends after this many steps without a gain.
    """

    rate: float
    decay: float
    moments: tuple[float, float]
    least_gain: float
    patience: int


@dataclasses.dataclass(frozen=True)
class Method:
    """A description of a bounding method, for the engines.

    Attributes:
        name: the method's name, as users write it.
        refines: whether a backward pass refines the range of each hidden neuron on which a function is unstable; later
            layers then use the refined ranges. All other hidden neurons keep their interval ranges.
        to_input: whether the backward pass of the specification runs to the input, through the relaxation of every
            function on the way, and is concretized on the input set. Otherwise, the pass stops at the nonlinear
            functions that it meets first on its way back from the outputs, and is concretized on the ranges of their
            values.
        slope_search: how the lower slopes are optimised, for each row of the specification separately; the search
            starts from the slopes that the other methods use. None for a method without this search, whose rows share
            those slopes.
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
    """An engine that bounds, by any method, the products of specification rows with the outputs of one graph."""

    def run(self, inputs: InputSet, rows: Rows, query: Query, *, with_upper: bool = True) -> EngineBounds:
        """Return bounds [B, S], on the CPU, of the products of rows [S, K] or [B, S, K] with the outputs.

        Without rows, the outputs themselves are bounded. Without ``with_upper``, the upper bounds are +inf. If the
        query's ``watch`` ends the work early, the bounds not yet computed are infinite or interval bounds.
        """
