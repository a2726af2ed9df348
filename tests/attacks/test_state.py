"""The attack state: which examples leave when, and how the other examples' tensors are compacted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_models import images, random, small_net
from torch import Tensor, nn

from pyrobust.attacks import APGD, PGD, apgd
from pyrobust.attacks.engine import state as state_module
from pyrobust.attacks.engine.norms import NORMS as NORM_OBJECTS
from pyrobust.attacks.engine.queries import Queries
from pyrobust.attacks.engine.state import AttackState
from pyrobust.attacks.minimum.nearest import Nearest
from pyrobust.ops import sample_noise
from pyrobust.ops.logits import CLOSE, FOOLED, ROBUST
from pyrobust.runner import Runner


class Threshold(nn.Module):
    """Predicts class 1 where the first coordinate is at least one half, by a clear margin."""

    def forward(self, x: Tensor) -> Tensor:
        above = (x.flatten(1)[:, 0] >= 0.5).double()
        return torch.stack([1 - above, above], 1) * 4 - 2


def new_state(count: int, left: list[tuple[list[int], Tensor, bool]], shape: tuple[int, ...] = (3,)) -> AttackState:
    x = random(count, *shape, dtype=torch.float64) / 4
    return AttackState(
        Queries(Runner(Threshold(), dtype=torch.float64)),
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


def test_the_nearest_of_several_points_is_kept() -> None:
    state = new_state(3, [])
    nearest = Nearest(state)
    for step, fooled in ((0.4, [True, True, False]), (0.5, [True] * 3), (0.25, [True, False, False])):
        nearest.attack += 1
        nearest.offer(state, torch.tensor(fooled), state.x + step)
    assert nearest.distance.tolist() == pytest.approx([0.25, 0.4, 0.5])
    assert nearest.source.tolist() == [3, 1, 2]
    assert torch.allclose(nearest.x, state.x + torch.tensor([[0.25], [0.4], [0.5]]))


def test_retire_keeps_rows_aligned() -> None:
    left: list[tuple[list[int], Tensor, bool]] = []
    state = new_state(10, left)
    x, x_adv = state.x.clone(), state.x + 0.5
    numbers = torch.arange(10)
    wide = torch.arange(20).reshape(10, 2)
    verdict = torch.zeros(10, dtype=torch.uint8)
    verdict[[0, 3, 4, 9]] = FOOLED
    wanted = x_adv.clone()
    x_adv, numbers, wide, same = state.retire(verdict, x_adv, numbers, wide, numbers)
    assert len(state) == len(x_adv) == len(numbers) == 6
    assert sorted(numbers.tolist()) == [1, 2, 5, 6, 7, 8]
    assert torch.equal(same, numbers)
    assert torch.equal(wide, torch.stack([2 * numbers, 2 * numbers + 1], 1))
    assert torch.equal(x_adv, wanted[numbers])
    assert torch.equal(state.x, x[numbers])
    assert torch.equal(state.index, numbers + 100)
    ((rows, points, success),) = left
    assert (rows, success) == ([0, 3, 4, 9], True)
    assert torch.equal(points, wanted[rows])
    assert torch.equal(state.retire(torch.zeros(6, dtype=torch.uint8), x_adv)[0], x_adv)
    state.finish(x_adv)
    assert len(state) == 0
    assert left[1][0] == numbers.tolist()
    assert left[1][2] is False
    assert torch.equal(left[1][1], wanted[numbers])


def test_close_verdicts_and_bool_verdicts_are_confirmed() -> None:
    left: list[tuple[list[int], Tensor, bool]] = []
    state = new_state(4, left)
    x_adv = state.x.clone()
    x_adv[1, 0] = x_adv[3, 0] = 0.75  # these two fool the model
    before = state.queries.forwards
    (x_adv, row) = state.retire(torch.tensor([CLOSE, CLOSE, ROBUST, ROBUST]).byte(), x_adv, torch.arange(4))
    assert state.queries.forwards == before + 2
    assert left[0][0] == [1]
    assert sorted(row.tolist()) == [0, 2, 3]
    state.retire(torch.ones(3, dtype=torch.bool), x_adv)
    assert state.queries.forwards == before + 5
    assert left[1][0] == [3]
    assert len(state) == 2


def test_noise_follows_the_noise_contract() -> None:
    state = new_state(3, [], shape=(2, 2, 2))
    z = state.noise("laplace", 5, count=2)
    assert z.shape == (3, 2, 2, 2, 2)
    zeros = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    wanted = sample_noise(zeros, [(0, 102, 5, 2)], sigma=1.0, noise="laplace", stage="attack", seed=7)
    assert torch.equal(z[2], wanted)
    assert state.noise("uniform", 0, shape=(4,)).shape == (3, 1, 4)
    state.retire(torch.tensor([FOOLED, ROBUST, ROBUST]).byte(), state.x)
    assert state.noise("laplace", 5, count=2).shape[0] == 2
    row = state.index.tolist().index(102)
    assert torch.equal(state.noise("laplace", 5, count=2)[row], wanted)


class Delayed(state_module.HostCopy):
    """A verdict that arrives late, as from a GPU."""

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
def test_late_verdicts_do_not_change_results(
    monkeypatch: pytest.MonkeyPatch, attack: Any, options: dict[str, Any], polls: int
) -> None:
    """On a GPU, examples leave some steps after they were fooled, with the points that fooled the model."""
    x, y = images(30)
    epsilon = 0.6 if "norm" in options else 0.04
    success: dict[int, bool] = {}
    wanted = attack(small_net(), epsilon, **options, callback=lambda row, fooled, point: success.update({row: fooled}))
    points, outcome = wanted.generate(x, y), dict(success)
    assert {True, False} == set(outcome.values())
    monkeypatch.setattr(Delayed, "polls", polls)
    monkeypatch.setattr(state_module, "HostCopy", Delayed)
    monkeypatch.setattr(apgd, "replaced", select)
    late = attack(small_net(), epsilon, **options, callback=lambda row, fooled, point: success.update({row: fooled}))
    torch.testing.assert_close(late.generate(x, y), points, rtol=0, atol=1e-9)
    assert success == outcome
    assert late.forwards > wanted.forwards  # rows of examples that have not left yet


def select(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target)
