"""Convolutions in batch-last layout [C, H, W, N]: CPU only, and fast for small images with few channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import native


def batch_last_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Convolve N images in batch-last layout: y[:, :, :, i] = weight * x[:, :, :, i] + bias · scale[i].

    The result equals ``torch.nn.functional.conv2d`` of the images, up to the rounding of sums. Each SIMD vector holds
    the same element of several images. With enough images, its lanes are therefore full, even with strides or a single
    channel.

    The op has no autograd formula. To get the gradient with respect to x, apply ``batch_last_conv_transposed`` to y's
    gradient; ``batch_last_conv_weight`` computes the gradient with respect to weight.

    Args:
        x: [C, H, W, N], float32 or float64, on the CPU.
        weight: [O, C / groups, kh, kw], of x's dtype.
        bias: [O]; None for zeros.
        scale: [N]; None for ones.
        stride: (vertical, horizontal).
        padding: zeros on each side, (vertical, horizontal).
        dilation: distance between the input elements of neighbouring kernel elements, (vertical, horizontal).
        groups: number of parts that C and O are divided into.

    Returns:
        [O, h, w, N].

    Raises:
        InputError: mismatched shapes or dtypes.

    >>> x = torch.arange(6.0).view(1, 1, 3, 2)  # two images of three pixels
    >>> batch_last_conv(x, torch.ones(1, 1, 1, 2)).tolist()
    [[[[2.0, 4.0], [6.0, 8.0]]]]
    """
    scale = None if scale is None else scale.contiguous()
    bias = None if bias is None else bias.contiguous()
    move = (list(stride), list(padding), list(dilation), groups)
    return native.call(_CONV, x.contiguous(), weight.contiguous(), bias, scale, *move)


def batch_last_conv_transposed(
    y: Tensor,
    weight: Tensor,
    size: Sequence[int],
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Apply the transpose of ``batch_last_conv``: [C, H, W, N] from [O, h, w, N].

    The op has no autograd formula. To get the gradient with respect to y, apply ``batch_last_conv`` to the result's
    gradient; ``batch_last_conv_weight`` computes the gradient with respect to weight.

    Args:
        y: [O, h, w, N], float32 or float64, on the CPU.
        weight: [O, C / groups, kh, kw], of y's dtype.
        size: (H, W) of the result.
        stride: see ``batch_last_conv``.
        padding: see ``batch_last_conv``.
        dilation: see ``batch_last_conv``.
        groups: see ``batch_last_conv``.

    Raises:
        InputError: as for ``batch_last_conv``.

    >>> batch_last_conv_transposed(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 1, 2), (1, 3)).flatten().tolist()
    [1.0, 2.0, 1.0]
    """
    move = (list(stride), list(padding), list(dilation), groups)
    return native.call(_TRANSPOSED, y.contiguous(), weight.contiguous(), list(size), *move)


def batch_last_conv_weight(
    x: Tensor,
    y: Tensor,
    kernel: Sequence[int],
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Compute the gradient of Σ y · batch_last_conv(x, weight) with respect to weight: [O, C / groups, kh, kw].

    The op has no autograd formula.

    Args:
        x: [C, H, W, N], float32 or float64, on the CPU.
        y: [O, h, w, N], of x's dtype.
        kernel: (kh, kw).
        stride: see ``batch_last_conv``.
        padding: see ``batch_last_conv``.
        dilation: see ``batch_last_conv``.
        groups: see ``batch_last_conv``.

    Raises:
        InputError: as for ``batch_last_conv``.

    >>> batch_last_conv_weight(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 2, 2), (1, 2)).flatten().tolist()
    [4.0, 4.0]
    """
    move = (list(stride), list(padding), list(dilation), groups)
    return native.call(_WEIGHT, x.contiguous(), y.contiguous(), list(kernel), *move)


# --- fake kernels and gradients of the raw ops

_CONV: Callable[..., Tensor] = torch.ops.pyrobust.batch_last_conv
_TRANSPOSED: Callable[..., Tensor] = torch.ops.pyrobust.batch_last_conv_transposed
_WEIGHT: Callable[..., Tensor] = torch.ops.pyrobust.batch_last_conv_weight


def _places(
    size: Sequence[int], kernel: Sequence[int], stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    return [(size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, *move: Any) -> Tensor:
    return x.new_empty(len(weight), *_places(x.shape[1:3], weight.shape[2:], *move[:3]), x.shape[3])


native.fake("batch_last_conv", result=_fake)
native.fake(
    "batch_last_conv_transposed",
    result=lambda y, weight, size, *move: y.new_empty(weight.shape[1] * move[3], *size, y.shape[3]),
)
native.fake(
    "batch_last_conv_weight",
    result=lambda x, y, kernel, *move: x.new_empty(len(y), x.shape[0] // move[3], *kernel),
)
