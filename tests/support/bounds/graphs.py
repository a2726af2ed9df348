"""Graphs built without tracing: dense nets, for tests over thousands of them, and single numbers."""

from __future__ import annotations

import torch
from torch import nn

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Activation, Gather, Input, Linear, Node, Sum
from support.bounds import nets as bound_nets


def graph_of(net: nn.Sequential, features: int) -> Node:
    """Return the output node."""
    node: Node = Input(name="x", shape=(features,), inputs=())
    for module in net:
        node = _added(module, node)
    return node


def _added(module: nn.Module, z: Node) -> Node:
    if isinstance(module, nn.Linear):
        bias = None if module.bias is None else Constant.of(module.bias)
        shape = (module.out_features,)
        return Linear(name="linear", shape=shape, inputs=(z,), weight=Constant.of(module.weight), bias=bias)
    if isinstance(module, bound_nets.Residual):
        body = _added(module.body, z)
        return Sum(name="sum", shape=z.shape, inputs=(z, body), signs=(1, module.sign))
    if isinstance(module, nn.Hardtanh):
        ends = {"lower": module.min_val, "upper": module.max_val}
        return Activation(name="clamp", shape=z.shape, inputs=(z,), function="clamp", **ends)
    if isinstance(module, nn.PReLU):
        slopes = Constant.of(module.weight)
        return Activation(name="prelu", shape=z.shape, inputs=(z,), function="prelu", weight=slopes)
    slope = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
    assert isinstance(module, (nn.ReLU, nn.LeakyReLU))
    assert 0 <= slope <= 1
    return Activation(name="relu", shape=z.shape, inputs=(z,), function="leaky_relu", slope=slope)


def elements(source: Node, *numbers: int) -> Node:
    """Return the elements of a flat node with these numbers."""
    return Gather(name="elements", shape=(len(numbers),), inputs=(source,), index=torch.tensor(numbers))


def less_multiple(z: Node, x: Node, factor: float) -> Node:
    """Return z − factor·x for two numbers."""
    both = Gather(name="both", shape=(2,), inputs=(z, x), index=torch.arange(2))
    weight = Constant.of(torch.tensor([[1.0, -factor]], dtype=torch.float64))
    return Linear(name="less", shape=(1,), inputs=(both,), weight=weight, bias=None)
