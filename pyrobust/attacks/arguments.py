"""Checks of the arguments of attacks, and batches on the device."""

from __future__ import annotations

from torch import Tensor

from pyrobust.checks import finite_values, float_tensor, shape_text
from pyrobust.errors import InputError


def same_shape(name: str, value: Tensor, x: Tensor) -> None:
    """Raise InputError or InputTypeError unless value is a finite float tensor of x's shape."""
    float_tensor(name, value)
    if value.shape != x.shape:
        raise InputError(f"{name}: expected x's shape {shape_text(x.shape)}, got {shape_text(value.shape)}")
    finite_values(name, value.detach())
