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

    What the margin loses on the way from radius 0 grows like a power of the radius, with an exponent that itself grows:
    a margin of 9 may be -500 at four times its root. The root is therefore approached by the secant through both ends
    of the bracket in the logarithms of radius and loss, with the weight of an end that stays halved (the Illinois
    method; Dowell and Jarratt, 1971). Once a step would end within the resolution of an end, it is moved to half of the
    resolution beyond the root, so that the bracket closes from the other side.

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
    # log(margin at 0 / what is lost) at the ends, perhaps halved: positive where proved, negative where not
    above, below = torch.full_like(at_zero, torch.inf), torch.full_like(at_zero, -torch.inf)
    last = torch.zeros(count, dtype=torch.int8, device="cpu")  # which end the last probe replaced
    exponent = torch.ones(count, dtype=torch.float64, device="cpu")  # of the radius, in what is lost
    # The first probes grow fast until one fails: most radii are small against the range.
    probe = torch.full((count,), largest / 64, dtype=torch.float64, device="cpu")
    for _ in range(_MAX_ROUNDS):
        epsilon = probe[left].clamp(max=largest)
        value = _usable(least_margin(left, epsilon))
        height = _height(at_zero[left], value)
        good = value > 0
        up, down = left[good], left[~good]
        steeper = (above[up] - height[good]) / (epsilon[good] / proved[up]).log()  # NaN or inf from radius 0 on
        exponent[up] = torch.where(steeper.isfinite(), steeper, exponent[up]).clamp(min=1)
        above[down] = torch.where(last[down] == -1, above[down] / 2, above[down])
        below[up] = torch.where(last[up] == 1, below[up] / 2, below[up])
        proved[up], above[up], last[up] = epsilon[good], height[good], 1
        failed[down], below[down], last[down] = epsilon[~good], height[~good], -1
        left = left[(proved[left] < largest) & (failed[left] - proved[left] > tolerance)]
        if len(left) == 0:
            break
        root = _root(proved[left], failed[left], above[left], below[left], tolerance)
        # As long as nothing has failed: to where the margin is lost if the exponent grows by one on the way.
        further = proved[left] * (above[left] / (exponent[left] + 1)).exp().clamp(1.25, 16)
        probe[left] = torch.where(failed[left].isinf(), further.clamp(max=largest), root)
    return proved


def _height(at_zero: Tensor, value: Tensor) -> Tensor:
    """log(at_zero / (at_zero − value)), of the sign of value; +inf where nothing is lost, or nothing known."""
    return (
        -((at_zero - value).clamp(min=0) / at_zero)
        .log()
        .nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    )


def _usable(margin: Tensor) -> Tensor:
    """NaN is a failure like any other."""
    return margin.double().masked_fill(margin.isnan(), -torch.inf)


def _root(proved: Tensor, failed: Tensor, above: Tensor, below: Tensor, tolerance: float) -> Tensor:
    """Where the margin seems to vanish, strictly inside the bracket."""
    share = above / (above - below)  # of the way between the logarithms; NaN or 0 where an end is infinite
    root = proved * (failed / proved) ** share
    # From radius 0, where there is no logarithm, as if the margin fell evenly; in the middle where nothing is known.
    root = torch.where(proved == 0, failed * below.exp(), root)
    root = torch.where((root > proved) & (root < failed), root, (proved + failed) / 2)
    least = tolerance / 2
    root = torch.where(root - proved < least, proved + least, root)
    return torch.where(failed - root < least, failed - least, root)
