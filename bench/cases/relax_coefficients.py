"""The ReLU relaxation of coefficients against torch operations, in both layouts.

Work: the coefficients are read and written once; backward, they and their gradient are read and one gradient written.
The floor is a clone of the coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pyrobust import reference
from pyrobust.microbench.timing import Case
from pyrobust.ops import batch_last_relax, relax_coefficients


def cases(device: torch.device) -> list[Case]:
    return [_pass(*sizes, device) for sizes in ((128, 9, 2048), (16, 99, 8192))]


def _pass(batch: int, rows: int, n: int, device: torch.device) -> Case:
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(batch, rows, n, device=device, generator=generator)
    lower = torch.randn(batch, n, device=device, generator=generator) - 1
    upper = lower + 2 * torch.rand(batch, n, device=device, generator=generator)
    a, lower, upper = (t.requires_grad_() for t in (a, lower, upper))

    def there_and_back(function: Callable[..., tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        relaxed, bias = function(a, lower, upper)
        return torch.autograd.grad((relaxed, bias), (a, lower, upper), (relaxed, bias))

    # the batch-last layout, used for training on a CPU
    box = ((lower + upper) / 2, (upper - lower) / 2)
    innermost = [t.detach().contiguous().requires_grad_() for t in (a.permute(2, 1, 0), *(bound.t() for bound in box))]

    def innermost_there_and_back() -> tuple[Tensor, ...]:
        relaxed, bias = batch_last_relax(*innermost)
        return torch.autograd.grad((relaxed, bias), innermost, (relaxed, bias))

    batch_last = {"batch_last_relax": innermost_there_and_back} if device.type == "cpu" else {}
    return Case(
        f"relax_coefficients ({batch}, {rows}, {n}) and its gradient",
        {
            "native": partial(there_and_back, relax_coefficients),
            **batch_last,
            "torch operations": partial(there_and_back, _torch_operations),
            "reference": partial(there_and_back, reference.relax_coefficients),
            "clone": a.detach().clone,
        },
        {"bytes": 5 * a.numel() * 4},
    )


def _torch_operations(a: Tensor, lower: Tensor, upper: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Relax in plain torch operations: both clamps, both slopes, the constant as a product."""
    unstable, ones = (lower < 0) & (upper > 0), torch.ones_like(lower)
    stable = torch.where(lower >= 0, ones, slope)
    chord = torch.where(unstable, (upper - slope * lower) / torch.where(unstable, upper - lower, 1), stable)
    below = torch.where(unstable, torch.where(upper > -lower, ones, slope), stable)
    intercept = torch.where(unstable, (1 - chord) * upper, 0)
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    relaxed = positive * below.unsqueeze(1) + negative * chord.unsqueeze(1)
    return relaxed, (negative @ intercept.unsqueeze(2)).squeeze(2)
