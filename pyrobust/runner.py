"""Running a model.

A ``Runner`` fixes where and how a classifier is evaluated: device, autocast dtype, memory format and batch size. During
a session of the runner, the model is in evaluation mode and gradients are disabled (attacks enable the gradients of the
input). Both settings are restored after the session. Batches that do not fit in memory are halved. No global random
number generator is used; the probe of rows (``pyrobust.row_independence``) has generators of its own.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any, SupportsIndex, TypeAlias

import torch
from torch import Tensor, nn

from pyrobust.arithmetic import watched
from pyrobust.checks import count, shown
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.machine import (
    existing_device,
    free_memory,
    in_batches,
    is_out_of_memory,
    keep_heap,
    repeatable_kernels,
)
from pyrobust.row_independence import RowProbe, submodules

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""A function that shows progress; it is called with two numbers, (done, total)."""
Classifier: TypeAlias = Callable[[Tensor], Any]
"""Module or callable: batch [N, ...] → logits [N, K], an object with ``.logits``, or a dict with "logits"."""

# On the CPU, a batch whose largest activation has about this many bytes nearly fits the caches; larger batches gain
# nothing.
_CPU_ACTIVATION_BYTES = 4 << 20
# For an activation larger than this, glibc maps fresh pages in every pass, which slows large networks by a quarter.
_HEAP_BYTES = 32 << 20
_FEWEST_ROWS = 16  # as far as the heap holds them
# Size of a batch of inputs below which every activation is taken to fit the heap.
_SMALL_BATCH_BYTES = 1 << 20
_MAX_BATCH = 4096
_PROBE_BATCH = 8
# Share of the free device memory for one batch: allocators fragment, and other work needs memory too.
_MEMORY_SHARE = 0.6
# What torch's errors say if devices are mixed.
_MIXED_DEVICES = ("on the same device", "type and weight type")
# Number of copies of each input that an attack keeps besides the model's activations: iterates, gradients, temporaries.
_ATTACK_COPIES = 16


class Runner:
    """Runs a classifier on batches.

    Args:
        model: module or callable, batch [N, ...] → logits [N, K] or an object with ``.logits``.
        device: device to run on; a module is moved there and stays there. By default, this is the device of the
            module's first floating-point parameter or, without one, buffer. A callable, or a module that has neither,
            runs on the device of its first input.
        dtype: dtype of the batches: float32, float64, bfloat16 or float16. A float32 module runs under autocast to
            bfloat16 or float16. By default, this is the dtype of the first floating-point parameter or, without one,
            buffer. For a callable, or a module that has neither, it is float64 if the images are float64 (see
            ``follow``), else float32.
        memory_format: memory format of the batches; ``torch.channels_last`` also applies to a module's convolution
            weights.
        batch_size: rows per batch. By default, this number is found at the first use for a shape of inputs. It is at
            most 4096. On a GPU, it is the number of rows that fit in 60 % of the free memory; on a CPU, it is the
            number that keeps the largest activation near 4 MiB, but usually at least 16.

    Raises:
        InputError: a value out of range, an unknown device or memory format, or a model with tensors on the device
            meta.
        InputTypeError: a model that is not callable, a dtype that is unsupported or not the model's, or a batch size
            that is not an integer.

    >>> runner = Runner(nn.Linear(4, 3), batch_size=2)
    >>> with runner.session():
    ...     runner.logits(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        model: Classifier,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        batch_size: int | None = None,
    ) -> None:
        if not callable(model):
            raise InputTypeError("model", "a torch.nn.Module or a callable", type(model).__name__)
        if dtype not in (None, torch.float32, torch.float64, torch.bfloat16, torch.float16):
            raise InputTypeError("dtype", "float32, float64, bfloat16 or float16", shown(dtype))
        if memory_format not in (None, torch.contiguous_format, torch.channels_last):
            raise InputError("memory_format", "torch.contiguous_format or torch.channels_last", shown(memory_format))
        self.model = model
        tensor = _first_tensor(model)
        if device is not None:
            self._device: torch.device | None = existing_device(device)
        else:
            self._device = tensor.device if tensor is not None else None
        expected = tensor.dtype if tensor is not None else dtype or torch.float32
        self.dtype = dtype or expected
        self.memory_format = memory_format or torch.contiguous_format
        # The batches of a callable without tensors have the dtype of its images, see ``follow``.
        self._follows = tensor is None and dtype is None
        self._autocast = expected == torch.float32 and self.dtype in (torch.bfloat16, torch.float16)
        if self.dtype != expected and not self._autocast:
            raise InputTypeError(
                "dtype", f"{expected}, the model's", self.dtype, "convert the model first, as with model.double()"
            )
        if isinstance(model, nn.Module):
            if device is not None:
                model.to(self.device)
            if self.memory_format == torch.channels_last:
                # torch's stubs lack the overload with memory_format alone
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        #: The batch size given by the caller; None if it is to be found.
        self.given_batch_size: int | None = None
        # Rows per batch, by shape and gradients: as found if none are given, or as many as fit after an out-of-memory
        # error.
        self._batch_rows: dict[tuple[tuple[int, ...], bool], int] = {}
        self._fitting: dict[tuple[tuple[int, ...], bool], int] = {}
        self._heap_rows: dict[tuple[int, ...], int] = {}  # rows whose activations the heap holds, by shape
        self._pinned: set[tuple[int, ...]] = set()  # shapes of which a pinned batch has run
        self.set_batch_size(batch_size)
        #: Probe of the rows of certified batches.
        self.row_probe = RowProbe(model, self.logits)
        self._writes_input: bool | None = None  # None until the first run
        self._unit: float | None = None  # see ``unit``; None until a session has watched a batch
        #: Thread of the open session, and whether it has gradients and is pinned.
        self._session: tuple[int, bool, bool] | None = None
        self._gradients = False  # whether a session with gradients is open: the model may compute some of its own
        #: Whether examples without a predicted class, examples on no grid, and cast examples have been logged.
        self.warned_no_class = self.warned_no_grid = self.warned_cast = False

    @property
    def device(self) -> torch.device:
        """Device of the model; the CPU for a callable that has not had an input yet."""
        return self._device or _CPU

    @property
    def unit(self) -> float:
        """Rounding unit of the coarsest arithmetic observed in the latest session, or of the model's dtype if none was.

        For example, the unit is that of float32 if a callable casts its float64 input to float32, and that of TF32 if a
        GPU uses TF32. For a callable that computes outside torch, where nothing can be observed, the unit of bfloat16
        is assumed.
        """
        return self._unit or torch.finfo(self.dtype).eps

    def device_for(self, x: Tensor) -> torch.device:
        """Return the device of the model; a callable runs on the device of its first input."""
        if self._device is None:
            self._device = x.device
        return self._device

    def to(self, device: torch.device | str) -> None:
        """Move the model to a device, where it runs from now on; batch sizes are determined again."""
        self._device = existing_device(device)
        self._batch_rows.clear()
        self._fitting.clear()
        self._pinned.clear()
        if isinstance(self.model, nn.Module):
            self.model.to(self._device)

    def follow(self, x: Tensor) -> None:
        """Set the batches' dtype for a callable of unknown dtype: float64 if the images x are float64, else float32."""
        if self._follows:
            self.dtype = torch.float64 if x.dtype == torch.float64 else torch.float32

    @property
    def input_dtype(self) -> torch.dtype:
        """Dtype of the examples: float64 for a float64 model, float32 for any other."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def list_dtype(self) -> torch.dtype | None:
        """Dtype to which examples given as lists are converted: normally ``input_dtype``.

        For a callable of unknown dtype, it is None, which stands for torch's default.
        """
        return None if self._follows else self.input_dtype

    def casts(self, x: Tensor) -> bool:
        """Whether x is float64 and the model is known to have another dtype, so that x is cast."""
        return x.dtype == torch.float64 and self.dtype != torch.float64 and not self._follows

    def batch_size(self, shape: tuple[int, ...], *, gradients: bool = False) -> int:
        """Return the number of rows per batch of inputs ``[N, *shape]``.

        The number is the given one or, if none was given, the one found at the first call. It is smaller after memory
        has run out.

        Args:
            shape: shape of one input.
            gradients: whether the gradient with respect to the input must also fit in memory.
        """
        rows = self.given_batch_size
        if rows is None:
            rows = self._batch_rows.get((shape, gradients))
        if rows is None:
            rows = self._batch_rows[shape, gradients] = self._find_batch_size(shape, gradients)
            logger.info("batch size %d for inputs of %s on %s", rows, shape, self.device)
        return min(rows, self._fitting.get((shape, gradients), rows))

    def even_batch(self, total: int, shape: tuple[int, ...]) -> int:
        """Return the size of nearly equal batches into which ``total`` rows are divided; it is at most the batch size.

        ``total`` is at least 1, and the last batch may be smaller. On a CPU, if a batch of inputs exceeds 1 MiB, the
        batches are also small enough for a module's largest activation to be allocated on the C library's heap. A
        larger activation gets fresh pages in every pass, which is slow. If the largest activation of a single row does
        not fit on the heap, there is no such limit.

        >>> Runner(nn.Linear(4, 3), batch_size=256).even_batch(1000, (4,))
        250
        """
        limit = self.batch_size(shape)
        row_bytes = max(1, torch.Size(shape).numel()) * self.dtype.itemsize
        if self.device.type == "cpu" and min(limit, total) * row_bytes > _SMALL_BATCH_BYTES:
            if shape not in self._heap_rows:
                try:
                    largest = self._largest_output(shape, gradients=False)
                except (RuntimeError, ValueError):  # a model that takes one batch size only
                    largest = 0
                self._heap_rows[shape] = _heap_rows(max(row_bytes, largest))
            limit = min(limit, self._heap_rows[shape])
        return even_rows(total, limit)

    def set_batch_size(self, batch_size: SupportsIndex | None) -> None:
        """Set the number of rows per batch, at least 1; None to find it at the first use (see `Runner`)."""
        self.given_batch_size = None if batch_size is None else count("batch_size", batch_size)

    @contextlib.contextmanager
    def session(self, *, gradients: bool = False, pinned: bool = False) -> Iterator[None]:
        """Enter evaluation mode without gradients, under autocast if set; restore every submodule's mode on exit.

        Args:
            gradients: whether to disable a caller's inference mode, so that the input can have a gradient.
            pinned: whether to use only bitwise reproducible kernels (``pyrobust.machine.repeatable_kernels``).
        """
        if self.device.type == "cpu":
            keep_heap()
        # Nothing to do in a session of the same kind, unless in another thread or if gradients were enabled meanwhile.
        if self._session == (get_ident(), gradients, pinned) and not torch.is_grad_enabled():
            yield
            return
        outer, before, self._unit = self._session, self._gradients, None
        with (
            # Not inference mode: a model's forward pass may compute gradients of its own, as purifiers do.
            torch.inference_mode(False) if gradients else _NOTHING,
            torch.no_grad(),
            repeatable_kernels(self.device) if pinned else _NOTHING,
            torch.autocast(self.device.type, dtype=self.dtype) if self._autocast else _NOTHING,
            evaluation_mode(self.model),
        ):
            try:
                self._gradients, self._session = gradients, (get_ident(), gradients, pinned)
                yield
            finally:
                self._gradients, self._session = before, outer

    def batch(self, x: Tensor) -> Tensor:
        """Move examples [N, ...] to the runner's device, convert images to its memory format, and keep the dtype.

        >>> Runner(lambda x: x).batch(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
        """
        images = self.memory_format if x.dim() == 4 else torch.contiguous_format
        return x.to(self.device_for(x)).contiguous(memory_format=images)

    def logits(self, batch: Tensor, *, watch: bool = False) -> Tensor:
        """Compute the logits [N, K] of a batch [N, ...] on the runner's device; call it inside a session.

        A model that writes to its input, for example by in-place normalization, gets copies. With ``watch``, the first
        batch of a session that has more than one row also determines ``unit``.
        """
        if watch and self._unit is None and len(batch) > 1:
            with watched(batch) as arithmetic:
                logits = self.logits(batch)
            self._unit = arithmetic.unit(logits) or self._opaque_unit(logits)
            return logits
        if torch.is_grad_enabled():
            logits = logits_of(self._output(batch))
        else:  # a model that computes gradients may require its input's, and the batch would keep that requirement
            logits = logits_of(self._output(batch.detach())).detach()
        if logits.dim() != 2 or logits.shape[0] != batch.shape[0] or logits.shape[1] < 1:
            raise ModelError(f"model: expected logits of shape ({batch.shape[0]}, K), got {tuple(logits.shape)}")
        if not logits.dtype.is_floating_point:
            raise ModelError(f"model: expected floating-point logits, got {logits.dtype}")
        return logits

    def _opaque_unit(self, logits: Tensor) -> float:
        """Return the rounding unit to assume for a model that computes outside torch, where it cannot be observed."""
        expected = self.dtype if _first_tensor(self.model) is not None else torch.bfloat16
        return max(torch.finfo(dtype).eps for dtype in (expected, logits.dtype))

    def _output(self, batch: Tensor) -> object:
        """Run the model on the batch if the model's first run left its input unchanged; otherwise, run it on a copy."""
        if self._writes_input is not False:
            with torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext():
                batch = batch.clone()
        if batch.is_inference():  # has no version counter; the first run, on a normal tensor, has settled this
            return self.model(batch)
        version = batch._version
        output = self.model(batch)
        written = batch._version != version
        if written and self._writes_input is False:
            raise ModelError(
                "model: expected one that leaves its input alone, got one that wrote to it after it had not at first; "
                "clone the input in forward"
            )
        self._writes_input = written or bool(self._writes_input)
        return output

    def count_classes(self, x: Tensor) -> int:
        """Return the number of logits, found by a forward pass on the first example."""
        with self.session():
            return self.logits(self.batch(x[:1].detach()).to(self.dtype)).shape[1]

    def probe_rows(self, x: Tensor) -> None:
        """Probe the model on a chunk of examples [N, ...], in a batch of this runner's size.

        Attacks, and other computations that do not probe their own batches, have to call this function. Its errors are
        those of ``RowProbe.check``.
        """
        rows = min(len(x), self.batch_size(tuple(x.shape[1:]), gradients=True))
        batch = self.batch(x[:rows].detach()).to(self.dtype, copy=True)
        with self.session(gradients=True):
            self.row_probe.expect_known_modules(single=self.given_batch_size == 1)
            self.row_probe.check(batch)

    def for_each(
        self,
        total: int,
        shape: tuple[int, ...],
        step: Callable[[int, int], None],
        *,
        gradients: bool = False,
        pinned: bool = False,
        one_example: bool = False,
    ) -> None:
        """Call ``step(begin, end)`` for batches of rows that together cover [0, total).

        A batch that does not fit in memory is halved and tried again. It must therefore be possible to repeat a step:
        the step either changes nothing before its forward pass is done, or keeps track of its progress.

        Args:
            total: number of rows.
            shape: shape of one input.
            step: processes a batch.
            gradients: as in ``batch_size``.
            pinned: whether all batches must have the same size; ``step`` then has to pad a batch that has fewer rows.
                If no batch size was given, this size may be halved when memory runs out, but only before the runner's
                first pinned batch of this shape has run, in this call or an earlier one.
            one_example: whether all rows belong to one example. If so, they are divided evenly (``even_rows``).

        Raises:
            ModelError: a single input or a batch of fixed size does not fit in memory, or the model has tensors on
                another device.
        """

        def size() -> int:
            return self.even_batch(total, shape) if one_example else self.batch_size(shape, gradients=gradients)

        def run(begin: int, end: int) -> None:
            step(begin, end)
            if pinned:
                self._pinned.add(shape)

        def shrink(rows: int, error: Exception) -> None:
            rows = self.batch_size(shape) if pinned else rows
            if rows == 1:
                raise ModelError(
                    f"model: one input of shape {shape} does not fit the memory of {self.device}"
                ) from error
            if pinned and (self.given_batch_size is not None or shape in self._pinned):
                raise ModelError(
                    f"batch_size: expected one that fits the memory of {self.device}, got {rows}, which is part of "
                    f"what the grid guarantee covers; begin anew with batch_size={rows // 2}"
                ) from error
            self._fitting[shape, gradients] = rows // 2
            logger.warning("out of memory at %d rows: the batch size is now %d", rows, rows // 2)

        try:
            in_batches(total, size, run, shrink)
        except RuntimeError as error:
            if not any(words in str(error) for words in _MIXED_DEVICES):
                raise
            raise ModelError(
                f"model: expected all of its tensors on {self.device}, where its batches are, got others; a callable "
                "is not moved, nor a module that was moved afterwards: pass the module itself, device=, or make a new "
                "smoother or attack"
            ) from error

    def _largest_output(self, shape: tuple[int, ...], gradients: bool) -> int:
        """Return the bytes of the largest output of any submodule for one input; 0 for a callable."""
        sizes = [0]

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                sizes.append(output.numel() * output.element_size())

        modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        # Script modules take no hooks.
        eager = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
        hooks = [module.register_forward_hook(note) for module in eager]
        try:
            if hooks:
                with self.session(gradients=gradients):
                    self.logits(torch.zeros((1, *shape), dtype=self.dtype, device=self.device))
        finally:
            for hook in hooks:
                hook.remove()
        return max(sizes)

    def _find_batch_size(self, shape: tuple[int, ...], gradients: bool) -> int:
        row_bytes = max(1, torch.Size(shape).numel()) * self.dtype.itemsize
        if self.device.type != "cuda":
            largest = self._largest_output(shape, gradients or self._gradients)
            largest = max(row_bytes, largest)
            fewest = min(_FEWEST_ROWS, _heap_rows(largest))
            return max(fewest, min(_MAX_BATCH, _CPU_ACTIVATION_BYTES // largest))
        # Peak memory of a small batch. It includes memory that does not grow with the batch, so the estimate is safe.
        rows, peak = _PROBE_BATCH, 0
        while not peak:
            torch.cuda.empty_cache()  # outside the handler, whose traceback keeps the failed batch alive
            free = free_memory(self.device)
            try:
                peak = max(1, self._peak_memory((rows, *shape), gradients))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if rows == 1:
                    return 1
                rows //= 2
        torch.cuda.empty_cache()
        peak += rows * row_bytes * (_ATTACK_COPIES if gradients else 0)
        return max(1, min(_MAX_BATCH, int(_MEMORY_SHARE * free * rows / peak)))

    def _peak_memory(self, shape: tuple[int, ...], gradients: bool) -> int:
        """Return the peak bytes on the GPU of a forward pass on a batch of this shape, optionally with the gradient."""
        with self.session(gradients=gradients or self._gradients):
            start = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            batch = torch.zeros(shape, dtype=self.dtype, device=self.device)
            if batch.dim() == 4:
                batch = batch.contiguous(memory_format=self.memory_format)
            if not gradients:
                self.logits(batch)
            else:
                with torch.enable_grad():
                    logits = self.logits(batch.requires_grad_())
                    if logits.requires_grad:
                        torch.autograd.grad(logits.sum(), batch, allow_unused=True)
            return torch.cuda.max_memory_allocated(self.device) - start


def _heap_rows(row_bytes: int) -> int:
    """Return the most rows whose largest activation fits on the heap; no limit if not even that of one row fits."""
    return _HEAP_BYTES // row_bytes or sys.maxsize


def even_rows(total: int, limit: int) -> int:
    """Return the size of nearly equal batches into which ``total`` rows, at least 1, are divided.

    The last batch may be smaller. No batch has more than ``limit`` rows, and the number of batches is as small as this
    allows.

    >>> even_rows(1000, 256), even_rows(10, 256)
    (250, 10)
    """
    return -(-total // -(-total // limit))


def enter_evaluation_mode(model: object) -> None:
    """Put a module into evaluation mode; do nothing to a callable."""
    if isinstance(model, nn.Module) and any(module.training for module in modules_with_a_mode(model)):
        _evaluate(model)


def modules_with_a_mode(model: object) -> list[nn.Module]:
    """Return a module and its submodules, except those of ``torch.jit.freeze``, which have no mode; [] for a callable.

    >>> len(modules_with_a_mode(nn.Sequential(nn.ReLU()))), modules_with_a_mode(torch.relu)
    (2, [])
    """
    modules = submodules(model) if isinstance(model, nn.Module) else []
    return [module for module in modules if hasattr(module, "training")]


def _evaluate(model: nn.Module) -> None:
    with contextlib.suppress(NotImplementedError):  # modules of torch.export keep the mode of their export
        model.eval()


@contextlib.contextmanager
def modes_restored(model: object, *, evaluation: bool = False) -> Iterator[None]:
    """On exit, restore the mode of every submodule by calling its ``train``; do nothing to a callable.

    Some layers merge their weights in evaluation mode, and a call of ``train`` separates the weights again. With
    ``evaluation``, the module is first put into evaluation mode.
    """
    modules = modules_with_a_mode(model)
    modes = [module.training for module in modules]
    try:
        if evaluation and any(modes):
            _evaluate(modules[0])
        yield
    finally:
        try:
            for module, mode in zip(modules, modes, strict=True):  # parents first, since they change their children
                if module.training != mode:
                    with contextlib.suppress(NotImplementedError):
                        module.train(mode)
        finally:
            for module, mode in zip(modules, modes, strict=True):
                if module.training != mode:
                    module.training = mode


def evaluation_mode(model: object) -> contextlib.AbstractContextManager[None]:
    """Put a module into evaluation mode, and every submodule back into its own mode on exit; do nothing to a callable.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout().eval())
    >>> with evaluation_mode(net):
    ...     net.training
    False
    >>> net.training, net[1].training
    (True, False)
    """
    return modes_restored(model, evaluation=True)


@contextlib.contextmanager
def reporting(progress: bool | Progress, total: int, what: str = "samples") -> Iterator[Callable[[int], None]]:
    """Show progress as selected by ``progress=``: not at all, as a bar, or by calling a function of (done, total).

    The bar is shown on standard error, or below the cell in a notebook. It is labelled with the unit that it counts.

    >>> with reporting(lambda done, total: print(f"{done}/{total}"), 3) as report:
    ...     report(2)
    2/3
    """
    if callable(progress):
        yield lambda done: progress(done, total)
    elif progress:
        from pyrobust.notebook import in_notebook, notebook_bar

        if in_notebook():
            with notebook_bar(what) as show:
                yield lambda done: show(done, done, total, "")
            return
        state = random.getstate()
        from rich.console import Console
        from rich.progress import Progress as Bar

        random.setstate(state)  # importing rich draws from Python's generator
        with Bar(console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield lambda done: None


def logits_of(output: object) -> Tensor:
    """Return the logits in a model's output: a tensor, an object with ``.logits``, or a dict with "logits".

    Raises:
        ModelError: the output is something else. A tuple, for example, is refused because its first tensor may be
            features or a loss.

    >>> logits_of({"logits": torch.ones(1), "loss": torch.zeros(1)})
    tensor([1.])
    """
    logits = getattr(output, "logits", output)
    if isinstance(logits, Mapping):
        logits = logits.get("logits")
    if isinstance(logits, Tensor):
        return logits
    hint = "; wrap the model in a module that returns the logits alone" if isinstance(output, tuple | list) else ""
    raise ModelError(f"model: expected logits, or an object with .logits, got {type(output).__name__}{hint}")


def model_name(model: Classifier) -> str:
    """Name a model by its class, or a function by its own name.

    >>> model_name(nn.Linear(2, 2)), model_name(torch.relu)
    ('Linear', 'relu')
    """
    return str(getattr(model, "__name__", type(model).__name__))


_CPU = torch.device("cpu")
_NOTHING = contextlib.nullcontext()


def _first_tensor(model: Classifier) -> Tensor | None:
    if not isinstance(model, nn.Module):
        return None
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        raise InputError("model", "parameters with values", "some on the device meta", "load its weights")
    return next((tensor for tensor in tensors if tensor.dtype.is_floating_point), None)
