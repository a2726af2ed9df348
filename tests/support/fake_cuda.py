"""CUDA devices that do not exist: CPU tensors that report ``cuda:N``, so that CI executes the code for GPUs.

Operations on tensors of different devices raise errors as on a GPU. Waits for the device, and kernels launched, are
counted by the line of pyrobust that caused them. The CPU's kernels compute in place of a GPU's: this shows nothing
about CUDA kernels, streams, memory, TF32, or torch's own code for a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import pyrobust
from pyrobust.bounds.graph import capture

DEVICES = 2

# Operators that launch no kernel although they return no view.
_FREE = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("_unsafe_view", "lift_fresh", "is_same_size", "record_stream", "result_type", "_local_scalar_dense"),
}
# Operators that wait for the device, because the host needs a value or a size.
_WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount", "repeat_interleave"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "_linalg_svd", "_linalg_eigh", "linalg_lstsq"),
}
# Operators that refuse a CPU scalar among tensors of a GPU; elementwise ones take it as a number.
_STRICT = {
    *("mm", "bmm", "addmm", "index_select", "gather", "scatter", "scatter_", "embedding", "convolution", "cat"),
    *("stack", "searchsorted"),
}
_NESTED = (Tensor, tuple, list, dict)
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class MixedDevicesError(RuntimeError):
    """An operation got tensors of different devices."""


class Counts:
    """Waits for the device and launches, by kind and by line; ``late`` counts waits for a copy begun steps before."""

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.launches: Counter[tuple[str, str]] = Counter()
        self.late = 0

    def beside_model(self) -> int:
        """Launches without those of the model's passes."""
        return sum(count for (_, line), count in self.launches.items() if not _runs_model(line))

    def __str__(self) -> str:
        lines = [f"{self.waits.total()} waits, {self.late} late, {self.launches.total()} launches"]
        for what in (self.waits, self.launches):
            lines += [f"{count:7d} {kind:30s} {line}" for (kind, line), count in what.most_common(25)]
        return "\n".join(lines)


class FakeTensor(torch.Tensor):
    """A CPU tensor that reports a CUDA device."""

    inner: Tensor
    fake_device: torch.device

    @staticmethod
    def __new__(cls, inner: Tensor, fake_device: torch.device) -> FakeTensor:
        made: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device="cpu",
        )
        made.inner, made.fake_device = inner, fake_device
        return made

    device = property(lambda self: self.fake_device)  # type: ignore[assignment]  # in place of attributes
    is_cuda = property(lambda self: True)  # type: ignore[assignment]  # as above
    is_cpu = property(lambda self: False)  # type: ignore[assignment]  # as above

    def get_device(self) -> int:
        return int(self.fake_device.index)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def is_pinned(self, *_: Any) -> bool:
        return False

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"can't convert {self.fake_device} device type tensor to numpy. Use Tensor.cpu() to copy it first."
        )

    __array__ = numpy

    def record_stream(self, stream: Any) -> None:
        _current().recorded.append(self)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's takes other keywords
        return f"FakeTensor({self.inner}, {self.fake_device})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _current().run(func, args, kwargs or {})


class Signature(NamedTuple):
    """Facts of an operator's schema, kept because torch rebuilds the schema at each access."""

    name: str
    strict: bool  # whether CPU scalars are refused among tensors of a GPU
    viewed: bool  # whether it returns a view
    view_in_place: bool  # as squeeze_: the outer shape changes, too
    returns: tuple[tuple[int, str] | None, ...]  # of each result that is an argument: its position and name

    @classmethod
    @functools.cache
    def of(cls, func: Any) -> Signature:
        schema = func._schema
        name = schema.name.partition("::")[2]
        aliases = [value.alias_info for value in schema.returns]
        written: dict[str, tuple[int, str]] = {}
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.update(dict.fromkeys(argument.alias_info.before_set, (position, argument.name)))
        return cls(
            name,
            name in _STRICT or schema.name.startswith("pyrobust::"),
            any(alias is not None and not alias.is_write for alias in aliases),
            torch.Tag.inplace_view in func.tags,
            tuple(
                written[next(iter(alias.before_set))] if alias is not None and alias.is_write else None
                for alias in aliases
            ),
        )


class FakeCuda:
    """Two GPUs of the process, while the context ``installed`` is active."""

    def __init__(self) -> None:
        self.current = 0
        self.counts = Counts()
        self.arrived = False  # whether copies to the host have arrived by the time that they are asked for
        self.free, self.total = 70 << 30, 80 << 30
        self.allocated = self.reserved = self.peak = 0
        self.seeds: list[tuple[int, int]] = []
        self.recorded: list[Tensor] = []  # tensors that a stream reads
        self.tracing = False
        self.emptied = 0

    def device(self, device: Any) -> torch.device:
        """A device with its index."""
        if isinstance(device, int) and not isinstance(device, bool):
            return torch.device("cuda", device)
        device = torch.device(device)
        return torch.device("cuda", self.current) if device.type == "cuda" and device.index is None else device

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count from here on."""
        before, self.counts = self.counts, Counts()
        try:
            yield self.counts
        finally:
            self.counts = before

    def wait(self, what: str) -> None:
        self.counts.waits[what, _line()] += 1

    # --- operators

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on the CPU tensors inside, check its devices, and wrap what it returns."""
        signature = Signature.of(func)
        name = signature.name
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        wanted = self.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        non_blocking = name == "_to_copy" and bool(kwargs.pop("non_blocking", False))
        tensors: list[Tensor] = []

        def plain(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor.inner if isinstance(tensor, FakeTensor) else tensor

        plain_args, plain_kwargs = _mapped(plain, args), _mapped(plain, kwargs)
        fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if name == "_to_copy":
            device = self._copied(args[0].device, wanted or args[0].device, non_blocking)
        elif name == "copy_":
            device = self._copied(args[1].device, args[0].device, len(args) > 2 and bool(args[2]))
        elif name in _INDEXING:
            device = self._indexed(name, args)
        else:
            device = self._shared(func, signature, tensors)
            device = wanted or device
        if fake and name in _WAITING:
            self.wait(name)
        on_gpu = fake or device.type == "cuda"
        if on_gpu and not signature.viewed and name not in _FREE:
            # torch unfolds one image a launch
            self.counts.launches[name, _line()] += len(args[0]) if name == "im2col" else 1
        result = func(*plain_args, **plain_kwargs)
        if signature.view_in_place and isinstance(args[0], FakeTensor):
            with no_dispatch():
                func(*args, **kwargs)
        return self._wrapped(signature, args, kwargs, result, device)

    def _copied(self, source: torch.device, target: torch.device, non_blocking: bool) -> torch.device:
        source, target = self.device(source), self.device(target)
        if source != target and "cpu" in (source.type, target.type) and not non_blocking:
            self.wait(f"copy {source.type} to {target.type}")
        return target

    def _indexed(self, name: str, args: tuple[Any, ...]) -> torch.device:
        device = self.device(args[0].device)
        for index in args[1]:
            if index is None:
                continue
            if index.device != device:
                if index.device.type != "cpu":
                    raise MixedDevicesError(f"{name}: a tensor on {device} got an index on {index.device}")
                self.wait("index from the host")
            if device.type == "cuda" and index.dtype in (torch.bool, torch.uint8):
                self.wait("mask as an index")
        if len(args) > 2 and isinstance(args[2], Tensor) and args[2].dim() and args[2].device != device:
            raise MixedDevicesError(f"{name}: a tensor on {device} got values on {args[2].device}")
        return device

    def _shared(self, func: Any, signature: Signature, tensors: Sequence[Tensor]) -> torch.device:
        places = {
            self.device(tensor.device)
            for tensor in tensors
            if signature.strict or tensor.dim() > 0 or isinstance(tensor, FakeTensor)
        }
        if len(places) > 1:
            got = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
            raise MixedDevicesError(f"{func}: Expected all tensors to be on the same device, got {got}")
        return places.pop() if places else torch.device("cpu")

    def _wrapped(self, signature: Signature, args: Any, kwargs: Any, result: Any, device: torch.device) -> Any:
        """The results on their device; those that are an argument are that argument."""

        def wrap(tensor: Tensor) -> Tensor:
            if isinstance(tensor, FakeTensor) or device.type != "cuda":
                return tensor
            if not signature.viewed:
                self.peak += tensor.numel() * tensor.element_size()
            return FakeTensor(tensor, device)

        def returned(value: Any, written: tuple[int, str] | None) -> Any:
            if written is None:
                return _mapped(wrap, value)
            position, name = written
            return args[position] if position < len(args) else kwargs.get(name)

        returns = signature.returns
        if len(returns) == 1:
            return returned(result, returns[0])
        if isinstance(result, tuple) and len(result) == len(returns):
            return tuple(returned(*pair) for pair in zip(result, returns, strict=True))
        return _mapped(wrap, result)

    def _exporting(self, export: Callable[..., Any]) -> Callable[..., Any]:
        """Trace a module on the CPU, because torch.export takes torch's own tensors; constants stay where they are."""

        def exported(model: nn.Module, example: Tensor) -> Any:
            fakes = [
                value for module in model.modules() for value in _tensors_of(module) if isinstance(value, FakeTensor)
            ]
            plain = {id(fake): _same_kind(fake) for fake in fakes}
            twin = copy.deepcopy(model, dict(plain))
            places = {fake.data_ptr(): fake for fake in fakes}
            self.tracing = True
            try:
                with _disable_current_modes():
                    program = export(twin, example.inner if isinstance(example, FakeTensor) else example)
            finally:
                self.tracing = False
            for name, value in program.constants.items():
                if isinstance(value, Tensor) and value.data_ptr() in places:
                    program.constants[name] = places[value.data_ptr()]
            return program

        return exported

    # --- torch.cuda

    @contextlib.contextmanager
    def installed(self) -> Iterator[FakeCuda]:
        """Put the devices in the place of torch's."""
        global _installed
        with pytest.MonkeyPatch.context() as patch, _Operators(self), _Functions(self):
            for name, value in self._torch_cuda().items():
                patch.setattr(torch.cuda, name, value)
            patch.setattr(torch, "autocast", _Autocast)
            # A CPU parameter cannot become one of this class: a moved module gets others.
            patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
            patch.setattr(capture, "_export", self._exporting(capture._export))
            before, _installed = _installed, self
            try:
                yield self
            finally:
                _installed = before

    def _torch_cuda(self) -> dict[str, Any]:
        @contextlib.contextmanager
        def device(wanted: Any) -> Iterator[None]:
            before, self.current = self.current, self.device(wanted).index
            try:
                yield
            finally:
                self.current = before

        def set_device(wanted: Any) -> None:
            self.current = self.device(wanted).index

        def empty_cache() -> None:
            self.emptied += 1
            self.reserved = self.allocated

        def rng_state(_: Any = None) -> Tensor:
            self.wait("state of the generator")
            return torch.zeros(16, dtype=torch.uint8)

        def reset_peak(_: Any = None) -> None:
            self.peak = self.allocated

        return {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: DEVICES,
            "current_device": lambda: self.current,
            "set_device": set_device,
            "device": device,
            "synchronize": lambda _=None: self.wait("synchronize"),
            "current_stream": lambda _=None: _Stream(self),
            "mem_get_info": lambda _=None: (self.free, self.total),
            "memory_allocated": lambda _=None: self.allocated,
            "memory_reserved": lambda _=None: self.reserved,
            "max_memory_allocated": lambda _=None: self.peak,
            "reset_peak_memory_stats": reset_peak,
            "empty_cache": empty_cache,
            "get_device_name": lambda _=None: "no GPU at all",
            "get_device_capability": lambda _=None: (9, 0),
            "is_bf16_supported": lambda *_: True,
            "get_rng_state": rng_state,
            "set_rng_state": lambda *_: None,
            "manual_seed": lambda seed: self.seeds.append((self.current, seed)),
        }


def _mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Nested containers with their tensors changed; torch's own pytree takes longer than most operators."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([_mapped(change, item) if isinstance(item, _NESTED) else item for item in value])
    return {key: _mapped(change, item) for key, item in value.items()} if isinstance(value, dict) else value


def _tensors_of(module: nn.Module) -> list[Any]:
    return [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]


def _same_kind(fake: FakeTensor) -> Tensor:
    """The tensor inside, as a parameter if the outer tensor is one."""
    plain = fake.inner.detach()
    return nn.Parameter(plain, fake.requires_grad) if isinstance(fake, nn.Parameter) else plain


_installed: FakeCuda | None = None


def _current() -> FakeCuda:
    assert _installed is not None, "a tensor of the fake device outlived it"
    return _installed


class _Operators(TorchDispatchMode):
    """Operators without a tensor of the fake device, such as those that make one."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.cuda.run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Functions whose C++ code asks a tensor for its device, and would find the CPU."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = None if self.cuda.tracing else _FUNCTIONS.get(func)
        kwargs = kwargs or {}
        return func(*args, **kwargs) if replacement is None else replacement(self.cuda, *args, **kwargs)


def _to(cuda: FakeCuda, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.to`` in all its forms."""
    options = {"non_blocking": False, "copy": False, "memory_format": None, "device": None, "dtype": None} | kwargs
    other = options.pop("other", None)
    flags = ["non_blocking", "copy"]
    for value in args:
        if isinstance(value, Tensor):
            other = value
        elif isinstance(value, torch.dtype):
            options["dtype"] = value
        elif isinstance(value, bool):
            options[flags.pop(0)] = value
        elif value is not None:
            options["device"] = value
    device = options["device"]
    target = tensor.device if device is None else cuda.device(device)
    dtype = options["dtype"] or tensor.dtype
    if other is not None:
        target, dtype = other.device, other.dtype
    layout = options["memory_format"]
    as_asked = layout in (None, torch.preserve_format) or tensor.is_contiguous(memory_format=layout)
    if target == tensor.device and dtype == tensor.dtype and not options["copy"] and as_asked:
        return tensor
    copied: Tensor = torch.ops.aten._to_copy(
        tensor, dtype=dtype, device=target, non_blocking=options["non_blocking"], memory_format=layout
    )
    return copied


def _tensor(
    cuda: FakeCuda, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    """``torch.tensor``, which copies from the host."""
    if isinstance(data, Tensor):
        made = data.detach().clone().to(data.device if device is None else device, dtype or data.dtype)
    else:
        made = torch.tensor(_numbers(data), dtype=dtype)
        made = made if device is None else _to(cuda, made, device)
    return made.requires_grad_(requires_grad)


def _numbers(data: Any) -> Any:
    """Nested lists with the values of the tensors in them; reading each of these waits for the device."""
    if isinstance(data, list | tuple):
        return [_numbers(value) for value in data]
    return data.item() if isinstance(data, FakeTensor) else data


def _as_tensor(cuda: FakeCuda, data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    if isinstance(data, Tensor):
        return _to(cuda, data, data.device if device is None else device, dtype or data.dtype)
    made = torch.as_tensor(_numbers(data) if isinstance(data, list | tuple) else data, dtype=dtype)
    return made if device is None else _to(cuda, made, device)


def _one_hot(cuda: FakeCuda, tensor: Tensor, num_classes: int = -1) -> Tensor:
    classes = num_classes if num_classes >= 0 else int(tensor.max()) + 1
    zeros = torch.zeros(*tensor.shape, classes, dtype=torch.int64, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.to: _to,
    torch.Tensor.cpu: lambda cuda, tensor, **options: _to(cuda, tensor, "cpu", **options),
    torch.Tensor.cuda: lambda cuda, tensor, device=None, *a, **options: _to(cuda, tensor, device or "cuda", **options),
    torch.Tensor.type_as: lambda cuda, tensor, other: _to(cuda, tensor, other),
    torch.Tensor.new_tensor: lambda cuda, like, data, dtype=None, device=None, **options: _tensor(
        cuda, data, dtype=dtype or like.dtype, device=like.device if device is None else device, **options
    ),
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    torch.asarray: _as_tensor,
    nn.functional.one_hot: _one_hot,
}


class _Event:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def query(self) -> bool:
        return self.cuda.arrived

    def synchronize(self) -> None:
        if not self.cuda.arrived:
            self.cuda.counts.late += 1


class _Stream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def record_event(self, event: Any = None) -> _Event:
        return _Event(self.cuda)

    def wait_event(self, event: Any) -> None:
        pass


class _Autocast(torch.autocast):
    """Autocast of the GPU; for tensors that are really on the CPU, this is autocast of the CPU."""

    def __enter__(self) -> Any:
        self._cpu = torch.amp.autocast_mode.autocast("cpu", dtype=self.fast_dtype, enabled=self._enabled)
        self._cpu.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        super().__exit__(*error)
        return self._cpu.__exit__(*error)


def _runs_model(line: str) -> bool:
    name, _, number = line.rpartition(":")
    path = Path(pyrobust.__file__).parent / name
    text = linecache.getline(str(path), int(number or 0))
    return "self.model(batch)" in text or "torch.autograd.grad(" in text or text.strip().startswith("output, leaf")


def _line() -> str:
    """The innermost line of pyrobust that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/pyrobust/" in path and "/tests/" not in path:
            return f"{path.rpartition('/pyrobust/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "the test"
