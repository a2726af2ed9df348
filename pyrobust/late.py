"""numpy and torch, each imported when a name of it is first used.

Declarations, such as the parameters of a run, stand beside the functions that compute with them. The command line reads
the declarations alone, and answers ``--help`` and completion without either library.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as numpy
    import torch as torch
else:

    class _Late(ModuleType):
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    numpy = _Late("numpy")
    torch = _Late("torch")
