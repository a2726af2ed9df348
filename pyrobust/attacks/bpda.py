"""Backward pass differentiable approximation, for parts of a model without a useful gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.checks import kind, shape_text
from pyrobust.errors import InputTypeError, ModelError


class BPDA(nn.Module):
    """A part of a model that computes ``module`` and has the gradient of another function, ``backward``.

    Backward pass differentiable approximation (Athalye, Carlini and Wagner, 2018) attacks f(g(x)) if g is not
    differentiable or has a useless gradient. It uses the gradient of f at g(x) and the Jacobian at x of a
    differentiable h ≈ g. If g nearly returns its input, as quantization does, the identity is a suitable h. If the
    output of g differs in shape from its input, as with a thermometer code, the output of h must have the shape of g's
    output.

    The output is exactly that of ``module``. ``module`` runs without gradients, so that its parameters receive none;
    ``backward`` runs only if gradients are enabled. Second derivatives are refused.

    Args:
        module: g, module or callable, [N, ...] → float tensor of any shape.
        backward: h, a differentiable module or callable, [N, ...] → a tensor of the shape of ``module``'s output;
            default: the identity.

    Raises:
        InputTypeError: a module or backward that is not callable.

    >>> quantize = BPDA(lambda x: (4 * x).round() / 4)
    >>> x = torch.tensor([[0.3, 0.9]], requires_grad=True)
    >>> y = quantize(x)
    >>> y.detach(), torch.autograd.grad(y.sum(), x)
    (tensor([[0.2500, 1.0000]]), (tensor([[1., 1.]]),))
    """

    def __init__(self, module: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        if not callable(module):
            raise InputTypeError("module", "a torch.nn.Module or a callable", type(module).__name__)
        if backward is not None and not callable(backward):
            raise InputTypeError("backward", "a torch.nn.Module, a callable or None", type(backward).__name__)
        self.module = module
        self.surrogate = backward

    def extra_repr(self) -> str:
        """Return text that names ``module`` and ``backward``, unless they are modules, which torch shows itself."""
        functions = {"module": self.module, "backward": self.surrogate or "identity"}
        return ", ".join(
            f"{name}={getattr(function, '__name__', function)}"
            for name, function in functions.items()
            if not isinstance(function, nn.Module)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``module``'s output, with the gradient of ``backward``.

        Raises:
            ModelError: an output that is not a float tensor, or a ``backward`` whose output has another shape.
        """
        with torch.no_grad():
            value = self.module(x)
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            raise ModelError(f"BPDA: module: expected a float tensor, got {kind(value)}; convert it inside the module")
        if not torch.is_grad_enabled():
            return value
        surrogate = x if self.surrogate is None else self.surrogate(x)
        if not isinstance(surrogate, Tensor) or not surrogate.dtype.is_floating_point:
            raise ModelError(f"BPDA: backward: expected a float tensor, got {kind(surrogate)}")
        if surrogate.shape != value.shape:
            which = "the identity, whose output is the input" if self.surrogate is None else "backward"
            raise ModelError(
                f"BPDA: backward: expected the shape of module's output, {shape_text(value.shape)}, got "
                f"{shape_text(surrogate.shape)} from {which}; pass a backward= that approximates module"
            )
        output: Tensor = _GradientOfSecond.apply(value, surrogate)  # type: ignore[no-untyped-call]  # torch has no types
        return output


class _GradientOfSecond(torch.autograd.Function):
    """Maps (value, surrogate) to value, with the derivative of the surrogate."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, surrogate: Tensor) -> Tensor:
        ctx.dtype = surrogate.dtype  # autocast may have computed the value in another dtype
        return value.clone()  # the value may be the input itself, which would keep its own gradient

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        if torch.is_grad_enabled():  # create_graph=True
            raise ModelError(
                "BPDA: expected first derivatives, got create_graph=True; the approximation has no second derivatives"
            )
        return None, gradients[0].to(ctx.dtype)
