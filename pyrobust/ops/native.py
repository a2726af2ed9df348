"""Load the native module, which registers the ops with torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TypeVar

import torch  # loads libtorch, which the native module links to

from pyrobust.errors import InputError
from pyrobust.native_module import load_native_module

from .transforms import refuse_tangents, transformed

try:
    load_native_module()
    from pyrobust import _C
except ImportError as error:
    raise ImportError(
        "pyrobust._C, the native module, could not be loaded: "
        f"{error}. Build it for the torch that is installed ({torch.__version__}): "
        "pip install --no-build-isolation . (README.md has the whole line)"
    ) from error

Result = TypeVar("Result")


def call(op: Callable[..., Result], *args: object) -> Result:
    """Call a native op; turn an error of its own argument checks into an InputError."""
    # Calls that transforms.differentiable returns are functions, with a forward mode; a raw op would drop tangents.
    if transformed() and not isinstance(op, FunctionType):
        refuse_tangents(
            str(op).removeprefix("pyrobust.").removesuffix(".default"),
            *(arg for arg in args if isinstance(arg, torch.Tensor)),
        )
    try:
        return op(*args)
    except RuntimeError as error:
        # Failed checks read "op: argument: expected ..."; failures of the device begin with "CUDA: " and pass
        # unchanged.
        if hasattr(torch.ops.pyrobust, str(error).partition(": ")[0]):
            raise InputError(_with_value(str(error), args)) from None
        raise


def read_here(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors of a cache, which the current stream may still read after they have left it.

    >>> read_here(torch.ones(1))
    (tensor([1.]),)
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensors


def _with_value(message: str, args: Sequence[object]) -> str:
    """Name the value in an error of the kernels, which know its row alone: "got nan in row 1"."""
    found = re.fullmatch(r"(.*expected (?:finite numbers|values in \[(.*), (.*)\]), got) .*( in row (\d+))", message)
    if found is None:
        return message
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 2]
    # The point x, whose range is checked, follows the perturbation.
    place = 0 if found[2] is None else 1
    row = tensors[place].detach()[int(found[5])].double()
    wrong = ~row.isfinite() if found[2] is None else ~((row >= float(found[2])) & (row <= float(found[3])))
    return f"{found[1]} {row[wrong][0].item():.9g}{found[4]}" if bool(wrong.any()) else message


def build_info() -> dict[str, str | int | list[str] | None]:
    """Describe the native build and this process.

    Returns:
        Of the build: ``compiler``, ``torch_headers``, ``sources`` (`source_hash` of the native sources), ``cuda`` and
        ``cuda_architectures`` (None without CUDA). Of the process: ``simd``, the instruction set in use,
        ``simd_levels`` that the machine can run, and ``threads``.

    >>> build_info()["simd"] in build_info()["simd_levels"]
    True
    """
    return {
        **_C.build_info(),
        "simd": _C.simd_level(),
        "simd_levels": _C.simd_levels(),
        "threads": _C.num_threads(),
    }
