"""Checks of the arguments of attacks, and batches on the device."""

from __future__ import annotations

from torch import Tensor

from pyrobust.errors import InputError, InputTypeError


def same_shape(name: str, value: Tensor, x: Tensor) -> None:
    """Raise InputError or InputTypeError unless value is a finite float tensor of x's shape."""
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    if not value.dtype.is_floating_point:
        raise InputTypeError(f"{name}: expected a float tensor, got {value.dtype}")
    if value.shape != x.shape:
        raise InputError(f"{name}: expected x's shape {tuple(x.shape)}, got {tuple(value.shape)}")
    if not bool(value.isfinite().all()):
        raise InputError(f"{name}: expected finite values, got NaN or inf")
