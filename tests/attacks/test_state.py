"""The attack state: confirmed and late verdicts, and the noise contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_models import images, random, small_net
from torch import Tensor

from pyrobust.attacks import APGD, PGD, apgd
from pyrobust.attacks.engine import state as state_module
from pyrobust.attacks.engine.norms import NORMS as NORM_OBJECTS
from pyrobust.attacks.engine.queries import Queries
from pyrobust.attacks.engine.state import AttackState
from pyrobust.ops import sample_noise
from pyrobust.ops.logits import CLOSE, FOOLED, ROBUST
from pyrobust.runner import Runner


def threshold(x: Tensor) -> Tensor:
    """Class 1 where the first coordinate is at least one half, by a clear margin."""
    above = (x.flatten(1)[:, 0] >= 0.5).double()
    return torch.stack([1 - above, above], 1) * 4 - 2


def new_state(count: int, leave: Any, shape: tuple[int, ...] = (3,)) -> AttackState:
    return AttackState(
        Queries(Runner(threshold, dtype=torch.float64)),
        NORM_OBJECTS["linf"],
        random(count, *shape, dtype=torch.float64) / 4,
        torch.zeros(count, dtype=torch.int64),
        torch.full((count,), 0.75, dtype=torch.float64),
        torch.arange(count) + 100,
        range(count),
        targeted=False,
        lower=0.0,
        upper=1.0,
        seed=7,
        leave=leave,
    )


def test_close_verdicts_and_bool_verdicts_are_confirmed() -> None:
    left: list[tuple[list[int], bool]] = []
    state = new_state(4, lambda rows, points, success: left.append((rows, success)))
    x_adv = state.x.clone()
    x_adv[1, 0] = x_adv[3, 0] = 0.75  # these two fool the model
    before = state.queries.forwards
    (x_adv, row) = state.retire(torch.tensor([CLOSE, CLOSE, ROBUST, ROBUST]).byte(), x_adv, torch.arange(4))
    assert state.queries.forwards == before + 2
    assert left == [([1], True)]
    assert sorted(row.tolist()) == [0, 2, 3]
    (x_adv,) = state.retire(torch.ones(3, dtype=torch.bool), x_adv)
    assert state.queries.forwards == before + 5
    assert left[1] == ([3], True)
    state.finish(x_adv)
    assert (sorted(left[2][0]), left[2][1], len(state)) == ([0, 2], False, 0)


def test_noise_follows_the_noise_contract() -> None:
    state = new_state(3, lambda rows, points, success: None, shape=(2, 2, 2))
    z = state.noise("laplace", 5, count=2)
    assert z.shape == (3, 2, 2, 2, 2)
    zeros = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    wanted = sample_noise(zeros, [(0, 102, 5, 2)], sigma=1.0, noise="laplace", stage="attack", seed=7)
    assert torch.equal(z[2], wanted)
    assert state.noise("uniform", 0, shape=(4,)).shape == (3, 1, 4)
    state.retire(torch.tensor([FOOLED, ROBUST, ROBUST]).byte(), state.x)
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


def select(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target)


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
    success: dict[int, bool] = {}

    def run() -> tuple[Tensor, dict[int, bool], int]:
        success.clear()
        attacker = attack(small_net(), 0.6 if "norm" in options else 0.04, **options)
        attacker.callback = lambda row, fooled, point: success.update({row: fooled})
        return attacker.generate(x, y), dict(success), attacker.forwards

    points, outcome, forwards = run()
    assert {True, False} == set(outcome.values())
    monkeypatch.setattr(Delayed, "polls", polls)
    monkeypatch.setattr(state_module, "HostCopy", Delayed)
    monkeypatch.setattr(apgd, "replaced", select)
    late, late_outcome, late_forwards = run()
    torch.testing.assert_close(late, points, rtol=0, atol=1e-9)
    assert late_outcome == outcome
    assert late_forwards > forwards  # rows of examples that have not left yet
