"""The examples under attack: who leaves, when, and what becomes of the others' tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_models import images, random, small_net
from torch import Tensor, nn

from pyrobust.attacks import APGD, PGD, apgd_climb, job
from pyrobust.attacks.job import Job
from pyrobust.attacks.norms import NORMS as NORM_OBJECTS
from pyrobust.attacks.queries import Queries
from pyrobust.ops import sample_noise
from pyrobust.ops.logits import CLOSE, FOOLED, STANDING
from pyrobust.runner import Runner


class Named(nn.Module):
    """Says class 1 of an example whose first coordinate is at least one half, by a clear margin."""

    def forward(self, x: Tensor) -> Tensor:
        one = (x.flatten(1)[:, 0] >= 0.5).double()
        return torch.stack([1 - one, one], 1) * 4 - 2


def new_job(count: int, left: list[tuple[list[int], Tensor, bool]], shape: tuple[int, ...] = (3,)) -> Job:
    x = random(count, *shape, dtype=torch.float64) / 4
    return Job(
        Queries(Runner(Named(), dtype=torch.float64)),
        NORM_OBJECTS["linf"],
        x,
        torch.zeros(count, dtype=torch.int64),
        torch.full((count,), 0.75, dtype=torch.float64),
        torch.arange(count) + 100,
        range(count),
        targeted=False,
        lower=0.0,
        upper=1.0,
        seed=7,
        leave=lambda rows, points, success: left.append((rows, points.clone(), success)),
    )


def test_rows_stay_together() -> None:
    left: list[tuple[list[int], Tensor, bool]] = []
    current = new_job(10, left)
    x, x_adv = current.x.clone(), current.x + 0.5
    state = torch.arange(10)
    wide = torch.arange(20).reshape(10, 2)
    verdict = torch.zeros(10, dtype=torch.uint8)
    verdict[[0, 3, 4, 9]] = FOOLED
    wanted = x_adv.clone()
    x_adv, state, wide, same = current.retire(verdict, x_adv, state, wide, state)
    assert len(current) == len(x_adv) == len(state) == 6
    assert sorted(state.tolist()) == [1, 2, 5, 6, 7, 8]
    assert torch.equal(same, state)
    assert torch.equal(wide, torch.stack([2 * state, 2 * state + 1], 1))
    assert torch.equal(x_adv, wanted[state])
    assert torch.equal(current.x, x[state])
    assert torch.equal(current.index, state + 100)
    ((rows, points, success),) = left
    assert (rows, success) == ([0, 3, 4, 9], True)
    assert torch.equal(points, wanted[rows])
    assert torch.equal(current.retire(torch.zeros(6, dtype=torch.uint8), x_adv)[0], x_adv)
    current.finish(x_adv)
    assert len(current) == 0
    assert left[1][0] == state.tolist()
    assert left[1][2] is False
    assert torch.equal(left[1][1], wanted[state])


def test_close_ones_are_asked_again_and_so_is_every_true() -> None:
    left: list[tuple[list[int], Tensor, bool]] = []
    current = new_job(4, left)
    x_adv = current.x.clone()
    x_adv[1, 0] = x_adv[3, 0] = 0.75  # these two do fool
    before = current.queries.forwards
    (x_adv, row) = current.retire(torch.tensor([CLOSE, CLOSE, STANDING, STANDING]).byte(), x_adv, torch.arange(4))
    assert current.queries.forwards == before + 2
    assert left[0][0] == [1]
    assert sorted(row.tolist()) == [0, 2, 3]
    current.retire(torch.ones(3, dtype=torch.bool), x_adv)
    assert current.queries.forwards == before + 5
    assert left[1][0] == [3]
    assert len(current) == 2


def test_noise_is_the_contracts() -> None:
    current = new_job(3, [], shape=(2, 2, 2))
    z = current.noise("laplace", 5, count=2)
    assert z.shape == (3, 2, 2, 2, 2)
    zeros = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    wanted = sample_noise(zeros, [(0, 102, 5, 2)], sigma=1.0, noise="laplace", stage="attack", seed=7)
    assert torch.equal(z[2], wanted)
    assert current.noise("uniform", 0, shape=(4,)).shape == (3, 1, 4)
    current.retire(torch.tensor([FOOLED, STANDING, STANDING]).byte(), current.x)
    assert current.noise("laplace", 5, count=2).shape[0] == 2
    row = current.index.tolist().index(102)
    assert torch.equal(current.noise("laplace", 5, count=2)[row], wanted)


class Delayed(job.HostCopy):
    """A verdict that takes its time, as from a GPU."""

    polls = 3

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.clone())
        self.left = self.polls

    @staticmethod
    def always_arrived(device: torch.device) -> bool:
        return False

    def arrived(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("polls", [1, 3, 1000])
@pytest.mark.parametrize(
    ("attack", "options"),
    [(PGD, {"steps": 8, "restarts": 2, "momentum": 0.5}), (APGD, {"steps": 30}), (APGD, {"norm": "l1", "steps": 30})],
)
def test_late_verdicts_change_nothing(
    monkeypatch: pytest.MonkeyPatch, attack: Any, options: dict[str, Any], polls: int
) -> None:
    """On a GPU examples leave some steps after they were fooled, with the points that fooled."""
    x, y = images(30)
    epsilon = 0.6 if "norm" in options else 0.04
    success: dict[int, bool] = {}
    wanted = attack(small_net(), epsilon, **options, callback=lambda row, fooled, point: success.update({row: fooled}))
    points, outcome = wanted.generate(x, y), dict(success)
    assert {True, False} == set(outcome.values())
    monkeypatch.setattr(Delayed, "polls", polls)
    monkeypatch.setattr(job, "HostCopy", Delayed)
    monkeypatch.setattr(apgd_climb, "replaced", select)
    late = attack(small_net(), epsilon, **options, callback=lambda row, fooled, point: success.update({row: fooled}))
    torch.testing.assert_close(late.generate(x, y), points, rtol=0, atol=1e-9)
    assert success == outcome
    assert late.forwards > wanted.forwards  # those who have not left yet


def select(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target)
