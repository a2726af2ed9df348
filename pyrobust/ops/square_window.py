"""A proposal of the Square attack: change one window of an image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.checks import choice
from pyrobust.errors import InputError, InputTypeError

from . import native
from .rows import box, check_alike, check_float, nhwc, radii
from .transforms import refuse_tangents


def square_window(
    best: Tensor,
    x: Tensor,
    u: Tensor,
    patterns: Tensor,
    radius: float | Tensor,
    sides: tuple[int, int],
    norm: str,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Move the perturbation budget of two windows of each image into the first window, and add a pattern there.

    This is one proposal of the Square attack (Andriushchenko et al., 2020, algorithm 3; Croce and Hein, 2021, for l1).
    Let δ = best - x, and let the size of δ be the sum of δ² (l2) or of abs(δ) (l1). The budget of a channel is the size
    of δ in the two windows, plus the image's unused budget divided by the number of channels. The unused budget is
    radius² (l2) or radius (l1), minus the size of δ in the whole image. In each channel of the first window, the
    pattern (with a random sign) is added to the old δ / ‖δ‖ of that window. The sum, scaled so that its size is the
    budget, is the new δ. In the second window, the new δ is 0. In l2 the window is clipped to the box, and the elements
    that were not clipped are scaled up to use the rest of the budget. In l1 each budget is multiplied by the number of
    channels. δ may then be larger than the radius allows; a later projection takes the excess from the rest of the
    image. All computations are in float64.

    Args:
        best: the best images so far, same shape and dtype as x.
        x: [B, C, H, W], contiguous or channels_last, float32, float64, bfloat16 or float16, with all values in the box.
            If the shape [B, ...] is another one, each example is treated as an image of one row and one channel.
        u: [B, 5 + C], same dtype as x, random numbers on [-1, 1]. The first two choose the row and column of the first
            window, the next two choose the row and column of the second window, the fifth chooses the pattern, and the
            last C choose the sign in each channel.
        patterns: [2, h·w], float64, two patterns of norm 1.
        radius: of the ball, a number or [B].
        sides: h and w, the sides of the windows.
        norm: "l2" or "l1".
        lower: lower end of the box.
        upper: upper end of the box.

    Returns:
        In l2, the result is the proposed images. They lie in the box and, up to rounding, in the ball. In l1, the
        result is the proposed changes to x, which must still be projected. Same shape, dtype and memory format as x.
        The op has no gradient.

    Raises:
        InputError: mismatched shapes or devices, windows larger than the image, or a negative radius.
        InputTypeError: an unsupported dtype.

    >>> x, u = torch.full((1, 1, 1, 4), 0.5), torch.tensor([[0.0, -1.0, 0.0, 1.0, 1.0, 1.0]])
    >>> patterns = torch.tensor([[0.6, -0.8], [0.6, -0.8]]).double()
    >>> square_window(x, x, u, patterns, 0.25, (1, 2), "l2")
    tensor([[[[0.6500, 0.3000, 0.5000, 0.5000]]]])
    """
    op = "square_window"
    check_float(op, "x", x)
    check_float(op, "best", best)
    check_alike(op, "best", best, x)
    if x.dim() < 1:
        raise InputError(f"{op}: x", "[B, ...]", "a scalar")
    choice(f"{op}: norm", norm, ("l2", "l1"))
    lower, upper = box(op, lower, upper)
    channels, height, width = x.shape[1:] if x.dim() == 4 else (1, 1, x.shape[1:].numel())
    for name, value, shape, dtype in (
        ("u", u, (len(x), 5 + channels), x.dtype),
        ("patterns", patterns, (2, sides[0] * sides[1]), torch.float64),
    ):
        if not isinstance(value, Tensor) or value.dtype != dtype:
            raise InputTypeError(f"{op}: {name}", f"a {dtype} tensor", getattr(value, "dtype", type(value)))
        if value.shape != shape or value.device != x.device:
            raise InputError(f"{op}: {name}", f"shape {shape} on {x.device}", f"{tuple(value.shape)} on {value.device}")
    column = radii(op, radius, x.shape[:1], x.device).expand(len(x)).contiguous()
    refuse_tangents(op, best, x)
    if x.numel() == 0:
        return x.detach().clone()
    last = nhwc(x)
    images = [(t.detach().permute(0, 2, 3, 1) if last else t.detach()).reshape(len(x), -1) for t in (best, x)]
    images = [rows.contiguous() for rows in images]
    grid = channels, height, width, last, *sides
    rows = native.call(
        _WINDOW, *images, u.contiguous(), patterns.contiguous(), column, norm == "l2", *grid, lower, upper
    )
    return rows.view(len(x), height, width, channels).permute(0, 3, 1, 2) if last else rows.view(x.shape)


_WINDOW: Callable[..., Tensor] = torch.ops.pyrobust.square_window

native.fake("square_window", like=1)
