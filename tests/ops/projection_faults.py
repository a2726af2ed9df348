"""The guarantees of the five projections, on any device: arguments of every kind, and the rows that break one."""

from __future__ import annotations

import math
from typing import Any

import torch
from projection_inputs import (
    box_holds,
    examples,
    inward,
    l1_holds,
    l2_holds,
    rows_of,
    shrinks,
    simplex_holds,
    smallest,
    tolerance,
)
from torch import Tensor

from pyrobust import ops, reference

ROWS = 12
# The usual box; a box whose ends are not float32 numbers; a small box; a point.
BOXES = [(0.0, 1.0), (-0.1, 0.3), (0.0, 1e-3), (0.5, 0.5)]
ORDER = {"project_l2_ball": 2.0, "project_linf_ball": math.inf}
Arguments = tuple[Any, ...]  # (v, radius), or (delta, x, radius, lower, upper) of the box


def arguments(
    op: str, kind: str, size: int, dtype: torch.dtype, rows: int = ROWS, box: tuple[float, float] = BOXES[0]
) -> Arguments:
    """Return what the op takes, with the l1 radii scaled to its norm."""
    v, radius = rows_of(kind, rows, size, dtype)
    if op == "project_l1_ball_box":
        return v, examples((rows, size), dtype, *box, seed=size), radius, *box
    if op in ORDER and kind in ("sphere", "sums that round"):
        radius = torch.linalg.vector_norm(v.double(), ORDER[op], dim=1)
    elif op in ORDER and kind in ("normal", "alternating", "signed zeros", "equal"):
        radius = radius / (math.sqrt(size) if op == "project_l2_ball" else size)
    return v, radius


def run(op: str, given: Arguments, module: Any = ops) -> Tensor:
    z: Tensor = getattr(module, op)(*given)
    return z


def wide(given: Arguments) -> Arguments:
    return tuple(value.double() if isinstance(value, Tensor) else value for value in given)


def faults(
    op: str, given: Arguments, z: Tensor, want: Tensor | None = None, lost_steps: float = 0.0
) -> dict[str, Tensor]:
    """Return for each guarantee of the op the rows of z that break it: bool [rows]; want is the expected result."""
    v, radius = given[0], given[2 if op == "project_l1_ball_box" else 1]
    if want is None:
        want = nearest_inside(v, radius) if op == "project_linf_ball" else run(op, wide(given), reference)
    off = z.double() - want.double()
    bound = tolerance(radius, v.shape[1], v.dtype) + lost_steps * smallest(v.dtype)
    far = off.abs().sum(1) > bound
    if op == "project_simplex":
        return {"far": far, "off the simplex": ~simplex_holds(z, radius)}
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[v.element_size()]
    changed = (z.view(integer) != v.view(integer)).any(1)
    if op == "project_l2_ball":
        far = (off / bound[:, None]).square().sum(1) > 1 + 1e-9  # unscaled, the squares may underflow
        inside, holds = l2_holds(v, radius), l2_holds(z, radius)
    elif op == "project_linf_ball":
        far = (off != 0).any(1)
        inside, holds = ((a.double().abs() <= radius[:, None]).all(1) for a in (v, z))
    else:
        inside, holds = l1_holds(v, radius), l1_holds(z, radius)
    flags = {"far": far, "outside": ~holds, "grown": ~shrinks(z, v)}
    if op == "project_l2_ball" and v.dtype in (torch.float32, torch.float64):
        length = (z.double() / radius[:, None]).square().sum(1).sqrt()
        flags["short"] = ~inside & (length < 1 - 2.0**-21 - v.shape[1] * smallest(v.dtype) / radius)
    if op == "project_l1_ball_box":
        _, x, _, *box = given
        flags["outside the box"] = ~box_holds(x, z, *box)
        inside, changed = inside & box_holds(x, v, *box), (z != v).any(1)
    return flags | {"changed inside": inside & changed, "unchanged outside": ~inside & ~changed}


def nearest_inside(v: Tensor, radius: Tensor) -> Tensor:
    """Clip to the largest number of the dtype that is not above the radius."""
    bound = torch.tensor([inward(value, v.dtype, 1) for value in radius.tolist()], dtype=v.dtype)[:, None]
    return v.maximum(-bound).minimum(bound)


def check(op: str, given: Arguments, z: Tensor, want: Tensor | None = None, lost_steps: float = 0.0) -> None:
    assert z.dtype == given[0].dtype
    assert z.shape == given[0].shape
    flags = faults(op, given, z, want, lost_steps)
    broken = {name: rows.nonzero()[:, 0].tolist() for name, rows in flags.items() if rows.any()}
    assert not broken, (op, z.dtype, tuple(z.shape), given[3:])


def check_on(device: torch.device, op: str, given: Arguments, want: Tensor | None = None) -> None:
    """Run on a GPU, where in float16 the threads of a row do not pass rounding losses on to each other."""
    z = run(op, tuple(value.to(device) if isinstance(value, Tensor) else value for value in given)).cpu()
    check(op, given, z, want, lost_steps=z.shape[1] if z.dtype == torch.float16 else 0)
