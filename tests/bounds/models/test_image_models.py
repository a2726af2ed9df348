"""Common image classifiers at small widths: captured, and bounded around random images."""

from __future__ import annotations

import image_models
import pytest
import torch
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel

_EPSILON = 1 / 255


def small(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, side = image_models.SMALL[name]
    model = make().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    return model, torch.rand(2, 3, side, side)


@pytest.mark.parametrize("name", image_models.SMALL)
def test_model(name: str) -> None:
    model, x = small(name)
    bounded = BoundedModel(model, x)
    signs = torch.rand(32, *x.shape) * 2 - 1
    signs[::2] = signs[::2].sign()
    with torch.no_grad():
        values = torch.stack([model(x + _EPSILON * sign) for sign in signs])
    for method in ("ibp", "crown-ibp"):
        bounds = bounded.bounds(x, _EPSILON * (1 + 1e-6), method=method)
        assert bounds.lower.isfinite().all()
        assert bounds.upper.isfinite().all()
        assert (bounds.lower <= values + 1e-5 * (1 + values.abs())).all()
        assert (values - 1e-5 * (1 + values.abs()) <= bounds.upper).all()
    point = bounded.bounds(x, 1e-7)
    assert (point.upper - point.lower < 1e-2).all()
