"""Microbenchmarks of the native ops against users' PyTorch code, and against a lower bound, the floor.

The floor is the least that a task could cost: a clone of as many bytes as the op reads or writes, or only the forward
passes (and gradients) of the net.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pyrobust.microbench import attacks, bounds, projections, smoothing
from pyrobust.microbench.timing import Case


def all_cases(device: torch.device) -> Iterator[tuple[str, Case]]:
    """Yield the subject and the case of each comparison; the tensors of a case are made just before it is yielded."""
    for subject in (smoothing, projections, attacks, bounds):
        for case in subject.cases(device):
            yield subject.__name__.rpartition(".")[2], case
