"""Small nets and their images, for the tests of torchattacks' classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 5


def net(batch_norm: bool = False) -> nn.Sequential:
    """A net that predicts all its classes."""
    torch.manual_seed(3)
    last = nn.Linear(24, CLASSES)
    norm = nn.BatchNorm2d(6) if batch_norm else nn.Identity()
    first = nn.Conv2d(2, 6, 3, padding=1)
    model = nn.Sequential(first, norm, nn.ReLU(), nn.Flatten(), nn.Linear(216, 24), nn.ReLU(), last).eval()
    with torch.no_grad():
        last.bias -= model(torch.rand(100, 2, 6, 6)).mean(0)
    return model


def images(count: int, model: nn.Module | None = None, levels: bool = False) -> tuple[Tensor, Tensor]:
    """Images, of the pixels 0, 1/255, …, 1 with ``levels``, and the model's predictions as labels."""
    x = torch.rand((count, 2, 6, 6), generator=torch.Generator().manual_seed(1))
    x = (x * 255).round() / 255 if levels else x
    with torch.no_grad():
        return x, (model or net())(x).argmax(1)


MEAN, STD = [0.5, 0.25], [0.25, 0.5]


def normalize(x: Tensor) -> Tensor:
    return (x - torch.tensor(MEAN).view(2, 1, 1)) / torch.tensor(STD).view(2, 1, 1)


def restore(z: Tensor) -> Tensor:
    return z * torch.tensor(STD).view(2, 1, 1) + torch.tensor(MEAN).view(2, 1, 1)


def shifted(model: nn.Module) -> nn.Module:
    """The model, for normalized images."""
    shift = nn.Module()
    shift.forward = restore  # type: ignore[method-assign]  # mypy forbids replacing any method
    return nn.Sequential(shift, model)
