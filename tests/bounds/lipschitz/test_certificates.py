"""Certificates from Lipschitz constants: proved by margins, exact for affine nets, unbroken by attacks."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from bound_data import attacked
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError
from pyrobust.zoo import load_data, load_model

NORMS = ("l2", "linf", "l1")


@functools.cache
def digits() -> tuple[BoundedModel, nn.Module, Tensor, Tensor]:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25").eval()
    return BoundedModel(net, data.x[:40]), net, data.x[:40], data.y[:40]


def dual(row: list[Fraction], norm: str) -> Fraction:
    """Return the dual norm, squared for l2."""
    sizes = [abs(value) for value in row]
    if norm == "l2":
        return sum((s * s for s in sizes), Fraction(0))
    return sum(sizes, Fraction(0)) if norm == "linf" else max(sizes)


@pytest.mark.parametrize("norm", NORMS)
def test_radii_of_an_affine_net_are_the_exact_distances(norm: str) -> None:
    """Compare to min_j m_j / ‖w_y − w_j‖* in rationals: each radius is below it by at most a millionth."""
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4)).double().eval().requires_grad_(False)
    for _ in range(5):
        net[1].weight.data = torch.from_numpy(rng.standard_normal((4, 6)) * 10.0 ** float(rng.integers(-3, 4)))
        net[1].bias.data = torch.from_numpy(rng.standard_normal(4))
        x = torch.from_numpy(rng.standard_normal((12, 2, 3)))
        y = net(x).argmax(1)
        y[:2] = (y[:2] + 1) % 4
        radii = BoundedModel(net, x).certified_radius(x, y, norm=norm, method="lipschitz", largest=1e9)
        weight, bias = net[1].weight.tolist(), net[1].bias.tolist()
        for point, label, radius in zip(x.flatten(1).tolist(), y.tolist(), radii.tolist(), strict=True):
            best = None
            for j in set(range(4)) - {label}:
                row = [Fraction(a) - Fraction(b) for a, b in zip(weight[label], weight[j], strict=True)]
                margin = Fraction(bias[label]) - Fraction(bias[j])
                margin += sum((a * Fraction(b) for a, b in zip(row, point, strict=True)), Fraction(0))
                square = margin * abs(margin) / dual(row, norm) if norm == "l2" else margin / dual(row, norm)
                best = square if best is None else min(best, square)
            assert best is not None
            exact = Fraction(radius) ** 2 if norm == "l2" else Fraction(radius)
            if best <= 0:
                assert radius == 0
            else:
                # in l2 the Gram iteration of the layer before, the identity here, is exact
                assert best * (1 - Fraction(1, 10**6)) <= exact < best


@pytest.mark.parametrize("norm", NORMS)
def test_radii_are_proved_by_margins(norm: str) -> None:
    model, net, x, y = digits()
    y = y.clone()
    y[:3] = (net(x[:3]).argmax(1) + 1) % 10
    radius = model.certified_radius(x, y, norm=norm, method="lipschitz")
    assert radius.dtype == torch.float64
    assert (radius[:3] == 0).all()
    proved = radius > 0
    assert proved.sum() > 25
    options: dict[str, Any] = {"norm": norm, "method": "lipschitz"}
    assert model.certify(x[proved], y[proved], radius[proved], **options).all()
    assert not model.certify(x[proved], y[proved], radius[proved] * 1.0001, **options).any()
    assert torch.equal(model.certified_radius(x, y, clip=(0.0, 1.0), **options), radius)
    small = float(radius[proved].median())
    assert torch.equal(model.certified_radius(x, y, largest=small, **options), radius.clamp(max=small))
    # CROWN proves larger radii here, and the two methods do not contradict each other.
    crown = model.certified_radius(x, y, norm=norm, method="crown", largest=4.0)
    assert (radius[proved] <= crown[proved]).all()
    verdicts = model.verify(x, y, small, norm=norm, methods=("lipschitz", "crown"))
    assert {stage for stage, r in zip(verdicts.stage, radius.tolist(), strict=True) if r > small} == {"lipschitz"}


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_hold_in_the_ball(norm: str) -> None:
    model, _, x, y = digits()
    rows = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    order = {"l2": 2.0, "linf": torch.inf, "l1": 1.0}[norm]
    bounds = model.bounds(x, 0.3, norm=norm, method="lipschitz")
    mixed = model.bounds(x, 0.3, norm=norm, method="lipschitz", C=rows)
    double, generator = load_model("zoo:digits-smooth-0.25").eval().double(), torch.Generator().manual_seed(1)
    for _ in range(20):
        step = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        sizes = torch.linalg.vector_norm(step.flatten(1), order, dim=1).view(-1, 1, 1, 1)
        with torch.no_grad():
            logits = double(x.double() + step / sizes * 0.2999)
        assert ((bounds.lower <= logits) & (logits <= bounds.upper)).all()
        values = logits @ rows.double().T
        assert ((mixed.lower <= values) & (values <= mixed.upper)).all()
    at_zero = model.bounds(x, 0.0, norm=norm, method="lipschitz")
    assert (at_zero.upper - at_zero.lower).max() < 1e-9
    assert bounds.method == "lipschitz"
    assert model.margins(x, y, 0.1, norm=norm, method="lipschitz").lower.shape == (40, 9)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_attacks_within_the_radius_find_nothing(norm: str) -> None:
    _, net, x, y = digits()
    assert attacked(net, x[::4], y[::4], norm, "lipschitz", 9.0, "real", 0, 20) > 5


def test_unsupported_settings_are_refused() -> None:
    model, _, x, y = digits()
    with pytest.raises(InputError, match='semantics: expected "real" with method "lipschitz", got \'float32\''):
        model.certify(x, y, 0.1, method="lipschitz", semantics="float32")
    with pytest.raises(InputError, match='expected x and epsilon with method "lipschitz"'):
        model.bounds(x_lower=x, x_upper=x, method="lipschitz")
    with pytest.raises(InputError, match="clip range"):
        model.certified_radius(x + 2, y, method="lipschitz", clip=(0.0, 1.0))
    none = model.certified_radius(x[:0], y[:0], method="lipschitz")
    assert none.shape == (0,)
    alone = BoundedModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 1)).eval(), x)
    assert alone.certified_radius(x[:2], torch.zeros(2).long(), method="lipschitz", largest=2.0).tolist() == [2, 2]
