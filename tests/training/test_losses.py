"""Losses for certified training: hand-worked values, points of the ball, training, and torch.compile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust import crown_ibp_loss, ibp_loss
from pyrobust.bounds import DifferentiableBounds
from pyrobust.errors import InputError
from pyrobust.training import ramp

LOSSES = (ibp_loss, crown_ibp_loss)


def problem(seed: int = 0) -> tuple[DifferentiableBounds, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
        return DifferentiableBounds(model, torch.zeros(1, 4)), torch.rand(8, 4), torch.arange(8) % 3


@pytest.mark.parametrize("loss", LOSSES)
def test_hand_worked_values(loss: Any) -> None:
    model = nn.Linear(1, 2, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    bounds = DifferentiableBounds(model, torch.zeros(1, 1))
    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    # The margin is 2x, at least 2(0.5 - 0.25) = 0.5 in the ball.
    clean, robust = (torch.log1p(torch.exp(-torch.tensor(margin))) for margin in (1.0, 0.5))
    torch.testing.assert_close(loss(bounds, x, y, 0.25, kappa=1.0), clean)
    torch.testing.assert_close(loss(bounds, x, y, 0.25, kappa=0.0), robust)
    torch.testing.assert_close(loss(bounds, x, y, 0.25, kappa=0.25), 0.25 * clean + 0.75 * robust)
    torch.testing.assert_close(loss(bounds, x, y, 0.25, kappa=torch.tensor(0.25)), 0.25 * clean + 0.75 * robust)


@pytest.mark.parametrize("loss", LOSSES)
def test_robust_loss_bounds_the_loss_in_the_ball(loss: Any) -> None:
    bounds, x, y = problem()
    robust = loss(bounds, x, y, 0.1, kappa=0.0)
    for seed in range(30):
        noise = 2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 1
        attacked = functional.cross_entropy(bounds.model(x + 0.1 * (noise.sign() if seed % 2 else noise)), y)
        assert attacked <= robust
    torch.testing.assert_close(loss(bounds, x, y, 0.0, kappa=0.0), functional.cross_entropy(bounds.model(x), y))


def test_beta_interpolates_the_margins() -> None:
    bounds, x, y = problem()
    losses = [crown_ibp_loss(bounds, x, y, 0.2, kappa=0.0, beta=beta) for beta in (0.0, torch.tensor(0.0), 0.5, 1.0)]
    torch.testing.assert_close(losses[0], ibp_loss(bounds, x, y, 0.2, kappa=0.0))
    torch.testing.assert_close(losses[1], losses[0])
    interval, linear = (bounds.margins(x, y, 0.2, method=method) for method in ("ibp", "crown-ibp"))
    want = functional.pad(-(interval + linear) / 2, (1, 0)).logsumexp(1).mean()
    torch.testing.assert_close(losses[2], want)
    assert losses[3] < losses[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_training_increases_certified_accuracy(loss: Any) -> None:
    bounds, _, _ = problem()
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(256, 4, generator=generator)
    y = (x[:, :3] + 0.0).argmax(1)
    optimizer = torch.optim.Adam(bounds.model.parameters(), lr=2e-2)

    def certified() -> float:
        return float((bounds.margins(x, y, 0.03) > 0).all(1).float().mean())

    before = certified()
    for step in range(150):
        optimizer.zero_grad()
        loss(bounds, x, y, ramp(step, 0, 75, 0.0, 0.03), kappa=ramp(step, 0, 75, 1.0, 0.5)).backward()
        optimizer.step()
    assert certified() > max(0.6, before + 0.2)


@pytest.mark.parametrize("loss", LOSSES)
def test_step_compiles_into_one_graph(loss: Any) -> None:
    bounds, x, y = problem()
    graphs = []

    def count(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def step(epsilon: Tensor, kappa: Tensor) -> Tensor:
        return loss(bounds, x, y, epsilon, kappa=kappa)

    compiled = torch.compile(step, fullgraph=True, backend=count)
    for epsilon, kappa in ((0.1, 0.5), (0.2, 0.25)):  # passed as tensors, so that a new value needs no new graph
        arguments = torch.tensor(epsilon), torch.tensor(kappa)
        torch.testing.assert_close(compiled(*arguments), step(*arguments))
    assert len(graphs) == 1


def test_ramps() -> None:
    for shape in ("linear", "smooth"):
        values = [ramp(step, 100, 300, 0.5, 2.5, shape=shape) for step in range(0, 401, 5)]
        assert values[:21] == [0.5] * 21
        assert values[60:] == [2.5] * 21
        assert all(b > a for a, b in pairwise(values[20:61]))
        assert max(b - a for a, b in pairwise(values)) < 0.12  # no jump
        assert ramp(99, 100, 100, 0.0, 1.0, shape=shape) == 0.0
        assert ramp(100, 100, 100, 0.0, 1.0, shape=shape) == 1.0
    assert ramp(200, 100, 300, 1.0, 0.0) == 0.5
    # t⁴ up to t = ¼ and then its tangent: at ⅛ the value is 1/16 of that at ¼, and the slope is continuous.
    early, corner, after = (ramp(t, 0, 1, 0.0, 1.0, shape="smooth") for t in (0.125, 0.25, 0.375))
    assert corner == pytest.approx(16 * early)
    assert corner == pytest.approx(1 / 13)
    assert after - corner == pytest.approx(4 * corner / 0.25 * 0.125)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, x, y: ibp_loss(b, x, y, 0.1, kappa=1.5), r"kappa: expected a number in \[0, 1\], got 1.5"),
        (lambda b, x, y: ibp_loss(b, x, y, 0.1, kappa=torch.zeros(2)), r"kappa: expected one number"),
        (lambda b, x, y: crown_ibp_loss(b, x, y, 0.1, beta=float("nan")), "beta: expected a number"),
        (lambda b, x, y: crown_ibp_loss(b, x, y, -1.0), "epsilon: expected"),
        (lambda b, x, y: ramp(0, 1, 0, 0.0, 1.0), "ramp: end: expected at least 1, got 0"),
        (lambda b, x, y: ramp(0, 0, 1, 0.0, 1.0, shape="cubic"), "ramp: shape: expected linear or smooth"),
    ],
)
def test_invalid_arguments_are_rejected(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(*problem())
