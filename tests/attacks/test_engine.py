"""Guarantees of every attack: constraints, batches, seeds, verdicts, early leaving, noise, and untouched state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attack_models import (
    ATTACKS,
    CASES,
    NORMS,
    Recording,
    fooled_alone,
    halfspace,
    images,
    inside,
    made,
    random,
    small_net,
)
from torch import Tensor, nn

from pyrobust.attacks import (
    APGD,
    BIM,
    FGSM,
    PGD,
    SPSA,
    HopSkipJump,
    Square,
    TransferAttack,
    apgd,
)
from pyrobust.attacks.engine import state as state_module
from pyrobust.attacks.engine.norms import NORMS as NORM_OBJECTS
from pyrobust.attacks.engine.queries import Queries
from pyrobust.attacks.engine.state import AttackState
from pyrobust.ops import sample_noise
from pyrobust.ops.logits import CLOSE, ROBUST
from pyrobust.runner import Runner

EPSILON = {"linf": 0.1, "l2": 0.5, "l1": 1.6, "l0": 6.0}
EACH = pytest.mark.parametrize(
    ("attack", "options", "norm"), CASES, ids=[f"{attack.__name__}-{norm}" for attack, _, norm in CASES]
)
#: Each attack once, for what does not depend on the norm.
ONCE = pytest.mark.parametrize(
    ("attack", "options", "norm"), [(attack, options, norms[0]) for attack, options, norms in ATTACKS]
)


@EACH
def test_results_are_feasible_confirmed_and_reported(attack: Any, options: dict[str, Any], norm: str) -> None:
    """Constraints hold exactly, successes are confirmed alone, initially wrong examples are unchanged."""
    net, (x, y) = small_net(torch.float32), images(9, torch.float32)
    success: dict[int, bool] = {}
    points: dict[int, Tensor] = {}
    progress: list[tuple[int, int]] = []

    def leave(row: int, fooled: bool, point: Tensor) -> None:
        success[row], points[row] = fooled, point.clone()

    model = Recording(net)
    report = {"callback": leave, "progress": lambda done, total: progress.append((done, total))}
    attacker = made(attack, model, EPSILON[norm], norm, batch_size=5, **report, **options)
    before = x.clone()
    x_adv = attacker.generate(x, y)
    assert torch.equal(x, before)
    assert (x_adv.dtype, x_adv.shape, x_adv.requires_grad) == (x.dtype, x.shape, False)
    assert inside(x_adv, x, norm, EPSILON[norm])
    assert fooled_alone(net, x_adv, y) == [success[row] for row in range(9)]
    assert torch.equal(torch.stack([points[row] for row in range(9)]), x_adv)
    assert progress == sorted(set(progress))
    assert progress[-1] == (9, 9)
    assert torch.equal(x_adv[::8], x[::8])
    assert sum(success.values()) > 2
    assert attacker.forwards == model.rows
    assert max(model.batches) <= 5


@EACH
def test_results_do_not_depend_on_batch_and_order(attack: Any, options: dict[str, Any], norm: str) -> None:
    net, (x, y) = small_net(), images(7)
    whole = made(attack, net, EPSILON[norm] / 2, norm, seed=5, **options).generate(x, y)
    attacker = made(attack, net, EPSILON[norm] / 2, norm, seed=5, batch_size=3, **options)
    order = torch.tensor([6, 2, 0, 5, 4, 3, 1])
    reordered = attacker.generate(x[order], y[order], indices=order)
    torch.testing.assert_close(reordered, whole[order], rtol=0, atol=1e-9)
    assert inside(whole, x, norm, EPSILON[norm] / 2)
    if issubclass(attack, APGD | Square | SPSA | HopSkipJump | TransferAttack):
        other = made(attack, net, EPSILON[norm] / 2, norm, seed=6, **options).generate(x, y)
        assert not torch.equal(other, whole)


@EACH
def test_radius_per_example_equals_separate_runs(attack: Any, options: dict[str, Any], norm: str) -> None:
    net, (x, y) = small_net(), images(4)
    radii = torch.tensor([2.0, 0.4, 0.0, 1.2], dtype=torch.float64) * EPSILON[norm]
    together = made(attack, net, radii, norm, **options).generate(x, y)
    assert inside(together, x, norm, radii.tolist())
    alone = made(attack, net, EPSILON[norm], norm, **options)
    single = alone.generate(x[1:2], y[1:2], epsilon=radii[1:2], indices=[1])
    torch.testing.assert_close(together[1:2], single, rtol=0, atol=1e-9)


@ONCE
def test_targeted(attack: Any, options: dict[str, Any], norm: str) -> None:
    if options.get("loss") == "dlr-targeted":
        pytest.skip("names its targets itself")
    x, y = images(12)
    net = small_net()
    goal = torch.where(torch.arange(12) % 3 == 0, net(x).argmax(1), net(x).topk(2).indices[:, 1])
    success: dict[int, bool] = {}
    report = {"callback": lambda row, fooled, point: success.update({row: fooled})}
    attacker = made(attack, net, 3 * EPSILON[norm], norm, **report, **options)
    x_adv = attacker.generate(x, y, targeted=True, target_labels=goal)
    assert inside(x_adv, x, norm, 3 * EPSILON[norm])
    reached = [not fooled for fooled in fooled_alone(net, x_adv, goal)]
    assert reached == [success[row] for row in range(12)]
    assert torch.equal(x_adv[::3], x[::3])  # at their target already
    assert sum(reached) > 5


@ONCE
def test_model_and_global_state_are_untouched(attack: Any, options: dict[str, Any], norm: str) -> None:
    net = small_net()
    flags = [p.requires_grad_(i % 2 == 0).requires_grad for i, p in enumerate(net.parameters())]
    x, y = images(3)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    generator = torch.get_rng_state()
    x_adv = made(attack, net, EPSILON[norm], norm, **options).generate(x.requires_grad_(), y)
    assert not x_adv.requires_grad
    assert x.grad is None
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.is_grad_enabled()
    assert made(attack, net, 0.1, norm, **options).generate(x[:0], y[:0]).shape == (0, 1, 6, 6)


@EACH
def test_16_bit_floats_and_channels_last(attack: Any, options: dict[str, Any], norm: str) -> None:
    """A 16-bit model on its own images in another memory format; one on float32 images, or a model under autocast."""
    x, y = images(4, torch.float32)
    mixed: tuple[nn.Module, dict[str, Any]] = (small_net(torch.bfloat16), {})
    if norm in ("l2", "l0"):
        mixed = small_net(torch.float32), {"dtype": torch.bfloat16}
    half = small_net(torch.float16), {"memory_format": torch.channels_last}
    for (model, running), inputs in ((mixed, x), (half, x.half())):
        x_adv = made(attack, model, EPSILON[norm], norm, **options, **running).generate(inputs, y)
        assert x_adv.dtype == inputs.dtype
        assert inside(x_adv, inputs, norm, EPSILON[norm])
        assert not torch.equal(x_adv, inputs)


def test_forward_rows_by_hand() -> None:
    """With steps of 1/16 in one coordinate, an example at distance d leaves after the first t with t/16 > d."""
    model = Recording(halfspace(torch.tensor([1.0]), -0.5))
    distance = torch.tensor([-0.25, 0.03, 0.1, 0.1, 0.22, 0.45])
    attacker = BIM(model, 0.25, steps=4, step_size=1 / 16, batch_size=10)
    attacker.generate(0.5 + distance[:, None], torch.zeros(6, dtype=torch.int64))
    assert model.batches == [6, 5, 5, 4, 2, 2]  # all; at x; after 1, 2, 3, 4 steps
    assert attacker.forwards == 24
    attacker.generate(0.5 + distance[:1, None], torch.zeros(1, dtype=torch.int64))
    assert attacker.forwards == 1  # misclassified without an attack, never attacked


def test_success_is_confirmed_alone() -> None:
    """A success that only a batch of several rows shows is not reported."""

    def model(x: Tensor) -> Tensor:
        low = x[:, 0] < 0.5
        sway = 1e-6 if len(x) > 1 else -1e-6
        other = torch.where(low, torch.full_like(x[:, 0], sway), x[:, 0] * 0 - 1)
        return torch.stack([x[:, 0] * 0, other, x[:, 0] * 0 - 2], 1)

    success = []
    x, y = torch.full((5, 2), 0.51), torch.zeros(5, dtype=torch.int64)
    for attack in (PGD(model, 0.1, steps=4), APGD(model, 0.1, steps=4), FGSM(model, 0.1)):
        attack.callback = lambda row, fooled, point: success.append(fooled)
        x_adv = attack.generate(x, y)
        assert int(model(x_adv[:1]).argmax()) == 0
    assert success == [False] * 15


def test_examples_wrong_only_in_larger_batches_are_attacked() -> None:
    def model(x: Tensor) -> Tensor:
        sway = 1e-6 if len(x) > 1 else -1e-6
        return torch.stack([x[:, 0], 0.5 + x[:, 0] * 0 + sway], 1)

    x, y = torch.full((3, 2), 0.5), torch.zeros(3, dtype=torch.int64)
    x_adv = BIM(model, 0.25, steps=2).generate(x, y)
    assert bool((x_adv[:, 0] < 0.5).all())


def test_out_of_memory_halves_the_batch_without_repeating_work() -> None:
    class Tight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 5 and torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory.")
            output: Tensor = self.net(x)
            return output

    x, y = images(20)
    rows: list[int] = []
    attack = PGD(Tight(), 0.05, steps=5, batch_size=16, callback=lambda row, fooled, point: rows.append(row))
    x_adv = attack.generate(x, y)
    assert sorted(rows) == list(range(20))
    torch.testing.assert_close(x_adv, PGD(small_net(), 0.05, steps=5).generate(x, y), rtol=0, atol=1e-9)
    assert attack.runner.batch_size((1, 6, 6), gradients=True) == 4
    assert attack.runner.batch_size((1, 6, 6)) == 16


@pytest.mark.parametrize("norm", NORMS)
def test_epsilon_beyond_the_range_of_the_dtype(norm: str) -> None:
    x, y = images(6, torch.float32)
    for attack, options in ((PGD, {"steps": 5}), (Square, {"n_queries": 20})):
        for epsilon in (1e39, 1e300):
            x_adv = made(attack, small_net(torch.float32), epsilon, norm, **options).generate(x, y)
            assert ((x_adv >= 0) & (x_adv <= 1)).all()


def threshold(x: Tensor) -> Tensor:
    """Class 1 where the first coordinate is at least one half, by a clear margin."""
    above = (x.flatten(1)[:, 0] >= 0.5).double()
    return torch.stack([1 - above, above], 1) * 4 - 2


def test_verdicts_are_confirmed_and_noise_stays_with_its_example() -> None:
    verdicts: list[tuple[list[int], bool]] = []
    state = AttackState(
        Queries(Runner(threshold, dtype=torch.float64)),
        NORM_OBJECTS["linf"],
        random(4, 2, 2, 2, dtype=torch.float64) / 4,
        torch.zeros(4, dtype=torch.int64),
        torch.full((4,), 0.75, dtype=torch.float64),
        torch.arange(4) + 100,
        range(4),
        targeted=False,
        lower=0.0,
        upper=1.0,
        seed=7,
        leave=lambda rows, points, success: verdicts.append((rows, success)),
    )
    z = state.noise("laplace", 5, count=2)
    assert z.shape == (4, 2, 2, 2, 2)
    zeros = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    wanted = sample_noise(zeros, [(0, 102, 5, 2)], sigma=1.0, noise="laplace", stage="attack", seed=7)
    assert torch.equal(z[2], wanted)
    assert state.noise("uniform", 0, shape=(4,)).shape == (4, 1, 4)
    x_adv = state.x.clone()
    x_adv[1, 0, 0, 0] = x_adv[3, 0, 0, 0] = 0.75  # these two fool the model
    before = state.queries.forwards
    (x_adv, row) = state.retire(torch.tensor([CLOSE, CLOSE, ROBUST, ROBUST]).byte(), x_adv, torch.arange(4))
    assert state.queries.forwards == before + 2
    assert verdicts == [([1], True)]
    assert sorted(row.tolist()) == [0, 2, 3]
    assert torch.equal(state.noise("laplace", 5, count=2)[row.tolist().index(2)], wanted)
    (x_adv,) = state.retire(torch.ones(3, dtype=torch.bool), x_adv)  # each True is confirmed, too
    assert state.queries.forwards == before + 5
    assert verdicts[1] == ([3], True)
    state.finish(x_adv)
    assert (sorted(verdicts[2][0]), verdicts[2][1], len(state)) == ([0, 2], False, 0)


class Delayed(state_module.HostCopy):
    """A verdict that arrives late, as from a GPU."""

    polls = 3

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.clone())
        self.countdown = self.polls

    @staticmethod
    def always_arrived(device: torch.device) -> bool:
        return False

    def arrived(self) -> bool:
        self.countdown -= 1
        return self.countdown < 0


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
