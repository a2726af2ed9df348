"""The engines of a graph, by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.engines.library_products import forced
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.select import ENGINES, engine_for
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph.nodes import Node

NAMES = ENGINES
#: The engines, and the native one with products by the library, however small the layers are.
LIBRARY = "library"
PATHS = (*ENGINES, LIBRARY)


class _LibraryEngine(Engine):
    def run(self, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        with forced(True):
            return super().run(*arguments, **keywords)


def engine_of(output: Node, dtype: torch.dtype, name: str = "native") -> Engine | TensorEngine:
    """Build an engine on the CPU."""
    if name == LIBRARY:
        return _LibraryEngine(output, dtype)
    return engine_for(output, dtype, torch.device("cpu"), name)
