"""Metrics of the survival curve of p_A; the state of each metric is a histogram of votes."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from pyrobust.checks import integer
from pyrobust.metrics.survival import HARD, SurvivalCurve, survival_curve
from pyrobust.metrics.torchmetrics.base import check_total

# Largest number of samples: the state holds n + 1 numbers.
_LARGEST_N = 10**7


class _SurvivalMetric(Metric):
    """A metric computed from the survival curve; an example with a wrong prediction counts with 0 votes."""

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    counts: Tensor

    def __init__(self, n: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = integer("n", n, 1, _LARGEST_N)
        self.add_state("counts", torch.zeros(self.n + 1, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, votes: Tensor, correct: Tensor) -> None:
        """Count a batch; arguments and errors as for ``survival_curve``."""
        p_a = survival_curve(votes, self.n, correct).p_a
        # p_A is k / n, rounded, so n·p_A rounds to k.
        counted = torch.from_numpy(np.rint(p_a * self.n).astype(np.int64)).to(self.counts.device)
        self.counts += torch.bincount(counted, minlength=self.n + 1)

    def compute(self) -> Tensor:
        """Compute the metric, a float64 scalar.

        Raises:
            InputError: no examples.
        """
        counts = self.counts.cpu().numpy()
        check_total(self.counts.sum())
        votes = np.repeat(np.arange(self.n + 1), counts)
        curve = survival_curve(votes, self.n, np.ones(len(votes), dtype=np.bool_))
        return torch.tensor(self._value(curve), dtype=torch.float64, device=self.counts.device)

    @abc.abstractmethod
    def _value(self, curve: SurvivalCurve) -> float:
        """Compute the number from the curve."""


class SurvivalArea(_SurvivalMetric):
    """``SurvivalCurve.area`` of all batches.

    Args:
        n: number of samples per example, in [1, 10**7].
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: n out of range.

    >>> float(SurvivalArea(100)(torch.tensor([100, 75, 30]), torch.tensor([True, True, True])))
    0.5
    """

    def _value(self, curve: SurvivalCurve) -> float:
        return curve.area


class ShareBelowHalf(_SurvivalMetric):
    """``SurvivalCurve.share_below_half`` of all batches.

    Args:
        n: number of samples per example, in [1, 10**7].
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: n out of range.

    >>> float(ShareBelowHalf(100)(torch.tensor([100, 75, 50, 30]), torch.tensor([True, False, True, True])))
    0.5
    """

    higher_is_better = False

    def _value(self, curve: SurvivalCurve) -> float:
        return curve.share_below_half


class HardShare(_SurvivalMetric):
    """``SurvivalCurve.hard_share`` of all batches.

    Args:
        n: number of samples per example, in [1, 10**7].
        below: p̂_A below which an example is hard, in (1/2, 1].
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: ``n`` or ``below`` out of range.

    >>> float(HardShare(100)(torch.tensor([100, 75, 50, 30]), torch.tensor([True, True, True, True])))
    0.5
    """

    higher_is_better = None

    def __init__(self, n: int, below: float = HARD, **kwargs: Any) -> None:
        super().__init__(n, **kwargs)
        _EXAMPLE_CURVE.hard_share(below)
        self.below = below

    def _value(self, curve: SurvivalCurve) -> float:
        return curve.hard_share(self.below)


class SurvivalQuantile(_SurvivalMetric):
    """A single quantile of ``SurvivalCurve.quantiles``, over all batches.

    Args:
        n: number of samples per example, in [1, 10**7].
        q: share, in [0, 1]; 0.5 is the median.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: n or q out of range.

    >>> float(SurvivalQuantile(100)(torch.tensor([100, 75, 30]), torch.tensor([True, True, True])))
    0.75
    """

    def __init__(self, n: int, q: float = 0.5, **kwargs: Any) -> None:
        super().__init__(n, **kwargs)
        _EXAMPLE_CURVE.quantiles([q])
        self.q = q

    def _value(self, curve: SurvivalCurve) -> float:
        return curve.quantiles([self.q])[0]


# For checking arguments before the first update.
_EXAMPLE_CURVE = survival_curve(np.array([1]), 1, np.array([True]))
