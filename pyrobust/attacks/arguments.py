"""What the arguments of an attack have to be."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import number
from pyrobust.errors import InputError, InputTypeError


def finite(name: str, value: Any) -> float:
    """A finite number.

    >>> finite("step_size", 0.5)
    0.5
    """
    found = number(name, value)
    if not math.isfinite(found):
        raise InputError(f"{name}: expected a finite number, got {found}")
    return found


def at_least(name: str, value: int, least: int) -> int:
    """An integer of at least so much.

    >>> at_least("steps", 10, 1)
    10
    """
    found = integer(name, value)
    if found < least:
        raise InputError(f"{name}: expected at least {least}, got {found}")
    return found


def radii(name: str, value: float | Tensor) -> float | Tensor:
    """A finite number of at least 0, or a float64 tensor [N] of such.

    >>> radii("epsilon", torch.tensor([0.0, 0.5]))
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    if not isinstance(value, Tensor) or value.dim() == 0:
        found = finite(name, value)
        if found < 0:
            raise InputError(f"{name}: expected at least 0, got {found}")
        return found
    if value.dim() != 1 or value.dtype in (torch.bool, torch.cfloat, torch.cdouble):
        raise InputError(f"{name}: expected a number or a tensor [N] of them, got {value.dtype} {tuple(value.shape)}")
    values = value.detach().cpu().double()
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise InputError(f"{name}: expected finite numbers of at least 0, got {values.tolist()}")
    return values


def labels(name: str, value: Tensor | Sequence[int], examples: int) -> Tensor:
    """Class labels as int64 [N] on the CPU.

    >>> labels("y", [3, 1], 2)
    tensor([3, 1])
    """
    try:
        found = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError(f"{name}: expected integer labels, got {value!r}") from None
    integers = not (found.dtype.is_floating_point or found.dtype.is_complex or found.dtype == torch.bool)
    if not integers and found.numel():  # an empty list has become a float tensor
        raise InputTypeError(f"{name}: expected integer labels, got {found.dtype}")
    if found.shape != (examples,):
        raise InputError(f"{name}: expected shape ({examples},), one label an example, got {tuple(found.shape)}")
    found = found.long()
    if examples and int(found.min()) < 0:
        raise InputError(f"{name}: expected labels of at least 0, got {int(found.min())}")
    return found


def check_classes(y: Tensor, classes: int, name: str) -> None:
    """Refuses labels that the model has no class for.

    Raises:
        InputError: a label of K or more.

    >>> check_classes(torch.tensor([2]), 3, "y")
    """
    if len(y) and int(y.max()) >= classes:
        raise InputError(
            f"{name}: expected labels below {classes}, the number of the model's classes, got {int(y.max())}"
        )


def same_shape(name: str, value: Tensor, x: Tensor) -> None:
    """Refuses what is not a finite float tensor of x's shape.

    >>> same_shape("delta", torch.zeros(2, 3), torch.ones(2, 3))
    """
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    if not value.dtype.is_floating_point:
        raise InputTypeError(f"{name}: expected a float tensor, got {value.dtype}")
    if value.shape != x.shape:
        raise InputError(f"{name}: expected x's shape, {tuple(x.shape)}, got {tuple(value.shape)}")
    if not bool(value.isfinite().all()):
        raise InputError(f"{name}: expected finite values, got NaN or inf")


def batch_on(x: Tensor, device: torch.device, memory_format: torch.memory_format) -> Tensor:
    """Examples as a batch on the device, in the memory format where they are images.

    >>> batch_on(torch.zeros(2, 3), torch.device("cpu"), torch.contiguous_format).shape
    torch.Size([2, 3])
    """
    return x.to(device).contiguous(memory_format=memory_format if x.dim() == 4 else torch.contiguous_format)


def integer(name: str, value: int) -> int:
    """The value as an int; a float or a bool is an error.

    >>> integer("seed", 3)
    3
    """
    if isinstance(value, bool):
        raise InputTypeError(f"{name}: expected an integer, got {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise InputTypeError(f"{name}: expected an integer, got {value!r}") from None


def image_indices(indices: Sequence[int] | Tensor | None, examples: int) -> Tensor:
    """An image index of the noise contract for each example, int64 [N] on the CPU; by default its position.

    >>> image_indices(None, 3)
    tensor([0, 1, 2])
    """
    if indices is None:
        return torch.arange(examples)
    found = labels("indices", indices, examples)
    if examples and int(found.max()) >= 1 << 32:
        raise InputError(f"indices: expected 0 to 2**32 - 1, the noise contract's range, got {int(found.max())}")
    return found
