"""Find out from a model's outputs alone whether they change smoothly, in jumps, or not at all."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .subject import ExaminedModel

Cause: TypeAlias = Literal["constant", "piecewise constant", "discontinuous", "replaced"]

# Number of halvings of a segment, after which a continuous change is down to 2^-14 of the whole, times the ratio of the
# largest slope to the mean slope; and the share of the change that counts as a jump if it then remains.
_HALVINGS = 14
_JUMP = 0.005
# Lengths of short moves, as shares of the ball's radius.
_MOVES = (2.0**-6, 2.0**-9, 2.0**-12)


def find_cause_of_gradient(subject: ExaminedModel) -> Cause:
    """Explain a gradient that is missing, zero or wrong.

    - "constant": the outputs are the same at all points tried, also at the ends of the clip range.
    - "piecewise constant": for most changes of x far below epsilon, the logits stay bitwise equal.
    - "discontinuous": for more than half of the examples, a segment contains a jump. The segment is halved repeatedly,
      and the half with the larger change is kept; the change does not shrink with the length of the segment.
    - "replaced": none of these. The outputs change smoothly, but the backward pass does not return their derivative.
    """
    x = subject.x
    corner = subject.corner(x)
    far = subject.corner(x, subject.norm.diameter(x[0].numel(), subject.upper - subject.lower))
    start_logits, end_logits = subject.logits(x), subject.logits(corner)
    if torch.equal(start_logits, end_logits) and torch.equal(start_logits, subject.logits(far)):
        return "constant"
    for share in _MOVES:
        # Random points, neither on a grid that the images lie on nor all at one distance from it.
        fraction = torch.rand(x.shape, generator=subject.generator, dtype=torch.float32).to(x)
        middle = x + (corner - x) * fraction * (1 - share)  # the move ends between x and end, in the clip range
        logits = subject.logits(middle.clamp(subject.lower, subject.upper))
        moved = subject.logits((middle + (corner - x) * share).clamp(subject.lower, subject.upper))
        if float((moved == logits).all(1).double().mean()) > 0.5:
            return "piecewise constant"
    return "discontinuous" if _jumps(subject, x, corner) else "replaced"


def _jumps(subject: ExaminedModel, x: Tensor, corner: Tensor) -> bool:
    """Whether most segments contain a jump, that is, a change that does not shrink when the segment is halved."""
    low, high = x, corner
    low_logits, high_logits = subject.logits(low), subject.logits(high)
    total = (high_logits - low_logits).double().abs().amax(1)
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        logits = subject.logits(middle)
        first = (logits - low_logits).double().abs().amax(1) >= (high_logits - logits).double().abs().amax(1)
        total = torch.maximum(total, (logits - low_logits).double().abs().amax(1))
        rows = first.to(x.device).view(-1, *[1] * (x.dim() - 1))
        low, high = low.where(rows, middle), middle.where(rows, high)
        low_logits = low_logits.where(first[:, None], logits)
        high_logits = logits.where(first[:, None], high_logits)
    last = (high_logits - low_logits).double().abs().amax(1)
    changing = total > 0
    return bool(changing.any()) and float((last > _JUMP * total)[changing].double().mean()) > 0.5
