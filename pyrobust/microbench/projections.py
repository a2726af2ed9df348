"""Benchmarks of projections onto norm balls and the simplex, which take at least the time of a clone.

A clone reads and writes each element once. The PyTorch code that the ops are compared with is taken from common
scripts. This code rounds to nearest, so about half of the rows that it projects onto the l2 ball lie outside the ball.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from pyrobust.microbench.timing import Call, Case, compare
from pyrobust.ops import project_l1_ball, project_l1_ball_box, project_l2_ball, project_linf_ball, project_simplex

HALVINGS = 60


def cases(device: torch.device) -> Iterator[Case]:
    """Yield the cases: first one row, then a batch of images."""
    for rows, length in ((1, 3072), (256, 3072)):
        generator = torch.Generator(device).manual_seed(0)
        v = torch.randn(rows, length, device=device, generator=generator) * 0.1
        x = torch.rand(rows, length, device=device, generator=generator)
        radius = 12.0
        on_ball = partial(on_magnitudes, by_sort, v, radius)
        yield _case("simplex", v, "sort", partial(project_simplex, v, radius), partial(by_sort, v, radius))
        yield _case("l1_ball", v, "sort of the magnitudes", partial(project_l1_ball, v, radius), on_ball)
        box = partial(project_l1_ball_box, v, x, radius, 0.0, 1.0)
        yield _case("l1_ball_box", v, f"{HALVINGS} halvings", box, partial(box_by_bisection, v, x, radius))
        l2 = "v * (radius / norm).clamp(max=1)"
        yield _case("l2_ball", v, l2, partial(project_l2_ball, v, 4.0), partial(scaled, v, 4.0))
        yield _case("linf_ball", v, "v.clamp", partial(project_linf_ball, v, 0.07), partial(v.clamp, -0.07, 0.07))


def _case(kind: str, v: Tensor, plain: str, native: Call, by_hand: Call) -> Case:
    name = f"project_{kind} {'x'.join(map(str, v.shape))}"
    return compare(name, native, (plain, by_hand), ("clone", v.clone), bytes_moved=8 * v.numel())


def on_magnitudes(simplex: Callable[[Tensor, float], Tensor], v: Tensor, radius: float) -> Tensor:
    """Project rows onto the l1 ball by projecting their magnitudes onto the simplex (Duchi et al., 2008)."""
    size = v.abs()
    outside = size.sum(1, keepdim=True) > radius
    return torch.where(outside, simplex(size, radius).copysign(v), v)


def by_sort(v: Tensor, radius: float) -> Tensor:
    """Project rows onto the simplex by subtracting a threshold, found by sorting (Held et al., 1974)."""
    ordered = v.sort(1, descending=True).values
    theta = (ordered.cumsum(1) - radius) / torch.arange(1, v.shape[1] + 1, device=v.device)
    support = (ordered > theta).sum(1, keepdim=True)
    return (v - theta.gather(1, support - 1)).clamp_(min=0)


def box_by_bisection(delta: Tensor, x: Tensor, radius: float) -> Tensor:
    """Project delta onto those changes of x in the l1 ball that keep x in [0, 1], by bisection."""
    size, room = delta.abs(), torch.where(delta > 0, 1 - x, x)
    high = size.amax(1, keepdim=True)
    low = torch.zeros_like(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = torch.minimum((size - middle).clamp_(min=0), room).sum(1, keepdim=True) > radius
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    inside = torch.minimum(size, room).sum(1, keepdim=True) <= radius
    theta = torch.where(inside, 0, high)
    return torch.minimum((size - theta).clamp_(min=0), room).copysign(delta)


def scaled(v: Tensor, radius: float) -> Tensor:
    """Scale the rows outside the l2 ball onto its surface."""
    factor: Tensor = (radius / v.norm(dim=1, keepdim=True)).clamp(max=1)
    return v * factor
