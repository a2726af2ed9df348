"""The best iterate of each example so far."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.ops.examples import put_rows

from .state import AttackState


class Best:
    """For each example, the iterate with the highest loss; the clean example while all losses are NaN.

    Attributes:
        x: [B, ...].
        value: [B], float64, the loss of x. Both tensors go through ``AttackState.retire``.
    """

    def __init__(self, state: AttackState) -> None:
        self.x = state.x.clone()
        self._in_place = state.in_place
        self.value = torch.full((len(state),), -torch.inf, dtype=torch.float64, device=state.x.device)

    def offer(self, value: Tensor, x_adv: Tensor, *, may_keep: bool = False) -> Tensor:
        """Keep the iterates [B, ...] whose loss [B] exceeds the best so far; return a mask of these rows, bool [B].

        With ``may_keep``, the tensor x_adv itself may be kept, without a copy; the next offer may then write into it.
        """
        better = value > self.value  # false for NaN
        self.value = torch.where(better, value, self.value)
        if may_keep and self._in_place and bool(better.all()):
            self.x = x_adv
        else:
            put_rows(better, x_adv, self.x)
        return better


def replaced(mask: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Replace the masked [B] rows of target by rows of source: in place on the CPU, in a new tensor on a GPU."""
    return put_rows(mask, source, target.clone() if target.is_cuda else target)
