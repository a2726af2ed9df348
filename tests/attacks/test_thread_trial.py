"""Threads of an attack, and of smoothing, beside other processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pyrobust import RandomizedSmoothing, machine, thread_trial
from pyrobust.attacks import PGD
from pyrobust.evaluation import attack_dataset
from pyrobust.thread_trial import ThreadTrial


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two spinning threads on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "machine_is_busy", lambda: True)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


X, Y = torch.full((4, 1, 2, 2), 0.5), torch.ones(4, dtype=torch.int64)


def attack(slow: int, used: list[int], seconds: float = 0.05) -> PGD:
    """An attack of ten steps on a model that takes long on ``slow`` threads, and notes the threads of each pass."""

    def model(x: Tensor) -> Tensor:
        used.append(torch.get_num_threads())
        if used[-1] == slow:
            time.sleep(seconds)
        z = x.flatten(1).sum(1)
        return torch.stack([z, 10 - z], 1)

    return PGD(model, epsilon=0.1, steps=10, batch_size=4)


def test_the_faster_number_of_threads_is_kept() -> None:
    """One where all wait for each other; the next attack on the model need not try."""
    used: list[int] = []
    waiting = attack(2, used)
    waiting(X, Y)
    assert used.count(2) <= 2  # the first pass, and another where the first had libraries to initialize
    assert used[-9:] == [1] * 9
    used.clear()
    PGD(waiting.model, epsilon=0.2, steps=3)(X, Y)
    assert set(used) == {1}
    used.clear()
    attack(1, used)(X, Y)
    assert used.count(1) == 3  # then it is decided
    assert used[-3:] == [2] * 3


def test_all_threads_without_a_reason_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large network, threads that sleep while they wait, or a quiet machine."""
    for change in (
        lambda context: context.setattr(thread_trial, "_SMALL_S", -1.0),
        lambda context: context.setenv("OMP_WAIT_POLICY", "PASSIVE"),
        lambda context: context.setenv("GOMP_SPINCOUNT", "PASSIVE"),
        lambda context: context.setattr(machine, "machine_is_busy", lambda: False),
    ):
        used: list[int] = []
        with monkeypatch.context() as context:
            change(context)
            attack(2, used, 0.01)(X, Y)
        assert set(used) == {2}


def test_an_error_restores_the_threads() -> None:
    used: list[int] = []
    pgd = attack(2, used)
    model = pgd.model

    def failing(x: Tensor) -> Tensor:
        if len(used) > 4:
            raise RuntimeError("broken")
        return model(x)

    pgd.model = failing
    with pytest.raises(RuntimeError, match="broken"):
        pgd(X, Y)


@pytest.mark.parametrize("recorded", ["stored", "threads", "neither"])
def test_sweeps_keep_the_threads_that_they_record(
    recorded: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[int] = []
    options = {"stored": {"out": tmp_path / "run.db", "model_name": "slow"}, "threads": {"threads": 2}}
    seconds = 0.05 if recorded == "neither" else 0.01
    attack_dataset(attack(2, used, seconds), (X, Y), **options.get(recorded, {}))
    if recorded == "neither":
        assert [1] * 8 in [used[i : i + 8] for i in range(len(used))]  # steps of the attack
    else:
        assert set(used) == {2}
        assert "set OMP_WAIT_POLICY=passive, import pyrobust before torch, or pass threads=1" in caplog.text


def certified(slow: int, used: list[int], seconds: float = 0.05) -> RandomizedSmoothing:
    """A smoother of a model that takes long on ``slow`` threads, and notes the threads of each pass."""

    def model(x: Tensor) -> Tensor:
        used.append(torch.get_num_threads())
        if used[-1] == slow:
            time.sleep(seconds)
        return torch.stack([x[:, 0], 1 - x[:, 0]], 1)

    return RandomizedSmoothing(model, 2, 0.25, batch_size=10)


@pytest.mark.parametrize("slow", [1, 2])
def test_smoothing_counts_votes_on_one_number_of_threads(slow: int) -> None:
    """Another number of threads may round otherwise, which makes another classifier."""
    used: list[int] = []
    smoother = certified(slow, used)
    assert smoother.certify(torch.tensor([1.0]), 10, 200, 0.05)[0] == 0
    assert used.index(3 - slow) < 6
    assert used[-21:] == [3 - slow] * 21


def test_sequential_sampling_keeps_all_threads() -> None:
    """Votes of one image come from several calls, between which a trial may decide otherwise."""
    used: list[int] = []
    smoother = certified(2, used, 0.01)
    smoother.certify_batch(torch.tensor([[1.0], [0.9]]), n0=10, n=100, alpha=0.05, method="sequential", radii=[0.1])
    assert set(used) == {2}


def test_a_large_network_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_trial, "_SMALL_S", -1.0)
    model = torch.nn.Linear(2, 2)
    used: list[int] = []

    def noted() -> Tensor:
        used.append(torch.get_num_threads())
        return torch.ones(1)

    for _ in range(2):
        with ThreadTrial(torch.device("cpu"), model) as trial:
            trial.settle(noted)
        assert used == [2]
