"""Linear relaxation and concretization in backward bound propagation, with the rows of many examples in one matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError

from . import native


def relax_rows(
    a: Tensor,
    image: Tensor,
    lower_slope: Tensor,
    upper_slope: Tensor,
    lower_intercept: Tensor,
    upper_intercept: Tensor,
) -> Tensor:
    """Bound each row Σ a·f(z) from below by a linear function of z; write its coefficients to ``a``, in place.

    Let each activation f_k lie between its lower and its upper line. Then Σ_k a[r, k]·f_k(z_k) ≥ Σ_k a′[r, k]·z_k +
    c[r]; the op writes a′ to ``a`` and returns c. A negative coefficient takes the upper line, and any other
    coefficient takes the lower line (Zhang et al., 2018). Each product is rounded once; sums are in float64, in any
    order. The op has no gradient.

    Args:
        a: [R, n], float32 or float64, contiguous; updated.
        image: [R], int64: the index, in [0, B), of the slopes and intercepts that each row of a uses. On the CPU, an
            index out of range is an error, and no row is changed; on a GPU, the result for such a row is NaN.
        lower_slope: [B, n], same dtype as a.
        upper_slope: [B, n].
        lower_intercept: [B, n].
        upper_intercept: [B, n].

    Returns:
        [R], the sums of coefficients times intercepts.

    Raises:
        InputError: mismatched shapes or devices, or an image out of range (CPU).
        InputTypeError: an unsupported dtype.

    >>> a, one = torch.tensor([[2.0, -2.0]]), torch.ones(1, 2)
    >>> relax_rows(a, torch.tensor([0]), 0 * one, one / 2, 0 * one, one), a
    (tensor([-2.]), tensor([[ 0., -1.]]))
    """
    others = {
        "lower_slope": lower_slope,
        "upper_slope": upper_slope,
        "lower_intercept": lower_intercept,
        "upper_intercept": upper_intercept,
    }
    _check("relax_rows", a, image, others)
    if not a.is_contiguous():
        raise InputError("relax_rows: a", "a contiguous tensor, since it is updated in place")
    return native.call(_RELAX, a, image.contiguous(), *(tensor.contiguous() for tensor in others.values()))


def concretize_rows(a: Tensor, image: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return each row's minimum over the box of its image: Σ a·low where a ≥ 0, plus Σ a·high where a < 0.

    Each product is rounded once; sums are in float64, in any order. The op has no gradient.

    Args:
        a: [R, n], float32 or float64.
        image: [R], int64: the index of the row of low and high that each row of a uses; see ``relax_rows``.
        low: [B, n], same dtype as a.
        high: [B, n].

    Returns:
        [R].

    Raises:
        InputError: mismatched shapes or devices, or an image out of range (CPU).
        InputTypeError: an unsupported dtype.

    >>> concretize_rows(torch.tensor([[1.0, -1.0]]), torch.tensor([0]), torch.zeros(1, 2), torch.ones(1, 2))
    tensor([-1.])
    """
    _check("concretize_rows", a, image, {"low": low, "high": high})
    return native.call(_LEAST, a.contiguous(), image.contiguous(), low.contiguous(), high.contiguous())


def _check(op: str, a: Tensor, image: Tensor, others: dict[str, Tensor]) -> None:
    for name, value in {"a": a, "image": image, **others}.items():
        if not isinstance(value, Tensor):
            raise InputTypeError(f"{op}: {name}", "a tensor", type(value).__name__)
        if value.device != a.device:
            raise InputError(f"{op}: {name}", f"a's device, {a.device}", value.device)
    for name, value in {"a": a, **others}.items():
        if value.dtype not in (torch.float32, torch.float64) or value.dtype != a.dtype:
            raise InputTypeError(f"{op}: {name}", "float32 or float64 like a", f"{value.dtype}, a {a.dtype}")
    if image.dtype != torch.int64:
        raise InputTypeError(f"{op}: image", "int64", image.dtype)
    if a.dim() != 2:
        raise InputError(f"{op}: a", "[R, n]", tuple(a.shape))
    if image.shape != a.shape[:1]:
        raise InputError(f"{op}: image", f"shape ({a.shape[0]},)", tuple(image.shape))
    first = next(iter(others.values()))
    for name, value in others.items():
        if value.dim() != 2 or value.shape[1] != a.shape[1] or value.shape != first.shape:
            raise InputError(f"{op}: {name}", f"shape (B, {a.shape[1]})", tuple(value.shape))


# --- fake kernels and gradients of the raw ops

_RELAX: Callable[..., Tensor] = torch.ops.pyrobust.relax_rows
_LEAST: Callable[..., Tensor] = torch.ops.pyrobust.concretize_rows

native.fake("relax_rows", "concretize_rows", result=lambda a, *_: a.new_empty(a.shape[:1]))
