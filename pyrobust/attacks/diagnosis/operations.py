"""The operations in a forward pass that make a model's outputs discontinuous or random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operators whose outputs are piecewise constant in an input, or choose elements.
_STEPS = frozenset(
    """round floor ceil trunc frac sign sgn heaviside argmax argmin bucketize searchsorted gt ge lt le eq ne topk sort
    kthvalue one_hot floor_divide remainder""".split()  # noqa: SIM905 - a column of quotes is no easier to read
)


class Operations(NamedTuple):
    """Names of the operators that a forward pass called, each once, in order."""

    steps: list[str]
    random: list[str]
    softmax: bool


# torch annotates this class only in some versions
class _Recorder(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Records the operators called while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types
        self.steps: dict[str, None] = {}
        self.random: dict[str, None] = {}
        self.softmax = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__.partition(".")[0].rstrip("_")
        if name in _STEPS:
            self.steps[name] = None
        dtype = (kwargs or {}).get("dtype")
        if name == "_to_copy" and dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            self.steps[f"conversion to {str(dtype).removeprefix('torch.')}"] = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random[name] = None
        self.softmax |= name == "_softmax"
        return func(*args, **(kwargs or {}))


def record_operations(forward: Callable[[], object]) -> Operations:
    """Run a forward pass and return the operators that may explain a finding.

    >>> record_operations(lambda: torch.rand(3).round().long())
    Operations(steps=['round', 'conversion to int64'], random=['rand'], softmax=False)
    """
    recorder = _Recorder()
    with recorder:
        forward()
    return Operations(list(recorder.steps), list(recorder.random), recorder.softmax)
