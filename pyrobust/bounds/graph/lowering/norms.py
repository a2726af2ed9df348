"""Lowering rule for part of a p-norm pooling: the traced calls that compute sign(z)·ReLU(|z|)."""

from __future__ import annotations

import torch

from pyrobust.bounds.graph.analysis import squares_below
from pyrobust.bounds.graph.lowering.elementwise import relu
from pyrobust.bounds.graph.lowering.registry import Lowering, Z, lowers_together
from pyrobust.bounds.graph.nodes import Node

aten = torch.ops.aten


@lowers_together((aten.mul.Tensor, (aten.sign.default, Z), (aten.relu.default, (aten.abs.default, Z))))
def sign_times_size(lowering: Lowering, z: Node) -> Node:
    """Compute sign(z)·ReLU(|z|), which equals z; in ``torch.nn.functional.lp_pool2d``, z is a mean of powers.

    Means of even powers are at least 0, so ReLU keeps them and only removes negative rounding errors.
    """
    return relu(lowering, z) if squares_below(z) is not None else z
