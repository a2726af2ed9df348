"""Waits for the device and launches of each loop: what a step costs is the difference of a long run and a short one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from gpu_nets import labelled, small_net

import pyrobust
from pyrobust import APGD, DDN, FAB, FMN, PGD, BoundedModel, RandomizedSmoothing, Square

EPSILON = {"linf": 1e-4, "l2": 1e-3, "l1": 1e-2}  # nothing is fooled
GPU = torch.device("cuda:1")


def per_step(cuda: FakeCuda, run: Callable[[int], Any], few: int, many: int) -> tuple[float, float, float]:
    """Waits, late waits and launches beside the model's, of one step."""
    run(few)
    counts = []
    for steps in (few, many):
        with cuda.counting() as counted:
            run(steps)
        counts.append((counted.waits.total(), counted.late, counted.beside_model()))
    waits, late, launches = ((after - before) / (many - few) for before, after in zip(*counts, strict=True))
    return waits, late, launches


# Launches: measured, and a few more for other versions of torch.
@pytest.mark.parametrize(
    ("attack", "norm", "most"),
    [
        *((PGD, norm, most) for norm, most in (("linf", 10), ("l2", 28), ("l1", 30))),
        *((APGD, norm, most) for norm, most in (("linf", 16), ("l2", 40), ("l1", 36))),
        *((FAB, norm, most) for norm, most in (("linf", 35), ("l2", 34), ("l1", 35))),
        *((Square, norm, most) for norm, most in (("linf", 32), ("l2", 14), ("l1", 15))),
        (FMN, "linf", 58),
        (DDN, "l2", 50),
    ],
)
def test_steps_of_attacks(fake_cuda: FakeCuda, attack: Any, norm: str, most: int) -> None:
    x, y = labelled(6)
    net, x, y = small_net().to(GPU), x.to(GPU), y.to(GPU)
    few, many = {Square: (64, 128), APGD: (12, 24), FAB: (12, 24)}.get(attack, (6, 12))

    def run(steps: int) -> None:
        options: dict[str, Any] = {"n_queries": steps, "rescale_schedule": False} if attack is Square else {}
        options |= {} if attack is Square else {"steps": steps}
        options |= {"targets": 1} if attack is FAB else {}
        attack(net, EPSILON[norm], norm, batch_size=6, **options)(x, y)

    waits, late, launches = per_step(fake_cuda, run, few, many)
    assert waits <= 0
    assert late <= 1
    assert launches <= most


@pytest.mark.parametrize("grid", [None, "1/255"])
def test_examples_that_leave(fake_cuda: FakeCuda, grid: str | None) -> None:
    """Examples fooled in the same step leave together: the waits do not grow with the number of examples."""
    waits = []
    for count in (4, 32):
        x, y = labelled(count)
        net, x, y = small_net().to(GPU), x.to(GPU), y.to(GPU)
        with fake_cuda.counting() as counts:
            PGD(net, 0.9, steps=10, random_start=False, batch_size=64, grid=grid)(x, y)
        waits.append(sum(number for (_, line), number in counts.waits.items() if line.startswith("attacks/")))
    assert waits[1] <= waits[0] + 6


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("grid", [None, "1/255"])
def test_batches_of_smoothing(fake_cuda: FakeCuda, grid: str | None) -> None:
    net, x = small_net().to(GPU), labelled()[0][:1].to(GPU)

    def run(batches: int) -> None:
        smoother = RandomizedSmoothing(net, 4, 0.25, grid=grid, batch_size=32)
        smoother.certify_batch(x, n0=32, n=32 * batches, indices=[0])

    waits, _, launches = per_step(fake_cuda, run, 20, 40)
    assert waits == 0
    assert launches <= 8


def test_rounds_of_sequential_sampling(fake_cuda: FakeCuda) -> None:
    x = labelled()[0].to(GPU)
    smoother = RandomizedSmoothing(small_net().to(GPU), 4, 0.25, grid=None, batch_size=32)
    with fake_cuda.counting() as counts:
        smoother.certify_batch(x, n0=32, n=2000, method="sequential", radii=[0.1], indices=range(4))
    lines = {line.partition(":")[0] for _, line in counts.waits if line.startswith("smoothing/packing")}
    read = [number for (what, line), number in counts.waits.items() if line.startswith("smoothing/packing")]
    assert lines == {"smoothing/packing.py"}
    assert len(read) == 1, "a round waits once, for its votes"
    assert not any(line.startswith("smoothing/sampling") for _, line in counts.waits)


@pytest.mark.parametrize(("method", "most"), [("ibp", 300), ("crown-ibp", 450), ("crown", 600)])
def test_chunks_of_bounds(fake_cuda: FakeCuda, method: str, most: int) -> None:
    totals = []
    for count in (4, 16):
        x, y = labelled(count)
        bounded = BoundedModel(small_net().to(GPU), x)
        with fake_cuda.counting() as counts:
            bounded.margins(x.to(GPU), y, 0.01, method=method)
        totals.append(counts.launches.total())
        assert counts.waits.total() <= 15
    assert totals[0] <= most
    assert totals[1] <= totals[0] + 20, "not with the number of examples"


def test_a_stored_attack_runs_no_image_alone(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean and the attacked images of a chunk run as batches: the launches do not grow with the images."""
    monkeypatch.setattr("pyrobust.row_independence.CHECKED", 0)  # a later chunk is probed by chance
    launches = []
    for count in (8, 32):
        attack = PGD(small_net().to(GPU), EPSILON["linf"], steps=4, batch_size=32, random_start=False)
        pyrobust.attack_dataset(attack, labelled(count))  # probes the model's rows
        with fake_cuda.counting() as counts:
            pyrobust.attack_dataset(attack, labelled(count))
        launches.append(counts.launches.total())
    assert launches[1] <= launches[0] + 30
