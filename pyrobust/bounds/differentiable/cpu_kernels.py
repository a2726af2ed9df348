"""Kernels of certified training on the CPU, in batch-last layout: the batch is innermost and fills SIMD vectors.

Tensors keep their shapes, [B, *shape] and [B, S, *shape]; only their strides differ. Results of other operations are
copied into this layout where a kernel needs it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrobust.bounds.graph.evaluate import flattened
from pyrobust.ops.batch_last_bounds import (
    batch_last_concretize,
    batch_last_relax,
    batch_last_relu_intervals,
    batch_last_relu_intervals_backward,
)
from pyrobust.ops.batch_last_conv import batch_last_conv, batch_last_conv_transposed, batch_last_conv_weight


class Move(NamedTuple):
    """Input size [H, W], stride, padding, dilation and groups of a convolution."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of the convolution kernels."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}


def uses_batch_last(z: Tensor) -> bool:
    """Whether these kernels support a tensor: it must be on the CPU."""
    return z.device.type == "cpu"


def affine_intervals(
    center: Tensor, radius: Tensor, weight: Tensor, bias: Tensor | None, move: Move | None, slope: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return the center W·center + b and radius |W|·radius of v = W·z + b; with a slope, those of max(v, slope·v).

    A radius that all examples share, such as the radius of the input's ball, is propagated only once.

    Args:
        center: [B, n], or [B, C, H, W] for a convolution.
        radius: of the same shape, or with 1 in place of B.
        weight: [m, n], or [O, C / groups, kh, kw].
        bias: [m] or [O]; None for zeros.
        move: sizes of a convolution, else None.
        slope: slope of the leaky ReLU that follows, in [0, 1]; None if none follows.

    >>> affine_intervals(torch.ones(2, 1), torch.ones(1, 1), torch.tensor([[-2.0]]), None, None)
    (tensor([[-2.],
            [-2.]]), tensor([[2.]]))
    """
    # torch does not annotate this method
    results = _AffineIntervals.apply(center, radius, weight, bias, move, slope)  # type: ignore[no-untyped-call]  # torch has no types
    return results[0], results[1]


def relu_ranges(center: Tensor, radius: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """Return center and radius of max(z, slope·z), [B, *shape] each, from ``batch_last_relu_intervals``.

    >>> relu_ranges(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0]]), 0.0)[0].tolist()
    [[1.5], [0.5]]
    """
    results = batch_last_relu_intervals(flattened(center).t(), flattened(radius).t(), slope)
    return results[0].t().view(center.shape), results[1].t().view(center.shape)


def relaxed(a: Tensor, center: Tensor, radius: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """Turn coefficients of max(z, slope·z) into coefficients of z and a constant, as ``relax_coefficients`` does.

    Args:
        a: [B or 1, S, *shape].
        center: [B, *shape].
        radius: of the same shape, or with 1 in place of B.
        slope: in [0, 1].

    Returns:
        (coefficients [B, S, *shape], constant [B, S]).

    >>> relaxed(torch.tensor([[[-1.0]]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]), 0.0)
    (tensor([[[-0.7500]]]), tensor([[-0.7500]]))
    """
    coefficients, bias = batch_last_relax(*_rows_and_box(a, center, radius), slope)
    return coefficients.permute(2, 1, 0).view(len(center), *a.shape[1:]), bias.t()


def concretized(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Return the minimum of a·z over the box, [B, S]; arguments are as for ``relaxed``.

    >>> concretized(torch.tensor([[[1.0, -2.0]]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 1.0]]))
    tensor([[-3.5000]])
    """
    return batch_last_concretize(*_rows_and_box(a, center, radius)).t()


def through_linear(a: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the coefficients of a linear map's input, and the constant, from the coefficients of its output.

    Args:
        a: [B, S, m].
        weight: [m, n].
        bias: [m] or None.

    Returns:
        The coefficients of the input, [B, S, n], and the constant, [B, S], or None without a bias.

    >>> through_linear(torch.tensor([[[2.0]]]), torch.tensor([[1.0, 3.0]]), torch.tensor([4.0]))
    (tensor([[[2., 6.]]]), tensor([[8.]]))
    """
    rows = a.permute(2, 1, 0)  # [m, S, B]
    flat = rows.flatten(1)
    out = (weight.t() @ flat).view(weight.shape[1], *rows.shape[1:]).permute(2, 1, 0)
    return out, None if bias is None else (bias @ flat).view(rows.shape[1:]).t()


def through_convolution(a: Tensor, weight: Tensor, bias: Tensor, move: Move) -> tuple[Tensor, Tensor]:
    """Return input coefficients [B, S, C, H, W] and constant [B, S] of a convolution, from its output coefficients.

    ``a`` is [B, S, O, h, w], and ``bias`` is [O].

    >>> move = Move((1, 3), (1, 1), (0, 0), (1, 1), 1)
    >>> through_convolution(torch.ones(1, 1, 1, 1, 2), torch.ones(1, 1, 1, 2), torch.tensor([3.0]), move)
    (tensor([[[[[1., 2., 1.]]]]]), tensor([[6.]]))
    """
    rows = a.permute(2, 3, 4, 1, 0)  # [O, h, w, S, B]
    # torch does not annotate this method
    out, constant = _ThroughConvolution.apply(rows.flatten(3), weight, bias, move)  # type: ignore[no-untyped-call]  # torch has no types
    return out.unflatten(3, rows.shape[3:]).permute(4, 3, 0, 1, 2), constant.view(rows.shape[3:]).t()


def _inward(z: Tensor) -> Tensor:
    """Store a tensor [B, *shape] as [*shape, B]."""
    # as a matrix: torch transposes these faster
    return z.flatten(1).t().contiguous().view(*z.shape[1:], len(z))


def _rows_and_box(a: Tensor, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``a`` as [n, S, B], ``center`` as [n, B] and ``radius`` as [n, B or 1]."""
    rows = flattened(a, 2).expand(len(center), -1, -1).permute(2, 1, 0)
    return rows, flattened(center).t(), flattened(radius).t()


class _AffineIntervals(torch.autograd.Function):
    """Intervals of an affine map; |W| is computed once, and the gradient of the box only if it is needed.

    This function includes the changes of layout and the ReLU, because each step that autograd records costs as much as
    the product of a small layer.
    """

    # no setup_context, because torch would then inspect the signature at every call
    @staticmethod
    def forward(
        ctx: Any,
        center: Tensor,
        radius: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        move: Move | None,
        slope: float | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.move, ctx.slope = move, slope
        center, radius, absolute = _inward(center), _inward(radius), weight.abs()
        if move is not None:
            options = move.options()
            results = batch_last_conv(center, weight, bias, **options), batch_last_conv(radius, absolute, **options)
        else:
            middle = weight @ center if bias is None else torch.addmm(bias.unsqueeze(1), weight, center)
            results = middle, absolute @ radius
        after: tuple[Tensor, ...] = ()
        ctx.shared = radius.shape[-1] != center.shape[-1]
        if slope is not None:
            # Up to rounding, the ends have the same signs before and after the ReLU, so its input need not be kept.
            after = batch_last_relu_intervals(results[0].flatten(0, -2), results[1].flatten(0, -2), slope)
            results = after[0].view_as(results[0]), after[1].view_as(results[0])
        ctx.save_for_backward(center, radius, weight, absolute, *after)
        return results[0].movedim(-1, 0), results[1].movedim(-1, 0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_center: Tensor, of_radius: Tensor) -> tuple[Tensor | None, ...]:
        center, radius, weight, absolute, *after = ctx.saved_tensors
        move: Move | None = ctx.move
        of_center, of_radius = _inward(of_center), _inward(of_radius)
        if after:
            by_center, by_radius = batch_last_relu_intervals_backward(
                of_center.flatten(0, -2), of_radius.flatten(0, -2), after[0], after[1], ctx.slope
            )
            of_center, of_radius = by_center.view_as(of_center), by_radius.view_as(of_radius)
            if ctx.shared:
                of_radius = of_radius.sum(-1, keepdim=True)
        grads: list[Tensor | None] = [None, None, None, None]
        for i, (grad, matrix) in enumerate(((of_center, weight), (of_radius, absolute))):
            if not ctx.needs_input_grad[i]:
                continue
            if move is None:
                back = matrix.t() @ grad
            else:
                back = batch_last_conv_transposed(grad, matrix, move.size, **move.options())
            grads[i] = back.movedim(-1, 0)
        if ctx.needs_input_grad[2]:
            if move is None:
                by_center, by_radius = of_center @ center.t(), of_radius @ radius.t()
            else:
                kernel = weight.shape[2:]
                by_center = batch_last_conv_weight(center, of_center, kernel, **move.options())
                by_radius = batch_last_conv_weight(radius, of_radius, kernel, **move.options())
            grads[2] = torch.addcmul(by_center, by_radius, weight.sign())
        if ctx.needs_input_grad[3]:
            grads[3] = of_center.flatten(1).sum(1)
        return *grads, None, None


class _ThroughConvolution(torch.autograd.Function):
    """The step of backward bound propagation through a convolution, from coefficients [O, h, w, N] of its output."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor, move: Move) -> tuple[Tensor, Tensor]:
        ctx.move = move
        ctx.save_for_backward(a, weight, bias)
        out = batch_last_conv_transposed(a, weight, move.size, **move.options())
        return out, bias @ a.flatten(1, 2).sum(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, of_constant: Tensor) -> tuple[Tensor | None, ...]:
        a, weight, bias = ctx.saved_tensors
        options = ctx.move.options()
        grad_a = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_a = batch_last_conv(grad, weight, bias, of_constant, **options)
        if ctx.needs_input_grad[1]:
            grad_weight = batch_last_conv_weight(grad, a, weight.shape[2:], **options)
        if ctx.needs_input_grad[2]:
            grad_bias = a.flatten(1, 2).sum(1) @ of_constant
        return grad_a, grad_weight, grad_bias, None
