"""Verifications that take no time, for the tests of their runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.evaluation import Run, verify_dataset
from pyrobust.zoo import load_model
from support.attack_runs import digits

EPSILONS = [0.02, 0.05, 0.08]


def net() -> nn.Module:
    return load_model("zoo:digits-smooth-0.25")


def verify(model: Any = None, data: Any = None, **options: Any) -> Run:
    model = net() if model is None else model
    return verify_dataset(model, digits() if data is None else data, **({"epsilons": EPSILONS} | options))


class Brightness(nn.Module):
    """Class 1 where the mean is above one half, by a linear layer; ``alone`` is added to that of a single image."""

    def __init__(self, alone: float = 0.0) -> None:
        super().__init__()
        self.alone = alone
        self.layer = nn.Linear(4, 2)
        self.layer.load_state_dict(
            {"weight": torch.tensor([[-0.25] * 4, [0.25] * 4]), "bias": torch.tensor([8.5, 7.5])}
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        if len(x) == 1 and self.alone:
            return logits + torch.tensor([self.alone, 0.0])
        return logits


def grey(*levels: float) -> tuple[Tensor, Tensor]:
    """Images [N, 1, 2, 2] of one brightness each, labelled as ``Brightness`` sees them; margins are 2·level − 1."""
    x = torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return x, (x[:, 0, 0, 0] > 0.5).long()
