"""Bound propagation with the examples in the last dimension, [..., N]: intervals and backward passes, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import native


def batch_last_relu_intervals(center: Tensor, radius: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute the interval of max(z, slope·z) for z within radius of center (Gowal et al., 2018), in one pass.

    Differentiable once, with respect to center and radius.

    Args:
        center: [n, N], float32 or float64, on the CPU.
        radius: [n, N], or [n, 1] if all N examples share it.
        slope: in [0, 1]; 0 for ReLU.

    Returns:
        (center, radius), [n, N] each.

    Raises:
        InputError: mismatched shapes or dtypes, or a slope out of range.

    >>> batch_last_relu_intervals(torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]]))
    (tensor([[1.5000, 0.5000]]), tensor([[1.5000, 0.5000]]))
    """
    return native.call(_RELU, center.contiguous(), radius.contiguous(), float(slope))


def batch_last_relu_intervals_backward(
    of_center: Tensor, of_radius: Tensor, center: Tensor, radius: Tensor, slope: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of Σ (of_center · center' + of_radius · radius') with respect to center and radius.

    center' and radius' are the results of ``batch_last_relu_intervals``. Autograd functions that contain
    ``batch_last_relu_intervals`` call this op in their own backward passes. It has no gradient itself.

    Args:
        of_center: coefficients of center', [n, N], float32 or float64, on the CPU.
        of_radius: coefficients of radius', [n, N].
        center: see ``batch_last_relu_intervals``.
        radius: see ``batch_last_relu_intervals``.
        slope: see ``batch_last_relu_intervals``.

    Returns:
        The gradient with respect to center, [n, N], and the gradient with respect to radius, in radius's
        shape.

    Raises:
        InputError: as for ``batch_last_relu_intervals``.

    >>> one = torch.ones(1, 1)
    >>> batch_last_relu_intervals_backward(one, one, torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    (tensor([[1.]]), tensor([[1.]]))
    """
    args = (of_center.contiguous(), of_radius.contiguous(), center.contiguous(), radius.contiguous(), float(slope))
    by_center, by_radius = native.call(_RELU_BACKWARD, *args)
    return by_center, _shared(by_radius, radius)


def batch_last_relax(a: Tensor, center: Tensor, radius: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute ``relax_coefficients`` from center and radius, in batch-last layout.

    Differentiable once, with respect to a, center and radius.

    Args:
        a: [n, S, N], float32 or float64, on the CPU.
        center: [n, N].
        radius: [n, N] or [n, 1].
        slope: in [0, 1].

    Returns:
        (coefficients [n, S, N], bias [S, N]).

    Raises:
        InputError: as for ``batch_last_relu_intervals``.

    >>> batch_last_relax(torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    (tensor([[[ 1.0000],
             [-0.7500]]]), tensor([[ 0.0000],
            [-0.7500]]))
    """
    return native.call(_RELAX, a.contiguous(), center.contiguous(), radius.contiguous(), float(slope))


def batch_last_concretize(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Concretize each row over the box: return the minimum of Σ a·z, which equals Σ a·center − |a|·radius.

    Differentiable once, with respect to a, center and radius.

    Args:
        a: [n, S, N], float32 or float64, on the CPU.
        center: [n, N].
        radius: [n, N] or [n, 1].

    Returns:
        [S, N].

    Raises:
        InputError: as for ``batch_last_relu_intervals``.

    >>> batch_last_concretize(torch.tensor([[[1.0]], [[-2.0]]]), torch.ones(2, 1), torch.tensor([[0.5], [1.0]]))
    tensor([[-3.5000]])
    """
    return native.call(_CONCRETIZE, a.contiguous(), center.contiguous(), radius.contiguous())


# --- fake kernels and gradients of the raw ops

_RELU: Callable[..., tuple[Tensor, Tensor]] = torch.ops.pyrobust.batch_last_relu_intervals
_RELU_BACKWARD: Callable[..., tuple[Tensor, Tensor]] = torch.ops.pyrobust.batch_last_relu_intervals_backward
_RELAX: Callable[..., tuple[Tensor, Tensor]] = torch.ops.pyrobust.batch_last_relax
_RELAX_BACKWARD: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.ops.pyrobust.batch_last_relax_backward
_CONCRETIZE: Callable[..., Tensor] = torch.ops.pyrobust.batch_last_concretize
_CONCRETIZE_BACKWARD: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.ops.pyrobust.batch_last_concretize_backward


def _pair(first: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(first), torch.empty_like(first)


def _fake_concretize_backward(
    grad: Tensor, a: Tensor, center: Tensor, radius: Tensor, box: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(a), *_pair(center if box else center.new_empty(0, center.shape[1]))


def _shared(grad: Tensor, radius: Tensor) -> Tensor:
    """Sum a gradient [n, N] with respect to the radius over the examples, if they all share the radius."""
    return grad.sum_to_size(radius.shape)


def _save_box(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    center, radius, ctx.slope = inputs
    ctx.save_for_backward(center, radius)


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, center, radius, *parameters = inputs
    ctx.slope = parameters[0] if parameters else None
    ctx.save_for_backward(a, center, radius)


def _backward_relu(ctx: Any, of_center: Tensor, of_radius: Tensor) -> tuple[Tensor, Tensor, None]:
    center, radius = ctx.saved_tensors
    return *batch_last_relu_intervals_backward(of_center, of_radius, center, radius, ctx.slope), None


def _backward_relax(ctx: Any, grad: Tensor, grad_bias: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    a, center, radius = ctx.saved_tensors
    grads = _RELAX_BACKWARD(grad.contiguous(), grad_bias.contiguous(), a, center, radius, ctx.slope)
    return grads[0], grads[1], _shared(grads[2], radius), None


def _backward_concretize(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, center, radius = ctx.saved_tensors
    box = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    grads = _CONCRETIZE_BACKWARD(grad.contiguous(), a, center, radius, box)
    return grads[0], *((grads[1], _shared(grads[2], radius)) if box else (None, None))


native.fake("batch_last_relu_intervals", result=lambda center, *_: _pair(center))
native.fake("batch_last_relu_intervals_backward", result=lambda *args: _pair(args[2]))
native.fake("batch_last_relax", result=lambda a, *_: (torch.empty_like(a), a.new_empty(a.shape[1:])))
native.fake("batch_last_relax_backward", result=lambda *args: (torch.empty_like(args[2]), *_pair(args[3])))
native.fake("batch_last_concretize", result=lambda a, *_: a.new_empty(a.shape[1:]))
native.fake("batch_last_concretize_backward", result=_fake_concretize_backward)
torch.library.register_autograd("pyrobust::batch_last_relu_intervals", _backward_relu, setup_context=_save_box)
torch.library.register_autograd("pyrobust::batch_last_relax", _backward_relax, setup_context=_save_rows)
torch.library.register_autograd("pyrobust::batch_last_concretize", _backward_concretize, setup_context=_save_rows)
