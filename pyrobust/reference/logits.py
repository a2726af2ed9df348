"""Losses of logits with explicit derivatives, and verdicts on attacks."""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-12  # added to Croce and Hein's denominators


def logit_loss(logits: Tensor, y: Tensor, target: Tensor, loss: str) -> tuple[Tensor, Tensor, Tensor]:
    """Compute each row's loss and its derivative, which is size·slope: reference of ``pyrobust.ops.logit_loss``.

    Args:
        logits: [B, K], float.
        y: [B], int64.
        target: [B], int64.
        loss: "cross_entropy", "margin", "dlr", one of these with ``targeted_`` before it, "lead_of_target" or
            "dlr_toward".

    Returns:
        A tuple of three tensors: the value float64 [B], the slope [B, K] in the dtype of the logits, and the size
        float64 [B].

    >>> logit_loss(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]), torch.tensor([0]), "dlr")[0]
    tensor([-0.5000], dtype=torch.float64)
    """
    z = logits.double()
    if loss == "cross_entropy":
        value, slope, size = _cross_entropy(z, y)
    elif loss == "targeted_cross_entropy":
        value, slope, size = _cross_entropy(z, target)
        value, slope = -value, -slope
    elif loss in ("margin", "dlr"):
        value, slope, size = _over(z, _strongest_other(z, y), y, [] if loss == "margin" else [0, 2])
    else:
        down = _strongest_other(z, target) if loss.startswith("targeted") else y
        value, slope, size = _over(z, target, down, [0, 2, 3] if "dlr" in loss else [])
    return value, slope.to(logits.dtype), size


def _cross_entropy(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log(1 + exp(lead)) and its derivative, where lead is the log odds of the other classes against class y.

    The probability of the other classes is p = 1 / (1 + exp(-lead)). The derivative is p times (softmax of the other
    classes - e_y), where e_y is the unit vector of class y. It is returned as these two factors, so that it stays
    precise where p rounds to 0.
    """
    index = y.unsqueeze(1)
    true_logit = z.gather(1, index)
    others = z.scatter(1, index, -torch.inf)
    largest = others.amax(1, keepdim=True)
    share = (others - largest).exp()
    total = share.sum(1, keepdim=True)
    lead = largest - true_logit + total.log()
    value = lead.clamp(min=0) + lead.abs().neg().exp().log1p()
    slope = (share / total).scatter(1, index, -1.0)
    broken = value.isnan()
    value, slope, size = value.masked_fill(broken, torch.nan), slope.masked_fill(broken, torch.nan), lead.sigmoid()
    alone = (largest == -torch.inf) & (true_logit > -torch.inf)
    return (
        value.masked_fill(alone, 0.0).squeeze(1),
        slope.masked_fill(alone, 0.0),
        size.masked_fill(alone, 0.0).squeeze(1),
    )


def _strongest_other(z: Tensor, y: Tensor) -> Tensor:
    """Return the class k ≠ y with the largest logit, [B]; in a tie, the lowest such class; NaN counts as largest."""
    order = z.argsort(dim=1, descending=True, stable=True)
    first, second = order[:, 0], order[:, 1]
    return torch.where(first == y, second, first)


def _over(z: Tensor, up: Tensor, down: Tensor, ranks: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, slope and size of z_up - z_down, divided by a difference of ranked logits if there are ranks.

    The divisor is the logit of the first rank minus the mean logit of the other ranks, plus 1e-12.
    """
    up, down = up.unsqueeze(1), down.unsqueeze(1)
    value = z.gather(1, up) - z.gather(1, down)
    slope = torch.zeros_like(z).scatter_(1, down, -1.0)
    slope.scatter_add_(1, up, torch.ones_like(value))  # added, not set, since up may equal down
    scale = torch.ones_like(value)
    if ranks:
        top, order = (ranked[:, ranks] for ranked in z.sort(dim=1, descending=True, stable=True))
        weights = z.new_tensor([1.0, *[-1.0 / (len(ranks) - 1)] * (len(ranks) - 1)]).expand(len(z), -1)
        scale = (top * weights).sum(1, keepdim=True) + _TINY
        value = value / scale
        slope.scatter_add_(1, order, -value * weights)
    size = slope.abs().amax(1, keepdim=True)
    slope = torch.where(size == 0, 0.0, slope / size)
    return value.squeeze(1), slope, (size / scale).squeeze(1)


def logit_verdict(
    logits: Tensor, y: Tensor, targeted: bool = False, *, tolerance: float = 0.0, both: bool = False
) -> Tensor:
    """Judge each row as 0 (robust), 1 (fooled) or 2 (close): reference of ``pyrobust.ops.logit_verdict``.

    Args:
        logits: [B, K], float.
        y: [B], int64.
        targeted: whether y is the class that the attack aims at.
        tolerance: at least 0. A fooled row is close if the logit of y and the largest other logit differ by at most
            tolerance times the row's largest |logit|.
        both: whether a robust row with such a small difference is judged ``CLOSE``, too.

    Returns:
        uint8 [B].

    >>> logit_verdict(torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]]), torch.tensor([0, 0, 0]))
    tensor([0, 1, 2], dtype=torch.uint8)
    """
    z, index = logits.double(), y.unsqueeze(1)
    gap = z.scatter(1, index, -torch.inf).amax(1) - z.gather(1, index).squeeze(1)
    near = ~(gap.abs() > z.abs().amax(1) * tolerance)
    fooled = gap <= 0 if targeted else gap >= 0
    verdict = fooled.to(torch.uint8)
    return verdict.masked_fill(~gap.isfinite() | (near & (fooled | both)), 2)
