"""The parameters and buffers of a model as they were captured, and a check for later changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn

from pyrobust.checks import first_values
from pyrobust.errors import ModelError
from pyrobust.zoo.hashing import hash_tensors

# Number of elements of each tensor that are compared at every call, to find writes that version counters miss.
_SAMPLES = 8


class _Held(NamedTuple):
    """A tensor as it was captured, and the dictionary in which its module holds it."""

    name: str
    holder: dict[str, Any]
    key: str
    tensor: Tensor
    version: int | None
    address: int
    device: torch.device
    dtype: torch.dtype
    sha256: str
    sample: npt.NDArray[Any] | None
    values: bytes


class CapturedState:
    """The parameters, buffers and other tensor attributes of all submodules, at construction.

    ``check`` first compares identities, version counters, addresses and a few elements of each tensor, in microseconds.
    It compares all values of a tensor only if one of these differs. ``check`` misses four kinds of change: a write
    through ``.data`` or a NumPy view, if it leaves the compared elements as they are; any write through ``.data`` on a
    GPU; a new parameter or buffer, such as a bias in place of None; and a change of an attribute that is not a tensor,
    hooks included.

    >>> model = nn.Linear(2, 2).eval()
    >>> state = CapturedState(model)
    >>> state.check()
    >>> _ = model.weight.data.fill_(1)
    >>> state.check()
    Traceback (most recent call last):
    pyrobust.errors.ModelError: model: weight has changed since its capture; call refresh() to bound the model as it is
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = [_held(*named) for named in _tensors(model)]
        self._modules = [(name, module, dict(module._modules)) for name, module in model.named_modules()]

    def check(self) -> None:
        """Raise ModelError if a captured tensor or a list of submodules has changed, as far as ``check`` sees it."""
        for _, holder, key, tensor, version, address, _, _, _, sample, values in self._tensors:
            if (
                _current(holder, key) is not tensor
                or (version is not None and tensor._version != version)
                or tensor.data_ptr() != address
                or (sample is not None and sample.tobytes() != values)
            ):
                self._compare()
                break
        for name, module, children in self._modules:
            if dict(module._modules) != children:
                raise _changed([f"the list of submodules of {name or 'the model'}"])

    @property
    def same_values(self) -> bool:
        """Whether all tensors have the values that were captured; every element is compared."""
        return not any(self._difference(held) for held in self._tensors)

    def _compare(self) -> None:
        """Raise ModelError if values have changed; otherwise, later checks compare with the tensors as they are now."""
        differences = [difference for held in self._tensors if (difference := self._difference(held))]
        if differences:
            raise _changed(differences)
        self._tensors = [_held(held.name, held.holder, held.key) for held in self._tensors]

    @staticmethod
    def _difference(held: _Held) -> str:
        """Return the name of a tensor that has changed, else ""."""
        now = _current(held.holder, held.key)
        if not isinstance(now, Tensor):
            return f"{held.name} (removed)"
        if now.dtype != held.dtype:
            return f"{held.name} (now {now.dtype})"
        if now.device != held.device:
            return f"{held.name} (now on {now.device})"
        return "" if _hash(now) == held.sha256 else held.name


def _changed(names: list[str]) -> ModelError:
    listed = f"{first_values(names, str)} {'has' if len(names) == 1 else 'have'} changed since its capture"
    return ModelError(f"model: {listed}; call refresh() to bound the model as it is")


def _tensors(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (name, dictionary, key) of every tensor that a module holds."""
    for name, module in model.named_modules():
        for holder in (module._parameters, module._buffers, vars(module)):
            for key, value in holder.items():
                if isinstance(value, Tensor):
                    yield f"{name}.{key}".removeprefix("."), holder, key


def _current(holder: Any, key: str) -> Any:
    """Return a value of a module's table, or None if it has none; tables of a traced module have no ``get``."""
    return holder[key] if key in holder else None  # noqa: SIM401 - a get of its own is what they lack


def _held(name: str, holder: dict[str, Any], key: str) -> _Held:
    tensor = holder[key]
    version = None if tensor.is_inference() else tensor._version
    sample = _sample(tensor)
    values = b"" if sample is None else sample.tobytes()
    sha256 = _hash(tensor)
    return _Held(
        name,
        holder,
        key,
        tensor,
        version=version,
        address=tensor.data_ptr(),
        device=tensor.device,
        dtype=tensor.dtype,
        sha256=sha256,
        sample=sample,
        values=values,
    )


def _hash(tensor: Tensor) -> str:
    return hash_tensors({"": tensor})


def _sample(tensor: Tensor) -> npt.NDArray[Any] | None:
    """View a few elements, spread over a dense tensor in host memory; None for other tensors."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    count = tensor.numel()
    if tensor.device.type != "cpu" or count == 0 or extent != count or tensor.dtype.itemsize > 8:
        return None
    flat = tensor.detach().as_strided((count,), (1,), tensor.storage_offset())
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return flat.view(integers)[:: -(-count // _SAMPLES)].numpy()
