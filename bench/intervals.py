"""Interval bounds in plain PyTorch, and the number of products that CROWN needs."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Pair = tuple[Tensor, Tensor]


def interval_margins(net: nn.Sequential, x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Tensor:
    """Lower bounds of logit[y] - logit[j], j != y ascending: centre and radius through each layer, as in usual scripts.

    The difference of logits is folded into the last layer, a Linear.
    """
    *layers, last = net
    pair = (x_lower + x_upper) / 2, (x_upper - x_lower) / 2
    for layer in layers:
        pair = _through(layer, pair)
    centre, radius = pair
    classes = len(last.bias)
    other = torch.arange(classes, device=y.device) != y.unsqueeze(1)
    rows = (last.weight[y].unsqueeze(1) - last.weight)[other].view(len(y), classes - 1, -1)
    bias = (last.bias[y].unsqueeze(1) - last.bias)[other].view(len(y), -1)
    return (rows @ centre.unsqueeze(2) - rows.abs() @ radius.unsqueeze(2)).squeeze(2) + bias


def _through(layer: nn.Module, pair: Pair) -> Pair:
    centre, radius = pair
    if isinstance(layer, nn.Linear):
        return F.linear(centre, layer.weight, layer.bias), F.linear(radius, layer.weight.abs())
    if isinstance(layer, nn.Conv2d):
        where = {"stride": layer.stride, "padding": layer.padding}
        return F.conv2d(centre, layer.weight, layer.bias, **where), F.conv2d(radius, layer.weight.abs(), **where)
    if isinstance(layer, nn.ReLU):
        return _relu(pair)
    if isinstance(layer, nn.Sigmoid):
        lower, upper = torch.sigmoid(pair[0] - pair[1]), torch.sigmoid(pair[0] + pair[1])
        return (lower + upper) / 2, (upper - lower) / 2
    if isinstance(layer, nn.Flatten):
        return layer(centre), layer(radius)
    raise TypeError(f"layer: no interval bounds of {type(layer).__name__}")


def _relu(pair: Pair) -> Pair:
    lower, upper = (pair[0] - pair[1]).clamp(min=0), (pair[0] + pair[1]).clamp(min=0)
    return (lower + upper) / 2, (upper - lower) / 2


class _Intervals(fx.Interpreter):
    """Interval bounds of every node of a traced net; keeps them in ``env``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(fx.symbolic_trace(net), garbage_collect_values=False)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        return _through(self.fetch_attr(target), args[0])

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair:
        if target is operator.add:
            return args[0][0] + args[1][0], args[0][1] + args[1][1]
        if target is torch.relu:
            return _relu(args[0])
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
