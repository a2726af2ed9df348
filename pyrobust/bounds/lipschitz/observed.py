"""Observed slopes of a graph: lower bounds of its Lipschitz constant."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.bounds.graph.evaluate import forward, forward_all
from pyrobust.bounds.graph.nodes import Node

_STEPS = 8
_STARTS = 3
# Distance between two inputs, relative to their size.
_STEP = 2.0**-10
_ORDERS = {"linf": torch.inf, "l2": 2.0, "l1": 1.0}


@torch.no_grad()
def observed_slope(output: Node, x: Tensor, norm: str) -> float:
    """Return the largest ‖f(x + h·v) − f(x)‖ / ‖h·v‖ over several directions v at each x [B, ...].

    The directions come from the nonlinear power method for the norm of the Jacobian matrix (Boyd, 1974; Higham, 1992):
    v ← ψ(Jᵀψ(J·v)), where ψ(y) is a vector z of dual norm 1 with ⟨z, y⟩ = ‖y‖. Slopes are computed in float64, and
    their rounding errors are subtracted; the result is 0 if no slope exceeds its rounding error.
    """
    order = _ORDERS[norm]
    center = x.detach().to("cpu", torch.float64)
    generator = torch.Generator().manual_seed(0)

    def f(point: Tensor) -> Tensor:
        return forward(output, point)

    values = forward_all(output, center)
    size = max((float(value.abs().amax()) for value in values.values() if value.numel()), default=0.0)
    length = torch.linalg.vector_norm(center.flatten(1), order, dim=1).clamp(min=1.0) * _STEP
    best = 0.0
    for count in range(_STARTS * _STEPS):
        if count % _STEPS == 0:
            v = torch.randn(center.shape, dtype=torch.float64, generator=generator)
        v = v / torch.linalg.vector_norm(v.flatten(1), order, dim=1).clamp(min=1e-300).view(-1, *(1,) * (v.dim() - 1))
        step = v * length.view(-1, *(1,) * (v.dim() - 1))
        moved = (center + step) - center
        change = torch.linalg.vector_norm(_rows(f(center + step) - values[output]), order, dim=1)
        distance = torch.linalg.vector_norm(moved.flatten(1), order, dim=1)
        slopes = (change - size * center[0].numel() ** 0.5 * 2.0**-44) / distance * (1 - 2.0**-40)
        best = max(best, float(slopes.nan_to_num(0.0, 0.0, 0.0).amax()) if len(slopes) else 0.0)
        along: Tensor = torch.func.jvp(f, (center,), (v,))[1]
        (w,) = torch.func.vjp(f, center)[1](_attaining(along, norm))
        dual = {"linf": "l1", "l2": "l2", "l1": "linf"}[norm]
        v = _attaining(w, dual)
    return best


def _rows(y: Tensor) -> Tensor:
    """Reshape to [B, elements], also where each example is a single number."""
    return y.reshape(len(y), -1)


def _attaining(y: Tensor, norm: str) -> Tensor:
    """Return, for each example, the z of dual norm 1 with ⟨z, y⟩ = ‖y‖."""
    flat = _rows(y)
    z: Tensor
    if norm == "l2":
        z = flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-300)
    elif norm == "l1":
        z = torch.where(flat < 0, -1.0, 1.0).to(flat.dtype)
    else:
        index = flat.abs().argmax(1, keepdim=True)
        z = torch.zeros_like(flat).scatter(1, index, torch.where(flat.gather(1, index) < 0, -1.0, 1.0).to(flat.dtype))
    shaped: Tensor = z.reshape(y.shape)
    return shaped
