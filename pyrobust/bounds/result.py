"""Results of bound propagation: bounds, linear bounds and verdicts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import summary
from pyrobust.frames import Tabular, plain_fields


def _unnamed() -> npt.NDArray[Any]:
    return np.array(None)


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds(Tabular):
    """Bounds of S specification rows, or of a layer's neurons, over all inputs of each of B sets.

    Attributes:
        lower: float64 [B, S], or ``[B, *shape]`` for a layer, on the CPU; -inf where nothing could be proved.
        upper: of the same shape; +inf where nothing could be proved, or where only lower bounds were computed.
        method: "ibp", "crown-ibp", "crown", "alpha-crown" or "lipschitz".
        norm: norm of the balls; "linf" also for boxes.
        sound: True for proved bounds, False for plain floating-point bounds.
        semantics: network that the bounds hold for: "real" (exact arithmetic on the given parameters) or "float32" (the
            deployed forward pass, with sums in any order).
        lower_by: the method that gave each lower bound, in the shape of lower. It is "ibp" where interval bounds are
            tighter than linear relaxation, or where the time limit was reached between the two. With "alpha-crown", it
            is "crown" where the search found nothing better or did not begin. An infinite bound has the name of a
            method, too. For a layer's neurons, ``lower_by`` is always ``method``.
        upper_by: the method that gave each upper bound, as for ``lower_by``.
    """

    lower: Tensor
    upper: Tensor
    method: str
    norm: str
    sound: bool
    semantics: str
    lower_by: npt.NDArray[Any] = dataclasses.field(default_factory=_unnamed)
    upper_by: npt.NDArray[Any] = dataclasses.field(default_factory=_unnamed)

    def __post_init__(self) -> None:
        default = np.array(self.method, dtype=np.object_)
        for name, bound in (("lower_by", self.lower), ("upper_by", self.upper)):
            if not getattr(self, name).ndim:
                object.__setattr__(self, name, np.broadcast_to(default, tuple(bound.shape)))

    def __repr__(self) -> str:
        return summary(
            self,
            sets=len(self.lower),
            rows=math.prod(self.lower.shape[1:]),
            **self._attributes(),
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns, with an entry for each specification row of each set."""
        sets, rows = np.indices(self.lower.flatten(1).shape).reshape(2, -1)
        return {
            "set": sets,
            "row": rows,
            "lower": self.lower.flatten().numpy(),
            "upper": self.upper.flatten().numpy(),
            "lower_by": self.lower_by.ravel(),
            "upper_by": self.upper_by.ravel(),
        }

    def _attributes(self) -> dict[str, Any]:
        return {"method": self.method, "norm": self.norm, "sound": self.sound, "semantics": self.semantics}

    def positive(self) -> Tensor:
        """Return whether all rows of each set are proved to be above zero, bool [B]; False for NaN."""
        return (self.lower > 0).flatten(1).all(1)

    to_dict = plain_fields


@dataclasses.dataclass(frozen=True, eq=False)
class LinearBounds:
    """Linear functions of the input that enclose S specification rows C·f on each of B sets.

    For every x′ of set i and row s: lower_A[i, s]·x′ + lower_b[i, s] ≤ (C·f(x′))_s ≤ upper_A[i, s]·x′ + upper_b[i, s].

    Attributes:
        lower_A: float64 ``[B, S, *input]``, on the CPU; 0 where nothing could be proved.
        lower_b: float64 [B, S]; -inf where nothing could be proved.
        upper_A: float64 ``[B, S, *input]``.
        upper_b: float64 [B, S]; +inf where nothing could be proved.
        method: "crown-ibp" or "crown".
        norm: norm of the balls; "linf" also for boxes.
        sound: True where the inequalities hold for these floats in exact arithmetic; evaluating them in floating point
            adds a rounding error.
        semantics: network that the bounds hold for, see ``Bounds``.
    """

    lower_A: Tensor
    lower_b: Tensor
    upper_A: Tensor
    upper_b: Tensor
    method: str
    norm: str
    sound: bool
    semantics: str

    def __repr__(self) -> str:
        return summary(
            self,
            sets=len(self.lower_b),
            rows=self.lower_b.shape[1],
            input=tuple(self.lower_A.shape[2:]),
            method=self.method,
            norm=self.norm,
            sound=self.sound,
            semantics=self.semantics,
        )

    to_dict = plain_fields


@dataclasses.dataclass(frozen=True, eq=False)
class Verdicts(Tabular):
    """Verdicts of ``BoundedModel.verify``, one for each example.

    Attributes:
        status: "verified", "falsified" or "unknown" for each example.
        stage: stage that decided each example: "forward", the method, or "attack"; "" for an unknown status.
        margin: float64 [B], smallest margin proved by the last method tried; NaN where no method was tried. With a time
            limit, it is the largest of the values of all methods tried. If Ctrl-C ends a method, it is the larger of
            the values of this method and the one before. "alpha-crown" stops improving a margin once it is positive.
        counterexample: [B, ...]: for a falsified example, an input of the set that the model misclassifies; else the
            example itself.
    """

    status: list[str]
    stage: list[str]
    margin: Tensor
    counterexample: Tensor

    def __repr__(self) -> str:
        counts = {status: self.status.count(status) for status in ("verified", "falsified", "unknown")}
        return summary(self, examples=len(self.status), **counts)

    def _columns(self) -> dict[str, Any]:
        """Return the columns, with an entry for each example."""
        return {"status": self.status, "stage": self.stage, "margin": self.margin.numpy()}

    @property
    def verified(self) -> Tensor:
        """Whether each example is verified, bool [B]."""
        return torch.tensor([status == "verified" for status in self.status], dtype=torch.bool, device="cpu")

    @property
    def falsified(self) -> Tensor:
        """Whether each example is falsified, bool [B]."""
        return torch.tensor([status == "falsified" for status in self.status], dtype=torch.bool, device="cpu")

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, without the counterexamples."""
        return {"status": self.status, "stage": self.stage, "margin": self.margin.tolist()}
