"""The result of minimum-norm attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyrobust.checks import AttackNormName, non_negatives, summary
from pyrobust.frames import Tabular
from pyrobust.metrics import perturbation_quantiles


@dataclass(frozen=True, eq=False)
class MinimumNorm(Tabular):
    """The nearest adversarial examples found; their distances are upper bounds on those to the decision boundary.

    Attributes:
        x_adv: [N, ...], in x's dtype (float32 if float64 x was cast for the model) and on its device; x itself where
            none was found.
        distance: [N], float64, on the CPU: ‖x_adv − x‖ in the norm, or max |x_adv − x| / box if there is a box. This is
            the exact value, rounded up to float64. It is 0 where x itself is misclassified, inf where no adversarial
            example was found.
        success: [N], bool, on the CPU: whether x_adv is adversarial in a batch of one.
        found_by: [N], the attack that found x_adv; "clean" where x itself is misclassified, None where none was found.
        norm: "linf", "l2", "l1" or "l0".
        forwards: rows pushed through the model.
        backwards: rows of all backward passes.
        box: [...], float64, on the CPU: the radius of each element of an example, used as the unit of this element's
            distance; None if all elements share one unit.
    """

    x_adv: Tensor
    distance: Tensor
    success: Tensor
    found_by: tuple[str | None, ...]
    norm: AttackNormName
    forwards: int
    backwards: int
    box: Tensor | None = None

    def robust_accuracy(self, epsilon: float) -> float:
        """Return the share of examples without an adversarial example found within epsilon; NaN for no examples.

        >>> import torch
        >>> found = torch.tensor([0.0, 0.25, torch.inf], dtype=torch.float64)
        >>> names = ("clean", "FMN", None)
        >>> result = MinimumNorm(torch.zeros(3, 1), found, found.isfinite(), names, "linf", 10, 10)
        >>> [round(result.robust_accuracy(epsilon), 2) for epsilon in (0, 0.2, 0.25)]
        [0.67, 0.67, 0.33]
        """
        (radius,) = non_negatives("epsilon", [epsilon])
        return float((self.distance > radius).double().mean())

    def __repr__(self) -> str:
        return summary(
            self,
            norm=self.norm,
            examples=len(self.distance),
            found=int(self.success.sum()),
            median_distance=perturbation_quantiles(self.distance, [0.5])[0] if len(self.distance) else None,
            forwards=self.forwards,
            backwards=self.backwards,
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each example."""
        return {
            "distance": self.distance.numpy(),
            "success": self.success.numpy(),
            "found_by": [name or "" for name in self.found_by],
        }

    def _attributes(self) -> dict[str, Any]:
        return {"norm": self.norm, "forwards": self.forwards, "backwards": self.backwards}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers, strings and lists, without x_adv."""
        columns = {"distance": self.distance.tolist(), "success": self.success.tolist()}
        return {**columns, "found_by": list(self.found_by), **self._attributes()}
