"""The best iterate of each example so far."""

from __future__ import annotations

import torch
from torch import Tensor

from .job import Job


class Best:
    """The iterate of the highest loss of each example; of the clean one, where no loss was a number.

    Attributes:
        x: [B, ...].
        value: [B], its loss. Both go through ``Job.retire``.
    """

    def __init__(self, job: Job) -> None:
        self.x = job.x.clone()
        self.value = torch.full((len(job),), -torch.inf, dtype=torch.float64, device=job.x.device)

    def offer(self, value: Tensor, x_adv: Tensor) -> Tensor:
        """Keeps the iterates [B, ...] whose loss [B] is higher than before; returns which, bool [B]."""
        better = value > self.value  # false for NaN
        self.value = torch.where(better, value, self.value)
        put(better, x_adv, self.x)
        return better


def put(chosen: Tensor, source: Tensor, target: Tensor) -> None:
    """Copies the chosen rows [B] of source into target, in place and without a wait for the device."""
    if target.is_cuda:
        torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target, out=target)
    else:
        rows = chosen.nonzero()[:, 0]
        if len(rows) == len(target):
            target.copy_(source)
        elif len(rows):
            target[rows] = source[rows]


def replaced(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The target with the chosen rows [B] of source; on the CPU in place, on a GPU anew."""
    if target.is_cuda:
        return torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target)
    put(chosen, source, target)
    return target
