"""Linearized decision boundaries: hyperplanes f_c = 0, where f_c = z_c − z_y compares the logits of classes c and y."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.errors import ModelError
from pyrobust.ops.logits import LogitLoss

from ..engine.norms import Norm
from ..engine.state import AttackState
from ..losses import lead_of_target, targeted_margin

#: Order of the dual norm, in which a gradient bounds the change of f per unit of distance.
DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


def rivals(state: AttackState, limit: int | None) -> Tensor:
    """Return classes [B, T] other than y by decreasing logit at x: at most ``limit`` classes, or one if targeted."""
    logits = state.logits(state.x)
    if logits.shape[1] < 2:
        raise ModelError(f"model: expected at least 2 classes, got {logits.shape[1]}")
    ranking = logits.scatter(1, state.y.unsqueeze(1), -math.inf).argsort(1, descending=True)[:, :-1]
    return ranking[:, : 1 if state.targeted else limit]


def leads(state: AttackState, ranking: Tensor) -> list[Callable[[Tensor], LogitLoss]]:
    """Return a loss f_c for each column of classes c in ``ranking`` [B, T]; if targeted, only the target's margin."""
    if state.targeted:
        return [functools.partial(_margin, state.y)]
    return [functools.partial(_lead, state.y, classes) for classes in ranking.T.contiguous()]


def nearest_hyperplane(values: list[Tensor], gradients: list[Tensor], norm: Norm) -> tuple[Tensor, Tensor]:
    """Return f [B] and ∇f [B, ...] of the nearest hyperplane, that of least |f| / ‖∇f‖, where ‖·‖ is the dual norm."""
    if len(values) == 1:
        return values[0], gradients[0]
    value, gradient = torch.stack(values), torch.stack(gradients)
    slope = torch.linalg.vector_norm(norm.scaled(gradient).flatten(2), DUAL[norm.name], dim=2, dtype=torch.float64)
    chosen = (value.abs() / slope.clamp(min=torch.finfo(slope.dtype).tiny)).argmin(0)
    rows = torch.arange(len(chosen), device=chosen.device)
    return value[chosen, rows], gradient[chosen, rows]


def _lead(y: Tensor, target: Tensor, logits: Tensor) -> LogitLoss:
    return lead_of_target(logits, y, target)


def _margin(target: Tensor, logits: Tensor) -> LogitLoss:
    return targeted_margin(logits, target, target)
