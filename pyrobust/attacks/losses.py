"""What attacks climb: objectives of the logits, with their derivatives.

Each takes (logits z [B, K], y [B], target [B]) and returns a ``LogitLoss``; larger values are nearer to success. The
untargeted ones make y lose and leave the target aside; the targeted ones make the target win. With the derivative
known, one ``torch.autograd.grad(logits, x, grad_outputs=...)`` is the whole backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.ops.logits import LOSSES as _CLASSES
from pyrobust.ops.logits import LogitLoss, logit_loss

#: (logits [B, K], y [B], target [B]) → value, slope and size, see ``pyrobust.ops.logits.logit_loss``.
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], LogitLoss]

#: The losses of ``pyrobust.ops.logits`` that attacks name in their code.
margin: Loss = partial(logit_loss, loss="margin")
targeted_margin: Loss = partial(logit_loss, loss="targeted_margin")
dlr_toward: Loss = partial(logit_loss, loss="dlr_toward")
lead_of_target: Loss = partial(logit_loss, loss="lead_of_target")

# Name → (untargeted, targeted).
_LOSSES = {
    "ce": ("cross_entropy", "targeted_cross_entropy"),
    "margin": ("margin", "targeted_margin"),
    "dlr": ("dlr", "targeted_dlr"),
}

#: The names of the losses that need no target class of their own.
LOSSES = tuple(_LOSSES)


def named_loss(logits: Tensor, y: Tensor, target: Tensor, *, name: str, targeted: bool) -> LogitLoss:
    """The loss of that name; what remains of the signature is that of every loss.

    Raises:
        InputError: fewer classes than the loss needs.

    >>> import torch
    >>> logits, y = torch.tensor([[1.0, 3.0]]), torch.tensor([1])
    >>> named_loss(logits, y, y, name="margin", targeted=False).value
    tensor([-2.], dtype=torch.float64)
    """
    loss = _LOSSES[name][targeted]
    if logits.shape[1] < _CLASSES[loss]:
        what = f"targeted {name}" if targeted else name
        least = _CLASSES[loss]
        raise InputError(f'loss: expected at least {least} classes for {what}, got {logits.shape[1]}; use loss="ce"')
    return logit_loss(logits, y, target, loss)


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
