"""The number of products that CROWN needs, from interval bounds in plain PyTorch."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyrobust.microbench.bounds import Pair, interval_through


class _Intervals(fx.Interpreter):
    """Interval bounds of every node of a traced net; keeps them in ``env``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(fx.symbolic_trace(net), garbage_collect_values=False)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        return interval_through(self.fetch_attr(target), args[0])

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        if target is operator.add:
            return args[0][0] + args[1][0], args[0][1] + args[1][1]
        if target is torch.relu:
            return interval_through(nn.ReLU(), args[0])
        raise TypeError(f"net: no interval bounds of {target}")

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        if target != "flatten":
            raise TypeError(f"net: no interval bounds of {target}")
        return args[0][0].flatten(*args[1:]), args[0][1].flatten(*args[1:])


@torch.no_grad()
def flops(net: nn.Module, x_lower: Tensor, x_upper: Tensor, method: str) -> dict[str, float]:
    """Floating-point operations of the products of ``method`` on boxes, two to a multiplication and addition.

    "ibp" is a centre and a radius through every layer. "crown-ibp" adds a row for each margin: products with every
    layer but the last, whose weights the row is read off. "crown" adds two rows, lower and upper, to each neuron before
    an activation: products with every layer between the input and the one that the row is read off.

    Returns:
        "dense" counts the rows of all neurons, "undecided" those before a sigmoid, or whose interval bounds straddle
        zero in their own example: the rest need no row. Work that uses the receptive fields of convolutions, or that
        leaves out neurons which tighter bounds decide, can be less.
    """
    intervals = _Intervals(net)
    intervals.run(((x_lower + x_upper) / 2, (x_upper - x_lower) / 2))
    batch = len(x_lower)
    products: dict[fx.Node, int] = {}  # multiplications of one row, or one example, with this layer
    above: dict[fx.Node, set[fx.Node]] = {}  # the layers from the input to this node, with it
    passed: dict[fx.Node, set[fx.Node]] = {}  # the layers that a row of this node is multiplied with
    dense = undecided = 0
    for node in intervals.module.graph.nodes:
        inputs = node.all_input_nodes
        above[node] = set().union(*(above[n] for n in inputs))
        layer = intervals.fetch_attr(node.target) if node.op == "call_module" else None
        if isinstance(layer, nn.Linear | nn.Conv2d):
            passed[node] = set(above[node])
            above[node].add(node)
            products[node] = intervals.env[node][0][0].numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.ReLU | nn.Sigmoid) or node.target is torch.relu:
            passed[node] = above[node]
            if method == "crown":
                centre, radius = intervals.env[inputs[0]]
                row = 2 * sum(products[n] for n in passed[inputs[0]])
                dense += row * centre.numel()
                curved = isinstance(layer, nn.Sigmoid)
                undecided += row * (centre.numel() if curved else int((centre.abs() < radius).sum()))
        else:
            passed[node] = set().union(*(passed[n] for n in inputs))
    least = 2 * batch * sum(products.values())
    if method != "ibp":
        logits = intervals.env[node][0]
        least += batch * (logits.shape[1] - 1) * sum(products[n] for n in passed[node])
    return {"dense": 2.0 * (least + dense), "undecided": 2.0 * (least + undecided)}
