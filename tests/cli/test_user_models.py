"""A user's model on the command line: its weights, code, logits and failures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrobust.evaluation import Run

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    fails_at = 10**9
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls >= self.fails_at:
            raise ValueError("out of paper")
        return self.layer(x.flatten(1)) * self.factor
"""
CERTIFY = ("certify", "--model", "usernet:Net", "--data", "digits", "--sigma", "0.25", "--n", "100", "--n0", "10")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Write usernet.py with some of its text replaced."""

    def write(old: str = "", new: str = "") -> None:
        assert old in SOURCE
        (tmp_path / "usernet.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        sys.modules.pop("usernet", None)

    yield write
    sys.modules.pop("usernet", None)


def test_runs_are_named_after_their_weights(pyrobust: Any, source: Callable[..., None], tmp_path: Path) -> None:
    source()
    for seed, name in enumerate(("first", "second")):
        weight = torch.randn(10, 64, generator=torch.Generator().manual_seed(seed))
        torch.save({"layer.weight": weight, "layer.bias": torch.zeros(10)}, tmp_path / f"{name}.pt")
        done = pyrobust(*CERTIFY, "--max", "3", "--weights", f"{name}.pt")
        assert done.status == 0
        assert f"weights {name}.pt" in " ".join(done.out.split())
    files = sorted(tmp_path.glob("*.db"))
    assert [file.name for file in files] == [
        "certify-usernet-Net-first-digits-sigma0.25-n100.db",
        "certify-usernet-Net-second-digits-sigma0.25-n100.db",
    ]
    assert Run(files[0]).header.model == "usernet:Net, weights first.pt"


def test_a_network_without_weights_that_guesses_is_noticed(pyrobust: Any, source: Callable[..., None]) -> None:
    source()
    for command in (CERTIFY, ("attack", *CERTIFY[1:5], "--epsilon", "0.1", "--attack", "fgsm")):
        done = pyrobust(*command, "--max", "20", "--out", f"{command[0]}.db")
        assert done.status == 0
        assert "no better than a guess among 10 classes, and no weights were given" in done.err
    assert "guess" not in pyrobust(*CERTIFY, "--max", "5", "--out", "few.db").err
    assert "guess" not in pyrobust("certify", "--model", "zoo:digits-smooth-0.25", *CERTIFY[3:], "--max", "20").err


def test_logits_without_a_class_are_noticed(
    pyrobust: Any, source: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    source("factor = 1.0", "factor = float('nan')")
    done = pyrobust(*CERTIFY, "--max", "3", "--out", "run.db")
    assert done.status == 0
    assert "samples have no predicted class and vote against every certificate" in caplog.text
    assert (Run("run.db").table["status"] == "abstain").all()


def test_a_failing_model_keeps_the_run_and_says_how_to_resume(pyrobust: Any, source: Callable[..., None]) -> None:
    source("fails_at = 10**9", "fails_at = 200")
    command = (*CERTIFY, "--max", "80", "--batch-size", "64", "--out", "run.db")
    failed = pyrobust(*command)
    assert failed.status == 2
    stored = len(Run("run.db"))
    assert 0 < stored < 80
    assert f"{stored} of 80 images are saved in run.db" in failed.err
    assert f"resume with: pyrobust {' '.join(command)}" in failed.err
    assert f"error: model: failed after {stored} of 80 images: ValueError: out of paper" in failed.err
    source()
    refused = pyrobust(*command)
    assert "code of the model: " in refused.err
    assert "--allow-changed-code" in refused.err
    assert pyrobust(*command, "--allow-changed-code").status == 0
    assert Run("run.db").complete
