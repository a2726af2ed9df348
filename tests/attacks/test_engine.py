"""Guarantees of all attacks: constraints, batches, seeds, dtypes, early leaving, and untouched state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_models import NORMS, Counting, fooled_alone, halfspace, images, inside, small_net
from torch import Tensor, nn

from pyrobust.attacks import APGD, BIM, FGSM, PGD, BatchAttack
from pyrobust.attacks.engine.state import AttackState
from pyrobust.runner import Runner

EPSILON = {"linf": 0.05, "l2": 0.25, "l1": 0.8}
ATTACKS: list[tuple[Any, dict[str, Any]]] = [
    (FGSM, {}),
    (BIM, {"steps": 5}),
    (PGD, {"steps": 6, "restarts": 2}),
    (PGD, {"steps": 6, "momentum": 1.0, "loss": "dlr"}),
    (APGD, {"steps": 12}),
    (APGD, {"steps": 12, "loss": "dlr-targeted", "targets": 2}),
]
EACH = pytest.mark.parametrize(("attack", "options"), ATTACKS, ids=lambda v: v.__name__ if isinstance(v, type) else "")


@EACH
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_feasible_confirmed_and_reported(
    norm: str, dtype: torch.dtype, attack: Any, options: dict[str, Any]
) -> None:
    """Constraints hold exactly, successes are confirmed alone, initially wrong examples are unchanged."""
    net = small_net(dtype)
    x, y = images(24, dtype)
    success: dict[int, bool] = {}
    attacker: BatchAttack = attack(
        net, EPSILON[norm], norm, callback=lambda row, fooled, point: success.update({row: fooled}), **options
    )
    before = x.clone()
    x_adv = attacker.generate(x, y)
    assert torch.equal(x, before)
    assert (x_adv.dtype, x_adv.shape, x_adv.requires_grad) == (dtype, x.shape, False)
    assert inside(x_adv, x, norm, EPSILON[norm])
    assert fooled_alone(net, x_adv, y) == [success[row] for row in range(24)]
    assert torch.equal(x_adv[::8], x[::8])
    assert 3 < sum(success.values()) < 24


@EACH
@pytest.mark.parametrize("norm", NORMS)
def test_results_do_not_depend_on_the_batch(norm: str, attack: Any, options: dict[str, Any]) -> None:
    x, y = images(13)
    whole = attack(small_net(), EPSILON[norm], norm, seed=5, **options).generate(x, y)
    attacker = attack(small_net(), EPSILON[norm], norm, seed=5, batch_size=4, **options)  # the last one is of one row
    torch.testing.assert_close(attacker.generate(x, y), whole, rtol=0, atol=1e-9)
    order = torch.tensor([7, 2, 12, 5])
    subset = attacker.generate(x[order], y[order], indices=order)
    torch.testing.assert_close(subset, whole[order], rtol=0, atol=1e-9)


@EACH
@pytest.mark.parametrize("norm", NORMS)
def test_radius_per_example_equals_separate_runs(norm: str, attack: Any, options: dict[str, Any]) -> None:
    x, y = images(9)
    radii = torch.linspace(0, 2 * EPSILON[norm], 9, dtype=torch.float64)
    attacker = attack(small_net(), EPSILON[norm], norm, **options)
    together = attacker.generate(x, y, epsilon=radii)
    assert inside(together, x, norm, radii.tolist())
    assert torch.equal(together[0], x[0])
    for row in (1, 5, 8):
        alone = attack(small_net(), float(radii[row]), norm, **options)
        single = alone.generate(x[row : row + 1], y[row : row + 1], indices=[row])
        torch.testing.assert_close(together[row : row + 1], single, rtol=0, atol=1e-9)
    assert torch.equal(attack(small_net(), radii, norm, **options).generate(x, y), together)


@EACH
def test_targeted(attack: Any, options: dict[str, Any]) -> None:
    if options.get("loss") == "dlr-targeted":
        pytest.skip("names its targets itself")
    x, y = images(24)
    net = small_net()
    goal = (net(x).argmax(1) + torch.arange(24) % 3) % 5  # a third are at their target already
    success: dict[int, bool] = {}
    attacker = attack(net, 0.3, callback=lambda row, fooled, point: success.update({row: fooled}), **options)
    x_adv = attacker.generate(x, y, targeted=True, target_labels=goal)
    assert inside(x_adv, x, "linf", 0.3)
    reached = [not fooled for fooled in fooled_alone(net, x_adv, goal)]
    assert reached == [success[row] for row in range(24)]
    assert torch.equal(x_adv[::3], x[::3])
    assert sum(reached) > 8


@EACH
def test_model_and_global_state_are_untouched(attack: Any, options: dict[str, Any]) -> None:
    net = small_net()
    flags = [p.requires_grad_(i % 2 == 0).requires_grad for i, p in enumerate(net.parameters())]
    x, y = images(6)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    generator = torch.get_rng_state()
    x_adv = attack(net, **options).generate(x.requires_grad_(), y)
    assert not x_adv.requires_grad
    assert x.grad is None
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.is_grad_enabled()


def test_forward_rows_by_hand() -> None:
    """With steps of 1/16 in one coordinate, an example at distance d leaves after the first t with t/16 > d."""
    model = Counting(halfspace(torch.tensor([1.0]), -0.5))
    distance = torch.tensor([-0.25, 0.03, 0.1, 0.1, 0.22, 0.45])
    attacker = BIM(model, 0.25, steps=4, step_size=1 / 16, batch_size=10)
    attacker.generate(0.5 + distance[:, None], torch.zeros(6, dtype=torch.int64))
    assert model.batches == [6, 5, 5, 4, 2, 2]  # all; at x; after 1, 2, 3, 4 steps
    assert attacker.forwards == 24
    attacker.generate(0.5 + distance[:1, None], torch.zeros(1, dtype=torch.int64))
    assert attacker.forwards == 1  # misclassified without an attack, never attacked


@EACH
def test_forwards_counts_every_row(attack: Any, options: dict[str, Any]) -> None:
    model = Counting(small_net())
    x, y = images(20)
    attacker = attack(model, 0.05, batch_size=7, **options)
    attacker.generate(x, y)
    assert attacker.forwards == model.rows
    assert max(model.batches) <= 7


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


def test_session_with_gradients() -> None:
    runner = Runner(small_net().train())
    x, _ = images(3)
    with runner.session(gradients=True):
        assert not runner.model.training
        assert not torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not runner.logits(x).requires_grad
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            assert torch.autograd.grad(runner.logits(leaf).sum(), leaf)[0].shape == x.shape
    assert runner.model.training
    assert torch.is_grad_enabled()


def test_progress_and_callback() -> None:
    x, y = images(20)
    seen: list[tuple[int, int]] = []
    points: dict[int, Tensor] = {}
    attack = PGD(
        small_net(),
        0.05,
        steps=5,
        batch_size=6,
        progress=lambda done, total: seen.append((done, total)),
        callback=lambda row, fooled, point: points.update({row: point.clone()}),
    )
    x_adv = attack.generate(x, y)
    assert seen[-1] == (20, 20)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert torch.equal(torch.stack([points[row] for row in range(20)]), x_adv)


def test_seeds() -> None:
    x, y = images(12)
    points = [PGD(small_net(), 0.01, steps=2, seed=seed).generate(x, y) for seed in (0, 0, 1, 2**64 - 1)]
    assert torch.equal(points[0], points[1])
    assert not torch.equal(points[0], points[2])
    assert not torch.equal(points[2], points[3])


def test_no_examples() -> None:
    x, y = images(4)
    for attack, options in ATTACKS:
        for norm in NORMS:
            none = attack(small_net(), norm=norm, **options).generate(x[:0], y[:0])
            assert none.shape == (0, 1, 6, 6)


def test_inside_inference_mode() -> None:
    x, y = images(6)
    expected = PGD(small_net(), 0.05, steps=3).generate(x, y)
    net = small_net()
    with torch.inference_mode():
        assert torch.equal(PGD(net, 0.05, steps=3).generate(x.clone(), y.clone()), expected)
    with torch.no_grad():
        assert torch.equal(PGD(net, 0.05, steps=3).generate(x, y), expected)


def test_user_defined_batch_attack() -> None:
    class Corner(BatchAttack):
        """The lower corner of the ball."""

        def _run(self, state: AttackState) -> None:
            x_adv = state.place(-state.epsilon.view(-1, 1).expand(state.x.shape).to(state.x))
            state.finish(*state.retire(state.verdict(state.logits(x_adv)) > 0, x_adv))

    x = torch.tensor([[0.9], [0.55], [0.1]])
    attack = Corner(halfspace(torch.tensor([1.0]), -0.5), 0.125)
    x_adv = attack.generate(x, torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(x_adv, torch.tensor([[0.775], [0.425], [0.1]]))
