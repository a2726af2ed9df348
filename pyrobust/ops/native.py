"""Load the native module, which registers the ops with torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch  # loads libtorch, which the native module links to

from pyrobust.errors import InputError

from .transforms import refuse_tangents, transformed

try:
    try:
        import pyrobust._C as _C
    except ModuleNotFoundError:
        from pyrobust.native_module import load_native_module

        _C = load_native_module()  # from another folder
except ImportError as error:
    raise ImportError(
        "pyrobust._C, the native module, could not be loaded: "
        f"{error}. Build it for the torch that is installed ({torch.__version__}): "
        "pip install --no-build-isolation . (README.md has the whole line)"
    ) from error

Result = TypeVar("Result")

#: Integer multiples of a step for `pyrobust.grid`.
grid_levels = _C.grid_levels

_CHECK = re.compile(r"(?P<argument>[^:]+(: [^:]+)?): expected (?P<expected>.*?)(, got (?P<got>.*?))?(; (?P<hint>.*))?")
_LIMITS = re.compile(r"finite numbers|values in \[(?P<low>.*), (?P<high>.*)\]")
_ROW = re.compile(r".* in row (?P<row>\d+)")


def call(op: Callable[..., Result], *args: object) -> Result:
    """Call a native op; raise an InputError if one of the op's argument checks fails."""
    # transforms.differentiable returns functions that support forward mode; a raw op would drop tangents.
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
            raise _as_input_error(str(error), args) from None
        raise


def fake(*ops: str, like: int | None = None, result: Callable[..., object] | None = None) -> None:
    """Register the fake kernel ``result`` for some ops.

    By default, the fake kernel returns an empty copy of the argument at position ``like``, or None if ``like`` is None.
    """

    def kernel(*args: Any, **_: Any) -> object:
        return None if like is None else torch.empty_like(args[like])

    for op in ops:
        torch.library.register_fake(f"pyrobust::{op}", result or kernel)


def read_here(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return cached tensors; if the cache drops them, their memory is kept until the current stream has read them.

    >>> read_here(torch.ones(1))
    (tensor([1.]),)
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensors


def _as_input_error(message: str, args: Sequence[object]) -> InputError:
    """Read the fields of an InputError from the message of a kernel's failed check."""
    parts = _CHECK.fullmatch(message)
    if parts is None:
        op, _, problem = message.partition(": ")
        return InputError(op, problem=problem)
    error = InputError(parts["argument"], parts["expected"], parts["got"] or "", parts["hint"] or "")
    # The kernels report only the row, not the value: "got nan in row 1" is more useful.
    limits, position = _LIMITS.fullmatch(error.expected), _ROW.fullmatch(error.got)
    if limits is not None and position is not None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 2]
        # The point x, whose range is checked, follows the perturbation.
        bounded = limits["low"] is not None
        row = tensors[1 if bounded else 0].detach()[int(position["row"])].double()
        inside = (row >= float(limits["low"])) & (row <= float(limits["high"])) if bounded else row.isfinite()
        if not bool(inside.all()):
            error.got = f"{row[~inside][0].item():.9g} in row {position['row']}"
    return error


def build_info() -> dict[str, str | int | list[str] | None]:
    """Describe the native build and this process.

    Returns:
        About the build: ``compiler``, ``torch_headers``, ``sources`` (`source_hash` of the native sources), ``cuda``
        and ``cuda_architectures`` (None without CUDA). About the process: ``simd``, the instruction set in use;
        ``simd_levels``, the instruction sets that the machine can run; and ``threads``.

    >>> build_info()["simd"] in build_info()["simd_levels"]
    True
    """
    return {
        **_C.build_info(),
        "simd": _C.simd_level(),
        "simd_levels": _C.simd_levels(),
        "threads": _C.num_threads(),
    }
