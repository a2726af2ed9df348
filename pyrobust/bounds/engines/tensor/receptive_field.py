"""Receptive fields: windows of feature maps that hold all coefficients of backward passes from neighbouring neurons."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.engines.tensor.network import Layer, Network
from pyrobust.bounds.graph.nodes import Activation, Conv2d, Product, Scale, Sum

Planes = tuple[int, ...]


class Window(NamedTuple):
    """Rows y0 to y1 − 1 and columns x0 to x1 − 1 of every plane [H, W] of a layer [C, H, W]."""

    y0: int
    y1: int
    x0: int
    x1: int

    @classmethod
    def whole(cls, planes: Planes) -> Window:
        """Return the window that covers a whole layer."""
        return cls(0, planes[1], 0, planes[2])

    def join(self, other: Window) -> Window:
        """Return the smallest window that contains both windows."""
        return Window(min(self.y0, other.y0), max(self.y1, other.y1), min(self.x0, other.x0), max(self.x1, other.x1))

    def within(self, planes: Planes) -> Window:
        """Return the part of the window inside the planes; one element if this part is empty."""
        y0, x0 = (min(max(begin, 0), size - 1) for begin, size in ((self.y0, planes[1]), (self.x0, planes[2])))
        return Window(y0, max(y0 + 1, min(self.y1, planes[1])), x0, max(x0 + 1, min(self.x1, planes[2])))

    def size(self, planes: Planes) -> int:
        """Return the number of elements of a layer [C, H, W] in the window."""
        return planes[0] * (self.y1 - self.y0) * (self.x1 - self.x0)


def reach(node: Conv2d, window: Window) -> Window:
    """Return the window of a convolution's input, padding included, that a window of its output reads."""
    kernel = node.weight.shape[2:]
    ends = []
    for axis, (begin, end) in enumerate(((window.y0, window.y1), (window.x0, window.x1))):
        first = begin * node.stride[axis] - node.padding[axis]
        ends += [first, first + (end - 1 - begin) * node.stride[axis] + node.dilation[axis] * (kernel[axis] - 1) + 1]
    return Window(*ends)


#: By layer, the window that holds all coefficients of a row; None for the whole layer.
Windows = dict[int, Window | None]


def windows_below(network: Network, i: int, window: Window | None) -> Windows:
    """Return the windows below layer i of rows whose coefficients at layer i lie in ``window``."""
    windows: Windows = {i: window}
    for j in range(i, -1, -1):
        if j not in windows:
            continue
        layer = network.layers[j]
        for source, node in zip(layer.inputs, layer.node.inputs, strict=True):
            below = _below(layer, windows[j])
            if network.layers[source].node.shape != node.shape:  # the same elements, in other planes
                below = None
            before = windows.get(source, below)
            windows[source] = None if before is None or below is None else before.join(below)
    return windows


def _below(layer: Layer, window: Window | None) -> Window | None:
    node = layer.node
    if isinstance(node, Conv2d):
        return reach(node, window or Window.whole(node.shape)).within(node.inputs[0].shape)
    return window if isinstance(node, Scale | Sum | Activation | Product) else None


def cropped(t: Tensor, planes: Planes, window: Window | None) -> Tensor:
    """Return the part [N, size] of a layer inside a window, contiguous."""
    if window is None or window == Window.whole(planes):
        return t.contiguous()
    y0, y1, x0, x1 = window
    return t.view(-1, *planes)[:, :, y0:y1, x0:x1].flatten(1).contiguous()


def moved(a: Tensor, planes: Planes, have: Window | None, want: Window | None) -> Tensor:
    """Move coefficients from one window of planes to another, cut or padded with zeros; the result is contiguous."""
    if have is None or have == (want or Window.whole(planes)):
        return a.contiguous()
    y0, y1, x0, x1 = want = want or Window.whole(planes)
    if min(have.y1, y1) <= max(have.y0, y0) or min(have.x1, x1) <= max(have.x0, x0):  # nothing but borders
        return a.new_zeros(len(a), want.size(planes))
    view = a.view(len(a), planes[0], have.y1 - have.y0, have.x1 - have.x0)
    # negative padding cuts
    return functional.pad(view, (have.x0 - x0, x1 - have.x1, have.y0 - y0, y1 - have.y1)).flatten(1).contiguous()


def units(neuron: Tensor, sign: Tensor, planes: Planes, window: Window | None, size: int) -> Tensor:
    """Return rows that have one coefficient each, ±1 at a neuron of the window."""
    if window is not None:
        neuron, size = _inside(neuron, planes, window), window.size(planes)
    return sign.new_zeros(len(neuron), size).scatter_(1, neuron.unsqueeze(1), sign.unsqueeze(1))


def _inside(neuron: Tensor, planes: Planes, window: Window) -> Tensor:
    _, rows, columns = planes
    channel, y, x = neuron // (rows * columns), neuron // columns % rows, neuron % columns
    return (channel * (window.y1 - window.y0) + y - window.y0) * (window.x1 - window.x0) + x - window.x0


def tiles(neuron: Tensor, planes: Planes, each: int) -> tuple[Tensor, list[tuple[int, Window]]]:
    """Sort neurons by square tiles of the plane; return their order, and each tile's window and number of neurons.

    Args:
        neuron: int64 [R], neurons of a layer [C, H, W].
        planes: shape of the layer.
        each: number of neurons per square tile, if the neurons are spread evenly over the plane.
    """
    _, rows, columns = planes
    wanted = min(len(neuron) // each, rows * columns)
    if wanted <= 1:
        return torch.arange(len(neuron), device=neuron.device), [(len(neuron), Window.whole(planes))]
    side = max(1, round((rows * columns / wanted) ** 0.5))
    across, down = -(-columns // side), -(-rows // side)
    tile = neuron // columns % rows // side * across + neuron % columns // side
    counts = tile.bincount(minlength=down * across).tolist()
    windows = [
        Window(y * side, min(rows, (y + 1) * side), x * side, min(columns, (x + 1) * side))
        for y in range(down)
        for x in range(across)
    ]
    return tile.argsort(stable=True), [pair for pair in zip(counts, windows, strict=True) if pair[0]]
