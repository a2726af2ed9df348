"""The work of bounding a graph, in multiplications."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from pyrobust.bounds.graph.analysis import Analysis, Step, is_affine, is_nonlinear
from pyrobust.bounds.graph.nodes import Conv2d, Linear, Node, Product
from pyrobust.bounds.methods import Method


class Work:
    """Numbers of multiplications for one example in an engine's list of layers.

    Args:
        steps: the layers, each after its inputs; the last is the output.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._row: dict[tuple[int, bool], float] = {}

    @functools.cached_property
    def intervals(self) -> float:
        """Count the work of interval bounds of all layers: a forward pass for centers and another for radii."""
        return 2.0 * sum(_products(step.node, step.node.size) for step in self._steps)

    def row(self, i: int, *, to_input: bool = True) -> float:
        """Count the work of a backward pass from one neuron of layer i, within the neuron's receptive field.

        The pass ends at the input or, without ``to_input``, at the first nonlinear layers.
        """
        if (i, to_input) not in self._row:
            self._row[i, to_input] = self._of_row(i, to_input)
        return self._row[i, to_input]

    def of(self, rows: Sequence[float], *, to_input: bool = True) -> float:
        """Count the work of backward passes, ``rows[i]`` of which start at layer i."""
        return sum(count * self.row(i, to_input=to_input) for i, count in enumerate(rows) if count)

    def _of_row(self, i: int, to_input: bool) -> float:
        windows: dict[int, tuple[int, int]] = {i: (1, 1)}  # height and width of the coefficients of each layer
        total = 0.0
        for j in range(i, 0, -1):
            node = self._steps[j].node
            if j not in windows or (is_nonlinear(node) and not to_input):
                continue
            window = windows[j]
            elements = _elements(node, window)
            total += _products(node, 1 if j == i else elements)
            for source in self._steps[j].inputs:
                below = _planes(self._steps[source].node)
                reached = _reached(node, window, below)
                have = windows.get(source, (0, 0))
                windows[source] = max(have[0], reached[0]), max(have[1], reached[1])
        return total

    def rows(self, method: Method, norm: str, count: int) -> list[float]:
        """Return the most backward passes that start at each layer if ``count`` output functions are bounded."""
        steps = self._steps
        result = [0.0] * len(steps)
        analysis = Analysis(steps, len(steps) - 1)
        for i, step in enumerate(steps):
            for source in step.inputs if is_nonlinear(step.node) and method.refines else ():
                if is_affine(steps[source].node) or isinstance(steps[source].node, Product):
                    result[source] = 2.0 * steps[source].node.size
            if norm != "linf" and analysis.ends_affine_part[i]:
                result[i] = 2.0 * step.node.size
        result[-1] += count
        return result


def _planes(node: Node) -> tuple[int, int]:
    """Return the height and width of a node's planes; a vector is treated as one plane of height 1."""
    return (node.shape[1], node.shape[2]) if len(node.shape) == 3 else (1, math.prod(node.shape))


def _elements(node: Node, window: tuple[int, int]) -> int:
    return (node.shape[0] if len(node.shape) == 3 else 1) * math.prod(window)


def _products(node: Node, elements: int) -> float:
    """Count the multiplications that some elements of a node take: one each, unless they are sums of products."""
    if isinstance(node, Conv2d):
        return float(elements * node.weight.shape[1:].numel())
    return float(elements * node.inputs[0].size) if isinstance(node, Linear) else float(elements)


def _reached(node: Node, window: tuple[int, int], planes: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of the area that a window of the node reads in an input with these planes."""
    if isinstance(node, Conv2d):
        kernel = node.weight.shape[2:]
        ends = [
            (size - 1) * stride + dilation * (k - 1) + 1
            for size, stride, dilation, k in zip(window, node.stride, node.dilation, kernel, strict=True)
        ]
        return min(ends[0], planes[0]), min(ends[1], planes[1])
    moves = isinstance(node, Linear) or _planes(node) != planes or not (is_affine(node) or is_nonlinear(node))
    return planes if moves else window
