"""Evaluation of a graph in plain torch, against which a capture is checked."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.activations import required, row_of
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Product,
    Reshape,
    Scale,
    Sum,
    in_order,
)


def forward(output: Node, x: Tensor) -> Tensor:
    """Return the value of a node for a batch x [B, ...], differentiable in x and in the constants.

    >>> node = Input(name="x", shape=(2,), inputs=())
    >>> forward(Sum(name="0", shape=(2,), inputs=(node, node), signs=(1, -1)), torch.ones(1, 2))
    tensor([[0., 0.]])
    """
    return forward_all(output, x)[output]


def forward_all(output: Node, x: Tensor) -> dict[Node, Tensor]:
    """Return the values of all nodes that the output depends on; arguments are as for ``forward``."""
    values: dict[Node, Tensor] = {}
    for node in in_order(output):
        if isinstance(node, Input):
            values[node] = x
        elif isinstance(node, Activation):
            values[node] = activate(node, values[node.inputs[0]])
        elif isinstance(node, Product):
            values[node] = values[node.inputs[0]] * values[node.inputs[1]]
        elif isinstance(node, MaxPool):
            flat = flattened(values[node.inputs[0]])
            low = torch.full((len(flat), 1), -torch.inf, dtype=flat.dtype, device=flat.device)
            windows = torch.cat([flat, low], 1)[:, node.windows.to(flat.device)]  # index -1 selects the appended column
            values[node] = windows.amax(2).view(-1, *node.shape)
        else:
            values[node] = affine(node, [values[source] for source in node.inputs])
    return values


def activate(node: Activation, z: Tensor) -> Tensor:
    """Return the values of an activation; raise ModelError if its row has no forward function."""
    engine = "the evaluation of a graph"
    return required(row_of(node, engine).forward, node, "forward function", engine)(node, z)


def affine(node: Node, inputs: list[Tensor]) -> Tensor:
    """Return the value of an affine node for the values [B, ...] of its inputs."""
    z = inputs[0]
    if isinstance(node, Linear):
        return functional.linear(z, like(node.weight, z), None if node.bias is None else like(node.bias, z))
    if isinstance(node, Conv2d):
        bias = None if node.bias is None else like(node.bias, z)
        return functional.conv2d(z, like(node.weight, z), bias, node.stride, node.padding, node.dilation, node.groups)
    if isinstance(node, Scale):
        z = z if node.scale is None else z * like(node.scale, z)
        return z if node.shift is None else z + like(node.shift, z)
    if isinstance(node, Sum):
        return torch.stack([sign * term for sign, term in zip(node.signs, inputs, strict=True)]).sum(0)
    if isinstance(node, Gather):
        flat = torch.cat([flattened(tensor) for tensor in inputs] + [z.new_zeros(len(z), 1)], 1)
        return flat[:, node.index.to(z.device)]  # index -1 selects the appended zero
    assert isinstance(node, Reshape)
    return z.reshape(len(z), *node.shape)


def like(constant: Constant, z: Tensor) -> Tensor:
    """Return the value that a constant has in the model, in the dtype and on the device of z."""
    return constant.value().to(z.device, z.dtype)


def flattened(t: Tensor, start: int = 1) -> Tensor:
    """Merge the dimension ``start`` and all later ones; if there are none, [B] becomes [B, 1]."""
    return t.flatten(start) if t.dim() > start else t.unsqueeze(-1)
