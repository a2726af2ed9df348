"""The nearest adversarial point of each example so far."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrobust.ops.examples import put_rows

from .job import Job


class Nearest:
    """The nearest adversarial points so far: x [B, ...], and distance [B], inf where there is none."""

    def __init__(self, job: Job) -> None:
        self.x = job.x.clone()
        self.distance = torch.full_like(job.epsilon, math.inf)

    def offer(self, job: Job, fooled: Tensor, x_adv: Tensor) -> Tensor:
        """Keeps the nearer ones of the points that fool, bool [B]; returns the distances [B] of all."""
        distance = job.norm.distance(x_adv, job.x)
        nearer = fooled & (distance < self.distance)
        self.distance = torch.where(nearer, distance, self.distance)
        put_rows(nearer, x_adv, self.x)
        return distance

    def take(self, other: Nearest) -> None:
        """Keeps the nearer ones of another's points."""
        nearer = other.distance < self.distance
        self.distance = torch.where(nearer, other.distance, self.distance)
        put_rows(nearer, other.x, self.x)


def within(distance: Tensor, epsilon: Tensor) -> Tensor:
    """Whether distances [B] are at most epsilon [B] also as real numbers: their float64 sums have rounded.

    >>> within(torch.tensor([0.25, 0.5]).double(), torch.tensor([0.5, 0.5]).double())
    tensor([ True, False])
    """
    return distance * (1 + 1e-11) <= epsilon
