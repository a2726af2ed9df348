"""The linear relaxation of ReLU in backward bound propagation, as a differentiable op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import share
from pyrobust.errors import InputError, InputTypeError

from . import native


def relax_coefficients(a: Tensor, lower: Tensor, upper: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Bound the rows Σ a·f(z) from below by Σ coefficients·z + bias, using the linear relaxation of f.

    f(z) = max(z, slope·z): ReLU, or leaky ReLU. For all z in [lower, upper], Σ a·f(z) ≥ Σ coefficients·z + bias, up to
    rounding, by the relaxation of CROWN (Zhang et al., "Efficient neural network robustness certification with general
    activation functions", 2018). A negative coefficient takes the upper bound of f, which is the chord; any other
    coefficient takes the lower bound of f. This lower bound is z if upper > −lower, and slope·z otherwise. A stable
    neuron keeps f itself.

    The op is differentiable once, with respect to a, lower and upper. The choice of the lower bound has no gradient.
    The chord has gradients, both in its slope, chord = (upper − slope·lower) / (upper − lower), and in its intercept,
    (1 − chord)·upper.

    Args:
        a: [B, S, n], float32 or float64.
        lower: [B, n], same dtype as a. If lower or upper is NaN and the other end does not make the neuron stable, a
            negative coefficient gives NaN, and any other coefficient takes slope·z.
        upper: [B, n].
        slope: in [0, 1].

    Returns:
        (coefficients [B, S, n], bias [B, S]), same dtype as a.

    Raises:
        InputError: mismatched shapes or devices, or a slope out of range.
        InputTypeError: an unsupported dtype, or dtypes that differ.

    >>> relax_coefficients(torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[-1.0]]), torch.tensor([[3.0]]))
    (tensor([[[ 1.0000],
             [-0.7500]]]), tensor([[ 0.0000, -0.7500]]))
    """
    for name, value in (("a", a), ("lower", lower), ("upper", upper)):
        if not isinstance(value, Tensor):
            raise InputTypeError(f"relax_coefficients: {name}", "a tensor", type(value).__name__)
        if value.dtype not in (torch.float32, torch.float64) or value.dtype != a.dtype:
            raise InputTypeError(
                f"relax_coefficients: {name}", "float32 or float64 like a", f"{value.dtype}, a {a.dtype}"
            )
        if value.device != a.device:
            raise InputError(f"relax_coefficients: {name}", f"a's device, {a.device}", value.device)
    if a.dim() != 3:
        raise InputError("relax_coefficients: a", "[B, S, n]", tuple(a.shape))
    for name, value in (("lower", lower), ("upper", upper)):
        if value.shape != (a.shape[0], a.shape[2]):
            raise InputError(f"relax_coefficients: {name}", f"shape {(a.shape[0], a.shape[2])}", tuple(value.shape))
    slope = share("relax_coefficients: slope", slope)
    return native.call(_RELAX, a.contiguous(), lower.contiguous(), upper.contiguous(), slope)


# --- fake kernels and gradients of the raw ops

_RELAX: Callable[..., tuple[Tensor, Tensor]] = torch.ops.pyrobust.relax_coefficients
_BACKWARD: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.ops.pyrobust.relax_coefficients_backward


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    a, lower, upper, ctx.slope = inputs
    ctx.save_for_backward(a, lower, upper)


def _backward(ctx: Any, grad: Tensor, grad_bias: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return *_BACKWARD(grad.contiguous(), grad_bias.contiguous(), *ctx.saved_tensors, ctx.slope), None


native.fake("relax_coefficients", result=lambda a, *_: (torch.empty_like(a), a.new_empty(a.shape[:2])))
native.fake("relax_coefficients_backward", result=lambda *args: tuple(map(torch.empty_like, args[2:5])))
torch.library.register_autograd("pyrobust::relax_coefficients", _backward, setup_context=_save)
