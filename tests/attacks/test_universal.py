"""UniversalPerturbation: closed forms of linear models, the ball, rates on other images."""

from __future__ import annotations

import pytest
import torch
from attack_models import Counting, halfspace, images, inside, random, small_net
from torch import Tensor

from pyrobust.attacks import UniversalPerturbation
from pyrobust.attacks.engine.queries import Queries
from pyrobust.metrics import estimate_rate

WEIGHT = torch.tensor([3.0, -1.0, 0.5, 2.0])


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_linear_models_have_one_best_direction(norm: str) -> None:
    """-epsilon times sign w, w/‖w‖₂, or the largest coordinate."""
    x = random(20, 4, seed=1) * 0.5 + 0.25
    model = halfspace(WEIGHT, 10.0)
    result = UniversalPerturbation(model, 0.125, norm).fit(x, torch.zeros(20, dtype=torch.int64))
    best = {
        "linf": WEIGHT.sign(),
        "l2": WEIGHT / WEIGHT.norm(),
        "l1": torch.tensor([1.0, 0.0, 0.0, 0.0]),
    }[norm]
    assert float(-WEIGHT @ result.delta) >= 0.95 * 0.125 * float(WEIGHT @ best)
    assert result.fooling_rate.successes == 0


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_point_is_in_the_ball(norm: str, dtype: torch.dtype) -> None:
    net, (x, y) = small_net(dtype), images(24, dtype)
    epsilon = {"linf": 0.3, "l2": 1.5, "l1": 6.0}[norm]
    attack = UniversalPerturbation(net, epsilon, norm, epochs=10, batch_size=7)
    result = attack.fit(x[:16], y[:16])
    assert result.delta.dtype == dtype
    assert inside(result.delta[None], torch.zeros_like(x[:1]), norm, epsilon, -9, 9)
    x_adv = result.apply(x)
    assert inside(x_adv, x, norm, epsilon)
    assert not torch.equal(x_adv, x)


def test_it_fools_more_than_random_signs() -> None:
    net, (x, _) = small_net(torch.float32), images(200, torch.float32)
    y = net(x).argmax(1)
    attack = UniversalPerturbation(net, 0.2, epochs=30)
    result = attack.fit(x[:100], y[:100])
    after = net(result.apply(x[:100])).argmax(1)
    assert result.fooling_rate == estimate_rate(int((after != y[:100]).sum()), 100)
    rates = attack.evaluate(x[100:], y[100:], result)
    signs = torch.randn(20, 1, 1, 6, 6, generator=torch.Generator().manual_seed(0)).sign()
    chance = max(float((net((x[100:] + 0.2 * s).clamp(0, 1)).argmax(1) != y[100:]).float().mean()) for s in signs)
    assert rates["fooling_rate"].lower > chance
    assert rates["clean_accuracy"].value == 1
    assert rates["attack_success_rate"].value == 1 - rates["robust_accuracy"].value
    again = UniversalPerturbation(net, 0.2, epochs=30).fit(x[:100], y[:100])
    assert torch.equal(again.delta, result.delta)


def test_beta_keeps_outliers_from_deciding() -> None:
    """One example of huge loss pulls up, nine pull down; with the limit the nine decide."""
    x = torch.full((10, 2), 0.5)
    x[0] = 0.9
    y = torch.zeros(10, dtype=torch.int64)

    def model(z: Tensor) -> Tensor:  # class 0 loses by 40·(z - 0.7) for the first, by a little near 0.5 for the others
        value = torch.where(z[:, 0] > 0.7, -1000 * (z[:, 0] - 0.7), 1 - 2 * (0.5 - z[:, 0]))
        return torch.stack([value, -value], 1)

    down = UniversalPerturbation(model, 0.1, batch_size=10, epochs=5, loss="margin", beta=9.0).fit(x, y).delta
    up = UniversalPerturbation(model, 0.1, batch_size=10, epochs=5, loss="margin", beta=1e9).fit(x, y).delta
    assert float(down[0]) == pytest.approx(-0.025)
    assert float(up[0]) == pytest.approx(0.025)


def test_clipped_coordinates_do_not_count() -> None:
    """Nine images are 0 in the first coordinate, where lowering it does nothing: the tenth decides."""
    x = torch.zeros(10, 2)
    x[0, 0] = 0.5
    x[:, 1] = 0.5

    def model(z: Tensor) -> Tensor:  # clipped ones would be moved down, the tenth up
        value = torch.where(z[:, 0] > 0.2, -z[:, 0], 4 * z[:, 0]) + 3
        return torch.stack([value, -value], 1)

    attack = UniversalPerturbation(model, 0.1, loss="margin", epochs=1, batch_size=10, step_size=0.05)
    y = torch.zeros(10, dtype=torch.int64)
    attack.epochs = 3
    assert float(attack.fit(x, y).delta[0]) < 0  # at δ = 0 the nine count, then they are clipped
    queries = Queries(attack.runner)
    gradient = attack._gradient(queries, x, y, torch.tensor([[-0.05, 0.0]]))
    assert float(gradient[0, 0]) > 0


def test_modes_and_forward_passes() -> None:
    net = Counting(small_net(torch.float32))
    x, y = images(10, torch.float32)
    attack = UniversalPerturbation(net, 0.1, epochs=2)
    net.train()  # after the constructor, which leaves evaluation mode
    result = attack.fit(x, y)
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert result.forwards >= 10 + 2 * 20
