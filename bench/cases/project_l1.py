"""The l1 projections against sorting by torch and by numpy, bisection, row loops, the peers and the floor.

Work: each input is read once and the projection written once, 4 bytes per element each. The floor is a clone: one input
read, one output written. Sort-based methods also need D log D operations and several passes over sorted copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import peers
import torch
from timing import Call, Case
from torch import Tensor

from pyrobust import reference
from pyrobust.ops import project_l1_ball, project_l1_ball_box, project_simplex

# (rows, D), scale of the normal inputs, radius: CIFAR images, ImageNet images, logits, one row of logits.
_SETTINGS = (
    ((1000, 3072), 0.1, 12.0),
    ((64, 150_528), 0.1, 60.0),
    ((100_000, 10), 1.0, 1.0),
    ((1, 10), 1.0, 1.0),
)
# 1000 rows leave a large card idle.
_CUDA_ROWS = 16_000
_HALVINGS = 60
# A loop over more rows, or the float64 oracle on more elements, takes many seconds per call and adds no information.
_LOOP_ROWS, _REFERENCE_ELEMENTS = 1000, 4_000_000


def cases(device: torch.device) -> list[Case]:
    cases_of_setting = []
    for (rows, length), scale, radius in _SETTINGS:
        if device.type == "cuda" and rows == 1000:
            rows = _CUDA_ROWS
        generator = torch.Generator(device).manual_seed(0)
        v = torch.randn(rows, length, device=device, generator=generator) * scale
        x = torch.rand(rows, length, device=device, generator=generator)
        cases_of_setting += [_l1_ball(v, radius), _l1_ball_box(v, x, radius), _simplex(v, radius)]
    return cases_of_setting


def _l1_ball(v: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_l1_ball, v, radius),
        "batched torch sort": partial(_on_magnitudes, _sort, v, radius),
        "batched numpy sort": partial(_numpy_on_magnitudes, v, radius),
        f"torch bisection, {_HALVINGS} halvings": partial(_on_magnitudes, _bisection, v, radius),
    }
    if len(v) <= _LOOP_ROWS:
        variants["row loop over numpy sort"] = partial(_on_magnitudes, _row_loop, v, radius)
    return _case("l1_ball", v, radius, variants, (v,), reference.project_l1_ball)


def _simplex(v: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_simplex, v, radius),
        "batched torch sort": partial(_sort, v, radius),
        "batched numpy sort": partial(_numpy_sort, v, radius),
        f"torch bisection, {_HALVINGS} halvings": partial(_bisection, v, radius),
    }
    if len(v) <= _LOOP_ROWS:
        variants["row loop over numpy sort"] = partial(_row_loop, v, radius)
    return _case("simplex", v, radius, variants, (v,), reference.project_simplex)


def _l1_ball_box(delta: Tensor, x: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_l1_ball_box, delta, x, radius, 0.0, 1.0),
        f"torch bisection, {_HALVINGS} halvings": partial(_box_bisection, delta, x, radius),
    }
    return _case("l1_ball_box", delta, radius, variants, (delta, x), reference.project_l1_ball_box)


def _case(
    kind: str,
    v: Tensor,
    radius: float,
    variants: dict[str, Call],
    inputs: tuple[Tensor, ...],
    oracle: Callable[..., Tensor],
) -> Case:
    if v.numel() <= _REFERENCE_ELEMENTS:
        variants["reference, float64"] = partial(oracle, *inputs, radius)
    for peer in peers.installed():
        if kind in peer.projections:
            variants[peer.name] = partial(peer.projections[kind], *inputs, radius)
    variants["clone of the same bytes"] = v.clone
    moved = 4 * v.numel() * (len(inputs) + 1)
    return Case(f"project_{kind} {tuple(v.shape)}, radius {radius:g}", variants, {"bytes_moved": moved})


def _on_magnitudes(simplex: Callable[[Tensor, float], Tensor], v: Tensor, radius: float) -> Tensor:
    """Project onto the l1 ball through the simplex (Duchi et al. 2008)."""
    size = v.abs()
    outside = size.sum(1, keepdim=True) > radius
    return torch.where(outside, simplex(size, radius).copysign(v), v)


def _sort(v: Tensor, radius: float) -> Tensor:
    """Project by sort, cumulative sum and the largest valid support size (Held, Wolfe and Crowder 1974)."""
    ordered = v.sort(1, descending=True).values
    theta = (ordered.cumsum(1) - radius) / torch.arange(1, v.shape[1] + 1, device=v.device)
    support = (ordered > theta).sum(1, keepdim=True)
    return (v - theta.gather(1, support - 1)).clamp_(min=0)


def _numpy_sort(v: Tensor, radius: float) -> Tensor:
    """The same in numpy, whose sort is several times as fast as torch's on one core."""
    return torch.from_numpy(_sorted_rows(v.cpu().numpy(), radius)).to(v.device)


def _numpy_on_magnitudes(v: Tensor, radius: float) -> Tensor:
    rows = v.cpu().numpy()
    size = np.abs(rows)
    outside = size.sum(1, keepdims=True) > radius
    return torch.from_numpy(np.where(outside, np.copysign(_sorted_rows(size, radius), rows), rows)).to(v.device)


def _sorted_rows(rows: np.ndarray, radius: float) -> np.ndarray:
    ordered = np.sort(rows, 1)[:, ::-1]
    theta = (ordered.cumsum(1) - radius) / np.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    support = np.count_nonzero(ordered > theta, axis=1, keepdims=True)
    return np.maximum(rows - np.take_along_axis(theta, support - 1, 1), 0)


def _bisection(v: Tensor, radius: float) -> Tensor:
    """Halve the bracket [max - radius, max] of the threshold."""
    high = v.amax(1, keepdim=True)
    low = high - radius
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = (v - middle).clamp_(min=0).sum(1, keepdim=True) > radius
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (v - high).clamp_(min=0)


def _box_bisection(delta: Tensor, x: Tensor, radius: float) -> Tensor:
    size, room = delta.abs(), torch.where(delta > 0, 1 - x, x)
    high = size.amax(1, keepdim=True)
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = torch.minimum((size - middle).clamp_(min=0), room).sum(1, keepdim=True) > radius
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    inside = torch.minimum(size, room).sum(1, keepdim=True) <= radius
    theta = torch.where(inside, 0, high)
    return torch.minimum((size - theta).clamp_(min=0), room).copysign(delta)


def _row_loop(v: Tensor, radius: float) -> Tensor:
    """Project one row at a time in numpy, as usual scripts do."""
    rows = v.cpu().numpy()
    out = np.empty_like(rows)
    counts = np.arange(1, rows.shape[1] + 1)
    for i, row in enumerate(rows):
        ordered = np.sort(row)[::-1]
        theta = (np.cumsum(ordered) - radius) / counts
        out[i] = np.maximum(row - theta[np.count_nonzero(ordered > theta) - 1], 0)
    return torch.from_numpy(out).to(v.device)
