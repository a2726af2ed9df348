"""Losses of logits with their derivatives, and verdicts on attacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrobust.checks import choice
from pyrobust.errors import InputError, InputTypeError

from . import native
from .transforms import refuse_tangents, transformed

#: Minimum number of classes of each loss, in the order of the native op's enumeration.
LOSSES = {
    "cross_entropy": 1,
    "targeted_cross_entropy": 1,
    "margin": 2,
    "targeted_margin": 2,
    "lead_of_target": 2,
    "dlr": 3,
    "targeted_dlr": 4,
    "dlr_toward": 4,
}
#: Verdicts, uint8: the attack has failed, has succeeded, or is so close that rounding in another batch may decide
#: otherwise.
ROBUST, FOOLED, CLOSE = 0, 1, 2


class LogitLoss(NamedTuple):
    """Loss of each row (``value``), and its derivative with respect to the logits (``size·slope``)."""

    value: Tensor  # [B], float64
    slope: Tensor  # [B, K], in the dtype of the logits; the largest |slope| of a row is 1
    size: Tensor  # [B], float64


def logit_loss(logits: Tensor, y: Tensor, target: Tensor, loss: str) -> LogitLoss:
    """Compute a loss of each row of logits z in float64, and its derivative; the attacker maximizes the loss.

    ======================== ==========================================================================================
    "cross_entropy"          log Σₖ exp(zₖ) - z_y, whose derivative is softmax(z) - e_y
    "margin"                 (max over k ≠ y of zₖ) - z_y (Carlini and Wagner, 2017)
    "dlr"                    -(z_y - max over k ≠ y of zₖ) / (z_π1 - z_π3), π sorting z downwards (Croce and Hein, 2020)
    "dlr_toward"             -(z_y - z_target) / (z_π1 - (z_π3 + z_π4)/2) (Croce and Hein, 2020)
    "targeted_cross_entropy" minus the cross entropy of the target
    "targeted_margin"        z_target minus the largest other logit
    "lead_of_target"         z_target - z_y
    "targeted_dlr"           the targeted margin over z_π1 - (z_π3 + z_π4)/2
    ======================== ==========================================================================================

    1e-12 is added to the denominators. Ties between logits go to the lowest class. The slope is the derivative divided
    by the largest magnitude of its elements. Therefore the slope does not vanish where the loss is nearly flat: the
    slope of the cross entropy stays accurate where the softmax of y rounds to 1. The slope is zero where the loss does
    not depend on the logits. The value of a row with NaN is NaN, except that "lead_of_target" reads only the logits of
    y and target. The value of a row with infinities may be NaN.

    Args:
        logits: [B, K], float32 or float64.
        y: [B], int64, classes; on a GPU, a row whose y is not a class gives NaN.
        target: [B], int64, classes as in y; a loss uses y, target or both.
        loss: one of the names above.

    Returns:
        value [B], slope [B, K] and size [B]; the derivative is size·slope. The op has no gradient.

    Raises:
        InputError: mismatched shapes or devices, too few classes, an unknown loss, or (CPU) a y or target that is not a
            class.
        InputTypeError: an unsupported dtype.

    >>> value, slope, size = logit_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0]), "cross_entropy")
    >>> value, slope, size
    (tensor([0.6931], dtype=torch.float64), tensor([[ 1., -1.]]), tensor([0.5000], dtype=torch.float64))
    """
    op = "logit_loss"
    if type(loss) is not str or loss not in LOSSES:
        choice(f"{op}: loss", loss, tuple(LOSSES))
    if not _plain(logits, y, target):
        _check(op, logits, y=y, target=target)
    if logits.shape[1] < LOSSES[loss]:
        raise InputError(f"{op}: logits", f"at least {LOSSES[loss]} classes for {loss}", logits.shape[1])
    index = _INDEX[loss]
    return LogitLoss(*native.call(_LOSS, logits.detach().contiguous(), y.contiguous(), target.contiguous(), index))


def logit_verdict(
    logits: Tensor, y: Tensor, targeted: bool = False, *, tolerance: float = 0.0, both: bool = False
) -> Tensor:
    """Judge an attack by each row of logits: ``ROBUST``, ``FOOLED`` or ``CLOSE``.

    The gap is the largest logit of the other classes minus the logit of y. A row is fooled if its gap is at least 0;
    with ``targeted``, a row is fooled if its gap is at most 0. A fooled row is close if its |gap| is at most tolerance
    times its largest |logit|. With so small a gap, the row may not be fooled if the model's sums are added in another
    order, which changes their rounding errors. A row whose gap is not finite is close, too, and so is a fooled row with
    an infinite logit. With ``both``, robust rows with such a small gap or an infinite logit are close as well.

    Args:
        logits: [B, K], float32 or float64.
        y: [B], int64, classes; on a GPU, a row whose y is not a class is ``CLOSE``.
        targeted: whether y is the class that the attack aims at.
        tolerance: at least 0.
        both: whether robust rows, too, may be ``CLOSE``.

    Returns:
        uint8 [B].

    Raises:
        InputError: mismatched shapes or devices, a negative tolerance, or (CPU) a y that is not a class.
        InputTypeError: an unsupported dtype.

    >>> logits = torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [1.0, torch.nan]])
    >>> logit_verdict(logits, torch.zeros(4, dtype=torch.int64))
    tensor([0, 1, 2, 2], dtype=torch.uint8)
    """
    op = "logit_verdict"
    if not _plain(logits, y):
        _check(op, logits, y=y)
    if not tolerance >= 0:
        raise InputError(f"{op}: tolerance", "at least 0", tolerance)
    return native.call(_VERDICT, logits.detach().contiguous(), y.contiguous(), bool(targeted), float(tolerance), both)


def _check(op: str, logits: Tensor, **classes: Tensor) -> None:
    for name, value in (("logits", logits), *classes.items()):
        if not isinstance(value, Tensor):
            raise InputTypeError(f"{op}: {name}", "a tensor", type(value).__name__)
    if logits.dtype not in _DTYPES:
        raise InputTypeError(f"{op}: logits", "float32 or float64", logits.dtype)
    if logits.dim() != 2 or logits.shape[1] < 1:
        raise InputError(f"{op}: logits", "[B, K] with K >= 1", tuple(logits.shape))
    for name, value in classes.items():
        if value.dtype != torch.int64:
            raise InputTypeError(f"{op}: {name}", "int64", value.dtype)
        if value.shape != logits.shape[:1]:
            raise InputError(f"{op}: {name}", f"shape ({len(logits)},)", tuple(value.shape))
        if value.device != logits.device:
            raise InputError(f"{op}: {name}", f"it on {logits.device}", value.device)
    refuse_tangents(op, logits)


def _plain(logits: Tensor, *classes: Tensor) -> bool:
    """Whether a few cheap calls already show that ``_check`` would accept the arguments."""
    if type(logits) is not Tensor or logits.dim() != 2 or transformed() or logits.dtype not in _DTYPES:
        return False
    shape, device = logits.shape, logits.device
    return shape[1] > 0 and all(
        type(y) is Tensor and y.dtype == torch.int64 and y.shape == shape[:1] and y.device == device for y in classes
    )


# --- fake kernels and gradients of the raw ops

_DTYPES = (torch.float32, torch.float64)
_INDEX = {name: index for index, name in enumerate(LOSSES)}
_LOSS: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.ops.pyrobust.logit_loss.default
_VERDICT: Callable[..., Tensor] = torch.ops.pyrobust.logit_verdict.default


def _fake_loss(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    value = logits.new_empty(logits.shape[:1], dtype=torch.float64)
    return value, torch.empty_like(logits), torch.empty_like(value)


native.fake("logit_loss", result=_fake_loss)
native.fake("logit_verdict", result=lambda logits, *_: logits.new_empty(logits.shape[:1], dtype=torch.uint8))
