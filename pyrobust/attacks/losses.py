"""The losses that attacks maximize: objectives of the logits, with their derivatives.

Each loss takes (logits z [B, K], y [B], target [B]) and returns a ``LogitLoss``; larger values are closer to success.
Untargeted losses push y's logit down and ignore the target; targeted losses push the target's logit up. A loss gives
its derivative in the logits, so one ``torch.autograd.grad(logits, x, grad_outputs=...)`` is the whole backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from torch import Tensor

from pyrobust.checks import choice
from pyrobust.errors import InputError
from pyrobust.ops.logits import LOSSES as _LEAST_CLASSES
from pyrobust.ops.logits import LogitLoss, logit_loss

#: (logits [B, K], y [B], target [B]) → value, slope and size, see ``pyrobust.ops.logits.logit_loss``.
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], LogitLoss]

margin: Loss = partial(logit_loss, loss="margin")
targeted_margin: Loss = partial(logit_loss, loss="targeted_margin")
dlr_toward: Loss = partial(logit_loss, loss="dlr_toward")
lead_of_target: Loss = partial(logit_loss, loss="lead_of_target")

# Name → (untargeted, targeted).
_VARIANTS = {
    "ce": ("cross_entropy", "targeted_cross_entropy"),
    "margin": ("margin", "targeted_margin"),
    "dlr": ("dlr", "targeted_dlr"),
}

Name = TypeVar("Name", bound=str)
#: The names of ``LOSSES``.
LossName: TypeAlias = Literal["ce", "dlr", "margin"]
#: The losses that need no target class of their own.
LOSSES = tuple(_VARIANTS)
LOSS_HELP = '"ce", "dlr" (at least 3 classes, 4 where targeted) or "margin", see ``pyrobust.ops.logit_loss``'


def named_loss(logits: Tensor, y: Tensor, target: Tensor, *, name: str, targeted: bool) -> LogitLoss:
    """Evaluate the loss of the given name; raises InputError for fewer classes than the loss needs.

    >>> import torch
    >>> logits, y = torch.tensor([[1.0, 3.0]]), torch.tensor([1])
    >>> named_loss(logits, y, y, name="margin", targeted=False).value
    tensor([-2.], dtype=torch.float64)
    """
    loss = _VARIANTS[name][targeted]
    if logits.shape[1] < _LEAST_CLASSES[loss]:
        shown = f"targeted {name}" if targeted else name
        least = _LEAST_CLASSES[loss]
        raise InputError("loss", f"at least {least} classes for {shown}", logits.shape[1], 'use loss="ce"')
    return logit_loss(logits, y, target, loss)


def check_loss(name: Name, losses: tuple[str, ...]) -> Name:
    """Return the name of a loss; raises InputError for an unknown name."""
    choice("loss", name, losses)
    return name
