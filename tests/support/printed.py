"""Output of commands, their files, and a model of a user."""

from __future__ import annotations

from pathlib import Path

#: Classes 0 and 1, dark and bright images, with two images as data.
BRIGHTNESS = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return torch.stack([-x.mean((1, 2, 3)), x.mean((1, 2, 3))], 1)

def data():
    x = torch.tensor([{dark}, {bright}]).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    return x, torch.tensor([0, 1])
"""


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cells(text: str, row: str) -> list[str]:
    """The cells of a row of a table."""
    line = next(line for line in text.splitlines() if f"│ {row} " in line)
    return [cell.strip() for cell in line.strip("│").split("│")[1:]]
