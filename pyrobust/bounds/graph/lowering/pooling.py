"""Lowering rules of pooling and reductions: averages become convolutions with ones, maxima become ``MaxPool``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.layout import moved, reshaped
from pyrobust.bounds.graph.lowering.registry import Lowering, lowers, pair
from pyrobust.bounds.graph.nodes import Conv2d, MaxPool, Node, Scale

aten = torch.ops.aten


@lowers(aten.max_pool2d.default, aten.max_pool1d.default)
def max_pool(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Node:
    """The largest element of each window."""
    windows = _windows(lowering, z, kernel, stride, padding, dilation)
    return MaxPool(name=lowering.name, shape=lowering.out_shape(), inputs=(z,), windows=windows)


@lowers(aten.amax.default)
def largest(lowering: Lowering, z: Node, dims: Sequence[int] = (), keepdim: bool = False) -> Node:
    """The largest element along dimensions."""
    windows = _groups(lowering, z, dims)
    return MaxPool(name=lowering.name, shape=lowering.out_shape(), inputs=(z,), windows=windows)


@lowers(aten.avg_pool2d.default, aten.avg_pool1d.default)
def average_pool(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The mean of each window."""
    windows = _windows(lowering, z, kernel, stride, padding, 1)
    if divisor_override is not None:
        divisors = torch.full((len(windows),), divisor_override, dtype=torch.int64)
    elif count_include_pad:
        divisors = _counts_with_padding(lowering, z, kernel, stride, padding)
    else:
        divisors = (windows >= 0).sum(1)
    return _averages(lowering, z, windows, divisors)


@lowers(aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool1d.default)
def adaptive_average_pool(lowering: Lowering, z: Node, size: Sequence[int]) -> Node:
    """The mean of windows that cover the tensor evenly: from ⌊i·n/s⌋ to ⌈(i + 1)·n/s⌉ along each axis."""
    spatial, out = z.shape[1:], lowering.out_shape()
    axes = [[range(i * n // s, -(-(i + 1) * n // s)) for i in range(s)] for n, s in zip(spatial, out[1:], strict=True)]
    index = torch.arange(z.size).view(z.shape)
    if len(axes) == 1:
        cells = [index[c, list(row)].flatten() for c in range(z.shape[0]) for row in axes[0]]
    else:
        cells = [
            index[c][list(row)][:, list(column)].flatten()
            for c in range(z.shape[0])
            for row in axes[0]
            for column in axes[1]
        ]
    windows = torch.nn.utils.rnn.pad_sequence(cells, batch_first=True, padding_value=-1)
    return _averages(lowering, z, windows, (windows >= 0).sum(1))


@lowers(aten.mean.dim)
def mean(lowering: Lowering, z: Node, dims: Sequence[int], keepdim: bool = False) -> Node:
    """The mean along dimensions."""
    windows = _groups(lowering, z, dims)
    return _averages(lowering, z, windows, (windows >= 0).sum(1))


@lowers(aten.sum.dim_IntList)
def total(lowering: Lowering, z: Node, dims: Sequence[int], keepdim: bool = False) -> Node:
    """The sum along dimensions."""
    windows = _groups(lowering, z, dims)
    return _averages(lowering, z, windows, torch.ones(len(windows), dtype=torch.int64))


def _groups(lowering: Lowering, z: Node, dims: Sequence[int]) -> Tensor:
    """[outputs, K]: the flat indices along dimensions of the batched tensor, the batch not among them."""
    chosen = sorted({dim % (len(z.shape) + 1) for dim in dims} or set(range(len(z.shape) + 1)))
    if 0 in chosen:
        raise lowering.unsupported("it mixes the examples of a batch")
    index = torch.arange(z.size).view(z.shape)
    kept = [dim for dim in range(len(z.shape)) if dim + 1 not in chosen]
    return index.permute(*kept, *(dim - 1 for dim in chosen)).reshape(lowering_size(lowering), -1)


def lowering_size(lowering: Lowering) -> int:
    """The number of elements in one example of the result."""
    return math.prod(lowering.out_shape())


def _windows(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """[outputs, K]: the flat indices of the elements in each window, -1 in the padding."""
    flat = len(z.shape) == 2
    channels, height, width = (z.shape[0], 1, z.shape[1]) if flat else z.shape
    out = lowering.out_shape()
    rows, columns = (1, out[1]) if flat else (out[1], out[2])
    size = pair(kernel, 1, flat=flat)
    steps = pair(stride if stride else kernel, 1, flat=flat)
    border, gap = pair(padding, 0, flat=flat), pair(dilation, 1, flat=flat)
    y = (torch.arange(rows) * steps[0] - border[0])[:, None] + torch.arange(size[0]) * gap[0]  # [rows, kh]
    x = (torch.arange(columns) * steps[1] - border[1])[:, None] + torch.arange(size[1]) * gap[1]  # [columns, kw]
    inside = ((y >= 0) & (y < height))[:, None, :, None] & ((x >= 0) & (x < width))[None, :, None, :]
    place = torch.where(inside, y[:, None, :, None] * width + x[None, :, None, :], -1)
    offset = (torch.arange(channels) * height * width).view(-1, 1, 1, 1, 1)
    windows = torch.where(place >= 0, place + offset, -1)
    return windows.reshape(lowering_size(lowering), -1)


def _counts_with_padding(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
) -> Tensor:
    """The number of elements of each window inside the padded tensor; a window may reach beyond it."""
    flat = len(z.shape) == 2
    size, border = pair(kernel, 1, flat=flat), pair(padding, 0, flat=flat)
    steps = pair(stride if stride else kernel, 1, flat=flat)
    out, spatial = lowering.out_shape(), (1, z.shape[1]) if flat else z.shape[1:]
    rows, columns = (1, out[1]) if flat else (out[1], out[2])
    counts = []
    for axis, count in ((0, rows), (1, columns)):
        begin = torch.arange(count) * steps[axis] - border[axis]
        end = (begin + size[axis]).clamp(max=spatial[axis] + border[axis])
        counts.append(end - begin)
    return (counts[0][:, None] * counts[1]).expand(out[0], rows, columns).flatten()


def _averages(lowering: Lowering, z: Node, windows: Tensor, divisors: Tensor) -> Node:
    """Sums of windows, by a convolution with ones of what is gathered, over divisors."""
    count, width = windows.shape
    gathered = windows.clamp(min=-1)

    def pick(t: Tensor) -> Tensor:
        flat = torch.cat([t.reshape(len(t), -1), torch.zeros(len(t), 1, dtype=t.dtype)], 1)
        return flat[:, gathered.flatten()].view(len(t), count, 1, width)  # -1 is the zero at the end

    ones = torch.ones(count, 1, 1, width)
    sums = Conv2d(
        name=lowering.name,
        shape=(count, 1, 1),
        inputs=(moved(lowering, z, pick),),
        weight=Constant.of(ones),
        bias=None,
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        groups=count,
    )
    node = reshaped(lowering, sums, lowering.out_shape())
    if bool((divisors == 1).all()):
        return node
    inverse = Constant.of(torch.ones(())) / Constant.of(divisors.view(node.shape).double())
    return Scale(name=lowering.name, shape=node.shape, inputs=(node,), scale=inverse, shift=None)
