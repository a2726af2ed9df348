"""Specifications C: rows of coefficients whose products with the outputs are bounded."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import finite_values, float_tensor, shape_text
from pyrobust.errors import InputError


def margins(y: Tensor, classes: int) -> Tensor:
    """Return the specification of the margins: rows e_y − e_j for j ≠ y in ascending order, float64 [B, K − 1, K].

    >>> margins(torch.tensor([1]), 3)
    tensor([[[-1.,  1.,  0.],
             [ 0.,  1., -1.]]], dtype=torch.float64)
    """
    identity = torch.eye(classes, dtype=torch.float64, device=y.device)
    others = torch.arange(classes, device=y.device).expand(len(y), classes)
    others = others[others != y[:, None]].view(len(y), classes - 1)
    return identity[y][:, None, :] - identity[others]


@dataclasses.dataclass(frozen=True)
class Margins:
    """The specification that ``margins`` returns, stored as labels, without a classes × classes matrix.

    Attributes:
        y: int64 [B], the labels.
        classes: number of classes.
    """

    y: Tensor
    classes: int

    def __getitem__(self, chosen: Tensor | slice) -> Margins:
        """Select sets by bool [B], indices or a slice."""
        return Margins(self.y[chosen], self.classes)

    def cpu(self) -> Margins:
        """Return the same rows, with the labels in host memory."""
        return Margins(self.y.cpu(), self.classes)

    @property
    def shape(self) -> torch.Size:
        """The shape [B, K − 1, K]."""
        return torch.Size((len(self.y), self.classes - 1, self.classes))

    def some(self, sets: Tensor, indices: Tensor) -> Tensor:
        """Return R rows, float64 [R, K]: for each r, row ``indices[r]`` of the specification of set ``sets[r]``.

        >>> Margins(torch.tensor([1]), 3).some(torch.tensor([0, 0]), torch.tensor([1, 0]))
        tensor([[ 0.,  1., -1.],
                [-1.,  1.,  0.]], dtype=torch.float64)
        """
        y = self.y[sets]
        rows = torch.zeros(len(sets), self.classes, dtype=torch.float64, device=y.device)
        others = indices + (indices >= y)
        return rows.scatter_(1, others[:, None], -1.0).scatter_(1, y[:, None], 1.0)


#: A specification [S, K], or [B, S, K] with one for each set; None for the outputs themselves.
Rows: TypeAlias = Tensor | Margins | None


def check_rows(rows: Any, batch: int, outputs: int, device: torch.device) -> Tensor:
    """Return a specification as float64 [S, K] or [B, S, K] on a device."""
    rows = float_tensor("C", rows, dtype=torch.float64)
    shared = rows.dim() == 2
    if rows.dim() not in (2, 3) or rows.shape[-1] != outputs or not (shared or len(rows) == batch):
        raise InputError("C", f"shape (S, {outputs}) or ({batch}, S, {outputs})", shape_text(rows.shape))
    return finite_values("C", rows.detach().to(device, torch.float64)).contiguous()
