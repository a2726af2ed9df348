"""What bound propagation returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import summary


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of rows of outputs, over all inputs of each set.

    Attributes:
        lower: float64 [B, S], on the CPU; -inf where nothing could be proved.
        upper: float64 [B, S], on the CPU; +inf where nothing could be proved or only lower bounds were asked for.
        method: "ibp", "crown-ibp", "crown" or "lipschitz".
        norm: of the input sets; "linf" also for boxes.
        sound: whether they are proved; without, they are what plain floating-point arithmetic gives.
        semantics: the network that they are about: "real" (exact arithmetic on the given parameters) or "float32" (the
            deployed forward pass, sums in any order).
    """

    lower: Tensor
    upper: Tensor
    method: str
    norm: str
    sound: bool
    semantics: str

    def __repr__(self) -> str:
        return summary(
            self,
            sets=len(self.lower),
            rows=self.lower.shape[1],
            method=self.method,
            norm=self.norm,
            sound=self.sound,
            semantics=self.semantics,
        )

    def positive(self) -> Tensor:
        """Bool [B]: whether every row is proved to be above zero. False for NaN."""
        return (self.lower > 0).all(1)

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, tensors as lists."""
        result = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: value.tolist() if isinstance(value, Tensor) else value for key, value in result.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Verdicts:
    """What is known of each example after ``BoundedModel.verify``.

    Attributes:
        status: one of "verified", "falsified" or "unknown" for each example.
        stage: which stage settled it: "forward", a method, "attack"; "" where unknown.
        margin: float64 [B], the least proved margin of the last method that was tried; NaN where forward settled it.
        counterexample: [B, ...], an input of the set that the model classifies as another class, where falsified; else
            the example itself.
    """

    status: list[str]
    stage: list[str]
    margin: Tensor
    counterexample: Tensor

    def __repr__(self) -> str:
        counts = {status: self.status.count(status) for status in ("verified", "falsified", "unknown")}
        return summary(self, examples=len(self.status), **counts)

    @property
    def verified(self) -> Tensor:
        """Bool [B]."""
        return torch.tensor([status == "verified" for status in self.status], dtype=torch.bool, device="cpu")

    @property
    def falsified(self) -> Tensor:
        """Bool [B]."""
        return torch.tensor([status == "falsified" for status in self.status], dtype=torch.bool, device="cpu")

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values; counterexamples are left out."""
        return {"status": self.status, "stage": self.stage, "margin": self.margin.tolist()}
