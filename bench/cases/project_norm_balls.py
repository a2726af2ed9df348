"""The projections onto the l2 and the l∞ ball against the expressions in PyTorch that scripts use, and the floor.

Those expressions are not exact: rounding leaves about half of the l2 rows outside the ball, and an l∞ radius that is no
number of the dtype is rounded. Work: each input is read once and the projection written once, 2 or 4 bytes per element
each.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyrobust import reference
from pyrobust.microbench.timing import Call, Case
from pyrobust.ops import project_l2_ball, project_linf_ball

# Rows, D: CIFAR images, ImageNet images, logits, and rows too short to fill a register.
_SHAPES = ((1000, 3072), (64, 150_528), (10_000, 100), (100_000, 10), (100_000, 3))
_HALF_LENGTHS = (3072, 10)  # also in 16 bits
_REFERENCE_ELEMENTS = 4_000_000


def cases(device: torch.device) -> list[Case]:
    cases_of_shape = []
    for rows, length in _SHAPES:
        v = torch.randn(rows, length, device=device, generator=torch.Generator(device).manual_seed(0))
        cases_of_shape += [_l2(v, 0.7 * length**0.5), _linf(v, 0.7)]
        if length in _HALF_LENGTHS:
            for dtype in (torch.bfloat16, torch.float16):
                cases_of_shape += [_l2(v.to(dtype), 0.7 * length**0.5), _linf(v.to(dtype), 0.7)]
    return cases_of_shape


def _l2(v: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_l2_ball, v, radius),
        "native, out=": partial(project_l2_ball, v, radius, out=torch.empty_like(v)),
        "v*(radius/norm).clamp(max=1)": lambda: v * (radius / v.norm(dim=1, keepdim=True)).clamp(max=1),
    }
    if v.numel() <= _REFERENCE_ELEMENTS:
        variants["reference, float64"] = partial(reference.project_l2_ball, v, radius)
    return _case("l2_ball", v, radius, variants)


def _linf(v: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_linf_ball, v, radius),
        "native, out=": partial(project_linf_ball, v, radius, out=torch.empty_like(v)),
        "v.clamp(-radius, radius)": partial(v.clamp, -radius, radius),
        "native, a radius per row": partial(project_linf_ball, v, torch.full((len(v),), radius, device=v.device)),
    }
    if v.numel() <= _REFERENCE_ELEMENTS:
        variants["reference, float64"] = partial(reference.project_linf_ball, v, radius)
    return _case("linf_ball", v, radius, variants)


def _case(kind: str, v: Tensor, radius: float, variants: dict[str, Call]) -> Case:
    variants["clone of the same bytes"] = v.clone
    half = f" {str(v.dtype).removeprefix('torch.')}" if v.element_size() == 2 else ""
    moved = {"bytes_moved": 2 * v.nbytes}
    return Case(f"project_{kind} {tuple(v.shape)}{half}, radius {radius:.3g}", variants, moved)
