"""auto_LiRPA (Xu et al. 2020): IBP, CROWN-IBP and CROWN with its default options, rounding to nearest.

Its CROWN bounds the rows that interval bounds leave undecided in any example of the batch, or every row where those are
more than nine in ten.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from . import BallMargins, BuildBallMargins, BuildMargins, Margins, Peer


def peer() -> Peer:
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    def margins(method: str) -> BuildMargins:
        def build(model: nn.Module, example: Tensor) -> Margins:
            # auto_LiRPA enables gradients of the parameters, which would slow down the other variants.
            bounded = BoundedModule(copy.deepcopy(model), example, device=example.device)
            classes = model(example).shape[1]

            @torch.no_grad()
            def bound(x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Tensor:
                box = PerturbationLpNorm(x_L=x_lower, x_U=x_upper)
                x = BoundedTensor((x_lower + x_upper) / 2, box)
                rows = _specification(y, classes, x_lower.dtype)
                return bounded.compute_bounds(x=(x,), C=rows, method=method, bound_upper=False)[0]

            return bound

        return build

    def training(method: str) -> BuildBallMargins:
        def build(model: nn.Module, example: Tensor, epsilon: float) -> BallMargins:
            # matrices for convolutions instead of patches, as its own training scripts have it, take as long
            bounded = BoundedModule(model, example, device=example.device)
            ball = PerturbationLpNorm(norm=torch.inf, eps=epsilon)
            classes = model(example).shape[1]

            def bound(x: Tensor, y: Tensor) -> Tensor:
                rows = _specification(y, classes, x.dtype)
                ball_around = (BoundedTensor(x, ball),)
                return bounded.compute_bounds(x=ball_around, C=rows, method=method, bound_upper=False)[0]

            return bound

        return build

    return Peer(
        "auto_LiRPA",
        margins={name: margins(name) for name in ("ibp", "crown-ibp", "crown")},
        training={name: training(name) for name in ("ibp", "crown-ibp")},
    )


def _specification(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """[B, K - 1, K]: row j of an example is e_y - e_j."""
    eye = torch.eye(classes, dtype=dtype, device=y.device)
    rows = eye[y].unsqueeze(1) - eye
    other = torch.arange(classes, device=y.device) != y.unsqueeze(1)
    return rows[other].view(len(y), classes - 1, classes)
