"""Load the native module, which registers the ops with torch."""

from __future__ import annotations

from collections.abc import Callable
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

_OPS = (
    "add_perturbation: ",
    "batch_last_concretize: ",
    "batch_last_conv: ",
    "batch_last_conv_transposed: ",
    "batch_last_conv_weight: ",
    "batch_last_relax: ",
    "batch_last_relu_intervals: ",
    "concretize_rows: ",
    "count_changed: ",
    "count_votes: ",
    "l1_step: ",
    "l1_step_in_ball: ",
    "linf_momentum_step: ",
    "linf_step: ",
    "logit_loss: ",
    "logit_verdict: ",
    "project_l1_ball: ",
    "project_l1_ball_box: ",
    "project_l2_ball: ",
    "project_linf_ball: ",
    "project_simplex: ",
    "put_rows: ",
    "relax_coefficients: ",
    "relax_rows: ",
    "sample_grid_noise: ",
    "sample_noise: ",
)


def call(op: Callable[..., Result], *args: object) -> Result:
    """Call a native op; turn an error of its own argument checks into an InputError."""
    # Calls that transforms.differentiable returns are functions, with a forward mode; a raw op would drop tangents.
    if transformed() and not isinstance(op, FunctionType):
        refuse_tangents(str(op).removeprefix("pyrobust."), *(arg for arg in args if isinstance(arg, torch.Tensor)))
    try:
        return op(*args)
    except RuntimeError as error:
        # Failed checks read "op: argument: expected ..."; failures of the device begin with "CUDA: " and pass
        # unchanged.
        if str(error).startswith(_OPS):
            raise InputError(str(error)) from None
        raise


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
