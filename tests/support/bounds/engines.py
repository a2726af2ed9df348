"""The engines of a graph, by name."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pyrobust.bounds.engines import library_products
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.select import ENGINES, engine_for
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph.nodes import Node

NAMES = ENGINES
#: The engines, and the native one with products by the library, however small the layers are.
LIBRARY = "library"
PATHS = (*ENGINES, LIBRARY)


@contextlib.contextmanager
def forced(library: bool) -> Iterator[None]:
    """Send all products in the block to the library, or none, whatever the size of the layers.

    Settings that are not strict still exclude the library.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_products, "_WIDE", 0 if library else math.inf)
        patch.setattr(library_products, "_SMALL", 0)
        yield


class _LibraryEngine(Engine):
    def run(self, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        with forced(True):
            return super().run(*arguments, **keywords)


def engine_of(output: Node, dtype: torch.dtype, name: str = "native") -> Engine | TensorEngine:
    """Build an engine on the CPU."""
    if name == LIBRARY:
        return _LibraryEngine(output, dtype)
    return engine_for(output, dtype, torch.device("cpu"), name)
