"""FAB: the step to a hyperplane against linear programs, and distances of linear models in closed form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attack_models import NORMS, Counting, fooled_alone, halfspace, images, inside, random, small_net
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from pyrobust.attacks.engine.norms import norm_of
from pyrobust.attacks.minimum.fab import FAB
from pyrobust.attacks.minimum.fab_projection import step_to_hyperplane


def shortest(x: Any, w: Any, gap: float, norm: str) -> float:
    """Length of the shortest step in [0, 1] that closes the gap, by linear programming or bisection of the dual."""
    size = len(x)
    if norm == "l1":
        solution = linprog(
            np.ones(2 * size),
            A_eq=[np.concatenate([w, -w])],
            b_eq=[gap],
            bounds=[(0, 1 - v) for v in x] + [(0, v) for v in x],
        )
        return float(solution.fun)
    if norm == "linf":
        ones = np.ones((size, 1))
        solution = linprog(
            [0.0] * size + [1.0],
            A_ub=np.block([[np.eye(size), -ones], [-np.eye(size), -ones]]),
            b_ub=np.zeros(2 * size),
            A_eq=[[*w, 0.0]],
            b_eq=[gap],
            bounds=[(-v, 1 - v) for v in x] + [(0, None)],
        )
        return float(solution.fun)
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * w, -x, 1 - x) @ w < gap else (low, middle)
    return float(np.linalg.norm(np.clip(low * w, -x, 1 - x)))


@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data())
def test_step_is_shortest(norm: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    number = st.integers(0, 8).map(lambda k: k / 8)
    x = np.array(data.draw(st.lists(number, min_size=size, max_size=size)))
    w = np.array(data.draw(st.lists(st.integers(-4, 4).map(float), min_size=size, max_size=size)))
    most = np.maximum(w * (1 - x), -w * x).sum()
    least = np.minimum(w * (1 - x), -w * x).sum()
    share = data.draw(st.integers(0, 16)) / 16
    gap = float(least + share * (most - least))
    step = step_to_hyperplane(torch.tensor(x)[None], torch.tensor(w)[None], torch.tensor([gap]).double(), norm, 0, 1)
    moved = step[0].numpy()
    assert (x + moved >= -1e-12).all()
    assert (x + moved <= 1 + 1e-12).all()
    assert moved @ w == pytest.approx(gap, abs=1e-9)
    assert not moved[w == 0].any()
    length = np.linalg.norm(moved, {"linf": np.inf, "l2": 2, "l1": 1}[norm])
    assert length == pytest.approx(shortest(x, w, gap, norm), abs=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_step_stops_at_the_box(norm: str) -> None:
    x, w = torch.tensor([[0.25, 0.75, 0.5]]), torch.tensor([[1.0, -2.0, 0.0]])
    for gap, end in ((9.0, [0.75, -0.75, 0.0]), (-9.0, [-0.25, 0.25, 0.0])):
        step = step_to_hyperplane(x, w, torch.tensor([gap]), norm, 0.0, 1.0)
        assert step[0].tolist() == end
    assert not step_to_hyperplane(x, w, torch.tensor([0.0]), norm, 0.0, 1.0).any()
    assert not step_to_hyperplane(x, 0 * w, torch.tensor([1.0]), norm, 0.0, 1.0).any()


@pytest.mark.parametrize("norm", NORMS)
def test_batched_steps_equal_single_steps(norm: str) -> None:
    x, w = random(2, 50, 40, seed=1, dtype=torch.float64), random(50, 40, seed=2, dtype=torch.float64) - 0.5
    gap = (random(2, 50, seed=3, dtype=torch.float64) - 0.5) * 6
    together = step_to_hyperplane(x, w, gap, norm, 0.0, 1.0)
    for k in range(2):
        for row in range(50):
            alone = step_to_hyperplane(x[k, row : row + 1], w[row : row + 1], gap[k, row : row + 1], norm, 0.0, 1.0)
            torch.testing.assert_close(together[k, row], alone[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norm", NORMS)
def test_large_examples(norm: str) -> None:
    """Batches larger than the caches, with gaps of all sizes: feasible, exact, and equal to single steps."""
    size = 2000
    x, w = random(2, 90, size, seed=1, dtype=torch.float64), random(90, size, seed=2, dtype=torch.float64) - 0.5
    most = torch.maximum(w * (1 - x), -w * x).sum(-1)
    gap = most * torch.linspace(0, 1, 90, dtype=torch.float64)
    step = step_to_hyperplane(x, w, gap, norm, 0.0, 1.0)
    assert bool(((x + step) > -1e-12).all())
    assert bool(((x + step) < 1 + 1e-12).all())
    torch.testing.assert_close((step * w).sum(-1), gap, rtol=1e-9, atol=1e-9)
    for row in (1, 30, 80):
        alone = step_to_hyperplane(x[0, row : row + 1], w[row : row + 1], gap[0, row : row + 1], norm, 0.0, 1.0)
        torch.testing.assert_close(alone[0], step[0, row], rtol=1e-12, atol=1e-14)
    if norm == "l1":  # coordinates with larger weights move first
        weight = w.abs().expand(2, -1, -1)
        moving = weight.masked_fill(step == 0, torch.inf).amin(-1)
        full = torch.where(w > 0, 1 - x, x)
        short = weight.masked_fill(step.abs() >= full - 1e-12, 0).amax(-1)
        assert bool((moving >= short).all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distance_of_linear_models_is_exact(norm: str, dtype: torch.dtype) -> None:
    weight = random(12, seed=4, dtype=dtype) - 0.5
    x = random(8, 12, seed=5, dtype=dtype)
    x[::3] = x[::3].round()  # the box binds
    # Far enough that several coordinates reach their faces, but still inside the box.
    lowest = torch.minimum(weight * (1 - x), -weight * x).sum(1)
    bias = -0.5 * lowest - x @ weight
    for row in range(8):
        model = halfspace(weight, float(bias[row]))
        example = x[row : row + 1]
        nearest = FAB(model, 0.1, norm, steps=20).minimum(example, torch.tensor([0]))
        gap = -float(model(example).detach()[0, 0])
        exact = shortest(example[0].double().numpy(), weight.double().numpy(), gap, norm)
        assert exact - 1e-6 <= float(nearest.distance) <= 1.01 * exact, row
        assert fooled_alone(model, nearest.x_adv, torch.tensor([0])) == [True]
        assert inside(nearest.x_adv, example, norm, float(nearest.distance) * (1 + 1e-12))


@pytest.mark.parametrize("norm", NORMS)
def test_success_matches_the_minimal_perturbation(norm: str) -> None:
    x, y = images(24)
    net = small_net()
    full = FAB(net, norm=norm, steps=20).minimum(x, y)
    wrong = torch.tensor(fooled_alone(net, x, y))
    assert wrong.any()
    assert torch.equal(full.distance == 0, wrong)
    assert torch.equal(full.x_adv[wrong], x[wrong])
    assert full.distance.dtype == torch.float64
    assert full.to_dict()["distance"] == full.distance.tolist()
    finite = full.distance.isfinite()
    assert fooled_alone(net, full.x_adv[finite], y[finite]) == [True] * int(finite.sum())
    torch.testing.assert_close(norm_of(norm).distance(full.x_adv, x)[finite], full.distance[finite])
    epsilon = float(full.distance[finite & ~wrong].median())
    x_adv = FAB(net, epsilon, norm, steps=20).generate(x, y)
    assert inside(x_adv, x, norm, epsilon)
    broken = fooled_alone(net, x_adv, y)
    # The search for the nearest point visits the points at which a search within epsilon stops.
    assert broken == (full.distance <= epsilon).tolist()


@pytest.mark.parametrize(
    ("norm", "options"),
    [*((norm, {}) for norm in NORMS), ("l2", {"targets": None}), ("l1", {"targets": 1, "restarts": 3})],
)
def test_results_do_not_depend_on_the_batch_size(norm: str, options: dict[str, Any]) -> None:
    x, y = images(6)
    net = small_net()
    epsilon = {"linf": 0.02, "l2": 0.1, "l1": 0.3}[norm]
    results = [FAB(net, epsilon, norm, steps=6, batch_size=size, **options).generate(x, y) for size in (6, 4, 1)]
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=0, atol=1e-9)
        assert fooled_alone(net, results[0], y) == fooled_alone(net, other, y)


@pytest.mark.parametrize("norm", NORMS)
def test_all_classes_at_once_match_classes_in_turn(norm: str) -> None:
    x, y = images(16)
    net = small_net()
    at_once = FAB(net, norm=norm, steps=20, targets=None).minimum(x, y).distance
    in_turn = FAB(net, norm=norm, steps=20).minimum(x, y).distance
    torch.testing.assert_close(at_once, in_turn, rtol=0.1, atol=0)


def test_targeted() -> None:
    """Three classes along one axis; class 1 is closer than class 2."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]]))
        model.bias.copy_(torch.tensor([0.0, -0.2, -0.6]))
    x, y = torch.zeros(1, 2), torch.tensor([0])
    attack = FAB(model, 1.0, "l2", steps=20)
    untargeted = attack.minimum(x, y)
    assert float(untargeted.distance) == pytest.approx(0.1, rel=0.01)
    targeted = attack.minimum(x, y, True, torch.tensor([2]))
    assert int(model(targeted.x_adv).argmax()) == 2
    assert float(targeted.distance) == pytest.approx(0.6 / 10**0.5, rel=0.01)
    assert float(attack.minimum(x, y, True, torch.tensor([0])).distance) == 0


def test_no_adversarial_example_exists() -> None:
    model = nn.Sequential(nn.Flatten(), halfspace(torch.ones(4), 1.0))  # class 0 in the whole box
    x, y = random(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64)
    nearest = FAB(model, steps=5).minimum(x, y)
    assert nearest.distance.tolist() == [float("inf")] * 3
    assert inside(FAB(model, 0.1, steps=5).generate(x, y), x, "linf", 0.1)
    assert FAB(model).minimum(x[:0], y[:0]).distance.shape == (0,)


@pytest.mark.parametrize("norm", NORMS)
def test_generate_returns_the_nearest_point(norm: str) -> None:
    """Not the first one within epsilon, which fools the same examples from further away."""
    x, y = images(8)
    net = small_net()
    epsilon = {"linf": 0.2, "l2": 2.0, "l1": 5.0}[norm]
    attack = FAB(net, epsilon, norm, steps=10)
    nearest, minimal = attack.generate(x, y), attack.minimum(x, y)
    first = FAB(net, epsilon, norm, steps=10, nearest=False).generate(x, y)
    distance = norm_of(norm).distance
    torch.testing.assert_close(distance(nearest, x), minimal.distance, rtol=1e-3, atol=0)
    assert fooled_alone(net, nearest, y) == fooled_alone(net, first, y) == [True] * 8
    assert inside(nearest, x, norm, epsilon)
    assert bool((distance(nearest, x) <= distance(first, x)).all())
    assert float(distance(nearest, x).sum()) < 0.97 * float(distance(first, x).sum())


@pytest.mark.parametrize("norm", NORMS)
def test_margin_survives_the_rounding_of_other_batches(norm: str) -> None:
    weight = random(12, seed=4) - 0.5
    plain = halfspace(weight, 0.3)

    def model(x: Tensor) -> Tensor:
        """Rounding that depends on the batch: even ones lean toward class 0."""
        logits = plain(x) + 0.5
        lean = 3e-4 * logits.detach().abs().amax(1, keepdim=True)
        return logits + lean * torch.tensor([1.0, 0.0]) if len(x) % 2 == 0 else logits

    x, y = random(9, 12, seed=5), torch.zeros(9, dtype=torch.int64)
    x, y = x[plain(x).argmax(1) == 0][:5], y[:5]
    attack = FAB(model, 10.0 if norm == "l1" else 1.0, norm, steps=20)
    safe, close = attack.minimum(x, y), attack.minimum(x, y, margin=False)
    for points in (safe.x_adv, attack.generate(x, y)):
        logits = model(points)
        assert all(int(model(point[None]).argmax()) == 1 for point in points)
        # In l1 the margin is out of reach along one perturbation, whose largest changes end at faces of the clip range.
        certain = (logits[:, 1] - logits[:, 0]) > 3.5e-4 * logits.abs().amax(1)
        assert certain.sum() >= 4
        assert (model(points[certain].repeat(2, 1)).argmax(1) == 1).all()
    assert (close.distance <= safe.distance).all()
    assert (safe.distance < 1.01 * close.distance).all()
    assert (model(close.x_adv.repeat(2, 1)).argmax(1) == 0).any()


def test_points_without_a_margin_count_where_nothing_else_is_found() -> None:
    """A model whose logits differ by less than the margin everywhere, and one whose box ends at the boundary."""
    x, y = torch.tensor([[0.75], [0.25]]), torch.tensor([0, 1])

    def flat(x: Tensor) -> Tensor:
        return torch.cat([1000 + 1e-2 * x, 1000 + 1e-2 * (1 - x)], 1)

    nearest = FAB(flat, 1.0, steps=20).minimum(x, y)
    assert nearest.distance == pytest.approx(torch.tensor([0.25, 0.25]).double(), rel=0.15)
    assert fooled_alone(flat, nearest.x_adv, y) == [True, True]
    assert fooled_alone(flat, FAB(flat, 0.3, steps=20).generate(x, y), y) == [True, True]


def test_fooled_examples_leave_at_once_without_nearest() -> None:
    counting = Counting(small_net())
    x, y = images(16)
    near = FAB(counting, 0.2, steps=30, nearest=False)
    near.generate(x, y)
    near_forwards = near.forwards
    assert counting.rows >= near_forwards
    FAB(counting, 1e-6, steps=30).generate(x, y)
    assert near_forwards < counting.rows / 10


@pytest.mark.skipif(not os.environ.get("PYROBUST_DATA"), reason="PYROBUST_DATA is not set")
@pytest.mark.parametrize("norm", NORMS)
def test_mnist_net_is_fooled_closer_than_by_pgd(norm: str) -> None:
    from pyrobust.attacks import PGD

    net, x, y = mnist_net(12)
    nearest = FAB(net, norm=norm, steps=20, targets=3).minimum(x, y)
    assert fooled_alone(net, nearest.x_adv, y) == [True] * 12
    assert inside(nearest.x_adv, x, norm, [float(d) * (1 + 1e-12) for d in nearest.distance])
    broken = PGD(net, 1.0, norm, steps=20, random_start=False).generate(x, y, epsilon=0.9 * nearest.distance)
    assert sum(fooled_alone(net, broken, y)) <= 2


def mnist_net(count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The 6x100 net, and images that it classifies correctly."""
    folder = Path(os.environ["PYROBUST_DATA"])
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, 100), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(100, 100), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(100, 10))
    net.load_state_dict(torch.load(folder / "nets/mnist_6_100.pt", weights_only=True))
    with np.load(folder / "images/mnist_eran.npz") as file:
        x, y = torch.from_numpy(file["X"][:100]), torch.from_numpy(file["y"][:100])
    with torch.no_grad():
        right = net(x).argmax(1) == y
    return net, x[right][:count], y[right][:count]
