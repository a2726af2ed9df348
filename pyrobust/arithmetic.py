"""The precision in which a model computes; it may differ from the dtypes that the model takes and returns.

A callable may cast its float64 input to float32, a module may enter autocast in ``forward`` and return float32, and a
GPU may multiply float32 numbers in TF32. The results of two runs of such a model differ by rounding errors of the
coarsest arithmetic that it uses. ``watched`` finds this coarsest arithmetic during an ordinary forward pass. It follows
the values computed from the input, operator by operator, but not inside custom operators.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Guarantee of a proof by bounds, as runs and results state it.
GUARANTEE = "deterministic, float32 semantics"

_FLOAT32 = torch.finfo(torch.float32).eps
# Rounding units of float32 products for each value of torch's settings and of oneDNN's variable.
_UNITS = {"none": _FLOAT32, "ieee": _FLOAT32, "strict": _FLOAT32, "tf32": 2.0**-10, "f16": 2.0**-10}
_COARSEST = torch.finfo(torch.bfloat16).eps  # of bfloat16, and of settings that allow any arithmetic
# Parts of the names of torch's operators.
_CONVOLUTIONS = ("conv", "rnn", "lstm", "gru")
_PRODUCTS = ("mm", "matmul", "linear", "mv", "dot", "attention", "cdist")


class Arithmetic(TorchDispatchMode):
    """Follows the tensors that a forward pass computes from a batch, and their precision; made by ``watched``."""

    def __init__(self, batch: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's is untyped
        # Reused memory stays marked: too many tensors may be taken to depend on the input, never too few.
        self._derived = {_memory(batch)} - {None}
        self._unit = 0.0
        self._products = product_units(batch.device)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not self._derived.isdisjoint(_memory(tensor) for tensor in _tensors((*args, kwargs))):
            for tensor in _tensors((result,)):
                self._derived |= {_memory(tensor)} - {None}
                if tensor.is_floating_point() or tensor.is_complex():
                    self._unit = max(self._unit, torch.finfo(tensor.dtype).eps)
                if tensor.dtype in (torch.float32, torch.complex64):
                    self._unit = max(self._unit, self._product_unit(str(function)))
        return result

    def unit(self, logits: Tensor) -> float | None:
        """Return the coarsest rounding unit on the way from batch to logits; None for logits computed outside torch."""
        if _memory(logits) not in self._derived:
            return None
        return max(self._unit, torch.finfo(logits.dtype).eps)

    def _product_unit(self, operator: str) -> float:
        convolution, product = self._products
        if any(name in operator for name in _CONVOLUTIONS):
            return convolution
        return product if any(name in operator for name in _PRODUCTS) else 0.0


@contextlib.contextmanager
def watched(batch: Tensor) -> Iterator[Arithmetic]:
    """Watch the arithmetic of a model that runs on a batch in the ``with`` block; compiled code runs eagerly.

    >>> x, other = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2)
    >>> with watched(x) as arithmetic:
    ...     logits = x.bfloat16().double()
    >>> arithmetic.unit(logits) == torch.finfo(torch.bfloat16).eps
    True
    >>> arithmetic.unit(other) is None
    True
    """
    with contextlib.ExitStack() as stack:
        # Code whose first call is in a dispatch mode would never be compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield stack.enter_context(Arithmetic(batch))


def product_units(device: torch.device) -> tuple[float, float]:
    """Return two rounding units that settings allow on a device: for float32 convolutions, and float32 matrix products.

    >>> product_units(torch.device("cpu")) == (2.0**-23, 2.0**-23)
    True
    """
    if device.type == "cuda":
        settings: list[Any] = [torch.backends.cudnn.conv, torch.backends.cuda.matmul]  # type: ignore[attr-defined]  # stubs lack conv
        forced = {"0": "ieee", "1": "tf32"}.get(os.environ.get("NVIDIA_TF32_OVERRIDE", ""))
    else:
        settings = [torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]  # as above
        forced = os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "strict").lower()
        forced = None if forced == "strict" else forced
    convolution, product = (_UNITS.get(forced or setting.fp32_precision, _COARSEST) for setting in settings)
    return convolution, product


def _tensors(values: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors among the values, and inside values that are lists, tuples or dicts."""
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple, dict)) and value:
            tensors += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return tensors


def _memory(tensor: Tensor) -> int | None:
    """Return the address of a tensor's memory; None for a tensor without memory of its own, such as a sparse one."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # torch's errors for tensors without a storage
        return None
