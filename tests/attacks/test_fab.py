"""FAB: the step to a hyperplane against shortest steps in closed form, and searches for the nearest point."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attack_models import NORMS, fooled_alone, halfspace, images, inside, random, small_net
from support.piecewise_linear import shortest_step
from torch import Tensor, nn

from pyrobust.attacks.engine.norms import norm_of
from pyrobust.attacks.minimum.fab import FAB
from pyrobust.attacks.minimum.fab_projection import step_to_hyperplane


@pytest.mark.parametrize("norm", NORMS)
@given(data=st.data())
def test_step_is_shortest(norm: str, data: st.DataObject) -> None:
    """Where no step within the box reaches the hyperplane, it ends at the nearest corner."""
    size = data.draw(st.integers(1, 6))
    number = st.integers(0, 8).map(lambda k: k / 8)
    x = np.array(data.draw(st.lists(number, min_size=size, max_size=size)))
    w = np.array(data.draw(st.lists(st.integers(-4, 4).map(float), min_size=size, max_size=size)))
    most = np.maximum(w * (1 - x), -w * x).sum()
    least = np.minimum(w * (1 - x), -w * x).sum()
    gap = float(least + data.draw(st.integers(0, 16)) / 16 * (most - least)) + data.draw(st.sampled_from([0, 0, 9, -9]))
    step = step_to_hyperplane(torch.tensor(x)[None], torch.tensor(w)[None], torch.tensor([gap]).double(), norm, 0, 1)
    moved = step[0].numpy()
    assert (x + moved >= -1e-12).all()
    assert (x + moved <= 1 + 1e-12).all()
    assert moved @ w == pytest.approx(np.clip(gap, least, most), abs=1e-9)
    assert not moved[w == 0].any()
    if least <= gap <= most:
        length = np.linalg.norm(moved, {"linf": np.inf, "l2": 2, "l1": 1}[norm])
        assert length == pytest.approx(shortest_step(x, w, gap, norm), abs=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_large_examples(norm: str) -> None:
    """Batches larger than the caches, with gaps of all sizes: feasible, exact, and equal to single steps."""
    size = 2000
    x, w = random(2, 90, size, seed=1, dtype=torch.float64), random(90, size, seed=2, dtype=torch.float64) - 0.5
    reach = torch.maximum(w * (1 - x), -w * x).sum(-1)
    gap = reach * torch.linspace(0, 1, 90, dtype=torch.float64)
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


@pytest.mark.parametrize("norm", NORMS)
def test_generate_returns_the_nearest_point(norm: str) -> None:
    """Not the first one within epsilon, which fools the same examples from further away, but in fewer passes."""
    x, y = images(8)
    net = small_net()
    epsilon = {"linf": 0.2, "l2": 2.0, "l1": 5.0}[norm]
    attack = FAB(net, epsilon, norm, steps=10)
    nearest, minimal = attack.generate(x, y), attack.minimum(x, y)
    early = FAB(net, epsilon, norm, steps=10, nearest=False)
    first = early.generate(x, y)
    assert early.forwards < attack.forwards / 3
    distance = norm_of(norm).distance
    torch.testing.assert_close(distance(nearest, x), minimal.distance, rtol=1e-3, atol=0)
    assert fooled_alone(net, nearest, y) == fooled_alone(net, first, y) == [True] * 8
    assert inside(nearest, x, norm, epsilon)
    assert bool((distance(nearest, x) <= distance(first, x)).all())
    assert float(distance(nearest, x).sum()) < 0.97 * float(distance(first, x).sum())
    at_once = FAB(net, norm=norm, steps=20, targets=None).minimum(x, y).distance
    in_turn = FAB(net, norm=norm, steps=20).minimum(x, y).distance
    torch.testing.assert_close(at_once, in_turn, rtol=0.1, atol=0)


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
