"""Checks whether a model's outputs and forward pass suit gradient-based attacks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

import torch
from torch import Tensor

#: Number of examples on which a model is checked.
CHECKED_EXAMPLES = 64
#: Relative distance up to which logits are considered equal.
LOGIT_TOLERANCE = 1e-4


def differing_rows(first: Tensor, second: Tensor, tolerance: float = LOGIT_TOLERANCE) -> Tensor:
    """Return which rows of two sets of logits [N, K] differ by more than rounding, bool [N]; NaN equals NaN.

    >>> differing_rows(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 1e-6], [1.0, 0.1]]))
    tensor([False,  True])
    """
    first, second = first.double(), second.double()
    same = (first == second) | (first.isnan() & second.isnan())
    change = (first - second).masked_fill(same, 0.0).norm(dim=1)
    length = first.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).norm(dim=1)
    differ: Tensor = ~(change <= tolerance * length.clamp(min=1e-10))
    return differ


def are_probabilities(logits: Tensor) -> bool:
    """Whether the logits [N, K] look like probabilities: all rows are non-negative and sum to 1.

    >>> are_probabilities(torch.tensor([[0.25, 0.75]])), are_probabilities(torch.tensor([[-0.25, 1.25]]))
    (True, False)
    """
    logits = logits.double()
    return bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-5).all())


@contextlib.contextmanager
def watch_for_gradients() -> Iterator[list[str]]:
    """Yield a list that receives the names of torch's gradient functions when Python code calls them.

    >>> with watch_for_gradients() as called:
    ...     torch.ones(1, requires_grad=True).sum().backward()
    >>> called
    ['backward']
    """
    names = {function.__code__: function.__name__ for function in (torch.autograd.grad, torch.autograd.backward)}
    seen: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in names:
            seen.append(names[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)
