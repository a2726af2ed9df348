"""The one way to run a model.

A ``Runner`` fixes where and how a classifier is evaluated (device, autocast dtype, memory format, batch size) and hands
out sessions in which it is: evaluation mode, no gradients (or those of the input only, for attacks), both undone
afterwards. Work that does not fit memory is halved and carried on. No random number generator is touched.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, TypeAlias

import torch
from torch import Tensor, nn

from pyrobust.checks import count
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.machine import existing_device, in_batches, is_out_of_memory, keep_heap, repeatable_kernels

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (done, total)."""
Classifier: TypeAlias = Callable[[Tensor], Any]
"""A module, or any callable, that maps a batch [N, ...] to logits [N, K] or to an object with ``.logits``."""

# On the CPU a batch whose largest activation has about this many bytes stays near the caches; larger ones gain nothing.
_CPU_ACTIVATION_BYTES = 4 << 20
_MAX_BATCH = 4096
_PROBE_BATCH = 8
# Share of the free device memory that one batch may take: allocators fragment and other work wants some too.
_MEMORY_SHARE = 0.6
# What an attack keeps of each input besides the model's activations: iterates, gradients, temporaries.
_ATTACK_COPIES = 16


class Runner:
    """Runs a classifier on batches.

    Args:
        model: module or callable, batch [N, ...] → logits [N, K] or an object with ``.logits``.
        device: where to run; a module is moved there and stays. Default: its first parameter's device, else the CPU.
        dtype: float32, float64, bfloat16 or float16 of the batches. A module with parameters of another dtype runs
            under autocast to it (bfloat16 and float16). Default: the first floating parameter's, else float32.
        memory_format: of the batches (and of a module's convolution weights where ``torch.channels_last``).
        batch_size: rows a batch. Default: what fits memory, found at the first use.

    Raises:
        InputError: a value out of range.
        InputTypeError: a model that is not callable, or a dtype that is not one of the above.

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
            raise InputTypeError(f"model: expected a torch.nn.Module or a callable, got {type(model).__name__}")
        if dtype not in (None, torch.float32, torch.float64, torch.bfloat16, torch.float16):
            raise InputTypeError(f"dtype: expected float32, float64, bfloat16 or float16, got {dtype}")
        if memory_format not in (None, torch.contiguous_format, torch.channels_last):
            raise InputError(
                f"memory_format: expected torch.contiguous_format or torch.channels_last, got {memory_format}"
            )
        self.model = model
        tensor = _first_tensor(model)
        if device is not None:
            self._device: torch.device | None = existing_device(device)
        else:
            self._device = tensor.device if tensor is not None else None
        own = tensor.dtype if tensor is not None else dtype or torch.float32
        self.dtype = dtype or own
        self.memory_format = memory_format or torch.contiguous_format
        self._autocast = own == torch.float32 and self.dtype in (torch.bfloat16, torch.float16)
        if self.dtype != own and not self._autocast:
            raise InputTypeError(
                f"dtype: expected {own}, the model's, got {self.dtype}; convert the model first, as with model.double()"
            )
        if isinstance(model, nn.Module):
            if device is not None:
                model.to(self.device)
            if self.memory_format == torch.channels_last:
                # torch's stubs lack the overload with memory_format alone
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        #: The batch size that was asked for; None where it is to be found.
        self.given_batch_size: int | None = None
        self._fitting: dict[tuple[tuple[int, ...], bool], int] = {}  # rows that memory allows, by shape and gradients
        self._pinned: set[tuple[int, ...]] = set()  # shapes of which a pinned batch went through
        self.set_batch_size(batch_size)
        #: Whether it has been logged that some logits have no winner.
        self.noted_no_winner = False

    @property
    def device(self) -> torch.device:
        """Where the model runs; the CPU for a plain callable that has not seen an input yet."""
        return self._device or _CPU

    def device_for(self, x: Tensor) -> torch.device:
        """Where the model runs; a plain callable runs where the first input is."""
        if self._device is None:
            self._device = x.device
        return self._device

    def batch_size(self, shape: tuple[int, ...], *, gradients: bool = False) -> int:
        """Rows a batch for inputs [N, *shape]: as given, or found at the first call; less where memory ran out.

        Args:
            shape: of one input.
            gradients: whether the input's gradient has to fit, too.
        """
        fitting = self._fitting.get((shape, gradients))
        if self.given_batch_size is not None:
            return self.given_batch_size if fitting is None else min(self.given_batch_size, fitting)
        if fitting is None:
            fitting = self._fitting[shape, gradients] = self._find_batch_size(shape, gradients)
            logger.info("batch size %d for inputs of %s on %s", fitting, shape, self.device)
        return fitting

    def set_batch_size(self, batch_size: SupportsIndex | None) -> None:
        """Rows a batch from here on, at least 1; None: what fits memory."""
        self.given_batch_size = None if batch_size is None else count("batch_size", batch_size)

    @contextlib.contextmanager
    def session(self, *, gradients: bool = False, pinned: bool = False) -> Iterator[None]:
        """Evaluation mode, no gradients, autocast where asked; every submodule's mode is restored afterwards.

        Args:
            gradients: allows ``torch.enable_grad`` inside, for the gradient of the input; without, tensors made inside
                are inference tensors.
            pinned: only kernels that repeat their bits (``pyrobust.machine.repeatable_kernels``).
        """
        if self.device.type == "cpu":
            keep_heap()
        modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        modes = [module.training for module in modules]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(not gradients))
            stack.enter_context(torch.no_grad())
            if pinned:
                stack.enter_context(repeatable_kernels(self.device))
            if self._autocast:
                stack.enter_context(torch.autocast(self.device.type, dtype=self.dtype))
            try:
                if isinstance(self.model, nn.Module):
                    self.model.eval()
                yield
            finally:
                for module, mode in zip(modules, modes, strict=True):
                    module.training = mode

    def batch(self, x: Tensor) -> Tensor:
        """Examples [N, ...] on the runner's device, images in its memory format; their dtype is kept.

        >>> Runner(lambda x: x).batch(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
        """
        images = self.memory_format if x.dim() == 4 else torch.contiguous_format
        return x.to(self.device_for(x)).contiguous(memory_format=images)

    def logits(self, batch: Tensor) -> Tensor:
        """The model's logits [N, K] for a batch [N, ...] on the runner's device; call it inside a session."""
        output = self.model(batch)
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor):
            raise ModelError(f"model: expected logits, or an object with .logits, got {type(output).__name__}")
        if logits.dim() != 2 or logits.shape[0] != batch.shape[0] or logits.shape[1] < 1:
            raise ModelError(f"model: expected logits of shape ({batch.shape[0]}, K), got {tuple(logits.shape)}")
        if not logits.dtype.is_floating_point:
            raise ModelError(f"model: expected floating-point logits, got {logits.dtype}")
        return logits

    def for_each(
        self,
        total: int,
        shape: tuple[int, ...],
        step: Callable[[int, int], None],
        *,
        gradients: bool = False,
        pinned: bool = False,
    ) -> None:
        """Calls ``step(begin, end)`` over [0, total) in batches; what does not fit memory is halved.

        The halved batch is tried again: a step must change nothing before its forward pass is done, or know what it
        has done already.

        Args:
            total: rows in all.
            shape: of one input.
            step: what to do with a batch.
            gradients: as of ``batch_size``.
            pinned: the model is to see batches of one size only, which the step fills up. Only a size that was found
                is halved, and only while no batch has gone through.

        Raises:
            ModelError: one input does not fit memory, or a pinned batch does not.
        """

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

        in_batches(total, lambda: self.batch_size(shape, gradients=gradients), run, shrink)

    def _largest_output(self, shape: tuple[int, ...]) -> int:
        """Bytes of the largest output of a submodule for one input; 0 for a plain callable."""
        sizes = [0]

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                sizes.append(output.numel() * output.element_size())

        modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        eager = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]  # others take no hooks
        hooks = [module.register_forward_hook(note) for module in eager]
        try:
            if hooks:
                with self.session():
                    self.logits(torch.zeros((1, *shape), dtype=self.dtype, device=self.device))
        finally:
            for hook in hooks:
                hook.remove()
        return max(sizes)

    def _find_batch_size(self, shape: tuple[int, ...], gradients: bool) -> int:
        row_bytes = max(1, torch.Size(shape).numel()) * self.dtype.itemsize
        if self.device.type != "cuda":
            return max(16, min(_MAX_BATCH, _CPU_ACTIVATION_BYTES // max(row_bytes, self._largest_output(shape))))
        # The peak of a small batch; what does not grow with the batch counts too, so the estimate is on the safe side.
        rows = _PROBE_BATCH
        free, _ = torch.cuda.mem_get_info(self.device)
        try:
            with self.session(gradients=gradients):
                start = torch.cuda.memory_allocated(self.device)
                torch.cuda.reset_peak_memory_stats(self.device)
                batch = torch.zeros((rows, *shape), dtype=self.dtype, device=self.device)
                if len(shape) == 3:
                    batch = batch.contiguous(memory_format=self.memory_format)
                if gradients:
                    with torch.enable_grad():
                        logits = self.logits(batch.requires_grad_())
                    if logits.requires_grad:
                        torch.autograd.grad(logits.sum(), batch)
                else:
                    self.logits(batch)
                peak = torch.cuda.max_memory_allocated(self.device) - start
                peak += rows * row_bytes * (_ATTACK_COPIES if gradients else 0)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return 1
        finally:
            torch.cuda.empty_cache()
        return max(1, min(_MAX_BATCH, int(_MEMORY_SHARE * free / max(1, peak)) * rows))


@contextlib.contextmanager
def reporting(progress: bool | Progress, total: int) -> Iterator[Callable[[int], None]]:
    """What ``progress=`` means everywhere: False nothing, True a bar on standard error, or a function of (done, total).

    >>> with reporting(lambda done, total: print(f"{done}/{total}"), 3) as report:
    ...     report(2)
    2/3
    """
    if callable(progress):
        yield lambda done: progress(done, total)
    elif progress:
        state = random.getstate()
        from rich.console import Console
        from rich.progress import Progress as Bar

        random.setstate(state)  # rich draws from Python's generator when it is imported
        with Bar(console=Console(stderr=True)) as bar:
            task = bar.add_task("samples", total=total)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield lambda done: None


_CPU = torch.device("cpu")


def _first_tensor(model: Classifier) -> Tensor | None:
    if not isinstance(model, nn.Module):
        return None
    tensors = [*model.parameters(), *model.buffers()]
    return next((tensor for tensor in tensors if tensor.dtype.is_floating_point), None)
