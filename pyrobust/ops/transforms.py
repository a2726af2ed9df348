"""Derivatives of the raw ops in each mode of torch: backward mode, forward mode and the transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyrobust.errors import InputError


def keep(ctx: Any, *tensors: Tensor) -> None:
    """Save tensors for the backward-mode and the forward-mode derivative.

    >>> class Square(torch.autograd.Function):
    ...     forward = staticmethod(lambda x: x * x)
    ...     setup_context = staticmethod(lambda ctx, inputs, output: keep(ctx, *inputs))
    ...     jvp = staticmethod(lambda ctx, tangent: 2 * ctx.saved_tensors[0] * tangent)
    >>> torch.func.jvp(Square.apply, (torch.tensor(3.0),), (torch.tensor(1.0),))
    (tensor(9.), tensor(6.))
    """
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def transformed() -> bool:
    """Whether a transform of torch.func or a level of forward-mode differentiation is active.

    >>> torch.func.vmap(lambda x: x if transformed() else None)(torch.zeros(1))
    tensor([0.])
    """
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._are_functorch_transforms_active()


def untracked(*tensors: Tensor) -> bool:
    """Whether a call on these tensors goes unrecorded by derivatives, transforms and traces.

    >>> untracked(torch.zeros(1)), untracked(torch.zeros(1, requires_grad=True))
    (True, False)
    """
    if torch.compiler.is_compiling() or transformed():
        return False
    graded = torch.is_grad_enabled()
    return not any(type(tensor) is not Tensor or (graded and tensor.requires_grad) for tensor in tensors)


def refuse_tangents(op: str, *tensors: Tensor) -> None:
    """Refuse inputs with a forward-mode derivative, which an op without forward mode would silently drop.

    >>> torch.func.jvp(lambda x: refuse_tangents("l1_step", x), (torch.zeros(1),), (torch.ones(1),))
    Traceback (most recent call last):
    pyrobust.errors.InputError: l1_step: expected inputs without a forward-mode derivative, since the op has none; ...
    """
    unpack: Callable[[Tensor], Any] = forward_ad.unpack_dual
    if transformed() and any(unpack(t).tangent is not None for t in tensors):
        raise InputError(
            op,
            "inputs without a forward-mode derivative, since the op has none",
            hint="call it on detached tensors, or differentiate in reverse mode where the op has a gradient",
        )


def differentiable(
    name: str,
    save: Callable[..., None],
    backward: Callable[..., Any],
    jvp: Callable[..., Tensor],
    vmap: Callable[..., tuple[Tensor, int]],
) -> Callable[..., Tensor]:
    """Register the gradient of a raw op and return a function that calls the op in every mode of differentiation.

    torch.library has no forward mode, and its gradients do not compose with torch.func. Under a transform of
    torch.func, the function therefore calls the op through an autograd.Function.

    Args:
        name: name of the raw op.
        save: called with (ctx, inputs, output); keeps the values that the derivatives need.
        backward: called with (ctx, grad); returns a gradient for each argument.
        jvp: called with (ctx, *tangents), where a missing tangent is None; returns the tangent of the output.
        vmap: called with (call, batch size, in_dims, *args); returns the output for a batch of arguments, and the
            output's batch dimension.
    """
    raw: Callable[..., Tensor] = getattr(torch.ops.pyrobust, name).default
    torch.library.register_autograd(f"pyrobust::{name}", backward, setup_context=save)

    def forward(*args: Any) -> Tensor:
        return raw(*args)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        save(ctx, inputs, output)

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return vmap(call, info.batch_size, in_dims, *args)

    rules = {
        "forward": forward,
        "setup_context": setup_context,
        "backward": backward,
        "jvp": jvp,
        "vmap": batched,
    }
    # mypy infers one type for functions of different signatures
    static: dict[str, Any] = {key: staticmethod(rule) for key, rule in rules.items()}  # type: ignore[arg-type]
    function: Any = type(name, (torch.autograd.Function,), static)

    def call(*args: Any) -> Tensor:
        if transformed():
            if torch.compiler.is_compiling():
                torch._dynamo.graph_break()  # torch.compile has no forward mode for autograd.Function
            result: Tensor = function.apply(*args)
            return result
        return raw(*args)

    return call


def batch_first(value: Tensor, dim: int | None, size: int) -> Tensor:
    """Move the batch dimension to the front; if there is none, add one of size ``size``.

    >>> batch_first(torch.zeros(3, 2), 1, 2).shape, batch_first(torch.zeros(3), None, 2).shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)


def batch_of_rows(
    call: Callable[..., Tensor], size: int, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[Tensor, int]:
    """Apply an op to a vmap batch in one call, by turning the batch dimension into further rows.

    The op takes rows [R, D] and radii [R] or [1].

    >>> scale = lambda rows, radius: rows * radius[:, None]
    >>> z, dim = batch_of_rows(scale, 2, (None, 0), torch.ones(3, 1), torch.tensor([[1.0], [2.0]]))
    >>> z.squeeze(2), dim
    (tensor([[1., 1., 1.],
            [2., 2., 2.]]), 0)
    """
    batched = [
        batch_first(value, dim, size) if isinstance(value, Tensor) else value
        for value, dim in zip(args, in_dims, strict=True)
    ]
    _, rows, length = batched[0].shape
    flat = [
        value
        if not isinstance(value, Tensor)
        else value.reshape(-1, length).contiguous()
        if value.dim() == 3
        else value.expand(size, rows).reshape(-1).contiguous()
        for value in batched
    ]
    return call(*flat).reshape(size, rows, length), 0
