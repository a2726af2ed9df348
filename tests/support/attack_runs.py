"""Fast attack sweeps, for the tests of their runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.attacks import PGD, AdversarialAttack
from pyrobust.zoo import ImageSet, load_data, load_model

IMAGES = 24
EPSILON = 0.15


def digits(count: int = IMAGES) -> ImageSet:
    data = load_data("digits")
    return ImageSet("digits", data.x[:count], data.y[:count].clone())


@functools.cache
def fitted() -> nn.Module:
    """A small net for the digits, quick to bound and to attack: random features and the last layer of least squares."""
    data, generator = load_data("digits"), torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)).eval().requires_grad_(False)
    net[1].weight.normal_(0, 0.3, generator=generator)
    net[1].bias.fill_(0.1)
    features = torch.cat([net[:3](data.x), torch.ones(len(data.x), 1)], 1)
    last = torch.linalg.lstsq(features, nn.functional.one_hot(data.y, 10).float()).solution
    net[3].weight.copy_(last[:-1].T)
    net[3].bias.copy_(last[-1])
    return net


def pgd(**options: Any) -> PGD:
    return PGD(load_model("zoo:digits-smooth-0.25"), **({"epsilon": EPSILON, "steps": 3} | options))


class Mine(AdversarialAttack):
    """A user's attack, which defines only ``generate``."""

    def __init__(self, model: Any, step: Any = 0.1, **options: Any) -> None:
        super().__init__(model, **({"epsilon": EPSILON} | options))
        self.step = step

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        return x + self.project(torch.full_like(x, 1.0) * self.step, x)


class Crowd(nn.Module):
    """Predicts class 1 in batches of several; alone, class 0 unless the image is very bright."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.mean((1, 2, 3)) > (0.9 if len(x) == 1 else -1.0)
        return torch.stack([~bright, bright], 1).float()


class Hesitant(nn.Module):
    """Class 1 for very bright images; in batches of several, the other class by less than rounding may change."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.mean((1, 2, 3)) > 0.9
        logits = torch.stack([~bright, bright], 1).float()
        return logits if len(x) == 1 else 1 - 1e-6 * logits


class Threshold(nn.Module):
    """Class 1 where the first pixel is above 0.5."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([0.5 - x[:, 0, 0, 0], x[:, 0, 0, 0] - 0.5], 1)


def pixels(*values: float) -> ImageSet:
    x = torch.tensor(values).view(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    return ImageSet("pixels", x, torch.zeros(len(values), dtype=torch.int64))


def sign_model(batch: Tensor) -> Tensor:
    """Class 1 where the first coordinate is above one half."""
    shifted = batch.flatten(1)[:, :1] - 0.5
    return torch.cat([-shifted, shifted], 1)


def images(margins: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Examples of class 1 at given distances from ``sign_model``'s boundary; class 0's side where negative."""
    return torch.tensor([[0.5 + m, 0.5] for m in margins]), torch.ones(len(margins), dtype=torch.int64)
