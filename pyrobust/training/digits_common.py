"""What the recipes on the bundled digits share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.errors import InputError
from pyrobust.zoo import save_state_dict


class Trained:
    """What the result of every recipe can do; a dataclass adds what it measured."""

    model: nn.Module

    def save(self, path: str | Path) -> None:
        """Writes the weights as a plain state dict, whole or not at all.

        Raises:
            StoreError: the file cannot be written.
        """
        save_state_dict(self.model, path)

    def to_dict(self) -> dict[str, Any]:
        """All but the model, as plain values."""
        # the subclasses are dataclasses
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "model"}


def check_seed_and_epochs(recipe: str, seed: int, epochs: int) -> None:
    """Raises InputError for one out of range."""
    if not 0 <= seed < 1 << 63:
        raise InputError(f"{recipe}: seed: expected 0 to 2**63 - 1, got {seed}")
    if not 1 <= epochs < 1 << 20:
        raise InputError(f"{recipe}: epochs: expected 1 to 2**20 - 1, got {epochs}")


@contextmanager
def one_thread_with_gradients() -> Iterator[None]:
    """Gradients, also for a caller under no_grad or inference_mode, who would otherwise get a net that never learned.

    One thread: sums are then added in one order on any number of cores, and small batches gain little from more.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def warp(x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Images [N, C, H, W], each under an affine map of its own: bilinear, zero outside.

    Args:
        x: [N, C, H, W].
        scale: standard deviation of each entry of the maps less the identity.
        generator: of the maps.
    """
    maps = torch.eye(2, 3) + scale * torch.randn(len(x), 2, 3, generator=generator)
    grid = functional.affine_grid(maps, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)
