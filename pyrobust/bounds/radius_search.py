"""Search for the certified radii of a batch of examples, with a bracket for each example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Largest gap between the proved and the failed radius, relative to the scale of radii.
RESOLUTION = 2.0**-20
#: Largest radius of a search without a limit: centers and radii below it have finite sums.
LARGEST_RADIUS = 2.0**960
_MAX_ROUNDS = 100


def search_radius(
    smallest_margin: Callable[[Tensor, Tensor], Tensor],
    largest: Tensor,
    scale: Tensor,
    goes_on: Callable[[], bool] = lambda: True,
) -> Tensor:
    """Return the largest tried radius with a positive margin for each example, at most ``largest``, as float64 [count].

    The radius is 0 where no margin was positive. ``smallest_margin`` maps indices [M] and radii [M] to margins [M]; a
    margin that is NaN or not positive means "not proved". ``scale``, at most ``largest``, is the expected size of
    radii. The search for a radius ends when the width of its bracket is at most ``RESOLUTION`` times the larger of the
    scale and the radius. All searches end early when ``goes_on`` returns False.

    The search looks for the radius at which the margin vanishes. The loss at a radius is the margin at radius 0 minus
    the margin at the radius. The loss grows like a power of the radius whose exponent grows, too. For example, the
    margin may be 9 at radius 0, 0 at a radius r, and -500 at 4r. The search therefore takes the secant through both
    ends of the bracket, in logarithmic coordinates of radius and loss. The weight of an end that does not move is
    halved (the Illinois method; Dowell and Jarratt, 1971). Every step keeps a distance of half the resolution from both
    ends of the bracket. If the radius sought is closer to an end than that, the step passes it, so that the other end
    moves, too.
    """
    count = len(largest)
    proved = torch.zeros(count, dtype=torch.float64, device="cpu")
    every = torch.arange(count, device="cpu")
    if count == 0:
        return proved
    at_zero = _usable(smallest_margin(every, proved))
    active = every[at_zero > 0]
    active = active[largest[active] > 0]
    if len(active) == 0:
        return proved
    failed = torch.full((count,), torch.inf, dtype=torch.float64, device="cpu")
    # log(margin at 0 / loss of margin) at the ends, perhaps halved: positive where proved, negative where failed
    above, below = torch.full_like(at_zero, torch.inf), torch.full_like(at_zero, -torch.inf)
    last = torch.zeros(count, dtype=torch.int8, device="cpu")  # the end of the bracket that the last probe replaced
    slow = torch.zeros(count, dtype=torch.int8, device="cpu")  # number of steps with the secant's root near an end
    exponent = torch.ones(count, dtype=torch.float64, device="cpu")  # exponent of the radius in the loss of margin
    # The first probes grow fast until one fails: most radii are small compared to the range.
    probe = scale / 64
    for _ in range(_MAX_ROUNDS):
        epsilon = probe[active].minimum(largest[active])
        value = _usable(smallest_margin(active, epsilon))
        height = _height(at_zero[active], value)
        good = value > 0
        up, down = active[good], active[~good]
        steeper = (above[up] - height[good]) / (epsilon[good] / proved[up]).log()  # NaN or inf from radius 0 on
        exponent[up] = torch.where(steeper.isfinite(), steeper, exponent[up])
        above[down] = torch.where(last[down] == -1, above[down] / 2, above[down])
        below[up] = torch.where(last[up] == 1, below[up] / 2, below[up])
        proved[up], above[up], last[up] = epsilon[good], height[good], 1
        failed[down], below[down], last[down] = epsilon[~good], height[~good], -1
        tolerance = RESOLUTION * scale.maximum(proved)
        active = active[(proved[active] < largest[active]) & (failed[active] - proved[active] > tolerance[active])]
        if len(active) == 0 or not goes_on():
            break
        ends = proved[active], failed[active], above[active], below[active]
        step = tolerance[active] / 2
        root = torch.where(slow[active] > 1, _middle(*ends[:2]), _secant_root(*ends))
        slow[active] += (root - ends[0] < step) | (ends[1] - root < step)
        root = root.maximum(ends[0] + step).minimum(ends[1] - step)
        # Before any failure, go to where the margin vanishes if the exponent grows by one on the way. A loss that no
        # longer grows does not tell where that is. Beyond the scale, steps grow, so that a few suffice to reach the
        # largest float.
        factor = (above[active] / (exponent[active].clamp(min=1) + 1)).exp().clamp(min=1.25)
        limit = (proved[active] / scale[active]).clamp(min=16)
        further = proved[active] * torch.where(exponent[active] < 0.5, limit, factor.minimum(limit))
        probe[active] = torch.where(failed[active].isinf(), further.minimum(largest[active]), root)
    return proved


def _height(at_zero: Tensor, value: Tensor) -> Tensor:
    """Return log(at_zero / (at_zero − value)), whose sign is value's; +inf if value ≥ at_zero or the result is NaN."""
    return (
        -((at_zero - value).clamp(min=0) / at_zero)
        .log()
        .nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    )


def _usable(margin: Tensor) -> Tensor:
    """Return the margins with NaN replaced by −inf, which counts as a failure."""
    return margin.double().masked_fill(margin.isnan(), -torch.inf)


def _secant_root(proved: Tensor, failed: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Estimate the radius at which the margin vanishes; if an end gives no estimate, take the bracket's middle."""
    share = above / (above - below)  # share of the way between the logarithms
    # From radius 0, which has no logarithm, interpolate as if the margin fell linearly.
    root = torch.where(proved == 0, failed * below.exp(), proved * (failed / proved) ** share)
    return torch.where(below.isfinite() & ((proved == 0) | above.isfinite()), root, _middle(proved, failed))


def _middle(proved: Tensor, failed: Tensor) -> Tensor:
    """Return the middle of the bracket; in a wide bracket, the geometric mean of its ends."""
    return torch.where((proved > 0) & (failed > 16 * proved), proved.sqrt() * failed.sqrt(), (proved + failed) / 2)
