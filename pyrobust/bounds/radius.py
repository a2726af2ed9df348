"""The search for certified radii: a bracket for each example, all of them in one batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: How close the smallest failed radius comes to the largest proved one, relative to the range.
RESOLUTION = 2.0**-20
_MAX_ROUNDS = 100


def search_radius(least_margin: Callable[[Tensor, Tensor], Tensor], count: int, largest: float) -> Tensor:
    """The largest radii in [0, largest] for which the margin was seen to be positive; 0 where it never was.

    The margin's root is approached by the secant through both ends of the bracket, with the weight of an end that stays
    halved (the Illinois method; Dowell and Jarratt, 1971). Once a step would end within the resolution of an end, it is
    moved to half of the resolution beyond the root, so that the bracket closes from the other side.

    Args:
        least_margin: (indices [M], radii [M]) → margins [M], float64; not positive, or NaN, for "not proved".
        count: examples.
        largest: the end of the range.

    Returns:
        float64 [count].
    """
    proved = torch.zeros(count, dtype=torch.float64, device="cpu")
    every = torch.arange(count, device="cpu")
    if count == 0:
        return proved
    at_zero = _usable(least_margin(every, proved))
    left = every[at_zero > 0]
    if len(left) == 0 or largest == 0:
        return proved
    tolerance = RESOLUTION * largest
    failed = torch.full((count,), torch.inf, dtype=torch.float64, device="cpu")
    above, below = at_zero.clone(), torch.full_like(at_zero, -torch.inf)  # the margins at the ends, perhaps halved
    last = torch.zeros(count, dtype=torch.int8, device="cpu")  # which end the last probe replaced
    # The first probes grow fast until one fails: most radii are small against the range.
    probe = torch.full((count,), largest / 64, dtype=torch.float64, device="cpu")
    for _ in range(_MAX_ROUNDS):
        epsilon = probe[left].clamp(max=largest)
        value = _usable(least_margin(left, epsilon))
        good = value > 0
        up, down = left[good], left[~good]
        above[down] = torch.where(last[down] == -1, above[down] / 2, above[down])
        below[up] = torch.where(last[up] == 1, below[up] / 2, below[up])
        proved[up], above[up], last[up] = epsilon[good], value[good], 1
        failed[down], below[down], last[down] = epsilon[~good], value[~good], -1
        left = left[(proved[left] < largest) & (failed[left] - proved[left] > tolerance)]
        if len(left) == 0:
            break
        probe[left] = _next(proved[left], failed[left], above[left], below[left], tolerance, largest)
    return proved


def _usable(margin: Tensor) -> Tensor:
    """NaN is a failure like any other."""
    return margin.double().masked_fill(margin.isnan(), -torch.inf)


def _next(proved: Tensor, failed: Tensor, above: Tensor, below: Tensor, tolerance: float, largest: float) -> Tensor:
    """The next radius to try, strictly inside the bracket."""
    growing = failed.isinf()
    end = torch.where(growing, largest, failed)
    share = above / (above - below)  # of the bracket; NaN or 0 where the failed end is infinite
    usable = share.isfinite() & (share > 0) & (share < 1)
    root = proved + torch.where(usable, share, 0.5) * (end - proved)
    half = tolerance / 2
    root = torch.where(root - proved < half, proved + half, root)
    root = torch.where(end - root < half, end - half, root)
    return torch.where(growing, (proved * 4).clamp(max=largest), root)
