"""The hash that tells models apart."""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pyrobust.errors import InputError
from pyrobust.zoo.image_set import feed

# What every module has, whatever it computes: its mode, its hooks, torch's tables of parameters, buffers and parts.
_BOOKKEEPING = frozenset(vars(nn.Module()))

# Shards of one sweep may run on different ones, and models like to remember theirs.
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def model_hash(module: nn.Module) -> str:
    """SHA-256 in hex over what a model is: its structure and its numbers.

    Goes over every submodule: its name and class; dtype, shape and bytes of its parameters and buffers, persistent or
    not; and those of its attributes that are tensors, arrays, numbers, strings, bool, None, functions, classes or
    modules, or lists, tuples and dicts of these. Of torch's own classes only the public attributes; of compiled modules
    (TorchScript, ``torch.fx``) the code and its constants. Device, memory format, train or eval mode and
    ``requires_grad`` do not matter, nor the order in which attributes were set.

    What cannot be seen: the code of a class or function, and what that code takes from elsewhere (globals, class
    attributes, files); hooks; the inside of any other object, of which the class alone counts. Something that the model
    writes to its attributes as it runs, such as a counter, changes the hash.

    Args:
        module: any module.

    Returns:
        64 hexadecimal digits, the same in every process.

    Raises:
        InputError: a lazy parameter that is not initialised yet.

    >>> model_hash(nn.Sequential(nn.ReLU())) == model_hash(nn.Sequential(nn.Sigmoid()))
    False
    """
    digest = hashlib.sha256()
    for part in _module(module, (id(module),)):
        feed(digest, part)
    return digest.hexdigest()


def _module(module: nn.Module, inside: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    for name, part in module.named_modules(remove_duplicate=False):
        yield f"module {name} {_name(type(part))}".encode()
        tensors = dict(part.named_parameters(recurse=False, remove_duplicate=False))
        tensors |= dict(part.named_buffers(recurse=False, remove_duplicate=False))
        for key in sorted(tensors):
            if is_lazy(tensors[key]):
                where = f"{name}.{key}".removeprefix(".")
                raise InputError(
                    f"model: {where} is not initialised yet; run the model on one batch first, or load its weights"
                )
            yield f"tensor {key}".encode()
            yield from _tensor(tensors[key])
        if isinstance(part, torch.jit.ScriptModule):
            attributes = _script_attributes(part)
        else:
            attributes = {key: value for key, value in vars(part).items() if key not in _BOOKKEEPING}
            if type(part).__module__.startswith("torch."):  # whose private ones differ from version to version
                attributes = {key: value for key, value in attributes.items() if not key.startswith("_")}
            if isinstance(part, torch.fx.GraphModule):
                attributes["code"] = part.code
            if type(part).get_extra_state is not nn.Module.get_extra_state:
                attributes["extra state"] = part.get_extra_state()
        yield from _value(attributes, (*inside, id(part)))


def _script_attributes(part: torch.jit.ScriptModule) -> dict[str, Any]:
    """The code of a compiled module, its constants, and the attributes that it names."""
    if not hasattr(part, "forward"):
        return {}
    code, constants = part.code_with_constants
    named = {name: getattr(part, name, None) for name in re.findall(r"\.(\w+)", code)}
    data = (Tensor, float, int, str, list, dict)  # what TorchScript knows, methods and submodules apart
    return {"code": code, "constants": constants.const_mapping} | {
        name: value for name, value in named.items() if isinstance(value, data)
    }


def _value(value: Any, inside: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    """Tagged with its type, so that 1, 1.0, True and "1" differ; ``inside``: the containers that it lies in."""
    if isinstance(value, Tensor):
        yield from _tensor(value)
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        yield f"array {array.dtype.str} {array.shape}".encode()
        if array.dtype.hasobject:
            yield from _value(array.tolist(), inside)
        else:
            yield array.tobytes()
    elif isinstance(value, str) and _DEVICE.fullmatch(value):
        yield b"device"
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        # An enumeration member is its value; float.hex tells apart what a shorter form would round together.
        plain: Any = next(
            kind for kind in (bool, int, float, complex, str, bytes, type(None)) if isinstance(value, kind)
        )
        yield plain.__name__.encode()
        yield (float.hex(value) if isinstance(value, float) else plain.__repr__(value)).encode()
    elif id(value) in inside:
        yield f"container {len(inside) - inside.index(id(value))} levels up".encode()
    elif isinstance(value, nn.Module):
        yield b"held module"
        yield from _module(value, (*inside, id(value)))
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        yield from sorted(_digest((key, item), (*inside, id(value))) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _value(item, (*inside, id(value)))
    elif isinstance(value, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        yield f"named {_name(value)}".encode()
    else:
        yield f"object {_name(type(value))}".encode()


def _tensor(tensor: Tensor) -> Iterator[bytes | memoryview]:
    if tensor.layout != torch.strided:
        yield f"layout {tensor.layout}".encode()
        tensor = tensor.to_dense()
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    yield f"{tensor.dtype} {list(tensor.shape)}".encode()
    yield tensor.reshape(-1).view(torch.uint8).numpy().data


def _digest(value: Any, inside: tuple[int, ...]) -> bytes:
    digest = hashlib.sha256()
    for part in _value(value, inside):
        feed(digest, part)
    return digest.digest()


def _name(named: Any) -> str:
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"
