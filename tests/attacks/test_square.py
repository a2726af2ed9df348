"""Square: windows and patterns against direct definitions, losses that rise, and queries."""

from __future__ import annotations

import pytest
import torch
from attack_models import NORMS, Counting, fooled_alone, halfspace, images, inside, random, small_net
from torch import Tensor, nn

from pyrobust.attacks.black_box.square import Square
from pyrobust.attacks.black_box.square_windows import Grid, pattern, window_share

EPSILON = {"linf": 0.05, "l2": 0.3, "l1": 1.0}


def test_schedule() -> None:
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
def test_more_queries_never_lower_the_loss(norm: str) -> None:
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


def test_linf_finds_the_corner_of_a_linear_model() -> None:
    """With two pixels, a few queries try every corner of the ball."""
    model = nn.Sequential(nn.Flatten(), halfspace(torch.tensor([1.0, -2.0]), 0.0))
    x, y = torch.tensor([[[[0.5, 0.15]]]]), torch.tensor([0])  # 0.2 from the boundary: 3·epsilon is needed
    assert fooled_alone(model, Square(model, 0.068, n_queries=50).generate(x, y), y) == [True]
    assert fooled_alone(model, Square(model, 0.066, n_queries=50).generate(x, y), y) == [False]


@pytest.mark.parametrize("norm", NORMS)
def test_other_shapes_and_formats(norm: str) -> None:
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
    counting = Counting(net)
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
def test_targeted(norm: str) -> None:
    net, (x, y) = small_net(), images(12)
    goal = (net(x).argmax(1) + 1) % 5
    x_adv = Square(net, 10 * EPSILON[norm], norm, n_queries=100).generate(x, y, True, goal)
    assert int((net(x_adv).argmax(1) == goal).sum()) >= 9
