"""The best iterate of each example so far."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.ops.examples import put_rows

from .job import Job


class Best:
    """The iterate of the highest loss of each example; of the clean one, where no loss was a number.

    Attributes:
        x: [B, ...].
        value: [B], its loss. Both go through ``Job.retire``.
    """

    def __init__(self, job: Job) -> None:
        self.x = job.x.clone()
        self._in_place = job.in_place
        self.value = torch.full((len(job),), -torch.inf, dtype=torch.float64, device=job.x.device)

    def offer(self, value: Tensor, x_adv: Tensor, *, given: bool = False) -> Tensor:
        """Keeps the iterates [B, ...] whose loss [B] is higher than before; returns which, bool [B].

        Where x_adv is ``given`` its memory may be taken, and is overwritten by the next offer.
        """
        better = value > self.value  # false for NaN
        self.value = torch.where(better, value, self.value)
        if given and self._in_place and bool(better.all()):
            self.x = x_adv
        else:
            put_rows(better, x_adv, self.x)
        return better


def replaced(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The target with the chosen rows [B] of source; on the CPU in place, on a GPU anew."""
    return put_rows(chosen, source, target.clone() if target.is_cuda else target)
