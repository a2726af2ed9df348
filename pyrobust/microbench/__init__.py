"""Microbenchmarks that compare the native ops with users' PyTorch code, and with a lower bound on the time.

The lower bound, called the floor, is the least time that a task could take. For an op, this is the time to clone or
sum as many bytes as the op reads or writes. For a task that runs a net, it is the time of the net's forward passes (and
gradients) alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pyrobust.microbench import attacks, bounds, projections, smoothing
from pyrobust.microbench.timing import Case


def all_cases(device: torch.device) -> Iterator[tuple[str, Case]]:
    """Yield the subject, such as ``bounds``, and the case of each comparison; tensors are made case by case."""
    for subject in (smoothing, projections, attacks, bounds):
        for case in subject.cases(device):
            yield subject.__name__.rpartition(".")[2], case
