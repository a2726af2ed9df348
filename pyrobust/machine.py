"""The machine that a model runs on: devices, out-of-memory errors, the C library's heap, and deterministic kernels."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pyrobust.checks import shown
from pyrobust.environment import CUBLAS_VARIABLE, CUBLAS_WORKSPACE, machine_is_busy
from pyrobust.errors import InputError, ModelError

_NOT_DETERMINISTIC = f".*(does not have a deterministic implementation|{CUBLAS_VARIABLE})"
# Errors without a class of their own. The native ops allocate their results through torch's stable ABI, whose errors
# name the operator that failed, not the reason; an allocation fails only for lack of memory.
_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|std::bad_alloc|(CUBLAS|CUDNN|CUSOLVER)_STATUS_\w*ALLOC(ATION)?_FAILED"
    r"|Unable to find a valid cuDNN algorithm|\"aten::(empty_like|new_empty|new_zeros)\"(?s:.*)API call failed"
)


@contextlib.contextmanager
def repeatable_kernels(device: torch.device) -> Iterator[None]:
    """Allow only kernels that give the same bits for the same batch each time; restore torch's settings on exit.

    Makes torch choose deterministic algorithms, and keeps cuDNN from choosing algorithms by timing them. Torch's option
    to fill uninitialised memory is switched off, because filling writes every activation once more. The probe in
    ``pyrobust.row_independence`` finds models that read such memory, because it also runs them under ``filled_memory``.
    The TF32 settings stay unchanged. Importing pyrobust sets the variable CUBLAS_WORKSPACE_CONFIG if it is unset.

    Raises:
        ModelError: the model needs a kernel that is not deterministic, or CUBLAS_WORKSPACE_CONFIG was set too late.

    >>> with repeatable_kernels(torch.device("cpu")):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    settings: Any = torch.utils.deterministic  # torch's stubs lack the attribute, a property of the module
    filled = settings.fill_uninitialized_memory
    torch.backends.cudnn.benchmark = False
    try:
        with warnings.catch_warnings():
            # Warnings become errors here, as in mode "error", except for quantized layers, which fill what they resize.
            warnings.filterwarnings("error", _NOT_DETERMINISTIC)
            warnings.filterwarnings("ignore", "quantized_resize_cpu_ does not have")
            # torch.use_deterministic_algorithms does the same, but spends a second on importing the compiler.
            torch.set_deterministic_debug_mode("warn")
            settings.fill_uninitialized_memory = False
            yield
    except (RuntimeError, UserWarning) as error:
        if CUBLAS_VARIABLE in str(error):
            raise ModelError(
                f"model: matrix products do not repeat their bits on {device}: torch saw {CUBLAS_VARIABLE} unset; "
                f"import pyrobust before the first matrix product of the process, or set it to {CUBLAS_WORKSPACE} "
                "before Python starts, or use grid=None (--grid none)"
            ) from error
        if "deterministic implementation" in str(error):
            what = str(error).split(" does not have", 1)[0]
            raise ModelError(
                f"model: expected kernels that repeat their bits, got {what}, which has none on {device}; "
                "replace it, or use grid=None (--grid none)"
            ) from error
        raise
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark, settings.fill_uninitialized_memory = benchmark, filled


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Within ``repeatable_kernels``, fill uninitialised memory with NaN or, for integer dtypes, the largest integer.

    >>> with repeatable_kernels(torch.device("cpu")), filled_memory():
    ...     torch.empty(2)
    tensor([nan, nan])
    """
    settings: Any = torch.utils.deterministic
    before = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before


@contextlib.contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, on the CPU and on a GPU device; restore their state on exit.

    >>> with seeded_generators(0, torch.device("cpu")):
    ...     first = torch.rand(3)
    >>> with seeded_generators(0, torch.device("cpu")):
    ...     bool((torch.rand(3) == first).all())
    True
    """
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


_fixed_threads = 0  # contexts of `fixed_threads` that are open


@contextlib.contextmanager
def fixed_threads() -> Iterator[None]:
    """Keep torch's number of threads fixed, because runs record this number and rounding may depend on it.

    >>> with fixed_threads():
    ...     threads_are_fixed()
    True
    """
    global _fixed_threads
    _fixed_threads += 1
    try:
        yield
    finally:
        _fixed_threads -= 1


def threads_are_fixed() -> bool:
    """Whether the number of torch's threads must not change.

    >>> threads_are_fixed()
    False
    """
    return _fixed_threads > 0


def threads_wait_for_others() -> bool:
    """Whether torch has several threads that spin while they wait, and other processes are running right now.

    >>> isinstance(threads_wait_for_others(), bool)
    True
    """
    return (
        torch.get_num_threads() > 1
        and os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive"
        and "GOMP_SPINCOUNT" not in os.environ
        and machine_is_busy()
    )


def strict_cuda() -> bool:
    """Whether all settings restrict cuBLAS to float32 arithmetic for float32 products.

    >>> strict_cuda()
    True
    """
    try:
        highest = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch raises where the newer settings contradict each other
        return False
    allowed = (getattr(torch.backends, "fp32_precision", "none"), torch.backends.cuda.matmul.fp32_precision)
    forced = (os.environ.get(name, "0") for name in ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"))
    return highest and all(value in ("none", "ieee") for value in allowed) and all(value == "0" for value in forced)


@functools.cache
def keep_heap() -> None:
    """Make the C library keep freed activations instead of returning them to the system at every layer.

    With glibc's initial settings, small batches spend most of their time on page faults. The reason is two thresholds,
    the mmap threshold and the trim threshold, which both start at 128 KiB. A block larger than the mmap threshold gets
    its own memory mapping. Free memory at the end of the heap is returned to the system if it exceeds the trim
    threshold. Both thresholds grow when mapped blocks are freed. The mmap threshold becomes the size of the largest
    mapped block freed so far, at most 32 MiB, and the trim threshold becomes twice this size. To raise both thresholds,
    this function allocates and frees a block of nearly 32 MiB. The block is never touched, so it costs no memory.
    """
    torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of torch, its libraries or the native ops reports that a device is out of memory.

    >>> is_out_of_memory(RuntimeError("CUDA: sample_noise: out of memory")), is_out_of_memory(RuntimeError("got nan"))
    (True, False)
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def free_memory(device: torch.device) -> int:
    """Number of free bytes of a device, including unused bytes that torch's allocator holds."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not on every system
        return 1 << 30


def total_memory() -> float:
    """Bytes of memory of this machine; infinite if the number is unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not on every system
        return math.inf


def in_batches(
    total: int,
    size: Callable[[], int],
    step: Callable[[int, int], None],
    shrink: Callable[[int, Exception], None],
) -> None:
    """Call ``step(begin, end)`` over [0, total) in batches; if a batch does not fit in memory, retry with fewer rows.

    A step must be repeatable: either it changes nothing before all its allocations have succeeded, or it records which
    part is finished.

    Args:
        total: number of rows.
        size: returns the batch size, at least 1; called before each batch.
        step: processes a batch.
        shrink: called with the number of rows that did not fit, and with the error; lowers the size, or raises.

    >>> sizes = [2]
    >>> def step(begin, end):
    ...     if end - begin > 1:
    ...         raise MemoryError
    ...     print(begin, end)
    >>> in_batches(2, lambda: sizes[-1], step, lambda rows, error: sizes.append(rows // 2))
    0 1
    1 2
    """
    begin = 0
    while begin < total:
        end = min(begin + size(), total)
        try:
            step(begin, end)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            shrink(end - begin, error)
        else:
            begin = end
            continue
        torch.cuda.empty_cache()  # outside the handler, whose traceback keeps the failed batch alive


def existing_device(device: torch.device | str) -> torch.device:
    """Check that a torch device or device name stands for the CPU or an existing GPU; return it as a torch device.

    Raises:
        InputError: a device of another kind, or a GPU that the machine lacks.

    >>> existing_device("cpu")
    device(type='cpu')
    """
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise InputError("device", "cpu or cuda", shown(device)) from None
    # torch wraps an index around 256, and reads True as 1.
    index = wanted.index if isinstance(device, torch.device) else str(device).rpartition(":")[2]
    if wanted.index is not None and str(index) != str(wanted.index):
        raise InputError("device", "cpu or cuda", shown(device))
    if wanted.type not in ("cpu", "cuda"):
        raise InputError("device", "cpu or cuda", wanted)
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        available = torch.cuda.device_count()
        expected = f"one of {available} CUDA devices" if available else "cpu, for this machine has no CUDA device"
        raise InputError("device", expected, wanted)
    return wanted


def processor_name() -> str:
    """Return the name of the processor.

    >>> bool(processor_name())
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
