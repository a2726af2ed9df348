"""What the arguments of a metric have to be."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def aligned_classes(**named: Tensor) -> tuple[Tensor, ...]:
    """Class numbers [N] of one length N ≥ 1, as int64 on the CPU.

    Labels and targets start at 0, predictions at -1, the one without a winner.
    """
    checked: list[Tensor] = []
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InputTypeError(f"{name}: expected a tensor, got {type(value).__name__}")
        if value.dtype not in _INTEGERS:
            hint = "; take predicted_classes(logits)" if value.dim() == 2 else ""
            raise InputTypeError(f"{name}: expected integers, got {value.dtype}{hint}")
        if value.dim() != 1:
            raise InputError(f"{name}: expected shape (N,), got {tuple(value.shape)}")
        if len(value) == 0:
            raise InputError(f"{name}: expected at least one example, got none")
        if checked and len(value) != len(checked[0]):
            raise InputError(f"{name}: expected one for each of the {len(checked[0])} examples, got {len(value)}")
        classes = value.detach().cpu().to(torch.int64)
        least = 0 if name in ("labels", "targets") else -1
        if int(classes.min()) < least:
            raise InputError(f"{name}: expected classes of at least {least}, got {int(classes.min())}")
        checked.append(classes)
    return tuple(checked)


def checked_distances(distances: Tensor, success: Tensor) -> tuple[Tensor, Tensor]:
    """Distances as float64 and successes, of one shape, on the CPU; a success has a finite distance of at least 0."""
    for name, value in (("distances", distances), ("success", success)):
        if not isinstance(value, Tensor):
            raise InputTypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    if not distances.dtype.is_floating_point:
        raise InputTypeError(f"distances: expected a float tensor, got {distances.dtype}")
    if success.dtype != torch.bool:
        raise InputTypeError(f"success: expected bool, got {success.dtype}")
    if distances.shape != success.shape:
        raise InputError(f"success: expected shape {tuple(distances.shape)}, as distances, got {tuple(success.shape)}")
    if distances.numel() == 0:
        raise InputError(f"distances: expected at least one example, got shape {tuple(distances.shape)}")
    distances, success = distances.detach().cpu().double(), success.detach().cpu()
    wrong = ~(distances >= 0) | (success & distances.isinf())
    if bool(wrong.any()):
        raise InputError(
            f"distances: expected numbers of at least 0, finite where successful, got {float(distances[wrong][0])}"
        )
    return distances, success
