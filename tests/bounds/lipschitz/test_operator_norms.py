"""Operator norms of single layers: never below the exact norm, and close to it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from bounds.test_exact_graphs import dense_weight
from support.bounds.data import trained
from support.bounds.exact import exact_of
from torch import Tensor

from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Conv2d, Input, in_order
from pyrobust.bounds.lipschitz import operator_norms
from pyrobust.bounds.lipschitz.gram import spectral_norms
from pyrobust.bounds.lipschitz.operator_norms import Weights, conv_norm, linear_norm


def exactly_above(bound: float, matrix: Tensor) -> bool:
    """Return whether bound²·I − AᵀA is positive semidefinite: no negative pivot in its rational LDLᵀ decomposition."""
    whole = exact_of(matrix)
    a = [[Fraction(int(n), whole.divisor) for n in row] for row in whole.lower]
    n = len(a[0])
    s = [[-sum(row[i] * row[j] for row in a) for j in range(n)] for i in range(n)]
    for i in range(n):
        s[i][i] += Fraction(bound) ** 2
    for i in range(n):
        if s[i][i] < 0 or (s[i][i] == 0 and any(s[j][i] != 0 for j in range(i, n))):
            return False
        for j in range(i + 1, n):
            if s[j][i] != 0:
                factor = s[j][i] / s[i][i]
                s[j] = [p - factor * q for p, q in zip(s[j], s[i], strict=True)]
    return True


def matrix_of(rng: np.random.Generator) -> Tensor:
    """Draw a small matrix of any scale, often of rank one, where the bound is attained up to rounding."""
    m, n = rng.integers(1, 6, size=2)
    kind = rng.integers(5)
    if kind < 2:
        values = np.outer(rng.standard_normal(m), rng.standard_normal(n))
    elif kind == 2:
        values = np.diag(rng.standard_normal(min(m, n)))
    else:
        values = rng.standard_normal((m, n))
        values[rng.random((m, n)) < 0.3] = 0
    scale = 10.0 ** float(rng.choice([0, 0, -3, 12, -160, 160, -307, 305, -322]))
    return torch.from_numpy(values * scale)


def test_gram_iteration_is_above_in_exact_arithmetic() -> None:
    rng = np.random.default_rng(0)
    inward = 0
    for _ in range(160):
        matrix = matrix_of(rng)
        bound = spectral_norms([matrix[None]])
        assert exactly_above(bound.upper, matrix), matrix
        largest = float(matrix.abs().amax())
        if largest > 1e-290:
            norm = float(torch.linalg.matrix_norm(matrix / largest, 2)) * largest
            assert bound.upper <= norm * 1.0004
            assert bound.lower <= norm * (1 + 1e-12)
            # The test can fail: the norm in plain arithmetic is often too small.
            inward += not exactly_above(norm, matrix)
    assert inward > 20


def test_gram_iteration_of_many_matrices() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(120, 7, 5, dtype=torch.float64, generator=generator)
    batch[17] = 0
    norm = float(torch.linalg.matrix_norm(batch, 2).amax())
    for sizes in ([120], [50, 70], [1, 119], [119, 1]):
        assert norm <= spectral_norms(batch.split(sizes)).upper <= norm * 1.0004
    # a floor that is too high costs only tightness
    assert spectral_norms([batch], floor=norm * 2).upper >= norm
    assert spectral_norms([batch * 0]).upper == 0
    assert spectral_norms([]).upper == 0
    assert spectral_norms([batch[:, :0]]).upper == 0
    for bad in (torch.nan, torch.inf):
        batch[3, 2, 1] = bad
        assert spectral_norms([batch]).upper == torch.inf
    orthogonal = torch.linalg.qr(torch.randn(90, 90, dtype=torch.float64, generator=generator)).Q
    assert 1 - 1e-12 <= spectral_norms([orthogonal[None]]).upper <= 1.0004


def convolution(rng: np.random.Generator) -> Conv2d:
    groups = int(rng.choice([1, 1, 2, 3]))
    channels, outputs = (groups * int(n) for n in rng.integers(1, 4, size=2))
    kernel = rng.integers(1, 4, size=2)
    limits = {"stride": (1, 4), "padding": (0, 3), "dilation": (1, 3)}
    options: dict[str, Any] = {name: tuple(rng.integers(*ends, size=2).tolist()) for name, ends in limits.items()}
    x = Input(name="x", shape=(channels, *rng.integers(5, 9, size=2).tolist()), inputs=())
    weight = torch.from_numpy(rng.standard_normal((outputs, channels // groups, *kernel))).float()
    shape = torch.nn.functional.conv2d(torch.zeros(1, *x.shape), weight, None, groups=groups, **options).shape[1:]
    return Conv2d(
        name="c", shape=tuple(shape), inputs=(x,), weight=Constant.of(weight), bias=None, groups=groups, **options
    )


@pytest.mark.parametrize("small", [512, 0])
def test_convolutions(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check both paths; with 0 no layer is small, and the circulant bound is tried first."""
    monkeypatch.setattr(operator_norms, "_SMALL", small)
    rng, ratios = np.random.default_rng(1), []
    for _ in range(30):
        node = convolution(rng)
        matrix = dense_weight(node)
        norm = float(torch.linalg.matrix_norm(matrix, 2))
        weights = Weights.of(*node.weight.enclosure())
        bound = conv_norm(node, weights, "l2")
        assert norm * (1 - 1e-12) <= bound <= norm * (1.0005 if small else 1.011)
        assert operator_norms._power_iteration(node, node.weight.value().double()) <= norm * (1 + 1e-12)
        exact_entries = exact_of(matrix)
        for norm_name, axis in (("linf", 1), ("l1", 0)):
            exact = Fraction(int(np.abs(exact_entries.lower).sum(axis).max()), exact_entries.divisor)
            bound = conv_norm(node, weights, norm_name)
            assert exact <= Fraction(bound) <= exact * (1 + Fraction(1, 10**12))
        ratios.append(operator_norms._circulant_bound(node, node.weight.value().double(), 0.0) / norm)
    assert 1 - 1e-12 <= min(ratios) < 1.0004  # on small planes the bound is attained for 1x1 kernels only
    assert max(ratios) < 2


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_sums_that_lose_their_small_terms(norm: str) -> None:
    """After a 1, adding 2⁻⁵⁴ changes no float64 sum; the sums of 1,000 such terms are 500 units too small."""
    weight = torch.full((1000,), 2.0**-54)
    weight[0] = 1
    weight = weight.view((1, -1, 1, 1) if norm == "linf" else (-1, 1, 1, 1))
    node = capture(torch.nn.Conv2d(weight.shape[1], len(weight), 1, bias=False), torch.zeros(1, weight.shape[1], 2, 2))
    assert isinstance(node, Conv2d)
    bound = conv_norm(node, Weights.of(*Constant.of(weight).enclosure()), norm)
    assert 0 <= Fraction(bound) - (1 + 999 * Fraction(1, 2**54)) < 1e-12


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_weights_that_are_not_floats_are_enclosed(norm: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(8):
        node = convolution(rng)
        middle = node.weight.value().double()
        radius = torch.from_numpy(rng.random(tuple(middle.shape))) * 0.01
        around = Weights(middle, radius)
        for _ in range(5):
            corner = middle + radius * torch.from_numpy(rng.choice([-1.0, 1.0], size=tuple(middle.shape)))
            assert conv_norm(node, around, norm) >= conv_norm(node, Weights(corner, radius * 0), norm) * 0.9995
        flat = Weights(middle.flatten(1), radius.flatten(1))
        corner = flat.middle + flat.middle.sign() * flat.radius
        assert linear_norm(flat, norm) >= linear_norm(Weights(corner, corner * 0), norm) * 0.9995


def test_products_of_enclosures() -> None:
    rng = np.random.default_rng(4)
    a, b = (torch.from_numpy(rng.standard_normal(200)) for _ in range(2))
    r, s = (torch.from_numpy(rng.random(200) * 10.0 ** rng.integers(-18, 0, 200)) for _ in range(2))
    product = Weights(a, r).times(Weights(b, s))
    for i in range(200):
        ends = [
            (Fraction(float(a[i])) + p * Fraction(float(r[i]))) * (Fraction(float(b[i])) + q * Fraction(float(s[i])))
            for p in (-1, 1)
            for q in (-1, 1)
        ]
        middle, radius = Fraction(float(product.middle[i])), Fraction(float(product.radius[i]))
        assert middle - radius <= min(ends)
        assert max(ends) <= middle + radius
        farthest = max(max(ends) - middle, middle - min(ends))
        assert radius <= farthest * (1 + Fraction(1, 2**40)) + abs(middle) / 2**50


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cifar_resnet2b", 2),
        *(pytest.param(name, 6, marks=pytest.mark.full) for name in ("mnist_cnn_a_adv", "oval_base", "cifar_resnet2b")),
    ],
)
def test_convolutions_of_real_nets(name: str, count: int) -> None:
    """Check the bounds to be within 5 % of the spectral norm, which a power iteration bounds from below."""
    shape = (1, 1, 28, 28) if name.startswith("mnist") else (1, 3, 32, 32)
    nodes = [node for node in in_order(capture(trained(name), torch.zeros(shape))) if isinstance(node, Conv2d)]
    assert len(nodes) >= 2
    for node in nodes[:count]:
        weight = node.weight.value().double()
        below = operator_norms._power_iteration(node, weight)
        assert below <= conv_norm(node, Weights.of(*node.weight.enclosure()), "l2") <= 1.011 * below
        assert below <= operator_norms._circulant_bound(node, weight, 0.0) <= 1.05 * below
