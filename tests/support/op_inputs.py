"""Shared inputs of the noise and vote tests."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pyrobust import _C

FAMILIES = ("gaussian", "uniform", "laplace")
NOISES = (*FAMILIES, "grid")
BYTE = Fraction(1, 255)
REALS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = (torch.contiguous_format, torch.channels_last)
TOP = 2**32 - 1
# Images out of order, a repeated image, a run without samples, and the ends of both index ranges.
RUNS = [(1, 5, 0, 3), (0, TOP, TOP - 3, 4), (2, 0, 7, 1), (1, 5, 2**32, 0), (2, TOP - 1, 1, 9), (1, 5, 0, 2)]
# Logits without a winner, or with special comparison rules.
SPECIAL = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 65504.0, 6e-8, -6e-8, 1e-45])


def images(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(*shape: int, high: int = 256, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def drawn(module: Any, noise: str, x: Tensor, runs: Any, *, step: Fraction = BYTE, **how: Any) -> tuple[Tensor, ...]:
    """Draw noisy images by ops or the reference: of grid noise those of x in bytes, and which samples hold a tail."""
    if noise == "grid":
        how |= {"dtype": how.get("dtype") or x.dtype}
        batch, tail = module.sample_grid_noise((255 * x).round().int(), runs, step=step, **how)
        return batch, tail
    return (module.sample_noise(x, runs, noise=noise, **how),)


def channels(count: int) -> tuple[list[float], list[float]]:
    """Return a mean and a standard deviation for each channel."""
    return [0.1 + 0.03 * c for c in range(count)], [0.2 + 0.07 * c for c in range(count)]


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Return whether dtype, shape and every bit agree; all NaNs count as equal."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[want.element_size()]
    return (
        got.dtype == want.dtype
        and got.shape == want.shape
        and torch.equal(got.isnan(), want.isnan())
        and torch.equal(got.nan_to_num(nan=0.0).view(integer), want.nan_to_num(nan=0.0).view(integer))
    )


def votes(rows: int, classes: int, images: int, kind: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits [rows, classes] and image indices [rows]."""
    draw = torch.Generator().manual_seed(seed)
    image = torch.randint(images, (rows,), generator=draw)
    if kind == "plain":
        return torch.randn(rows, classes, generator=draw), image
    if kind == "ties":
        return torch.randint(3, (rows, classes), generator=draw).float() - 1, image
    special = SPECIAL[torch.randint(len(SPECIAL), (rows, classes), generator=draw)]
    rare = torch.rand(rows, classes, generator=draw) < 1.5 / classes
    return torch.where(rare, special, torch.randn(rows, classes, generator=draw)), image


def graded(function: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
    """Return results, one or several, and the gradients of a weighted sum of them for every tensor."""
    arguments = tuple(t.clone().requires_grad_() if isinstance(t, Tensor) else t for t in arguments)
    results = function(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    weights = [torch.linspace(-1, 2, r.numel(), dtype=r.dtype).view(r.shape).to(r.device) for r in results]
    total = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    return [
        *(r.detach() for r in results),
        *torch.autograd.grad(total, [t for t in arguments if isinstance(t, Tensor)]),
    ]


@contextlib.contextmanager
def lowest_level() -> Iterator[None]:
    """The lowest SIMD level and one thread, whose bits are those of all others."""
    level, threads = _C.simd_level(), torch.get_num_threads()
    _C.set_simd_level(_C.simd_levels()[0])
    torch.set_num_threads(1)
    yield
    _C.set_simd_level(level)
    torch.set_num_threads(threads)
