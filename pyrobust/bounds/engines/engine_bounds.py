"""The bounds that an engine returns, and the methods that gave them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.bounds.methods import METHODS
from pyrobust.bounds.options import LIPSCHITZ

#: Names of the methods by their numbers in ``EngineBounds``.
NAMES = (*METHODS, LIPSCHITZ)
NUMBERS = {name: number for number, name in enumerate(NAMES)}
_NAMES = np.array(NAMES, dtype=np.object_)
# Number of names whose memory is not worth saving.
_FEW = 1000


@dataclasses.dataclass(frozen=True)
class EngineBounds:
    """Bounds, float64 [B, S], and the method number of each bound, uint8 [B, S]; iteration yields only the bounds."""

    lower: Tensor
    upper: Tensor
    lower_by: Tensor
    upper_by: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.lower, self.upper))

    @classmethod
    def joined(cls, parts: Sequence[EngineBounds]) -> EngineBounds:
        """Concatenate the bounds of several batches of input sets."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(torch.cat([vars(bounds)[field.name] for bounds in parts]) for field in dataclasses.fields(cls)))

    @classmethod
    def by(cls, method: str, lower: Tensor, upper: Tensor) -> EngineBounds:
        """Return bounds that all come from one method."""
        number = torch.full((1,) * lower.dim(), NUMBERS[method], dtype=torch.uint8, device=lower.device)
        return cls(lower, upper, number.expand(lower.shape), number.expand(lower.shape))

    @classmethod
    def unknown(cls, method: str, sets: int, rows: int) -> EngineBounds:
        """Return infinite bounds, on the CPU."""
        lower = torch.full((sets, rows), -torch.inf, dtype=torch.float64, device="cpu")
        return cls.by(method, lower, -lower)

    def store(self, rows: slice, other: EngineBounds) -> None:
        """Store the bounds ``other`` as those of the sets in ``rows``."""
        self._own_numbers()
        for field in dataclasses.fields(self):
            vars(self)[field.name][rows] = vars(other)[field.name].cpu()

    def improve(self, other: EngineBounds, chosen: Tensor | slice = slice(None)) -> None:
        """Replace bounds of the chosen sets by better bounds of ``other``, in place; NaN is not better."""
        self._own_numbers()
        for bound, by, new, new_by, sign in (
            (self.lower, self.lower_by, other.lower, other.lower_by, 1),
            (self.upper, self.upper_by, other.upper, other.upper_by, -1),
        ):
            better = sign * new > sign * bound[chosen]
            bound[chosen] = new.where(better, bound[chosen])
            by[chosen] = new_by.where(better, by[chosen])

    def _own_numbers(self) -> None:
        """If all bounds share one method number, store a separate number for each bound."""
        vars(self).update(lower_by=self.lower_by.contiguous(), upper_by=self.upper_by.contiguous())

    def names(self) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
        """Return the method names of the lower and of the upper bounds, [B, S]."""
        return _named(self.lower_by), _named(self.upper_by)


def _named(by: Tensor) -> npt.NDArray[np.object_]:
    """Return the method names for method numbers; a large array of equal names is a view of one name."""
    numbers = by.numpy()
    if numbers.size > _FEW and (not any(numbers.strides) or numbers.min() == numbers.max()):
        return np.broadcast_to(_NAMES[numbers.flat[:1]], numbers.shape)
    named: npt.NDArray[np.object_] = _NAMES[numbers]
    return named
