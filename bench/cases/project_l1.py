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
from torch import Tensor

from pyrobust import reference
from pyrobust.microbench.projections import HALVINGS, box_by_bisection, by_sort, on_magnitudes
from pyrobust.microbench.timing import Call, Case
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
        "batched torch sort": partial(on_magnitudes, by_sort, v, radius),
        "batched numpy sort": partial(_numpy_on_magnitudes, v, radius),
        f"torch bisection, {HALVINGS} halvings": partial(on_magnitudes, _bisection, v, radius),
    }
    if len(v) <= _LOOP_ROWS:
        variants["row loop over numpy sort"] = partial(on_magnitudes, _row_loop, v, radius)
    return _case("l1_ball", v, radius, variants, (v,), reference.project_l1_ball)


def _simplex(v: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_simplex, v, radius),
        "batched torch sort": partial(by_sort, v, radius),
        "batched numpy sort": partial(_numpy_sort, v, radius),
        f"torch bisection, {HALVINGS} halvings": partial(_bisection, v, radius),
    }
    if len(v) <= _LOOP_ROWS:
        variants["row loop over numpy sort"] = partial(_row_loop, v, radius)
    return _case("simplex", v, radius, variants, (v,), reference.project_simplex)


def _l1_ball_box(delta: Tensor, x: Tensor, radius: float) -> Case:
    variants: dict[str, Call] = {
        "native": partial(project_l1_ball_box, delta, x, radius, 0.0, 1.0),
        f"torch bisection, {HALVINGS} halvings": partial(box_by_bisection, delta, x, radius),
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
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = (v - middle).clamp_(min=0).sum(1, keepdim=True) > radius
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (v - high).clamp_(min=0)


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
