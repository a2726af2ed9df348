"""Attacks without gradients: Square's windows and losses, SPSA's estimates, HopSkipJump's distances, and queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attack_models import NORMS, Recording, fooled_alone, halfspace, images, inside, random, small_net
from torch import Tensor, nn

from pyrobust.attacks import SPSA, HopSkipJump
from pyrobust.attacks.black_box.square import Square
from pyrobust.attacks.black_box.square_windows import Grid, pattern, window_share
from pyrobust.zoo import load_data, load_model

EPSILON = {"linf": 0.05, "l2": 0.3, "l1": 1.0}


def test_squares_schedule() -> None:
    shares = [window_share(query, 10_000, 0.8, rescale=False) for query in range(10_000)]
    assert [shares.count(0.8 / 2**k) for k in range(10)] == [11, 40, 150, 300, 500, 1000, 2000, 2000, 2000, 1999]
    halved = [window_share(query, 5000, 0.8, rescale=True) for query in range(5000)]
    assert halved == shares[::2]


@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (2, 12)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_window_offsets(shape: tuple[int, ...], channels_last: bool) -> None:
    x = torch.zeros(shape)
    if channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    grid = Grid.of(x)
    sides = grid.sides(0.2, odd=False)
    top, left = torch.tensor([0, grid.height - sides[0]]), torch.tensor([1, grid.width - sides[1]])
    window = grid.window(sides, top, left)
    Grid.rows(x).scatter_(1, window.flatten(1), 1.0)
    expected = torch.zeros(2, grid.channels, grid.height, grid.width)
    for row in range(2):
        expected[row, :, top[row] : top[row] + sides[0], left[row] : left[row] + sides[1]] = 1
    assert torch.equal(x.reshape(expected.shape), expected)
    assert expected.sum() == 2 * grid.channels * sides[0] * sides[1]


def test_sides() -> None:
    grid = Grid.of(torch.zeros(1, 3, 32, 32))
    assert [grid.sides(0.8 / 2**k, odd=False)[0] for k in range(10)] == [29, 20, 14, 10, 7, 5, 4, 3, 2, 1]
    assert [grid.sides(0.8 / 2**k, odd=True)[0] for k in range(10)] == [29, 21, 15, 11, 7, 5, 5, 3, 3, 3]
    assert Grid.of(torch.zeros(1, 3, 2, 2)).sides(0.8, odd=True) == (2, 2)
    assert Grid.of(torch.zeros(1, 100)).sides(0.25, odd=False) == (1, 5)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 6, 29])
@pytest.mark.parametrize(("norm", "power", "order"), [("l2", 2, 2), ("l1", 4, 1)])
def test_patterns_by_their_definition(norm: str, power: int, order: int, side: int) -> None:
    """A sum of nested rectangles that grow by one pixel on every side, clipped at the border."""

    def pyramid(height: int, width: int) -> Tensor:
        out = torch.zeros(height, width, dtype=torch.float64)
        for k in range(max(height // 2, width // 2) + 1):
            top, left = height // 2 - k, width // 2 - k
            out[max(top, 0) : top + 2 * k + 1, max(left, 0) : left + 2 * k + 1] += 1 / (k + 1) ** power
        return out / out.flatten().norm(order) if height else out

    expected = torch.cat([pyramid(side // 2, side), -pyramid(side - side // 2, side)])
    if side == 1:
        expected = -expected
    expected = expected / expected.flatten().norm(order)
    patterns = pattern((side, side), norm)
    torch.testing.assert_close(patterns[0].reshape(side, side), expected)
    torch.testing.assert_close(patterns[1].reshape(side, side), expected.T)


@pytest.mark.parametrize("norm", NORMS)
def test_tiles_cover_the_image_once(norm: str) -> None:
    for shape in ((1, 3, 28, 28), (1, 1, 32, 20), (1, 2, 3, 3), (1, 9)):
        grid = Grid.of(torch.zeros(shape))
        offsets, side = grid.tiles()
        assert len(set(offsets.flatten().tolist())) == offsets.numel()
        left_out = grid.channels * (grid.height * grid.width) - offsets.numel()
        assert left_out <= grid.channels * (grid.height + grid.width) * side


@pytest.mark.parametrize("norm", NORMS)
def test_more_queries_of_square_never_lower_the_loss(norm: str) -> None:
    """More queries of the same search, with the same windows, end at a point of at least the same loss."""
    x, y = images(12)
    net = small_net()
    attack = Square(net, EPSILON[norm] / 10, norm, rescale_schedule=False)

    def margins(queries: int) -> Tensor:
        attack.n_queries = queries
        with torch.no_grad():
            logits = net(attack.generate(x, y))
        return logits.scatter(1, y[:, None], -torch.inf).amax(1) - logits.gather(1, y[:, None])[:, 0]

    after_1, after_100 = margins(1), margins(100)
    assert bool((after_100 >= after_1 - 1e-12).all())
    robust = after_1 < 0
    assert bool((after_100 > after_1)[robust].float().mean() > 0.8)


def test_square_finds_the_corner_of_a_linear_model() -> None:
    """With two pixels, a few queries try every corner of the ball."""
    model = nn.Sequential(nn.Flatten(), halfspace(torch.tensor([1.0, -2.0]), 0.0))
    x, y = torch.tensor([[[[0.5, 0.15]]]]), torch.tensor([0])  # 0.2 from the boundary: 3·epsilon is needed
    assert fooled_alone(model, Square(model, 0.068, n_queries=50).generate(x, y), y) == [True]
    assert fooled_alone(model, Square(model, 0.066, n_queries=50).generate(x, y), y) == [False]


@pytest.mark.parametrize("norm", NORMS)
def test_square_on_other_shapes_and_formats(norm: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 6, 4))
    x, y = random(5, 3, 9, 6), torch.tensor([0, 1, 2, 3, 0])
    plain = Square(net, EPSILON[norm], norm, n_queries=20).generate(x, y)
    last = Square(net, EPSILON[norm], norm, n_queries=20, memory_format=torch.channels_last).generate(x, y)
    torch.testing.assert_close(plain, last)
    for shape in ((5, 162), (5, 1, 162), (5, 3, 9, 6)):
        x_adv = Square(net, EPSILON[norm], norm, n_queries=20).generate(x.reshape(shape), y)
        assert x_adv.shape == shape
        assert inside(x_adv, x.reshape(shape), norm, EPSILON[norm])
    tiny = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    assert Square(tiny, 0.1, norm, n_queries=3).generate(random(2, 1, 1, 1), torch.tensor([0, 1])).shape == (2, 1, 1, 1)


def test_square_needs_no_gradient_and_one_row_per_query() -> None:
    net = small_net(torch.float32)
    counting = Recording(net)
    x, _ = images(8, torch.float32)
    y = net(x).argmax(1)

    def scores(batch: Tensor) -> Tensor:
        assert not batch.requires_grad
        return counting(batch).round(decimals=6)

    attack = Square(scores, 1e-4, n_queries=30)
    x_adv = attack.generate(x, y)
    assert fooled_alone(net, x_adv, y) == [False] * 8
    assert counting.rows == attack.forwards == 8 * (1 + 1 + 30)  # clean examples, start, queries


@pytest.mark.parametrize("norm", NORMS)
def test_square_with_targets(norm: str) -> None:
    net, (x, y) = small_net(), images(12)
    goal = (net(x).argmax(1) + 1) % 5
    x_adv = Square(net, 10 * EPSILON[norm], norm, n_queries=100).generate(x, y, True, goal)
    assert int((net(x_adv).argmax(1) == goal).sum()) >= 9


def test_spsas_first_step_is_adams_on_the_estimate() -> None:
    """Adam's first step is step_size·sign(g); with one vector v, g of a linear margin w·x is (w·v)·v."""
    weight = torch.tensor([3.0, -1.0, 0.5, 2.0])
    model = halfspace(weight, 50.0)
    x = torch.full((1, 4), 0.5)
    x_adv = SPSA(model, 0.25, steps=1, samples=1, step_size=0.0625)(x, torch.tensor([0]))
    moved = (x_adv - x)[0]
    torch.testing.assert_close(moved.abs(), torch.full((4,), 0.0625))
    assert float(weight @ moved) < 0
    x_adv = SPSA(model, 0.25, steps=1, samples=2000, step_size=0.0625)(x, torch.tensor([0]))
    torch.testing.assert_close((x_adv - x)[0], -0.0625 * weight.sign())


def test_queries_of_spsa() -> None:
    """One for x, 2·samples + 1 in each step, in forward passes of no more rows than the batch."""
    counting = Recording(halfspace(torch.ones(6), 50.0))
    attack = SPSA(counting, 0.1, steps=3, samples=5, batch_size=8)
    attack(random(4, 6), torch.zeros(4, dtype=torch.int64))
    assert attack.forwards == counting.rows == 4 * (1 + 3 * (2 * 5 + 1))
    assert max(counting.batches) <= 8
    counting.seen.clear()
    attack(random(1, 6), torch.zeros(1, dtype=torch.int64))
    assert counting.rows == 1 + 3 * 11


def test_fewer_rows_share_forward_passes() -> None:
    """After the others have left, the vectors of the last example share forward passes, with the same result."""
    # Weights whose differences never cancel: the sign of a derivative of 0 would be that of rounding.
    counting = Recording(halfspace(torch.tensor([1.0, 1.013, 0.987, 1.029, 0.971, 1.0]), -0.5))
    x, y = random(8, 6, seed=4), torch.zeros(8, dtype=torch.int64)
    x[1:] = 0.52 / 6  # one step of 0.01 per coordinate crosses the boundary
    x_adv = SPSA(counting, 0.1, steps=3, samples=8, batch_size=8)(x, y)
    assert counting.batches == [8] * (1 + 2 * 8 + 1) + 2 * [8, 8, 1]
    alone = SPSA(counting, 0.1, steps=3, samples=8)(x[:1], y[:1])
    torch.testing.assert_close(x_adv[:1], alone, rtol=0, atol=1e-6)


def test_spsa_of_models_without_a_gradient() -> None:
    """A quantized net: PGD has nothing to follow, differences across the steps have."""
    net = small_net(torch.float32)

    def model(x: Tensor) -> Tensor:
        return net((x * 16).round() / 16)

    x, _ = images(10, torch.float32)
    y = model(x).argmax(1)
    attack = SPSA(model, 0.2, delta=0.05, step_size=0.05, steps=10, samples=16)
    assert attack.evaluate(x, y, attack(x, y))["robust_accuracy"] < 0.5
    goal = model(x).topk(2).indices[:, 1]
    x_adv = attack(x, y, targeted=True, target_labels=goal)
    assert float((model(x_adv).argmax(1) == goal).float().mean()) > 0.4
    assert inside(x_adv, x, "linf", 0.2)


def test_spsa_of_nan_logits() -> None:
    def model(x: Tensor) -> Tensor:
        z = x[:, 0] - 0.25
        return torch.stack([z, -z], 1).masked_fill(x[:, 1:2] > 0.55, torch.nan)

    x = torch.full((2, 2), 0.549)
    x_adv = SPSA(model, 0.4, steps=3, samples=4, delta=0.1)(x, torch.zeros(2, dtype=torch.int64))
    assert inside(x_adv, x, "linf", 0.4)


def test_spsa_on_a_grid() -> None:
    """The differences are at least one level wide, where the default ones would be none."""
    net, (x, _) = small_net(torch.float32), images(12, torch.float32)
    x = (x * 15).round() / 15
    y = net(x).argmax(1)
    attack = SPSA(net, 3 / 15, grid="1/15", steps=10, samples=16, step_size=0.05)
    x_adv = attack(x, y)
    assert bool(((x_adv * 15 - (x_adv * 15).round()).abs() < 1e-5).all())
    assert sum(fooled_alone(net, x_adv, y)) >= 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_spsa_of_models_of_half_precision(dtype: torch.dtype) -> None:
    """Adam's offset and small squares are 0 in float16."""
    digits, model = load_data("digits"), load_model("zoo:digits-smooth-0.25").to(dtype)
    x, y = digits.x[:8].to(dtype), digits.y[:8]
    x_adv = SPSA(model, 0.3, steps=10, samples=16, step_size=0.05)(x, y)
    assert x_adv.dtype == dtype
    assert bool((model(x_adv).argmax(1) != y).any())


WEIGHT = random(10, seed=5) * 2 - 1


def decisions(model: nn.Module) -> Any:
    """A model that reveals nothing but its class."""
    return lambda x: nn.functional.one_hot(model(x).argmax(1), 5).to(x.dtype)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_hop_skip_jump_at_a_hyperplane(norm: str) -> None:
    x = random(12, 10, seed=6) * 0.2 + 0.4  # far from the clip range
    gap = 0.1 + 0.02 * torch.arange(12)
    bias = gap - x @ WEIGHT
    length = WEIGHT.norm() if norm == "l2" else WEIGHT.abs().sum()

    row, y = 6, torch.tensor([0])
    net = halfspace(WEIGHT, float(bias[row]))
    distance = float(HopSkipJump(net, norm=norm, steps=8).minimum(x[row : row + 1], y, indices=[row]).distance)
    exact = float(gap[row] / length)
    assert exact <= distance * (1 + 1e-5)
    assert distance <= 1.03 * exact


def test_queries_of_hop_skip_jump_are_the_published_ones() -> None:
    """One for x, the tries of a start, 10 halvings in each bisection, samples·√t for a direction, and the jumps."""
    weight = torch.tensor([1.0, 0.0])
    counting = Recording(halfspace(weight, -0.25))
    x, y = torch.tensor([[0.75, 0.5]]), torch.tensor([0])
    options: dict[str, Any] = {"samples": 9, "max_samples": 16, "starts": torch.zeros(1, 2), "batch_size": 4}
    attack = HopSkipJump(counting, norm="l2", steps=4, **options)
    result = attack.minimum(x, y, margin=False)
    jumps = counting.rows - (1 + 1 + 1 + 5 * 10 + 9 + 12 + 15 + 16 + 1)
    assert 4 <= jumps <= 4 * 24
    assert result.forwards == counting.rows
    assert result.backwards == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_hop_skip_jump_from_starts_to_targets(norm: str) -> None:
    net = small_net()
    x, _ = images(12)
    y = net(x).argmax(1)
    goal = y.roll(1)
    goal = torch.where(goal == y, net(x).topk(2).indices[:, 1], goal)
    far = HopSkipJump(decisions(net), norm=norm, steps=3, samples=20, dtype=torch.float64)
    near = HopSkipJump(decisions(net), norm=norm, steps=3, samples=20, dtype=torch.float64, starts=x)
    adversarial = near.minimum(x, y, targeted=True, target_labels=goal)
    there = torch.isin(goal, y)
    assert bool(adversarial.success[there].all())
    assert torch.equal(net(adversarial.x_adv[there]).argmax(1), goal[there])
    assert inside(adversarial.x_adv[there], x[there], norm, adversarial.distance[there].tolist())
    assert float(far.minimum(x, y).distance.median()) > 0
    # With one step and one start, the result lies on the way to that start.
    lone = HopSkipJump(decisions(net), norm="l2", steps=1, samples=1, dtype=torch.float64, starts=x[y != y[0]][:1])
    result = lone.minimum(x[:1], y[:1])
    assert float(result.distance) < float((x[y != y[0]][0] - x[0]).norm())


def test_hop_skip_jump_without_a_start() -> None:
    """A model of one class: nothing is found, after the tries of a start."""
    counting = Recording(halfspace(torch.ones(4), 50.0))
    result = HopSkipJump(counting, norm="l2", steps=2).minimum(random(3, 4), torch.zeros(3, dtype=torch.int64))
    assert result.distance.tolist() == [torch.inf] * 3
    assert torch.equal(result.x_adv, random(3, 4))
    assert counting.rows <= 3 * (1 + 100 + 16)


def test_nan_is_no_success_of_a_target() -> None:
    """NaN logits predict no class: they count as wrong, and never as the target."""

    def model(x: Tensor) -> Tensor:
        logits = torch.stack([x[:, 0], 0.6 + 0 * x[:, 0]], 1)
        return logits.masked_fill(x[:, 1:] > 0.9, torch.nan)

    x, y = torch.full((2, 2), 0.7), torch.zeros(2, dtype=torch.int64)
    attack = HopSkipJump(model, norm="l2", steps=3, samples=20)
    result = attack.minimum(x, y, targeted=True, target_labels=1 - y)
    assert bool((result.x_adv[:, 0] <= 0.6).all())
    assert bool((result.x_adv[:, 1] <= 0.9).all())


def test_hop_skip_jump_on_a_grid() -> None:
    """Directions are told from differences of at least one level."""
    net, (x, _) = small_net(torch.float32), images(6, torch.float32)
    x = (x * 15).round() / 15
    y = net(x).argmax(1)
    result = HopSkipJump(net, norm="l2", grid="1/15", steps=5).minimum(x, y)
    free = HopSkipJump(net, norm="l2", steps=5).minimum(x, y)
    assert bool(((result.x_adv * 15 - (result.x_adv * 15).round()).abs() < 1e-5).all())
    assert fooled_alone(net, result.x_adv, y) == [True] * 6
    assert float(result.distance.median()) <= 1.3 * float(free.distance.median())
