"""Lowering rules of pooling and reductions: averages become convolutions with ones, maxima become ``MaxPool``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.layout import moved, reshaped
from pyrobust.bounds.graph.lowering.registry import Lowering, lowers, sizes
from pyrobust.bounds.graph.nodes import Conv2d, MaxPool, Node, Scale

aten = torch.ops.aten


@lowers(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)
def max_pool(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Node:
    """Compute the largest element of each window."""
    windows = _windows(lowering, z, kernel, stride, padding, dilation)
    return MaxPool(name=lowering.name, shape=lowering.out_shape(), inputs=(z,), windows=windows)


@lowers(
    aten.max_pool1d_with_indices.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
)
def max_pool_with_indices(lowering: Lowering, z: Node, *arguments: Any) -> tuple[Node]:
    """Compute the largest element of each window; the operator's second result, the indices, is not returned."""
    return (max_pool(lowering, z, *arguments),)


@lowers(aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(lowering: Lowering, z: Node, size: Sequence[int]) -> tuple[Node]:
    """Compute the largest element of each window, for windows that cover the tensor evenly; return no indices."""
    shape = lowering.out_shape()
    return (MaxPool(name=lowering.name, shape=shape, inputs=(z,), windows=_adaptive_windows(z, shape)),)


@lowers(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
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
    """Compute the mean of each window."""
    windows = _windows(lowering, z, kernel, stride, padding, 1)
    if divisor_override is not None:
        divisors = torch.full((len(windows),), divisor_override, dtype=torch.int64)
    elif count_include_pad:
        divisors = _counts_with_padding(lowering, z, kernel, stride, padding)
    else:
        divisors = (windows >= 0).sum(1)
    return averages(lowering, z, windows, divisors)


@lowers(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default)
def adaptive_average_pool(lowering: Lowering, z: Node, size: Sequence[int]) -> Node:
    """Compute the mean of windows that cover the tensor evenly."""
    windows = _adaptive_windows(z, lowering.out_shape())
    return averages(lowering, z, windows, (windows >= 0).sum(1))


@lowers(aten.mean.dim)
def mean(lowering: Lowering, z: Node, dims: Sequence[int], keepdim: bool = False) -> Node:
    """Compute the mean along dimensions."""
    windows = _groups(lowering, z, dims)
    return averages(lowering, z, windows, (windows >= 0).sum(1))


@lowers(aten.sum.dim_IntList)
def total(lowering: Lowering, z: Node, dims: Sequence[int], keepdim: bool = False) -> Node:
    """Compute the sum along dimensions."""
    windows = _groups(lowering, z, dims)
    return averages(lowering, z, windows, torch.ones(len(windows), dtype=torch.int64))


@lowers(aten.cumsum.default)
def running_sum(lowering: Lowering, z: Node, dim: int, *, dtype: torch.dtype | None = None) -> Node:
    """Compute the cumulative sum along a dimension."""
    if dim % (len(z.shape) + 1) == 0:
        raise lowering.unsupported("it mixes the examples of a batch")
    index = torch.arange(z.size).view(z.shape).movedim(dim % (len(z.shape) + 1) - 1, -1)
    n = index.shape[-1]
    windows = index.unsqueeze(-2).expand(*index.shape, n).masked_fill(torch.ones(n, n).triu(1).bool(), -1)
    windows = windows.movedim(-2, dim % (len(z.shape) + 1) - 1).reshape(z.size, n)
    return averages(lowering, z, windows, torch.ones(z.size, dtype=torch.int64))


def _groups(lowering: Lowering, z: Node, dims: Sequence[int]) -> Tensor:
    """Return [outputs, K]: each row has the flat indices, within an example, of the elements reduced to one output."""
    chosen = sorted({dim % (len(z.shape) + 1) for dim in dims} or set(range(len(z.shape) + 1)))
    if 0 in chosen:
        raise lowering.unsupported("it mixes the examples of a batch")
    index = torch.arange(z.size).view(z.shape)
    kept = [dim for dim in range(len(z.shape)) if dim + 1 not in chosen]
    return index.permute(*kept, *(dim - 1 for dim in chosen)).reshape(lowering_size(lowering), -1)


def lowering_size(lowering: Lowering) -> int:
    """Return the number of elements in one example of the result."""
    return math.prod(lowering.out_shape())


def _windows(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """Return [outputs, K]: the flat indices of the elements in each window, -1 in the padding."""
    spatial, axes = z.shape[1:], []
    chosen = (sizes(value, len(spatial)) for value in (kernel, stride or kernel, padding, dilation))
    for n, count, k, step, border, gap in zip(spatial, lowering.out_shape()[1:], *chosen, strict=True):
        positions = (torch.arange(count) * step - border)[:, None] + torch.arange(k) * gap
        axes.append(torch.where((positions >= 0) & (positions < n), positions, -1))
    return _combined(z, axes)


def _adaptive_windows(z: Node, out: Sequence[int]) -> Tensor:
    """Return the flat indices of the windows of adaptive pooling, [outputs, K]; -1 fills up the shorter windows."""
    axes = []
    for n, s in zip(z.shape[1:], out[1:], strict=True):
        begin, end = torch.arange(s) * n // s, -(-(torch.arange(s) + 1) * n // s)
        positions = begin[:, None] + torch.arange(int((end - begin).max()))
        axes.append(torch.where(positions < end[:, None], positions, -1))
    return _combined(z, axes)


def _combined(z: Node, axes: Sequence[Tensor]) -> Tensor:
    """Return flat indices [outputs, K] of windows in z [C, ...], from those along each axis, [count, k]; -1: none."""
    windows = torch.zeros(1, 1, dtype=torch.int64)
    for n, positions in zip(z.shape[1:], axes, strict=True):
        both = windows[:, None, :, None] * n + positions[:, None, :]
        inside = (windows >= 0)[:, None, :, None] & (positions >= 0)[:, None, :]
        windows = torch.where(inside, both, -1).reshape(len(windows) * len(positions), -1)
    channels, area = z.shape[0], math.prod(z.shape[1:])
    offset = (torch.arange(channels) * area).view(-1, 1, 1)
    return torch.where(windows >= 0, windows + offset, -1).flatten(0, 1)


def _counts_with_padding(
    lowering: Lowering,
    z: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
) -> Tensor:
    """Count each window's elements inside the padded tensor; a window may reach beyond the padding."""
    out, counts = lowering.out_shape(), torch.ones(1, dtype=torch.int64)
    chosen = (sizes(value, len(out) - 1) for value in (kernel, stride or kernel, padding))
    for n, count, k, step, border in zip(z.shape[1:], out[1:], *chosen, strict=True):
        begin = torch.arange(count) * step - border
        end = (begin + k).clamp(max=n + border)
        counts = (counts[:, None] * (end - begin)).flatten()
    return counts.repeat(out[0])


def averages(lowering: Lowering, z: Node, windows: Tensor, divisors: Tensor) -> Node:
    """Divide the sums of windows by ``divisors``; the sums are a convolution of the gathered elements with ones."""
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
