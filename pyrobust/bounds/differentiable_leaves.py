"""As differentiable_lanes.py on other devices than the CPU: gradients that take fewer passes than autograd's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Shape(NamedTuple):
    """How a convolution moves; rest are the rows and columns at the end of its input that no window reaches."""

    rest: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def least(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """The least value of a·z over the box: [B, S].

    Args:
        a: [B or 1, S, n].
        center: of the box, [B, n].
        radius: [B, n].

    >>> least(torch.tensor([[[1.0, -2.0]]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 1.0]]))
    tensor([[-3.5000]])
    """
    # torch leaves this method without annotations
    result: Tensor = _Least.apply(a, center, radius)  # type: ignore[no-untyped-call]
    return result


def through_convolution(a: Tensor, weight: Tensor, bias: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Coefficients of a convolution's input and the constant for those of its output: [B, S, C, H, W], [B, S].

    Args:
        a: [B, S, O, h, w].
        weight: [O, C / groups, kh, kw].
        bias: [O].
        shape: of the convolution.

    >>> shape = Shape((0, 0), (1, 1), (0, 0), (1, 1), 1)
    >>> through_convolution(torch.ones(1, 1, 1, 1, 2), torch.ones(1, 1, 1, 2), torch.tensor([3.0]), shape)
    (tensor([[[[[1., 2., 1.]]]]]), tensor([[6.]]))
    """
    # torch leaves this method without annotations
    out, constant = _ThroughConvolution.apply(a, weight, bias, shape)  # type: ignore[no-untyped-call]
    return out, constant


class _Least(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        return (a * _lowest(a, center, radius)).sum(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, center, radius = ctx.saved_tensors
        grad_a = grad_center = grad_radius = None
        if ctx.needs_input_grad[0]:
            grad_a = _lowest(a, center, radius).mul_(grad.unsqueeze(2)).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_center = (grad.unsqueeze(1) @ a).squeeze(1)
        if ctx.needs_input_grad[2]:
            grad_radius = -(grad.unsqueeze(1) @ a.abs()).squeeze(1)
        return grad_a, grad_center, grad_radius


def _lowest(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """The corner of the box where a·z is least, [B, S, n]."""
    sign = a.sgn()
    if len(sign) != len(radius):
        sign = sign.repeat(len(radius), 1, 1)
    return sign.mul_(-radius.unsqueeze(1)).add_(center.unsqueeze(1))


class _ThroughConvolution(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, weight: Tensor, bias: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        rest, stride, padding, dilation, groups = shape
        out = functional.conv_transpose2d(a.flatten(0, 1), weight, None, stride, padding, rest, groups, dilation)
        return out.view(*a.shape[:2], *out.shape[1:]), a.flatten(3).sum(3) @ bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Shape], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.shape = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_constant: Tensor) -> tuple[Tensor | None, ...]:
        a, weight, bias = ctx.saved_tensors
        _, stride, padding, dilation, groups = ctx.shape
        grad = grad.flatten(0, 1)
        grad_a = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            flat = functional.conv2d(grad, weight, None, stride, padding, dilation, groups).view(a.shape)
            grad_a = flat.add_((grad_constant.unsqueeze(2) * bias)[:, :, :, None, None])
        if ctx.needs_input_grad[1]:
            _, grad_weight, _ = torch.ops.aten.convolution_backward(
                a.flatten(0, 1),
                grad,
                weight,
                None,
                stride,
                padding,
                dilation,
                False,
                (0, 0),
                groups,
                (False, True, False),
            )
        if ctx.needs_input_grad[2]:
            grad_bias = grad_constant.flatten() @ a.flatten(3).sum(3).flatten(0, 1)
        return grad_a, grad_weight, grad_bias, None
