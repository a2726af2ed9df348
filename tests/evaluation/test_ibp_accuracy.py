"""Certified accuracy by interval bounds, against the bounds and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from verify_models import Brightness, grey, net

from pyrobust import certified_accuracy_ibp, compute_ibp_bounds
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo import load_data


def test_it_matches_the_definition() -> None:
    data, model = load_data("digits"), net().eval()
    x, y = data.x, data.y
    for epsilon in (0.0, 0.004):
        lower, upper = compute_ibp_bounds(model, x, epsilon)
        others = upper.clone().scatter_(1, y[:, None], -torch.inf).amax(1)
        right = model(x).argmax(1) == y
        certified = right & (lower.gather(1, y[:, None])[:, 0] > others)
        found = certified_accuracy_ibp(model, DataLoader(TensorDataset(x, y), batch_size=37), epsilon)
        assert found == {
            "clean_accuracy": float(right.double().mean()),
            "certified_accuracy": float(certified.double().mean()),
        }
    assert 0.1 < found["certified_accuracy"] < 0.9


def test_shares_worked_by_hand() -> None:
    # The logits ±(level − 1/2) each move by epsilon: proved where 2·|level − 1/2| > 2·epsilon.
    x, y = grey(0.9, 0.7, 0.55, 0.2, 0.1)
    y[4] = 1  # wrong, however certain
    for epsilon, expected in ((0.04, 0.8), (0.06, 0.6), (0.25, 0.4), (0.45, 0.0)):
        found = certified_accuracy_ibp(Brightness(), [(x, y)], epsilon)
        assert found == {"clean_accuracy": pytest.approx(0.8), "certified_accuracy": pytest.approx(expected)}
    # Not clipped: 0.9 + 0.45 is beyond 1, and counts.
    one_by_one = [(x[i], int(y[i])) for i in range(5)]
    assert certified_accuracy_ibp(Brightness(), one_by_one, 0.06)["certified_accuracy"] == pytest.approx(0.6)


def test_dropout_is_off_and_the_mode_restored() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(4, 2)).train()
    x, y = grey(0.9, 0.2)
    first, second = (certified_accuracy_ibp(model, [(x, y)], 0.01) for _ in range(2))
    assert first == second
    assert all(module.training for module in model.modules())
    assert certified_accuracy_ibp(Brightness().double(), [(x, y)], 0.01)["certified_accuracy"] == 1.0


def test_a_missing_cuda_device_becomes_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    batch = grey(0.9, 0.2)
    expected = certified_accuracy_ibp(Brightness(), [batch], 0.01)
    assert list(expected) == ["clean_accuracy", "certified_accuracy"]
    assert not [record for record in caplog.records if record.name.startswith("pyrobust")]
    assert certified_accuracy_ibp(Brightness(), [batch], 0.01, "cuda") == expected
    assert "no CUDA device is available; computing on the CPU" in caplog.text


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": lambda x: x}, InputTypeError, "model: expected a torch.nn.Module"),
        ({"test_loader": []}, InputError, "test_loader: expected at least one example, got none"),
        ({"test_loader": 3}, InputTypeError, "test_loader: expected an iterable of pairs"),
        ({"test_loader": [(torch.zeros(2, 4), torch.tensor([0]))]}, InputError, "test_loader: expected x"),
        ({"test_loader": [(torch.zeros(1, 4), torch.tensor([2]))]}, InputError, "test_loader: expected labels 0 to 1"),
        ({"test_loader": [(torch.zeros(1, 4), torch.tensor([0.5]))]}, InputTypeError, "test_loader: expected y"),
        (
            {"test_loader": [(torch.full((1, 4), torch.nan), torch.tensor([0]))]},
            InputError,
            r"test_loader: x: expected finite values, got nan at \[0, 0\]",
        ),
        ({"test_loader": [(torch.zeros(4), 0), (torch.zeros(2, 2), 0)]}, InputError, "examples of one shape"),
        ({"epsilon": -0.1}, InputError, "epsilon: expected a finite number"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"model": Brightness(), "test_loader": [grey(0.9)], "epsilon": 0.1}
    with pytest.raises(error, match=words):
        certified_accuracy_ibp(**(arguments | changes))
