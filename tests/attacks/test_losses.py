"""The names of the losses; tests of ``ops.logit_loss`` check their values."""

from __future__ import annotations

import pytest
import torch
from attack_models import random

from pyrobust.attacks import losses
from pyrobust.errors import InputError


def test_loss_names() -> None:
    logits, y = random(2, 5), torch.tensor([0, 1])
    for name in losses.LOSSES:
        for targeted in (False, True):
            value, slope, _ = losses.named_loss(logits, y, y, name=name, targeted=targeted)
            assert value.shape == (2,)
            assert slope.shape == (2, 5)


@pytest.mark.parametrize(("name", "targeted", "least"), [("dlr", False, 3), ("dlr", True, 4), ("margin", False, 2)])
def test_too_few_classes(name: str, targeted: bool, least: int) -> None:
    y = torch.tensor([0])
    losses.named_loss(random(1, least), y, y, name=name, targeted=targeted)
    with pytest.raises(InputError, match=rf"^loss: expected at least {least} classes"):
        losses.named_loss(random(1, least - 1), y, y, name=name, targeted=targeted)
