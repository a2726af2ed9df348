"""Noisy batches on the input's grid against plain, less sound Gaussian noise and a fill of the same bytes.

Work: as for sample_noise, with a look-up and a division per element instead of half a Box-Muller transform. The guide
table takes 8 KB for sigma = 0.25 and bytes, 32 KB for sigma = 1. The target is at most 1.3 times sample_noise.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import torch

from pyrobust import reference
from pyrobust.microbench.timing import Call, Case
from pyrobust.ops import sample_grid_noise, sample_noise

_BYTE = Fraction(1, 255)
_SHAPES = ((1000, 3, 32, 32), (64, 3, 224, 224), (4096, 1, 28, 28))
_SIGMAS = (0.25, 1.0)


def cases(device: torch.device) -> list[Case]:
    return [case for shape in _SHAPES for case in _shape(shape, device)]


def _shape(shape: tuple[int, ...], device: torch.device) -> list[Case]:
    n, elements = shape[0], torch.Size(shape).numel()
    k = torch.randint(256, (1, *shape[1:]), dtype=torch.int32, device=device)
    runs = [(0, 7, 0, n)]
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        out = torch.empty(shape, dtype=dtype, device=device)
        x = k.to(torch.float64 if dtype == torch.float64 else torch.float32) / 255
        variants: dict[str, Call] = {"sample_noise": partial(sample_noise, x, runs, sigma=0.25, out=out)}
        for sigma in _SIGMAS:
            grid = partial(sample_grid_noise, k, runs, sigma=sigma, step=_BYTE, out=out)
            variants[f"sigma {sigma}"] = grid
        variants["fill_ of the same bytes"] = partial(out.fill_, 1.0)
        work = {"elements": elements, "bytes_written": out.element_size() * elements}
        name = f"sample_grid_noise {shape} {str(dtype).removeprefix('torch.')}, into a buffer"
        results.append(Case(name, variants, work))
    if shape == _SHAPES[0]:
        few_runs = [(0, 7, 0, 5)]
        twin: dict[str, Call] = {
            "native": partial(sample_grid_noise, k, few_runs, sigma=0.25, step=_BYTE),
            "reference": partial(reference.sample_grid_noise, k, few_runs, sigma=0.25, step=_BYTE),
        }
        results.append(Case(f"sample_grid_noise {(5, *shape[1:])}, reference", twin))
    return results
