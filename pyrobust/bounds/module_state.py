"""The state that determines a module's output. Tensors are compared by bytes; attributes and code, by value.

A ``ModuleState`` holds copies of values, and weak references to objects that are compared by identity, so it keeps no
module and no parameter alive. The state can be read only if every value in it can be compared; otherwise,
``Incomparable`` is raised.
"""

from __future__ import annotations

import builtins
import collections
import dis
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

# Attributes that every module has; they are read one by one, or not at all.
_TABLES_AND_HOOKS = frozenset(vars(nn.Module()))
# Types of immutable values that compare by value; floats compare by their digits, because zero has two signs.
_PLAIN = frozenset(
    [bool, int, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format]
)
_OF_NUMPY = frozenset([torch.float32, torch.float64, torch.int64])
_DTYPES = _OF_NUMPY | {torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32}
# Packages whose functions, classes and constants do not change.
_CONSTANT = frozenset(
    [
        *("torch", "numpy", "pyrobust", "builtins", "math", "cmath", "operator", "functools", "itertools", "typing"),
        *("typing_extensions", "collections", "abc", "contextlib", "copy", "dataclasses", "warnings", "logging"),
    ]
)
# Operations that import a module, and that read attributes whose names are constants.
_OPERATIONS = frozenset([dis.opmap["IMPORT_NAME"], dis.opmap["MATCH_CLASS"]])
# Functions that read names not shown in the code, bytes outside a tensor's elements, or the state of torch.
_DYNAMIC = frozenset(
    [
        *("getattr", "setattr", "delattr", "hasattr", "vars", "dir", "locals", "globals", "eval", "exec", "compile"),
        *("import_module", "attrgetter", "methodcaller", "type", "format", "format_map", "open", "input"),
        *("as_strided", "storage", "untyped_storage", "_base", "_version", "data_ptr", "grad", "grad_fn"),
        *("_C", "backends", "is_in_onnx_export"),
        *(name for name in dir(torch) if name.startswith(("get_", "are_"))),
        *(name for name in dir(torch) if name.startswith("is_") and "enabled" in name),
    ]
)
_DYNAMIC_CLASSES = (type, operator.attrgetter, operator.methodcaller)
# Special names that a method of the same name may use, to call the method of its base class.
_OF_BASE = frozenset(["__init__", "__new__", "__call__"])
# Methods of a module's class that neither a forward pass nor evaluation mode runs, and members that only code with
# special names reads.
_NOT_RUN = frozenset(["__init__", "__init_subclass__", "__class_getitem__", "__del__"])
_NOT_READ = frozenset(["__dict__", "__weakref__", "__annotations__", "__orig_bases__", "__parameters__", "_abc_impl"])
# Members of classes written in C, which do not change.
_NATIVE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
_BUILTINS = dict(vars(builtins))


class Incomparable(Exception):
    """The module, or code that the module runs, refers to something that cannot be compared."""


class ModuleState:
    """The state of a module at construction, as far as it determines the module's output in evaluation mode.

    Every submodule is compared by its class and all attributes, and every tensor by dtype, device, shape, strides,
    bytes, attributes and whether it requires gradients. Real numbers, strings, torch's types, NumPy arrays of numbers,
    and tuples, lists and dicts of these are compared by value. Functions are compared by their code, defaults and
    closures, and by the global variables that the code uses. Classes are compared member by member. torch, NumPy,
    pyrobust and parts of the standard library are assumed not to change. Their classes are therefore not compared in
    full: only the members that other code refers to by name are compared. Files and other external data that a forward
    pass reads are not compared.

    Raises:
        Incomparable: for a submodule in training mode; a forward hook; a tensor that is not plain; an object of a type
            not named above; code that imports modules, computes attribute names or reads torch's settings; or an active
            torch mode, such as autocast.

    >>> layer = nn.Linear(2, 2).eval()
    >>> state = ModuleState(layer)
    >>> state.matches(layer)
    True
    >>> _ = layer.weight.data.mul_(2)
    >>> state.matches(layer)
    False
    """

    def __init__(self, module: nn.Module) -> None:
        reading = _Reading(module)
        self._values = reading.values
        self._copies = [_Copy(tensor) for tensor in reading.tensors]
        self._numbers = {id(tensor): i for i, tensor in enumerate(reading.tensors)}

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return the stored copy of a tensor, if the tensor belongs to the module and is alive; copy other tensors."""
        number = self._numbers.get(id(tensor))
        return tensor.detach().clone() if number is None else self._copies[number].tensor

    def matches(self, module: nn.Module) -> bool:
        """Whether a module has this state; raise Incomparable as at construction."""
        reading = _Reading(module)
        return reading.values == self._values and all(map(_Copy.equals, self._copies, reading.tensors))


class _Reading:
    """One pass over a module; it fills a list of the tensors, and a list of the values to compare with ==."""

    def __init__(self, module: nn.Module) -> None:
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            raise Incomparable
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise Incomparable
        if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
            raise Incomparable
        if parametrize._cache_enabled:
            raise Incomparable
        self.values: list[Any] = [torch.get_default_dtype()]
        self.tensors: list[Tensor] = []
        self._seen: dict[int, int] = {}
        self._kinds: set[type] = set()  # classes of submodules
        self._names: dict[str, None] = {}  # names that code reads
        self._owners: list[Any] = []  # Python modules and constant classes whose named members are read
        self._value(module)
        if self._names:
            self._class(nn.Parameter)
        self._named_members()

    def _is_new(self, value: Any) -> bool:
        """Record the object by a number that identifies it; return whether it is seen for the first time."""
        count = len(self._seen)
        number = self._seen.setdefault(id(value), count)
        self.values.append(number)
        return number == count

    def _value(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self.values.append((kind, value))
        elif kind is float:
            self.values.append((kind, value.hex()))
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        else:
            read = _READERS.get(kind)
            if read is None and isinstance(value, type):
                read = _Reading._class
            if read is None and isinstance(value, np.ndarray | np.generic):
                read = _Reading._array
            if read is None:
                raise Incomparable
            if kind in (tuple, torch.Size) or self._is_new(value):
                read(self, value)

    def _module(self, module: Any) -> None:
        if not self._is_new(module):
            return
        kind = type(module)
        if kind in self._kinds:
            self.values.append(weakref.ref(kind))
        else:
            if not issubclass(kind, nn.Module) or issubclass(kind, torch.jit.ScriptModule):
                raise Incomparable
            self._kinds.add(kind)
            self._class(kind, _NOT_RUN)
        if module.training or module._forward_hooks or module._forward_pre_hooks:
            raise Incomparable
        for table in (module._parameters, module._buffers, module._modules):
            self.values += (type(table), len(table))
            for name, value in table.items():
                self.values.append(name)
                self._value(value)
        attributes = [(name, value) for name, value in vars(module).items() if name not in _TABLES_AND_HOOKS]
        self.values.append(len(attributes))
        for name, value in attributes:
            self.values.append(name)
            self._value(value)

    def _tensor(self, tensor: Any) -> None:
        if not self._is_new(tensor):
            return
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
            raise Incomparable
        if tensor.dtype not in _DTYPES or tensor.is_meta or tensor.is_neg():
            raise Incomparable
        kind = (type(tensor), tensor.requires_grad, tensor.dtype, tensor.device, tensor.shape, tensor.stride())
        self.values.append(kind)
        self.tensors.append(tensor)
        self._items(vars(tensor))

    def _sequence(self, values: Any) -> None:
        kinds = [*map(type, values)]
        self.values += (type(values), len(values))
        if _PLAIN.issuperset(kinds):
            self.values += (*kinds, *values)
        else:
            for value in values:
                self._value(value)

    def _items(self, values: dict[Any, Any]) -> None:
        self.values += (type(values), len(values))
        for key, value in values.items():
            self._value(key)
            self._value(value)

    def _array(self, array: Any) -> None:
        if array.dtype.kind not in "biufc" or not (type(array) is np.ndarray or _is_constant_class(type(array))):
            raise Incomparable
        self.values += (type(array), array.dtype.str, array.shape, array.tobytes())

    def _class(self, kind: type, not_run: frozenset[str] = frozenset()) -> None:
        if issubclass(kind, _DYNAMIC_CLASSES):
            raise Incomparable
        self.values.append(len(kind.__mro__))
        for base in kind.__mro__:
            self.values.append(weakref.ref(base))
            if _is_constant_class(base):
                if base not in self._owners:
                    self._owners.append(base)
                continue
            members = [(name, member) for name, member in vars(base).items() if name not in _NOT_READ | not_run]
            if not _is_constant_class(type(base)) or "__slots__" in vars(base):
                raise Incomparable  # a metaclass has code of its own, and slots are not attributes
            self.values.append(len(members))
            for name, member in members:
                self.values.append(name)
                self._value(member)

    def _function(self, function: types.FunctionType) -> None:
        if function.__name__ in _DYNAMIC:
            raise Incomparable
        self.values.append(weakref.ref(function.__code__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:  # cells of torch's decorators too, which hold the decorated function
                value = cell.cell_contents
            except ValueError:  # an empty cell
                raise Incomparable from None
            if name == "__class__" and value in self._kinds:  # the class cell that super() uses
                self.values.append(weakref.ref(value))
            else:
                self._value(value)
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if _is_constant_module(module) and function.__globals__ is vars(module):
            return
        if getattr(function, "__builtins__", None) is not vars(builtins):
            raise Incomparable
        self._value(function.__defaults__)
        self._value(function.__kwdefaults__)
        self._value(function.__dict__)
        for name in _names(function.__code__):
            self._names[name] = None
            self.values.append(name in function.__globals__)
            if name in function.__globals__:
                self._value(function.__globals__[name])
            elif vars(builtins).get(name) is not _BUILTINS.get(name):
                raise Incomparable

    def _builtin(self, function: types.BuiltinFunctionType) -> None:
        owner: Any = function.__self__
        if function.__name__ in _DYNAMIC or not isinstance(owner, types.ModuleType | type | None):
            raise Incomparable
        if not _is_constant(owner.__module__ if isinstance(owner, type) else function.__module__):
            raise Incomparable
        self.values.append(function)

    def _python_module(self, module: types.ModuleType) -> None:
        self.values.append(module.__name__)
        if not _is_constant_module(module) and "__getattr__" in vars(module):
            raise Incomparable
        self._owners.append(module)

    def _wrapped(self, method: Any) -> None:
        self.values.append(type(method))
        self._value(method.__func__)

    def _property(self, value: property) -> None:
        self._value(value.fget)
        self._value(value.fset)

    def _named_members(self) -> None:
        """Read the members that code refers to by name, of Python modules and of classes assumed not to change."""
        done: set[tuple[int, str]] = set()
        while True:
            new = [
                (i, name)
                for i, owner in enumerate(self._owners)
                for name in self._names
                if (i, name) not in done and name in vars(owner)
            ]
            if not new:
                return
            for i, name in new:
                member = vars(self._owners[i])[name]
                self.values.append((i, name))
                if isinstance(member, _NATIVE):
                    self.values.append(member)
                else:
                    self._value(member)
            done.update(new)


_READERS: dict[type, Callable[[_Reading, Any], None]] = {
    tuple: _Reading._sequence,
    list: _Reading._sequence,
    torch.Size: _Reading._sequence,
    dict: _Reading._items,
    collections.OrderedDict: _Reading._items,
    types.FunctionType: _Reading._function,
    types.BuiltinFunctionType: _Reading._builtin,
    types.ModuleType: _Reading._python_module,
    staticmethod: _Reading._wrapped,
    classmethod: _Reading._wrapped,
    property: _Reading._property,
}


def _is_constant(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _CONSTANT


def _is_constant_module(module: Any) -> bool:
    return (
        isinstance(module, types.ModuleType)
        and _is_constant(module.__name__)
        and sys.modules.get(module.__name__) is module
    )


def _is_constant_class(kind: type) -> bool:
    """Whether a class really is part of a package in ``_CONSTANT``; a generated class may only claim to be."""
    if not _is_constant(kind.__module__):
        return False
    owner: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        owner = getattr(owner, name, None)
    return owner is kind


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function and in the functions inside it."""
    names = code.co_names
    if not _OPERATIONS.isdisjoint(code.co_code[::2]) or not _DYNAMIC.isdisjoint(names):
        raise Incomparable
    if any(name.startswith("__") and not (name == code.co_name and name in _OF_BASE) for name in names):
        raise Incomparable
    yield from names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


class _Copy:
    """A copy of a tensor, with its bytes in the form that is fastest to compare."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach().clone()
        self._bytes: bytearray | None = None
        if tensor.device.type == "cpu":
            self._bytes = bytearray(_bytes(self.tensor))
            if tensor.is_contiguous() and tensor.numel():
                self.tensor = torch.frombuffer(self._bytes, dtype=tensor.dtype).view(tensor.shape)

    def equals(self, tensor: Tensor) -> bool:
        """Whether a tensor of the same device, dtype and shape has the same bytes as the copy."""
        if self._bytes is not None:
            return self._bytes == _bytes(tensor)
        now, before = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (tensor, self.tensor))
        return torch.equal(now, before)


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU, in the order of its elements."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype not in _OF_NUMPY:
        tensor = tensor.reshape(-1).view(torch.uint8)
    return tensor.numpy().data
