"""Convolutions in batch-last layout, computed by torch's convolutions in torch's own layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight


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
    """Convolve N images to [O, h, w, N]: reference of ``pyrobust.ops.batch_last_conv``, with the same arguments.

    >>> import torch
    >>> batch_last_conv(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 1, 2), torch.ones(1)).tolist()
    [[[[3.0]]]]
    """
    move = (list(stride), list(padding), list(dilation), groups)
    y = functional.conv2d(x.movedim(-1, 0), weight, None, *move).movedim(0, -1)
    if bias is None:
        return y
    return y + bias[:, None, None, None] * (1 if scale is None else scale)


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
    """Apply the transposed convolution, giving [C, H, W, N].

    This is the reference of ``pyrobust.ops.batch_last_conv_transposed``, with the same arguments.

    >>> import torch
    >>> batch_last_conv_transposed(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 1, 2), (1, 3)).flatten().tolist()
    [1.0, 2.0, 1.0]
    """
    move = (list(stride), list(padding), list(dilation), groups)
    shape = (y.shape[3], weight.shape[1] * groups, *size)
    # torch does not annotate this function
    x: Tensor = conv2d_input(shape, weight, y.movedim(-1, 0).contiguous(), *move)
    return x.movedim(0, -1)


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
    """Compute the weight's gradient, [O, C / groups, kh, kw].

    This is the reference of ``pyrobust.ops.batch_last_conv_weight``, with the same arguments.

    >>> import torch
    >>> batch_last_conv_weight(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 2, 2), (1, 2)).flatten().tolist()
    [4.0, 4.0]
    """
    move = (list(stride), list(padding), list(dilation), groups)
    shape = (len(y), len(x) // groups, *kernel)
    images, results = x.movedim(-1, 0).contiguous(), y.movedim(-1, 0).contiguous()
    # torch does not annotate this function
    weight: Tensor = conv2d_weight(images, shape, results, *move)
    return weight
