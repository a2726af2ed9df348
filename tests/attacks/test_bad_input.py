"""Errors of the attacks for bad arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pyrobust.attacks import APGD, BIM, EOT, FGSM, PGD
from pyrobust.errors import InputError, InputTypeError, ModelError

X, Y = torch.full((2, 3), 0.5), torch.tensor([0, 1])
LINEAR = nn.Linear(3, 3)
BAD_CONSTRUCTION: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (PGD, {"seed": -1}, InputError, r"^seed: expected 0 to 2\*\*64 - 1, got -1"),
    (PGD, {"seed": 0.5}, InputTypeError, r"^seed: expected an integer, got 0.5"),
    (PGD, {"callback": 3}, InputTypeError, r"^callback: expected a callable, got int"),
    (PGD, {"batch_size": 0}, InputError, r"^batch_size: expected at least 1"),
    (PGD, {"steps": 0}, InputError, r"^steps: expected at least 1, got 0"),
    (PGD, {"steps": 2.0}, InputTypeError, r"^steps: expected an integer, got 2.0"),
    (PGD, {"steps": True}, InputTypeError, r"^steps: expected an integer, got True"),
    (PGD, {"step_size": 0.0}, InputError, r"^step_size: expected a finite number above 0, got 0.0"),
    (PGD, {"step_size": "x"}, InputTypeError, r"^step_size: expected a number"),
    (PGD, {"restarts": 0}, InputError, r"^restarts: expected at least 1"),
    (
        PGD,
        {"restarts": 2, "random_start": False},
        InputError,
        r"^restarts: expected 1 with random_start=False, where all restarts are the same, got 2",
    ),
    (PGD, {"momentum": -0.1}, InputError, r"^momentum: expected a finite number of at least 0"),
    (PGD, {"loss": "dlr-targeted"}, InputError, r"^loss: expected one of ce, margin, dlr, got 'dlr-targeted'"),
    (FGSM, {"loss": "mse"}, InputError, r"^loss: expected one of"),
    (APGD, {"loss": "margin"}, InputError, r"^loss: expected one of ce, dlr, dlr-targeted, got 'margin'"),
    (APGD, {"rho": 1.0}, InputError, r"^rho: expected a number in \(0, 1\), got 1.0"),
    (APGD, {"targets": 0}, InputError, r"^targets: expected at least 1"),
    (APGD, {"restarts": None}, InputTypeError, r"^restarts: expected an integer, got None"),
    (APGD, {"multi_epsilon": True}, InputError, r"^multi_epsilon: expected norm=\"l1\", got 'linf'"),
    (BIM, {"no_such": 1}, TypeError, r"no_such"),
    (EOT, {"samples": 0}, InputError, r"^samples: expected at least 1"),
    (EOT, {"samples": 1.5}, InputTypeError, r"^samples: expected an integer"),
    (EOT, {"samples": 1, "transform": 3}, InputTypeError, r"^transform: expected a callable, got int"),
    (EOT, {"model": 3, "samples": 1}, InputTypeError, r"^model: expected a torch.nn.Module or a callable, got int"),
]


@pytest.mark.parametrize(("attack", "options", "error", "message"), BAD_CONSTRUCTION, ids=lambda v: str(v)[:40])
def test_bad_construction(attack: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attack(**{"model": LINEAR, **options})


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X - 1}, InputError, r"^x: expected values in the clip range \[0.0, 1.0\], got -0.5"),
    ({"x": X.long()}, InputTypeError, r"^x: expected a float tensor, got torch.int64"),
    ({"x": X * float("nan")}, InputError, r"^x: expected finite values"),
    ({"y": Y[:1]}, InputError, r"^y: expected shape \(2,\)"),
    ({"y": Y + 2}, InputError, r"^y: expected labels 0 to 2, the model's classes, got 3"),
    ({"targeted": True}, InputError, r"^target_labels: expected one label per example with targeted=True, got None"),
    ({"targeted": True, "target_labels": Y + 2}, InputError, r"^target_labels: expected labels 0 to 2"),
    ({"targeted": True, "target_labels": [0]}, InputError, r"^target_labels: expected shape \(2,\)"),
    (
        {"target_labels": Y},
        InputError,
        r"^target_labels: expected None without targeted=True, got labels; pass it",
    ),
    (
        {"epsilon": torch.ones(3)},
        InputError,
        r"^epsilon: expected one radius for each of the 2 examples \(radii of elements",
    ),
    ({"epsilon": -1.0}, InputError, r"^epsilon: expected a finite number of at least 0"),
    ({"indices": [0]}, InputError, r"^indices: expected one for each of the 2 examples, got 1"),
    ({"indices": [0, 2**32]}, InputError, r"^indices: expected 0 to 2\*\*32 - 1"),
    ({"indices": [0.0, 1.0]}, InputTypeError, r"^indices: expected a sequence of integers, got 0.0 at index 0"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_CALLS, ids=lambda v: str(v)[:40])
def test_bad_calls(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PGD(LINEAR).generate(**{"x": X, "y": Y, **options})


def test_loss_unsuited_to_the_classes() -> None:
    net = nn.Linear(3, 3)
    y = net(X).argmax(1)
    with pytest.raises(InputError, match=r"^loss: expected at least 4 classes for dlr-targeted, got 3"):
        APGD(net, loss="dlr-targeted").generate(X, y)
    with pytest.raises(InputError, match=r'^loss: expected "ce" or "dlr" with targeted=True, got "dlr-targeted"'):
        APGD(net, loss="dlr-targeted").generate(X, y, targeted=True, target_labels=(y + 1) % 3)
    with pytest.raises(InputError, match=r"^loss: expected at least 4 classes for targeted dlr, got 3"):
        PGD(net, loss="dlr").generate(X, y, targeted=True, target_labels=(y + 1) % 3)


def test_model_without_gradient() -> None:
    with pytest.raises(ModelError, match=r"^model: expected logits differentiable with respect to the input"):
        PGD(lambda x: torch.tensor([[1.0, 0.0]]).repeat(len(x), 1)).generate(X, Y * 0)
    weight = torch.ones(2, requires_grad=True)  # a gradient, but not with respect to the input
    with pytest.raises(ModelError, match=r"^model: expected logits differentiable with respect to the input"):
        PGD(lambda x: (x[:, :2] > 0.5).float() * weight).generate(X, Y * 0)
