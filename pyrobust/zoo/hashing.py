"""SHA-256 hashes of models and tensors, which identify them in logs and stores."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pyrobust.errors import InputError

# Attributes that every module has: mode, hooks, and tables of parameters, buffers and submodules.
_BOOKKEEPING = frozenset(vars(nn.Module()))

# Device names are ignored, because models store theirs and shards of one sweep may run on different devices.
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def model_hash(module: nn.Module) -> str:
    """SHA-256 of a model's structure and numbers, in hex.

    The hash covers the name and the class of every submodule. It covers the dtype, shape and bytes of parameters and
    buffers, persistent or not. It also covers attributes of certain types. These types are tensors, arrays, numbers,
    strings, bool, None, functions, classes and modules, and also lists, tuples, sets, dicts, dataclasses, namespaces
    and ``functools.partial`` of such values. If the class of a submodule is part of torch, only the submodule's public
    attributes are covered. For compiled modules (TorchScript, ``torch.fx``), the code and its constants are covered.
    Device, memory format, train or eval mode, ``requires_grad`` and the order of attributes are ignored.

    The hash does not cover hooks, the code of a class or function, or the values that this code reads from elsewhere
    (globals, closures, class attributes, files). Functions are told apart only by module and qualified name, and
    NumPy's ufuncs not at all. If an object has none of the types listed above, the hash covers its class but not its
    contents. If the model modifies an attribute as it runs, such as a counter, the hash changes.

    Args:
        module: any module.

    Returns:
        64 hexadecimal digits, the same in every process.

    Raises:
        InputError: a lazy parameter is not initialised yet.

    >>> model_hash(nn.Sequential(nn.ReLU())) == model_hash(nn.Sequential(nn.Sigmoid()))
    False
    """
    digest = hashlib.sha256()
    for chunk in _module_parts(module, (id(module),)):
        _feed(digest, chunk)
    return digest.hexdigest()


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of dense tensors, in hex.

    The order of the tensors does not matter.

    >>> hash_tensors({"a": torch.ones(2)}) == hash_tensors({"a": torch.ones(1, 2)})
    False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        _feed(digest, f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        _feed(digest, _bytes(tensor))
    return digest.hexdigest()


class ImagesDigest:
    """The ``hash_tensors`` of images x [N, ...] and labels y [N], computed from parts of x in order.

    >>> digest = ImagesDigest(3, (2,))
    >>> digest.update(torch.zeros(2, 2))
    >>> digest.update(torch.ones(1, 2))
    >>> y = torch.tensor([1, 0, 1])
    >>> digest.hexdigest(y) == hash_tensors({"x": torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), "y": y})
    True
    """

    def __init__(self, count: int, shape: Sequence[int]) -> None:
        self._digest = hashlib.sha256()
        _feed(self._digest, f"x {torch.float32} {[count, *shape]}".encode())
        self._digest.update((4 * count * math.prod(shape)).to_bytes(8, "little"))

    def update(self, x: Tensor) -> None:
        """Add the next images, which are a contiguous float32 tensor on the CPU."""
        self._digest.update(_bytes(x))

    def hexdigest(self, y: Tensor) -> str:
        """Return the hash once all images are added."""
        _feed(self._digest, f"y {y.dtype} {list(y.shape)}".encode())
        _feed(self._digest, _bytes(y))
        return self._digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _feed(digest: hashlib._Hash, chunk: bytes | memoryview) -> None:
    """Add a chunk to a hash, after its length, so that different sequences of chunks feed different bytes."""
    digest.update(len(chunk).to_bytes(8, "little"))
    digest.update(chunk)


def _module_parts(module: nn.Module, inside: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    """Encode a module; ``inside`` holds the ids of the containers around it, to detect cycles."""
    for name, submodule in module.named_modules(remove_duplicate=False):
        yield f"module {name} {_name(type(submodule))}".encode()
        tensors = dict(submodule.named_parameters(recurse=False, remove_duplicate=False))
        tensors |= dict(submodule.named_buffers(recurse=False, remove_duplicate=False))
        for key in sorted(tensors):
            if is_lazy(tensors[key]):
                parameter = f"{name}.{key}".removeprefix(".")
                raise InputError(
                    "model",
                    "initialised parameters",
                    f"the lazy parameter {parameter}",
                    "run the model on one batch first, or load its weights",
                )
            yield f"tensor {key}".encode()
            yield from _tensor_parts(tensors[key])
        if isinstance(submodule, torch.jit.ScriptModule):
            attributes = _script_attributes(submodule)
        else:
            attributes = {key: value for key, value in vars(submodule).items() if key not in _BOOKKEEPING}
            if type(submodule).__module__.startswith("torch."):  # their private attributes differ between versions
                attributes = {key: value for key, value in attributes.items() if not key.startswith("_")}
            if isinstance(submodule, torch.fx.GraphModule):
                attributes["code"] = submodule.code
            if type(submodule).get_extra_state is not nn.Module.get_extra_state:
                attributes["extra state"] = submodule.get_extra_state()
        yield from _value_parts(attributes, (*inside, id(submodule)))


def _script_attributes(module: torch.jit.ScriptModule) -> dict[str, Any]:
    """Return code and constants of a compiled module's methods, and the attributes that this code names."""
    methods = {name: module._c._get_method(name).code_with_constants for name in sorted(module._c._method_names())}
    names = {name for code, _ in methods.values() for name in re.findall(r"\.(\w+)", code)}
    data = (Tensor, float, int, str, list, dict)  # types of TorchScript attributes other than methods and submodules
    values = {name: getattr(module, name, None) for name in sorted(names)}
    return methods | {name: value for name, value in values.items() if isinstance(value, data)}


def _value_parts(value: Any, inside: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    """Encode a value with a tag for its type, so that 1, 1.0, True and "1" differ."""
    if isinstance(value, Tensor):
        yield from _tensor_parts(value)
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        yield f"array {array.dtype.str} {array.shape}".encode()
        if array.dtype.hasobject:
            yield from _value_parts(array.tolist(), inside)
        else:
            yield array.tobytes()
    elif isinstance(value, str) and _DEVICE.fullmatch(value):
        yield b"device"
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        # Enumeration members are encoded as their values, and floats with float.hex, which does not round.
        plain: Any = next(
            kind for kind in (bool, int, float, complex, str, bytes, type(None)) if isinstance(value, kind)
        )
        yield plain.__name__.encode()
        yield (float.hex(value) if isinstance(value, float) else plain.__repr__(value)).encode()
    elif id(value) in inside:
        yield f"container {len(inside) - inside.index(id(value))} levels up".encode()
    elif isinstance(value, nn.Module):
        yield b"held module"
        yield from _module_parts(value, (*inside, id(value)))
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        yield from sorted(_digest((key, item), (*inside, id(value))) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _value_parts(item, (*inside, id(value)))
    elif isinstance(value, set | frozenset):
        yield f"set {len(value)}".encode()
        yield from sorted(_digest(item, (*inside, id(value))) for item in value)
    elif isinstance(value, functools.partial):
        yield b"partial"
        yield from _value_parts([value.func, value.args, value.keywords], (*inside, id(value)))
    elif isinstance(value, types.SimpleNamespace | argparse.Namespace):
        yield f"object {_name(type(value))}".encode()
        yield from _value_parts(vars(value), (*inside, id(value)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"object {_name(type(value))}".encode()
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        yield from _value_parts(fields, (*inside, id(value)))
    elif isinstance(value, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        yield f"named {_name(value)}".encode()
    else:
        yield f"object {_name(type(value))}".encode()


def _tensor_parts(tensor: Tensor) -> Iterator[bytes | memoryview]:
    if tensor.layout != torch.strided:
        yield f"layout {tensor.layout}".encode()
        tensor = tensor.to_dense()
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    yield f"{tensor.dtype} {list(tensor.shape)}".encode()
    yield tensor.reshape(-1).view(torch.uint8).numpy().data


def _digest(value: Any, inside: tuple[int, ...]) -> bytes:
    digest = hashlib.sha256()
    for chunk in _value_parts(value, inside):
        _feed(digest, chunk)
    return digest.digest()


def _name(definition: Any) -> str:
    return f"{getattr(definition, '__module__', '')}.{definition.__qualname__}"
