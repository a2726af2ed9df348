"""The choice of the engine for a model."""

from __future__ import annotations

import torch

from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph.nodes import Node
from pyrobust.bounds.input_set import CPU
from pyrobust.errors import InputError

ENGINES = ("native", "torch")


def check_engine(name: str | None) -> None:
    """Raise InputError for an unknown engine."""
    if name is not None and name not in ENGINES:
        raise InputError("engine", f"one of {', '.join(ENGINES)} or None", repr(name))


def engine_for(output: Node, dtype: torch.dtype, model_device: torch.device, name: str | None) -> Engine | TensorEngine:
    """Return the engine called ``name``; by default, "native" for a model on the CPU, "torch" for one on a GPU.

    Raises:
        InputError: the engine is "torch", but the model is neither on the CPU nor on a CUDA GPU.
        ModelError: see the engines.
    """
    if name is None:
        name = "torch" if model_device.type == "cuda" else "native"
    if name == "native":
        return Engine(output, dtype)
    if model_device.type not in ("cpu", "cuda"):
        raise InputError("engine", f'"native" for a model on {model_device}', '"torch"')
    return TensorEngine(output, dtype, CPU if model_device.type == "cpu" else model_device)
