"""Baselines that do not query the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.checks import non_negative

from .attack import Attack


class VANILA(Attack):
    """A baseline that returns the images unchanged.

    Args:
        model: any module.

    >>> VANILA(nn.Linear(4, 3))(torch.full((1, 1, 1, 2), 0.5))
    tensor([[[[0.5000, 0.5000]]]])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__("VANILA", model)

    def forward(self, images: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """Return a copy of the images; arguments are as for ``Attack.forward``."""
        return images.detach().clone()


class GN(Attack):
    """Gaussian noise, clipped to [0, 1].

    Args:
        model: any module.
        std: standard deviation.
        seed: random seed of the noise.

    >>> GN(nn.Linear(4, 3), std=0.0)(torch.full((1, 1, 1, 2), 0.5))
    tensor([[[[0.5000, 0.5000]]]])
    """

    def __init__(self, model: nn.Module, std: float = 0.1, *, seed: int = 0) -> None:
        super().__init__("GN", model, seed=seed)
        self.std = non_negative("std", std)

    def forward(self, images: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """Return noisy images; arguments are as for ``Attack.forward``."""
        noise = torch.randn(images.shape, generator=self._generator(), dtype=images.dtype)
        self._seen += len(images)
        return (images.detach() + self.std * noise.to(images.device)).clamp(0, 1)
