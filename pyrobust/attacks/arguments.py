"""Checks of the arguments of attacks, and batches on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError


def check_classes(y: Tensor, classes: int, name: str) -> None:
    """Raise InputError for labels outside the model's classes."""
    if len(y) and int(y.max()) >= classes:
        raise InputError(f"{name}: expected labels below {classes}, the model's number of classes, got {int(y.max())}")


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


def batch_on(x: Tensor, device: torch.device, memory_format: torch.memory_format) -> Tensor:
    """Move examples to the device as a batch, images in the memory format.

    >>> batch_on(torch.zeros(2, 3), torch.device("cpu"), torch.contiguous_format).shape
    torch.Size([2, 3])
    """
    return x.to(device).contiguous(memory_format=memory_format if x.dim() == 4 else torch.contiguous_format)
