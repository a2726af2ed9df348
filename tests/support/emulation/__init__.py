"""Build the CUDA emulators with the host's compiler and call them like the ops they emulate."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pyrobust.checks import NORMS
from pyrobust.ops import grid_noise
from support.op_inputs import BYTE, NOISES

Runs = Sequence[tuple[int, int, int, int]]
Normalize = tuple[Sequence[float], Sequence[float]] | None
HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[2] / "csrc"
ELEMENTS = {torch.float32: "float", torch.float64: "double", torch.float16: "Half", torch.bfloat16: "BFloat16"}
DTYPES = tuple(ELEMENTS)
ROW_OPS = (
    *("project_simplex", "project_l1_ball", "project_l1_ball_box", "project_l2_ball", "project_linf_ball"),
    "l1_step",
)
ELEMENT_OPS = ("add_perturbation", "linf_step", "linf_momentum_step")

# Files compiled as they are, launchers included, but for the syntax of their launches.
LAUNCHED = (
    "smoothing/cuda/sample_noise.cu",
    "smoothing/cuda/sample_grid_noise.cu",
    "smoothing/cuda/count_votes.cu",
    "attacks/cuda/examples.cu",
    "attacks/cuda/logits.cu",
)
_LAUNCH = re.compile(r"(\w+(?:<[\w, ]+>)?)<<<((?:[^,()]|\([^()]*\))+), (\w+), 0, stream>>>\(")

# Planted faults (file, text, replacement) that the tests must detect.
MUTATIONS = {
    "rounds to nearest": (
        "projections/cuda/row.h",
        "return round_toward<float>(a, 0.0);",
        "return static_cast<float>(a);",
    ),
    "ends sums too early": ("projections/cuda/exact_sign.h", "if (part[1] == 0) return", "return"),
    "a thread out of step": (
        "projections/cuda/exact_sign.h",
        "group.add(part);",
        "if (group.rank() > 0) group.add(part);",
    ),
}


def build(source: str, folder: Path, dtype: torch.dtype = torch.float32, *, mutation: str | None = None) -> ctypes.CDLL:
    """Compile an emulator, that of rows for one dtype; skip the test if there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    if not CSRC.is_dir():
        pytest.skip("csrc is not beside the tests")
    folder.mkdir(exist_ok=True)
    kernels = (CSRC / "attacks/cuda/steps.cu").read_text()
    begin, end = kernels.index("constexpr int kThreads"), kernels.index("template <class T>\nstruct L1Work")
    (folder / "elements.inc").write_text(kernels[begin:end])
    (folder / "blocks.inc").write_text(_kernels("rows", "relax_rows") + _kernels("coefficients", "relax_coefficients"))
    includes = [str(folder), str(CSRC)]
    options = [f"-DPYROBUST_ELEMENT={ELEMENTS[dtype]}"]
    if mutation is not None:
        options.append("-DPYROBUST_ONLY_WARP")  # a planted fault meets few rows
        file, before, after = MUTATIONS[mutation]
        text = (CSRC / file).read_text()
        assert text.count(before) == 1, f"{mutation}: expected the text to replace once in {file}"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text.replace(before, after))
    sources = [str(HERE / source)]
    if source == "launches.cpp":
        sources += [str(_for_the_host(CSRC / file, folder)) for file in LAUNCHED]
        includes += [str(HERE / "device"), str(HERE)]
        options += ["-DPYROBUST_WITH_CUDA"]
    library = folder / f"{Path(source).stem}.so"
    # To optimize would take longer than it saves; the checked longjmp of _FORTIFY_SOURCE refuses to switch fibers.
    options += ["-std=c++20", "-O0", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-fPIC", "-shared"]
    command = [compiler, *options, "-o", str(library)]
    done = subprocess.run([*command, *(f"-I{path}" for path in includes), *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def _kernels(namespace: str, name: str) -> str:
    """Return the kernels of a file without their launch code."""
    text = (CSRC / "bounds" / "cuda" / f"{name}.cu").read_text()
    begin = text.index("constexpr int kThreads")
    end = text.rindex("\n}\n", begin, text.index("cudaError_t")) + 3
    return f"namespace {namespace} {{\n{text[begin:end]}}}\n"


def _for_the_host(file: Path, folder: Path) -> Path:
    """Copy a .cu file with its launches as calls of emulate."""
    text = _LAUNCH.sub(r"emulation::emulate(\2, \3, [](auto... a) { \1(a...); })(", file.read_text())
    assert "<<<" not in text, f"{file.name}: a launch in another form"
    copy = folder / f"{file.stem}.cpp"
    copy.write_text(text)
    return copy


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _words(values: Tensor | float, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(values, dtype=dtype).expand(rows).contiguous()


class Rows:
    """Ops whose kernels assign a group of threads to each row, on rows of one dtype."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype = torch.float32) -> None:
        self.library, self.dtype = library, dtype
        for name in ("run_rows", "run_planes", "run_windows"):
            getattr(library, name).restype = ctypes.c_char_p
        library.count_wrong_truncations.restype = ctypes.c_int64

    def project(self, op: str, v: Tensor, *operands: Any) -> Tensor:
        """Project like ops: operands are (radius,), or (x, radius, lower, upper) of the box with [0, 1] by default."""
        x = operands[0] if op == "project_l1_ball_box" else None
        radius, *box = operands if x is None else operands[1:]
        return self._run(op, (v, x, None), radius, 0, *box)

    def l1_step(self, x_adv: Tensor, gradient: Tensor, x: Tensor, step: Tensor, keep: Tensor) -> Tensor:
        return self._run("l1_step", (x_adv, gradient, x), step, keep)

    def hyperplane_step(self, x: Tensor, at: Tensor, w: Tensor, value: Tensor, norm: str) -> Tensor:
        assert x.dtype == self.dtype
        step = torch.full_like(x, 7.0)
        sizes = map(ctypes.c_int64, (x[..., 0].numel(), *w.shape))
        places = map(_pointer, (x, at, w, value)), (ctypes.c_int64(NORMS.index(norm)), _pointer(step))
        box = ctypes.c_double(0.0), ctypes.c_double(1.0)
        wrong = self.library.run_planes(*places[0], *places[1], *sizes, *box)
        assert wrong is None, wrong.decode()
        return step

    def square_window(
        self, best: Tensor, x: Tensor, u: Tensor, patterns: Tensor, radius: Tensor, sides: tuple[int, int], norm: str
    ) -> Tensor:
        """Propose images [B, C, H, W] like ops.square_window, radius [B]."""
        assert x.dtype == self.dtype
        out = torch.full_like(x, 7.0)
        grid = torch.tensor([*x.shape[1:], *sides, not x.is_contiguous()], dtype=torch.int64)
        places = map(_pointer, (best, x, u, patterns, radius)), (int(norm == "l2"), _pointer(out))
        window_arguments = ctypes.c_int64(len(x)), _pointer(grid), ctypes.c_double(0.0), ctypes.c_double(1.0)
        wrong = self.library.run_windows(*places[0], *places[1], *window_arguments)
        assert wrong is None, wrong.decode()
        return out

    def _run(
        self,
        op: str,
        tensors: tuple[Tensor, Tensor | None, Tensor | None],
        radius: Tensor | float,
        keep: Tensor | int,
        lower: float = 0.0,
        upper: float = 1.0,
    ) -> Tensor:
        assert tensors[0].dtype == self.dtype
        held = [None if tensor is None else tensor.contiguous() for tensor in tensors]
        z = torch.full(tensors[0].shape, 7.0, dtype=tensors[0].dtype)
        radii, counts = _words(radius, len(z), torch.float64), _words(keep, len(z), torch.int64)
        sizes = [*map(ctypes.c_int64, z.shape), ctypes.c_double(lower), ctypes.c_double(upper)]
        wrong = self.library.run_rows(ROW_OPS.index(op), *map(_pointer, (*held, z, radii, counts)), *sizes)
        assert wrong is None, wrong.decode()
        return z

    def at_most(self, a: Tensor, radius: float, *, squares: bool) -> tuple[bool, bool]:
        """Return whether the sum is at most the radius, by the threads and exactly."""
        outcome = self.library.compare_sums(_pointer(a), ctypes.c_int64(len(a)), ctypes.c_double(radius), int(squares))
        return bool(outcome & 1), bool(outcome & 2)

    def wrong_truncations(self, dtype: torch.dtype, a: Tensor) -> int:
        return int(self.library.count_wrong_truncations(DTYPES.index(dtype), _pointer(a), ctypes.c_int64(len(a))))


class Elements:
    """Ops whose kernels assign a few elements to each thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def run(
        self,
        op: str,
        x_adv: Tensor,
        gradient: Tensor,
        x: Tensor,
        before: Tensor,
        step: Tensor,
        epsilon: Tensor,
        box: tuple[float, float],
        *,
        offset: int,
        blocks: int,
    ) -> Tensor:
        """Run an op on tensors `offset` elements into their memory; step and epsilon shared or per row; share 0.75."""
        rows, n = x.shape
        held = []
        for tensor in (x_adv, gradient, x, before):
            memory = torch.full((rows * n + 8,), 3.0, dtype=x.dtype)
            memory[offset : offset + rows * n] = tensor.flatten()
            held.append(memory[offset:])
        out = torch.full((rows * n + 8,), 7.0, dtype=x.dtype)
        step, epsilon = step.double().contiguous(), epsilon.double().contiguous()
        radii: list[object] = []
        for values in (step, epsilon):
            radii += [_pointer(values), ctypes.c_int64(int(len(values) > 1))]
        self.library.run_elements(
            ELEMENT_OPS.index(op),
            DTYPES.index(x.dtype),
            *map(_pointer, held),
            *radii,
            ctypes.c_double(0.75),
            _pointer(out[offset:]),
            ctypes.c_int64(rows),
            ctypes.c_int64(n),
            *map(ctypes.c_double, box),
            ctypes.c_uint(blocks),
        )
        stop = offset + rows * n
        assert (torch.cat([out[:offset], out[stop:]]) == 7).all(), "written beside the result"
        return out[offset:stop].view(rows, n)


class Blocks:
    """Ops whose kernels share memory within a block, in float64, launched with `blocks` blocks."""

    def __init__(self, library: ctypes.CDLL, blocks: int = 2) -> None:
        self.library, self.blocks = library, ctypes.c_uint(blocks)

    def relax_rows(self, lanes: int, a: Tensor, image: Tensor, *lines: Tensor) -> Tensor:
        """Run relax_rows, updating a, with `lanes` threads per row; with two lines only, run concretize_rows."""
        constant = torch.full((len(a),), 7.0, dtype=torch.float64)
        slopes, others = (lines[:2], lines[2:]) if len(lines) == 4 else ((None, None), lines)
        places = [_pointer(tensor) for tensor in (a, image, *slopes, *others, constant)]
        sizes = [ctypes.c_int64(size) for size in (*a.shape, len(others[0]))]
        self._call("relax_rows", ctypes.c_int(lanes), *places, *sizes)
        return constant

    def relax_coefficients(self, a: Tensor, lower: Tensor, upper: Tensor, slope: float) -> tuple[Tensor, Tensor]:
        out, bias = torch.full_like(a, 7.0), torch.full(a.shape[:2], 7.0, dtype=a.dtype)
        sizes = [ctypes.c_int64(size) for size in (a.shape[0] * a.shape[1], a.shape[1], a.shape[2])]
        places = map(_pointer, (a, lower, upper)), map(_pointer, (out, bias))
        self._call("relax_coefficients", *places[0], ctypes.c_double(slope), *places[1], *sizes)
        return out, bias

    def relax_coefficients_backward(
        self, gradient: Tensor, gradient_bias: Tensor, a: Tensor, lower: Tensor, upper: Tensor, slope: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients = tuple(torch.full_like(tensor, 7.0) for tensor in (a, lower, upper))
        sizes = [ctypes.c_int64(size) for size in (lower.numel(), a.shape[1], a.shape[2])]
        places = map(_pointer, (gradient, gradient_bias, a, lower, upper)), map(_pointer, gradients)
        self._call("relax_coefficients_backward", *places[0], ctypes.c_double(slope), *places[1], *sizes)
        return gradients

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p
        wrong = function(*arguments, self.blocks)
        assert wrong is None, wrong.decode()


class Launches:
    """Ops whose files are compiled whole: the launcher decides about threads, blocks and the width of accesses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def draw(
        self, noise: str, x: Tensor, runs: Runs, sigma: float, seed: int, out: Tensor, normalize: Normalize = None
    ) -> tuple[Tensor, ...]:
        """Draw estimation noise like op_inputs.drawn; x in the dtype computed in."""
        mean, std = (None, None) if normalize is None else (torch.tensor(v, dtype=x.dtype) for v in normalize)
        domain = ctypes.c_uint32(256 + NOISES.index(noise)), *_runs(runs, seed)
        channels, statistics = _shape(x, out), (_pointer(mean), _pointer(std), _pointer(out))
        if noise != "grid":
            numbers = _pointer(x), ctypes.c_double(sigma), *statistics
            self._call("sample_noise", DTYPES.index(out.dtype), *domain, *channels, *numbers)
            return (out,)
        tail, table, k = torch.zeros(len(out), dtype=torch.bool), grid_noise(sigma, BYTE), (255 * x).round().int()
        entry_bits = 23 - (len(table.guide) // 32).bit_length() + 1
        guide = _pointer(table.guide), entry_bits, _pointer(table.words), len(table.words)
        numbers = _pointer(k), ctypes.c_int64(1), ctypes.c_int64(255), *statistics
        self._call("sample_grid_noise", DTYPES.index(out.dtype), *guide, *domain, *channels, *numbers, _pointer(tail))
        return out, tail

    def count_votes(self, logits: Tensor, image: Tensor, counts: Tensor) -> Tensor:
        rows, classes = map(ctypes.c_int64, logits.shape)
        images = ctypes.c_int64(len(counts))
        places = _pointer(image), images, _pointer(counts)
        self._call("count_votes", DTYPES.index(logits.dtype), _pointer(logits), rows, classes, *places)
        return counts

    def put_rows(self, chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
        sizes = ctypes.c_int64(len(target)), ctypes.c_int64(target[0].numel() * target.element_size())
        self._call("put_rows", _pointer(chosen), _pointer(source), _pointer(target), *sizes)
        return target

    def count_changed(self, x_adv: Tensor, x: Tensor) -> Tensor:
        count = torch.zeros(len(x), dtype=torch.int64)
        sizes = map(ctypes.c_int64, x.shape)
        self._call("count_changed", DTYPES.index(x.dtype), _pointer(x_adv), _pointer(x), _pointer(count), *sizes)
        return count

    def logit_loss(self, logits: Tensor, y: Tensor, target: Tensor, loss: int) -> tuple[Tensor, Tensor, Tensor]:
        value, slope = torch.full(y.shape, 7.0, dtype=torch.float64), torch.full_like(logits, 7.0)
        size = torch.full_like(value, 7.0)
        places = map(_pointer, (logits, y, target, value, slope, size))
        sizes = map(ctypes.c_int64, logits.shape)
        self._call("logit_loss", DTYPES.index(logits.dtype), ctypes.c_int64(loss), *places, *sizes)
        return value, slope, size

    def logit_verdict(self, logits: Tensor, y: Tensor, targeted: bool, tolerance: float, both: bool) -> Tensor:
        verdict = torch.full(y.shape, 7, dtype=torch.uint8)
        options = int(targeted), ctypes.c_double(tolerance), int(both)
        sizes = map(ctypes.c_int64, logits.shape)
        places = _pointer(logits), _pointer(y)
        self._call("logit_verdict", DTYPES.index(logits.dtype), *places, *options, _pointer(verdict), *sizes)
        return verdict

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p
        wrong = function(*arguments)
        assert wrong is None, wrong.decode()


class _Run(ctypes.Structure):
    """NoiseRun of csrc/smoothing/noise.h."""

    _fields_ = (
        ("row", ctypes.c_int64),
        ("key", ctypes.c_uint64),
        ("image", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("begin", ctypes.c_int64),
    )


def _runs(runs: Runs, key: int) -> tuple[object, ...]:
    """Return what a launcher takes of (row, image, first, count): runs with a sample, their number, and the samples."""
    kept, begin = [], 0
    for row, image, first, count in runs:
        if count > 0:
            kept.append(_Run(row, key, image, first, begin))
        begin += count
    return (_Run * len(kept))(*kept), ctypes.c_int64(len(kept)), ctypes.c_int64(begin)


def _shape(x: Tensor, out: Tensor) -> tuple[object, ...]:
    """Return channels, plane and whether the channels are innermost in memory."""
    channels = x.shape[1] if x.dim() > 1 else 1
    plane = x[0].numel() // channels
    return ctypes.c_int64(channels), ctypes.c_int64(plane), int(not out.is_contiguous())
