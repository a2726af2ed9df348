"""Interpolation: coefficients against exact properties, bounds against the module in both dtypes."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from bound_engines import NAMES
from torch import Tensor, nn
from torch.nn import functional as f

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.graph.lowering.registry import Lowering
from pyrobust.bounds.graph.lowering.resampling import _axis

aten = torch.ops.aten


def deployed(n: int, outputs: int, dtype: torch.dtype, *, aligned: bool, cubic: bool) -> Tensor:
    """The coefficients [outputs, n] that the operator itself uses."""
    unit = torch.eye(n, dtype=dtype).view(1, n, n)
    if cubic:
        return aten.upsample_bicubic2d.vec(unit.unsqueeze(3), [outputs, 1], aligned, None)[0, ..., 0].T
    return aten.upsample_linear1d.vec(unit, [outputs], aligned, None)[0].T


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("cubic", [False, True])
def test_coefficients_are_enclosed(aligned: bool, cubic: bool) -> None:
    """They sum to 1; linear ones reproduce places between elements; both are those of a float64 operator."""
    strays = 0
    for n, outputs in [(4, 12), (5, 7), (8, 3), (6, 30), (9, 31), (15, 29), (6, 12)]:
        floats = deployed(n, outputs, torch.float32, aligned=aligned, cubic=cubic)
        doubles = deployed(n, outputs, torch.float64, aligned=aligned, cubic=cubic)
        spacing = None if aligned else Fraction(n, outputs)
        axis = _axis(Lowering(torch.float32), n, outputs, spacing, floats, cubic)
        for end, side in ((axis.lower, -1), (axis.upper, 1)):
            dense = torch.zeros(outputs, n, dtype=torch.float64).scatter_add_(1, axis.element, end)
            assert bool((side * (dense - doubles) >= -1e-13).all())
            assert bool((side * (dense - floats.double()) >= 0).all())
            assert float((dense - doubles).abs().max()) < 1e-5
        for i in range(outputs):
            place = Fraction(i * (n - 1), outputs - 1) if spacing is None else (i + Fraction(1, 2)) * spacing
            place = place if spacing is None else place - Fraction(1, 2)
            ends = [[Fraction(float(c)) for c in end[i]] for end in (axis.lower, axis.upper)]
            assert sum(ends[0]) <= 1 <= sum(ends[1])
            if not cubic and 0 <= place <= n - 1:
                moments = [sum(c * int(k) for c, k in zip(end, axis.element[i], strict=True)) for end in ends]
                assert moments[0] <= place <= moments[1]
            strays += sum(bool(low <= 0 < high) for low, high in zip(*ends, strict=True))
    assert aligned or strays > 0  # a place on an element, which floats miss


class Resized(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return f.interpolate(x, **self.options).flatten(1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"size": (9, 12), "mode": "bilinear"},
        {"scale_factor": 3, "mode": "bicubic"},
        {"size": (7, 13), "mode": "bicubic", "align_corners": True},
        {"scale_factor": 1.7, "mode": "bilinear"},
    ],
    ids=str,
)
def test_bounds_at_a_point_hold_exactly_and_as_deployed(name: str, options: dict[str, object]) -> None:
    model = Resized(**options).eval()
    x = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    bounded, deployed = BoundedModel(model, x, engine=name), model(x).double()
    for method in ("ibp", "crown"):
        bounds = bounded.bounds(x, 0.0, method=method, semantics="float32")
        assert bool(((bounds.lower <= deployed) & (deployed <= bounds.upper)).all())
        assert float((bounds.upper - bounds.lower).max()) < 1e-3
        real = bounded.bounds(x, 0.0, method=method)
        assert bool((real.upper - real.lower <= bounds.upper - bounds.lower).all())
