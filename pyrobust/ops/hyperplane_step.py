"""The smallest step onto a hyperplane within a box."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.checks import NORMS, choice
from pyrobust.errors import InputError

from . import native
from .rows import box, check_alike, check_float
from .transforms import refuse_tangents


def hyperplane_step(
    x: Tensor, at: Tensor, w: Tensor, value: Tensor, norm: str, lower: float = 0.0, upper: float = 1.0
) -> Tensor:
    """Find the smallest step from each point onto a hyperplane, within a box.

    The step d is the ``argmin ‖d‖ₚ`` subject to ``value + w·(x + d - at) = 0`` and ``lower ≤ x + d ≤ upper`` (Croce and
    Hein, 2020, "Minimally distorted Adversarial Examples …", equation 5). The gap is ``w·(at - x) - value``, which w·d
    must equal. Each coordinate moves by some mᵢ ≥ 0 in the direction that closes the gap, and so reduces the gap by
    |wᵢ|·mᵢ. The room rᵢ of a coordinate is its distance from the face of the box in that direction.

    - linf and l2: mᵢ = min(rᵢ, t) for linf, and mᵢ = min(rᵢ, t·|wᵢ|) for l2, with the t for which the reductions add up
      to the gap;
    - l1: in order of decreasing |wᵢ|, coordinates move to the face until the gap is closed. If several coordinates have
      the |wᵢ| at which this happens, all of them move by the same share of their room.

    If the hyperplane does not intersect the box, the gap cannot be closed, and every coordinate with wᵢ ≠ 0 moves by
    its whole room rᵢ. The step is computed in float64 and rounded to nearest. A coordinate of w that is not finite
    counts as zero, and so does a gap of NaN.

    Args:
        x: [B, D], or [S, B, D] for S points per hyperplane; float32, float64, bfloat16 or float16, in the box.
        at: [B, D], same dtype as x: the point where the function was linearized.
        w: [B, D], same dtype as x: the function's gradient at that point.
        value: [B], float: the function's value at that point.
        norm: "linf", "l2" or "l1".
        lower: lower end of the box in every coordinate.
        upper: upper end of the box in every coordinate.

    Returns:
        The steps d, in x's shape and dtype. The op has no gradient.

    Raises:
        InputError: mismatched shapes or devices, or another norm.
        InputTypeError: an unsupported dtype.

    >>> x, w = torch.tensor([[0.5, 0.75]]), torch.tensor([[1.0, 2.0]])
    >>> hyperplane_step(x, x, w, torch.tensor([-1.0]), "linf")  # the second coordinate stops at its face
    tensor([[0.5000, 0.2500]])
    """
    op = "hyperplane_step"
    check_float(op, "x", x)
    check_float(op, "w", w)
    check_float(op, "at", at)
    check_float(op, "value", value)
    check_alike(op, "at", at, w)
    if w.dim() != 2 or x.shape[-2:] != w.shape or x.dim() > 3:
        raise InputError(f"{op}: x, w", "[B, D] or [S, B, D], and [B, D]", f"{tuple(x.shape)} and {tuple(w.shape)}")
    check_alike(op, "w", w, x if x.dim() == 2 else x[0] if len(x) else x.new_empty(w.shape))
    if value.shape != w.shape[:1] or value.device != w.device:
        raise InputError(f"{op}: value", f"shape ({len(w)},) on {w.device}", f"{tuple(value.shape)} on {value.device}")
    choice(f"{op}: norm", norm, NORMS)
    lower, upper = box(op, lower, upper)
    refuse_tangents(op, x, at, w, value)
    rows = x.detach().reshape(-1, w.shape[1]).contiguous()
    plane = at.detach().contiguous(), w.detach().contiguous(), value.detach().double().contiguous()
    return native.call(_STEP, rows, *plane, NORMS.index(norm), lower, upper).view(x.shape)


_STEP: Callable[..., Tensor] = torch.ops.pyrobust.hyperplane_step

native.fake("hyperplane_step", like=0)
