"""Steps of attacks, each in one pass over the examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError

from . import native
from .rows import box, check_alike, check_float, nhwc, plain_column, radii
from .transforms import refuse_tangents, untracked


def linf_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Step along the sign of the gradient, project onto the box and the l∞ ball around x, and round toward x.

    ``x' = clip(x_adv + step·sign(gradient), max(x - epsilon, lower), min(x + epsilon, upper))`` (Kurakin, Goodfellow
    and Bengio, 2017; Madry et al., 2018), computed in float64 for float64 tensors and in float32 for the others. For
    every dtype, |x' - x| ≤ epsilon and lower ≤ x' ≤ upper hold exactly, not only up to rounding. A coordinate whose
    gradient is NaN takes no step.

    Args:
        x_adv: [B, ...], float32, float64, bfloat16 or float16.
        gradient: same shape and dtype as x_adv.
        x: the examples, in [lower, upper], same shape and dtype as x_adv.
        step: [B] or [1], finite.
        epsilon: radius of the ball, a number or [B].
        lower: smallest value of the result, a binary64 number.
        upper: largest value of the result, a binary64 number.

    Returns:
        A tensor of x_adv's shape and dtype. It is channels_last if x_adv, gradient and x are channels_last. The op has
        no gradient.

    Raises:
        InputError: shapes or devices do not match, or a value is out of range. Values are checked only on the CPU. On a
            GPU, an x outside the box gives NaN.
        InputTypeError: an unsupported dtype.

    >>> x = torch.tensor([[0.5, 0.1]])
    >>> linf_step(x, torch.tensor([[2.0, -1.0]]), x, torch.tensor([0.25]), epsilon=0.125)
    tensor([[0.6250, 0.0000]])
    """
    op = "linf_step"
    plain = _plain(_LINF, (x_adv, gradient, x), step, epsilon, share=(), lower=lower, upper=upper)
    if plain is not None:
        return plain
    _check(op, x, x_adv, gradient)
    lower, upper = box(op, lower, upper)
    column, radius = _per_row(op, "step", step, x), radii(op, epsilon, x.shape[:1], x.device)
    if x.numel() == 0:
        return x.detach().clone()
    return _on_rows(lambda *rows: native.call(_LINF, *rows, column, radius, lower, upper), x_adv, gradient, x)


def linf_momentum_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    before: Tensor,
    step: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
    *,
    share: float = 0.75,
) -> Tensor:
    """Take the momentum step of Auto-PGD (Croce and Hein, 2020), projected and rounded as in ``linf_step``.

    ``x' = clip(x_adv + share·(z - x_adv) + (1 - share)·(x_adv - before), max(x - epsilon, lower), min(x + epsilon,
    upper))`` with ``z = linf_step(x_adv, gradient, x, step, epsilon, lower, upper)``. For every dtype, |x' - x| ≤
    epsilon and lower ≤ x' ≤ upper hold exactly, not only up to rounding.

    Args:
        x_adv: [B, ...], float32, float64, bfloat16 or float16.
        gradient: same shape and dtype as x_adv.
        x: the examples, in [lower, upper], same shape and dtype as x_adv.
        before: the previous iterate, same shape and dtype as x_adv.
        step: [B] or [1], finite.
        epsilon: radius of the ball, a number or [B].
        lower: smallest value of the result, a binary64 number.
        upper: largest value of the result, a binary64 number.
        share: weight of the step, 0 to 1; the momentum has the weight 1 - share.

    Returns:
        A tensor of x_adv's shape and dtype. It is channels_last if x_adv, gradient, x and before are channels_last. The
        op has no gradient.

    Raises:
        InputError: shapes or devices do not match, or a value is out of range. Values are checked only on the CPU. On a
            GPU, an x outside the box gives NaN.
        InputTypeError: an unsupported dtype.

    >>> x, before = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.25]])
    >>> linf_momentum_step(x, torch.tensor([[1.0, -1.0]]), x, before, torch.tensor([0.125]), epsilon=0.5)
    tensor([[0.5938, 0.4688]])
    """
    op = "linf_momentum_step"
    plain = _plain(
        _MOMENTUM, (x_adv, gradient, x, before), step, epsilon, share=(float(share),), lower=lower, upper=upper
    )
    if plain is not None:
        return plain
    _check(op, x, x_adv, gradient)
    check_float(op, "before", before)
    check_alike(op, "before", before, x)
    refuse_tangents(op, before)
    lower, upper = box(op, lower, upper)
    column, radius = _per_row(op, "step", step, x), radii(op, epsilon, x.shape[:1], x.device)
    if x.numel() == 0:
        return x.detach().clone()
    return _on_rows(
        lambda *rows: native.call(_MOMENTUM, *rows, column, radius, float(share), lower, upper),
        x_adv,
        gradient,
        x,
        before,
    )


def l1_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    keep: Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Return the perturbation after a sparse step along the sign of the gradient, not yet projected.

    The result is ``(x_adv - x) + (step/m)·sign(gradient)`` on the m coordinates whose |gradient| is positive and at
    least the example's keep-th largest |gradient|. On other coordinates the result is ``x_adv - x``. The l1 norm of the
    step is therefore |step|, or 0 if no |gradient| is positive (Croce and Hein, "Mind the box", 2021). The gradient
    counts as zero at a coordinate on a face of the box if the step would leave the box there.

    Args:
        x_adv: [B, ...], float32, float64, bfloat16 or float16.
        gradient: same shape and dtype as x_adv, not NaN.
        x: the examples, same shape and dtype as x_adv.
        step: [B] or [1], finite.
        keep: [B] or [1], int64, from 1 to the number of coordinates.
        lower: lower end of the box.
        upper: upper end of the box.

    Returns:
        A tensor of x_adv's shape and dtype. It is channels_last if x_adv, gradient and x are channels_last. The op has
        no gradient.

    Raises:
        InputError: shapes or devices do not match, or a value is out of range. Values are checked only on the CPU.
        InputTypeError: an unsupported dtype.

    >>> x = torch.full((1, 4), 0.5)
    >>> l1_step(x, torch.tensor([[3.0, -2.0, 1.0, 0.0]]), x, torch.tensor([1.0]), torch.tensor([2]))
    tensor([[ 0.5000, -0.5000,  0.0000,  0.0000]])
    """
    op = "l1_step"
    _check(op, x, x_adv, gradient)
    lower, upper = box(op, lower, upper)
    column, count = _per_row(op, "step", step, x), _counts(op, keep)
    if x.numel() == 0:
        return x.detach().clone()
    return _on_rows(lambda *rows: native.call(_L1, *rows, column, count, lower, upper), x_adv, gradient, x)


def l1_step_in_ball(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    keep: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Take the ``l1_step``, project onto the intersection of the box and the l1 ball around x, and round toward x.

    The result x' equals ``add_perturbation(x, project_l1_ball_box(l1_step(x_adv, gradient, x, step, keep), x,
    epsilon))`` bit for bit, but is computed in one pass over memory. For every dtype, Σ |x' - x| ≤ epsilon and lower ≤
    x' ≤ upper hold exactly, not only up to rounding.

    Args:
        x_adv: [B, ...], float32, float64, bfloat16 or float16, finite.
        gradient: same shape and dtype as x_adv, not NaN.
        x: the examples, in [lower, upper], same shape and dtype as x_adv.
        step: [B] or [1], finite.
        keep: [B] or [1], int64, from 1 to the number of coordinates.
        epsilon: radius of the ball, a number or [B].
        lower: smallest value of the result, a binary64 number.
        upper: largest value of the result, a binary64 number.

    Returns:
        A tensor of x_adv's shape and dtype. It is channels_last if x_adv, gradient and x are channels_last. The op has
        no gradient.

    Raises:
        InputError: shapes or devices do not match, or a value is out of range. Values are checked only on the CPU. On a
            GPU, an x outside the box gives NaN.
        InputTypeError: an unsupported dtype.

    >>> x, gradient = torch.full((1, 4), 0.5), torch.tensor([[3.0, -2.0, 1.0, 0.0]])
    >>> l1_step_in_ball(x, gradient, x, torch.tensor([1.0]), torch.tensor([2]), epsilon=0.5)
    tensor([[0.7500, 0.2500, 0.5000, 0.5000]])
    """
    op = "l1_step_in_ball"
    _check(op, x, x_adv, gradient)
    lower, upper = box(op, lower, upper)
    column, count = _per_row(op, "step", step, x), _counts(op, keep)
    radius = radii(op, epsilon, x.shape[:1], x.device)
    if x.numel() == 0:
        return x.detach().clone()
    return _on_rows(
        lambda *rows: native.call(_L1_IN_BALL, *rows, column, count, radius, lower, upper), x_adv, gradient, x
    )


def _check(op: str, x: Tensor, x_adv: Tensor, gradient: Tensor) -> None:
    check_float(op, "x", x)
    if x.dim() < 1:
        raise InputError(f"{op}: x", "[B, ...]", "a scalar")
    for name, value in (("x_adv", x_adv), ("gradient", gradient)):
        check_float(op, name, value)
        check_alike(op, name, value, x)
    refuse_tangents(op, x, x_adv, gradient)


def _per_row(op: str, name: str, values: Tensor, x: Tensor) -> Tensor:
    check_float(op, name, values)
    if values.shape not in ((1,), x.shape[:1]):
        raise InputError(f"{op}: {name}", f"shape (1,) or ({len(x)},)", tuple(values.shape))
    return values.detach().to(torch.float64).contiguous()


def _plain(
    op: Callable[..., Tensor],
    tensors: tuple[Tensor, ...],
    step: Tensor,
    epsilon: float | Tensor,
    share: tuple[float, ...],
    lower: float,
    upper: float,
) -> Tensor | None:
    """Return the op's result if the arguments have the most common types and the op accepts them, else None."""
    if not (type(step) is Tensor and type(lower) is float and type(upper) is float):
        return None
    if not (untracked(*tensors) and tensors[0].is_cpu):
        return None
    column, radius = plain_column(step), plain_column(epsilon)
    if column is None or radius is None:
        return None
    try:
        return op(*tensors, column, radius, *share, lower, upper)
    except RuntimeError:
        return None


def _counts(op: str, keep: Tensor) -> Tensor:
    if not isinstance(keep, Tensor) or keep.dtype != torch.int64:
        raise InputTypeError(f"{op}: keep", "an int64 tensor", getattr(keep, "dtype", type(keep).__name__))
    return keep.reshape(-1).contiguous()


def _on_rows(op: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call the op on [B, D] views of tensors, or on copies of those that have no such view."""
    shape = tensors[0].shape
    if nhwc(*tensors):
        rows = [t.detach().permute(0, 2, 3, 1).reshape(shape[0], -1) for t in tensors]
        return op(*rows).view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
    return op(*(t.detach().reshape(shape[0], -1).contiguous() for t in tensors)).view(shape)


_LINF: Callable[..., Tensor] = torch.ops.pyrobust.linf_step.default
_MOMENTUM: Callable[..., Tensor] = torch.ops.pyrobust.linf_momentum_step.default
_L1: Callable[..., Tensor] = torch.ops.pyrobust.l1_step
_L1_IN_BALL: Callable[..., Tensor] = torch.ops.pyrobust.l1_step_in_ball

native.fake("linf_step", "linf_momentum_step", "l1_step", "l1_step_in_ball", like=2)
