"""Parts shared by the training recipes on the bundled digits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.checks import integer
from pyrobust.zoo import save_state_dict


class Trained:
    """Base class of recipe results; derived dataclasses add the measurements."""

    model: nn.Module

    def save(self, path: str | Path) -> None:
        """Write the weights as a plain state dict, atomically.

        Raises:
            StoreError: the file cannot be written.
        """
        save_state_dict(self.model, path)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the model."""
        # The subclasses are dataclasses.
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if name != "model"}


def check_seed_and_epochs(recipe: str, seed: int, epochs: int) -> None:
    """Raise InputError if the seed or the number of epochs is out of range."""
    integer(f"{recipe}: seed", seed, 0, (1 << 63) - 1)
    integer(f"{recipe}: epochs", epochs, 1, (1 << 20) - 1)


@contextmanager
def single_thread_with_gradients() -> Iterator[None]:
    """Run a block with gradients enabled and on one thread, and restore the caller's settings.

    Under no_grad or inference_mode the net would not learn. One thread gives the same order of summation on any number
    of cores, and small batches gain little from more threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def warp(x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Apply a random affine map to each image [N, C, H, W], with bilinear interpolation and zeros outside the image.

    The entries of a map are those of the identity plus Gaussian noise of standard deviation ``scale``.
    """
    maps = torch.eye(2, 3) + scale * torch.randn(len(x), 2, 3, generator=generator)
    grid = functional.affine_grid(maps, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)
