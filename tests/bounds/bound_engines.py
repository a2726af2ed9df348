"""The engines of a graph, by name."""

from __future__ import annotations

import torch

from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.select import ENGINES, engine_for
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph.nodes import Node

NAMES = ENGINES


def engine_of(output: Node, dtype: torch.dtype, name: str = "native") -> Engine | TensorEngine:
    """Build an engine on the CPU."""
    return engine_for(output, dtype, torch.device("cpu"), name)
