"""What attacks climb: objectives of the logits, with their derivatives written out.

Each takes (logits z [B, K], y [B], target [B]) and returns (value [B], dvalue/dz [B, K]); larger is nearer to success.
The untargeted ones make y lose and leave the target aside; the targeted ones make the target win. With the
derivative known, one ``torch.autograd.grad(logits, x, grad_outputs=...)`` is the whole backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pyrobust.errors import InputError

#: (logits [B, K], y [B], target [B]) → (value [B], dvalue/dlogits [B, K]).
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

_TINY = 1e-12  # of Croce and Hein's denominators


def cross_entropy(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The value log Σₖ exp(zₖ) − z_y, whose derivative is softmax(z) − e_y.

    Both keep their digits where the softmax of y rounds to 1: there the value is log(1 + Σ over k ≠ y of
    exp(zₖ − z_y)), and the derivative at y is minus the sum of the other probabilities.

    >>> value, slope = cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), torch.tensor([0]))
    >>> value, slope
    (tensor([0.6931]), tensor([[ 0.5000, -0.5000]]))
    """
    index = y.unsqueeze(1)
    largest = logits.amax(1, keepdim=True)
    own = logits.gather(1, index)
    slope = (logits - largest).exp_().scatter_(1, index, 0.0)
    others = slope.sum(1, keepdim=True)
    total = others + (own - largest).exp_()
    value = torch.where(own == largest, others.log1p(), total.log() + largest - own)
    slope.div_(total)
    return value.squeeze(1), slope.scatter_(1, index, -slope.sum(1, keepdim=True))


def margin(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The value (max over k ≠ y of zₖ) − z_y (Carlini and Wagner, 2017): positive where y has lost.

    >>> value, slope = margin(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]), torch.tensor([0]))
    >>> value, slope
    (tensor([-1.]), tensor([[ 0., -1.,  1.]]))
    """
    other = strongest_other(logits, y)
    return _difference(logits, other, y)


def dlr(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """−(z_y − max over k ≠ y of zₖ) / (z_π1 − z_π3), π sorting z downwards (Croce and Hein, 2020); K ≥ 3.

    >>> value, _ = dlr(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]), torch.tensor([0]))
    >>> value
    tensor([-0.5000])
    """
    value, slope = margin(logits, y, target)
    top, order = logits.topk(3, dim=1)
    weights = logits.new_tensor([1.0, 0.0, -1.0])
    return _over(value, slope, top, order, weights)


def targeted_cross_entropy(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Minus the cross entropy of the target.

    >>> targeted_cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), torch.tensor([0]))
    (tensor([-0.6931]), tensor([[ 0.5000, -0.5000]]))
    """
    value, slope = cross_entropy(logits, target, target)
    return value.neg_(), slope.neg_()


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """z_target minus the largest other logit: positive where the target has won.

    >>> targeted_margin(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]), torch.tensor([0]))
    (tensor([-2.]), tensor([[ 1., -1.,  0.]]))
    """
    return _difference(logits, target, strongest_other(logits, target))


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The targeted margin over z_π1 − (z_π3 + z_π4)/2, π sorting z downwards; K ≥ 4.

    >>> targeted_dlr(torch.tensor([[1.0, 4.0, 2.0, 2.0]]), torch.tensor([1]), torch.tensor([0]))[0]
    tensor([-1.2000])
    """
    value, slope = targeted_margin(logits, y, target)
    return _over_targeted(logits, value, slope)


def dlr_toward(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """−(z_y − z_target) / (z_π1 − (z_π3 + z_π4)/2), π sorting z downwards (Croce and Hein, 2020); K ≥ 4.

    >>> dlr_toward(torch.tensor([[1.0, 4.0, 2.0, 2.0]]), torch.tensor([1]), torch.tensor([2]))[0]
    tensor([-0.8000])
    """
    value, slope = _difference(logits, target, y)
    return _over_targeted(logits, value, slope)


#: Name → (untargeted, targeted, least number of classes of each).
_LOSSES: dict[str, tuple[Loss, Loss, int, int]] = {
    "ce": (cross_entropy, targeted_cross_entropy, 1, 1),
    "margin": (margin, targeted_margin, 2, 2),
    "dlr": (dlr, targeted_dlr, 3, 4),
}


#: The names of the losses that need no target class of their own.
LOSSES = tuple(_LOSSES)


def named_loss(logits: Tensor, y: Tensor, target: Tensor, *, name: str, targeted: bool) -> tuple[Tensor, Tensor]:
    """The loss of that name; what remains of the signature is that of every loss.

    Raises:
        InputError: fewer classes than the loss needs.

    >>> named_loss(torch.tensor([[1.0, 3.0]]), torch.tensor([1]), torch.tensor([0]), name="margin", targeted=False)[0]
    tensor([-2.])
    """
    untargeted, aimed, *leasts = _LOSSES[name]
    loss, least = (aimed, leasts[1]) if targeted else (untargeted, leasts[0])
    if logits.shape[1] < least:
        what = f"targeted {name}" if targeted else name
        raise InputError(f'loss: expected at least {least} classes for {what}, got {logits.shape[1]}; use loss="ce"')
    return loss(logits, y, target)


def check_loss(name: str, known: tuple[str, ...]) -> str:
    """The name, if it is known.

    Raises:
        InputError: it is not.

    >>> check_loss("ce", ("ce", "dlr"))
    'ce'
    """
    if not isinstance(name, str) or name not in known:
        raise InputError(f"loss: expected one of {', '.join(known)}, got {name!r}")
    return name


def strongest_other(logits: Tensor, y: Tensor) -> Tensor:
    """The class k ≠ y of the largest logit, [B].

    >>> strongest_other(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]))
    tensor([2])
    """
    return logits.scatter(1, y.unsqueeze(1), -torch.inf).argmax(1)


def _difference(logits: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """z_up − z_down."""
    up, down = up.unsqueeze(1), down.unsqueeze(1)
    slope = torch.zeros_like(logits).scatter_(1, down, -1.0)
    # added, for up may be down
    slope.scatter_add_(1, up, torch.ones_like(up, dtype=logits.dtype))
    return (logits.gather(1, up) - logits.gather(1, down)).squeeze(1), slope


def _over_targeted(logits: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    top, order = logits.topk(4, dim=1)
    return _over(value, slope, top, order, logits.new_tensor([1.0, 0.0, -0.5, -0.5]))


def _over(value: Tensor, slope: Tensor, top: Tensor, order: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The quotient of a value and Σ weights·top, by the quotient rule; top are the logits at order."""
    scale = (top * weights).sum(1) + _TINY
    value = value / scale
    change = weights * (-value / scale).unsqueeze(1)
    return value, slope.div_(scale.unsqueeze(1)).scatter_add_(1, order, change)
