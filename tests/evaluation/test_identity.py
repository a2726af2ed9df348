"""A run belongs to one model: changed code, changed outputs and state are refused when it is resumed or merged."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.sweep_models import Stop, stop_after
from torch import Tensor, nn

from pyrobust import PGD, RandomizedSmoothing
from pyrobust.attacks import EOT
from pyrobust.errors import InputError, RowDependenceError, StoreError
from pyrobust.evaluation import Run, attack_dataset, certify_dataset, merge_runs
from pyrobust.evaluation.identity import identify
from pyrobust.runner import Runner
from pyrobust.runs.identity import Identity, decode_identity

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.linspace(-1, 1, 48).reshape(3, 16))
            self.layer.bias.zero_()

    def forward(self, x):
        return self.layer(x.flatten(1)) * SIGN
"""
X = torch.arange(6 * 16).reshape(6, 1, 4, 4).float().remainder(255) / 255
Y = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], nn.Module]]:
    """Return the model of a file, in which SIGN is replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(sign: str) -> nn.Module:
        (tmp_path / "identitynet.py").write_text(SOURCE.replace("SIGN", sign))
        sys.modules.pop("identitynet", None)
        importlib.invalidate_caches()
        model: nn.Module = importlib.import_module("identitynet").Net()
        return model.eval()

    yield make
    sys.modules.pop("identitynet", None)


def certify(model: nn.Module, out: Path | None, **options: object) -> Run:
    smoother = RandomizedSmoothing(model, 3, 0.25, batch_size=8)
    return certify_dataset(smoother, (X, Y), out=out, n0=10, n=54, **options)


def interrupt(model: nn.Module, out: Path, **options: object) -> None:
    """Leave a run with its first chunk."""
    with pytest.raises(Stop):
        certify(model, out, progress=stop_after(1), **options)
    assert 0 < len(Run(out)) < 6


def test_a_run_is_not_resumed_with_other_code(net: Callable[[str], nn.Module], tmp_path: Path) -> None:
    out = tmp_path / "run.db"
    interrupt(net("1"), out)
    with pytest.raises(StoreError, match=r"code of the model: '[0-9a-f]{16}' stored"):
        certify(net("-1"), out)
    with pytest.raises(StoreError, match="logits on probe inputs: other bits on equal hardware"):
        certify(net("-1"), out, allow_changed_code=True)
    assert 0 < len(Run(out)) < 6


def test_code_that_computes_the_same_can_be_allowed_and_is_recorded(
    net: Callable[[str], nn.Module], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run.db"
    interrupt(net("1"), out)
    with pytest.raises(StoreError, match="--allow-changed-code"):
        certify(net("1.0"), out)
    run = certify(net("1.0"), out, allow_changed_code=True)
    assert run.complete
    assert run.header.identity is not None
    assert len(set(run.header.identity.code)) == 2
    assert "the run records it" in caplog.text
    assert certify(net("1"), out).complete  # either code is known from now on
    assert (run.histogram() == certify(net("1"), None).histogram()).all()


def test_shards_of_two_models_are_not_merged(net: Callable[[str], nn.Module], tmp_path: Path) -> None:
    paths = [tmp_path / "1.db", tmp_path / "2.db"]
    certify(net("1"), paths[0], shard=(1, 2))
    certify(net("-1"), paths[1], shard=(2, 2))
    with pytest.raises(InputError, match=r"code of the model: .*; logits on probe inputs: other bits"):
        merge_runs(paths)
    paths[1].unlink()
    certify(net("1"), paths[1], shard=(2, 2))
    assert len(merge_runs(paths)) == 6


@pytest.mark.usefixtures("unprobed")
def test_a_model_that_changes_during_a_run_voids_it(tmp_path: Path) -> None:
    class Drifts(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x.flatten(1)[:, :3] * (1 if self.calls < 40 else 1.5)

    out = tmp_path / "run.db"
    with pytest.raises(RowDependenceError, match="before and after the run"):
        certify(Drifts(), out)
    with pytest.raises(StoreError, match="void, do not use its results: model: expected the same logits"):
        Run(out)
    with pytest.raises(StoreError, match="void"):
        certify(Drifts(), out)


def test_hardware_and_kernels_may_round_differently_but_not_compute_differently() -> None:
    factors = iter([1.0, 1.0 + 1e-6, 1.0, 1.0 + 1e-6, 2.0, 2.0])
    runner = Runner(lambda x: x[:, :3] * next(factors))
    before, after, doubled = (identify(runner, torch.arange(4.0)) for _ in range(3))
    assert before.bits == ""
    assert before.differences(after) == []
    assert "more than" in before.differences(doubled)[0]
    here = identify(Runner(nn.Linear(4, 3)), torch.ones(4))
    assert decode_identity(here.encode()) == here
    for factor, different in ((1 + 1e-6, False), (1.01, True)):
        logits = tuple(tuple(value * factor for value in row) for row in here.logits)
        there = Identity(here.code, "other hardware", "0" * 64, logits, here.tolerance)
        assert ["more than" in words for words in here.differences(there)] == [True] * different


def test_a_random_model_has_no_logits_but_can_be_attacked_as_declared(tmp_path: Path) -> None:
    generator = torch.Generator()

    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :3] + torch.rand(3, generator=generator)

    identity = identify(Runner(Random()), X[0])
    assert (identity.bits, identity.logits) == ("", ())
    assert attack_dataset(PGD(EOT(Random(), 1), 0.1, steps=2), (X, Y), out=tmp_path / "run.db").complete
    with pytest.raises(RowDependenceError, match=r"as pyrobust\.attacks\.EOT"):
        attack_dataset(PGD(Random(), 0.1, steps=2), (X, Y))
