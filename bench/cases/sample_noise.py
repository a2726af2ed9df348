"""The noisy batch against the usual loop's, against torch's normals alone, and against a fill of the same bytes.

Work: an output of 4 bytes per element is written once (x stays in the cache); at least ten Philox rounds per four
elements and one Box-Muller transform per two. The floor is the fill. On a CPU the limit is arithmetic, not bytes.
"""

from __future__ import annotations

from functools import partial

import torch

from pyrobust import reference
from pyrobust.microbench.smoothing import noisy_copies
from pyrobust.microbench.timing import Call, Case
from pyrobust.ops import FAMILIES, sample_noise

_SIGMA = 0.25
_SHAPES = ((1000, 3, 32, 32), (64, 3, 224, 224), (4096, 1, 28, 28))


def cases(device: torch.device) -> list[Case]:
    return [case for shape in _SHAPES for case in _shape(shape, device)]


def _shape(shape: tuple[int, ...], device: torch.device) -> list[Case]:
    n, elements = shape[0], torch.Size(shape).numel()
    x = torch.rand((1, *shape[1:]), device=device)
    out = torch.empty(shape, device=device)
    work = {"elements": elements, "bytes_written": 4 * elements}
    native = partial(sample_noise, x, [(0, 7, 0, n)], sigma=_SIGMA)

    allocated: dict[str, Call] = {
        "native": native,
        "x.repeat + randn_like * sigma": partial(noisy_copies, x, n),
        "clone of the same bytes": out.clone,
    }
    buffer: dict[str, Call] = {
        "native": partial(native, out=out),
        "normal_() alone": out.normal_,
        "fill_ of the same bytes": partial(out.fill_, 1.0),
    }
    mean, std = (torch.full((shape[1],), value, device=device) for value in (0.5, 0.25))
    formats: dict[str, Call] = {"native": partial(native, out=out)}
    for noise in FAMILIES:
        formats[noise] = partial(native, out=out, noise=noise)
    formats["normalize"] = partial(native, out=out, normalize=(mean, std))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        formats[str(dtype).removeprefix("torch.")] = partial(native, out=out.to(dtype))
    formats["channels_last"] = partial(native, out=out.contiguous(memory_format=torch.channels_last))
    name = f"sample_noise {shape}"
    results = [
        Case(f"{name}, new batch", allocated, work),
        Case(f"{name}, into a buffer", buffer, work),
        Case(f"{name}, families and formats", formats, work),
    ]
    if shape == _SHAPES[0]:
        twin = {
            "native": partial(sample_noise, x, [(0, 7, 0, 50)], sigma=_SIGMA),
            "reference": partial(reference.sample_noise, x, [(0, 7, 0, 50)], sigma=_SIGMA),
        }
        results.append(Case(f"sample_noise {(50, *shape[1:])}, reference", twin))
    return results
