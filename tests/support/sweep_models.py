"""Models and images with fast, exact sweeps, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.evaluation import Run, SweepProgress
from pyrobust.runs.progress import Report
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet

CLASSES = 3
#: Samples for each image.
FEW = {"n0": 10, "n": 100}


class Bands(nn.Module):
    """Three classes by mean brightness; exact arithmetic does not depend on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.tensor([0.0, 0.5, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return -(x.flatten(1)[:, :1] - self.centres).abs()


def images(count: int = 40, classes: int = CLASSES) -> ImageSet:
    y = torch.arange(count) % classes
    x = (y.float() / 2).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return ImageSet("bands", x, y)


def smoother(model: Any = None, **options: Any) -> RandomizedSmoothing:
    return RandomizedSmoothing(model or Bands(), CLASSES, 0.1, **({"batch_size": 64, "grid": None} | options))


def same(one: Run, other: Run) -> bool:
    """Whether two runs agree bit for bit, except for times."""
    names = [name for name in other.table if name not in ("seconds", "proof_seconds")]
    columns = ((one.table[name], other.table[name]) for name in names)
    if not all(np.array_equal(a, b, equal_nan=a.dtype == np.float64) for a, b in columns):
        return False
    if not all(np.array_equal(one.histogram(name), other.histogram(name)) for name in other.header.type.histograms()):
        return False
    return not other.parameters.get("examples") or torch.equal(one.examples(), other.examples())


class Calls:
    """A countdown outside the model, whose own attributes are hashed."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining


class Failing(Bands):
    """Raises an error after some calls."""

    def __init__(self, calls: int, error: BaseException) -> None:
        super().__init__()
        self.calls, self.error = Calls(calls), error

    def forward(self, x: Tensor) -> Tensor:
        self.calls.remaining -= 1
        if self.calls.remaining < 0:
            raise self.error
        return super().forward(x)


class Stop(Exception):
    """Ends a sweep."""


def stop_after(images: int) -> Report:
    """Progress that ends an unfinished sweep when so many images are done."""

    def report(now: SweepProgress) -> None:
        if images <= now.done < now.total:
            raise Stop

    return report
