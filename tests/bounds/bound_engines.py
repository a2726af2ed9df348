"""The engines of a graph, by name."""

from __future__ import annotations

import torch

from pyrobust.bounds.engine import Engine
from pyrobust.bounds.engines import ENGINES, engine_for
from pyrobust.bounds.graph import Node
from pyrobust.bounds.tensor_engine import TensorEngine

NAMES = ENGINES


def engine_of(output: Node, dtype: torch.dtype, name: str = "native") -> Engine | TensorEngine:
    """An engine on the CPU."""
    return engine_for(output, dtype, torch.device("cpu"), name)
