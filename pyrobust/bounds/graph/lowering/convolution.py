"""Lowering rules of convolutions and transposed convolutions in one to three dimensions; all become two-dimensional."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.layout import moved, reshaped
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, lowers, sizes
from pyrobust.bounds.graph.nodes import Conv2d, Node

aten = torch.ops.aten


@lowers(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def convolution(
    lowering: Lowering,
    z: Node,
    weight: Value,
    bias: Constant | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """Compute a convolution; a one-dimensional convolution gets height 1."""
    if not isinstance(weight, Constant):
        raise lowering.unsupported("its weight depends on the input")
    dimensions = len(z.shape) - 1
    steps, border, gaps = (sizes(value, dimensions) for value in (stride, padding, dilation))
    if dimensions == 3:
        return _volume(lowering, z, weight, bias, stride=steps, padding=border, dilation=gaps, groups=groups)
    out = lowering.out_shape()
    if dimensions == 1:
        z = reshaped(lowering, z, (z.shape[0], 1, z.shape[1]))
        weight = weight.moved(lambda w: w.unsqueeze(2))
        steps, border, gaps = (1, *steps), (0, *border), (1, *gaps)
    node = Conv2d(
        name=lowering.name,
        shape=(out[0], 1, out[1]) if dimensions == 1 else out,
        inputs=(z,),
        weight=weight,
        bias=bias,
        stride=(steps[0], steps[1]),
        padding=(border[0], border[1]),
        dilation=(gaps[0], gaps[1]),
        groups=groups,
    )
    return reshaped(lowering, node, out)


@lowers(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def padded_convolution(
    lowering: Lowering,
    z: Node,
    weight: Constant,
    bias: Constant | None = None,
    stride: int | Sequence[int] = 1,
    padding: str = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """Compute a convolution whose padding is "same" or "valid"."""
    dimensions = len(z.shape) - 1
    kernel, gaps = weight.shape[2:], sizes(dilation, dimensions)
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(gaps, kernel, strict=True)]
    if any(t % 2 for t in total):  # more padding on the right, which Conv2d does not support
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        z = moved(lowering, z, lambda t: functional.pad(t, sides))
        total = [0] * dimensions
    return convolution(
        lowering, z, weight, bias, stride=stride, padding=[t // 2 for t in total], dilation=dilation, groups=groups
    )


@lowers(aten.convolution.default)
def general_convolution(
    lowering: Lowering,
    z: Node,
    weight: Constant,
    bias: Constant | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    """Compute ``aten.convolution``, the operator behind all convolutions."""
    if transposed:
        return transposed_convolution(
            lowering,
            z,
            weight,
            bias,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            dilation=dilation,
        )
    return convolution(lowering, z, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


@lowers(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def transposed_convolution(
    lowering: Lowering,
    z: Node,
    weight: Value,
    bias: Constant | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Node:
    """Compute a transposed convolution: insert zeros between the elements, then convolve with the flipped kernel."""
    if not isinstance(weight, Constant):
        raise lowering.unsupported("its weight depends on the input")
    dimensions = len(z.shape) - 1
    steps, border, extra, gaps = (sizes(value, dimensions) for value in (stride, padding, output_padding, dilation))
    reach = [d * (k - 1) for d, k in zip(gaps, weight.shape[2:], strict=True)]
    sides = [
        side
        for r, b, e in zip(reversed(reach), reversed(border), reversed(extra), strict=True)
        for side in (r - b, r - b + e)
    ]

    def spread(t: Tensor) -> Tensor:
        apart = t.new_zeros(*t.shape[:2], *[(n - 1) * s + 1 for n, s in zip(t.shape[2:], steps, strict=True)])
        strided = tuple(slice(None, None, s) for s in (1, 1, *steps))
        apart[strided] = t
        return functional.pad(apart, sides)

    def flipped(w: Tensor) -> Tensor:
        per_group = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
        return per_group.flatten(0, 1).flip([2 + i for i in range(dimensions)])

    return convolution(
        lowering,
        moved(lowering, z, spread),
        weight.moved(flipped),
        bias,
        stride=1,
        padding=0,
        dilation=gaps,
        groups=groups,
    )


def _volume(
    lowering: Lowering,
    z: Node,
    weight: Constant,
    bias: Constant | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Node:
    """Compute a convolution of [C, D, H, W].

    For each output depth, the kernel covers kd slices of each of the C channels. These C·kd slices become the channels
    of an image, and the images of all output depths lie one below the other in one large image. Outputs whose window
    reaches from one depth into the next are dropped.
    """
    channels, _, height, _ = z.shape
    out, depth = lowering.out_shape(), weight.shape[2]
    # a multiple of the stride, so that the windows of every depth begin at the same row
    rows = -(-(height + 2 * padding[1]) // stride[1]) * stride[1]
    below = rows - height - padding[1]
    slices = torch.arange(out[1])[:, None] * stride[0] + torch.arange(depth) * dilation[0]  # [depths, kd]

    def unrolled(t: Tensor) -> Tensor:
        t = functional.pad(t, (padding[2], padding[2], padding[1], below, padding[0], padding[0]))
        t = t[:, :, slices.flatten()].view(len(t), channels, out[1], depth, rows, -1).transpose(2, 3)
        return t.reshape(len(t), channels * depth, out[1] * rows, -1)

    image = moved(lowering, z, unrolled)
    reach = dilation[1] * (weight.shape[3] - 1)
    node = Conv2d(
        name=lowering.name,
        shape=(out[0], (out[1] * rows - reach - 1) // stride[1] + 1, out[3]),
        inputs=(image,),
        weight=weight.moved(lambda w: w.flatten(1, 2)),
        bias=bias,
        stride=(stride[1], stride[2]),
        padding=(0, 0),
        dilation=(dilation[1], dilation[2]),
        groups=groups,
    )
    kept = torch.arange(out[1])[:, None] * (rows // stride[1]) + torch.arange(out[2])
    return moved(lowering, node, lambda t: t[:, :, kept.flatten()].view(len(t), *out))
