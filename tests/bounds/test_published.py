"""Bounds against those of auto_LiRPA (Xu et al., 2020) on the same boxes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from bound_data import NETS, published, trained

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.specification import margins

METHODS = ("ibp", "crown-ibp", "crown")


@functools.cache
def bounded(name: str, example: tuple[int, ...], engine: str = "native") -> BoundedModel:
    return BoundedModel(trained(name), torch.zeros(1, *example), engine=engine)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_lower_bounds_of_margins(name: str, method: str) -> None:
    data = published(name)
    radii = sorted({key.split("/")[0] for key in data if key.startswith("eps")})
    assert radii
    for radius in radii:
        stem = f"{radius}/{method.upper()}/lb_margin"
        expected = data[f"{stem}_f64"] if f"{stem}_f64" in data else data[stem]
        count = len(expected)
        lower, upper = (torch.from_numpy(data[f"{radius}/{key}"][:count]) for key in ("x_L", "x_U"))
        y = torch.from_numpy(data["y"][:count])
        model = bounded(name, tuple(lower.shape[1:]))
        plain = model.margins(y=y, x_lower=lower, x_upper=upper, method=method, sound=False).lower.numpy()
        sound = model.margins(y=y, x_lower=lower, x_upper=upper, method=method).lower.numpy()
        size = 1 + np.abs(expected)
        assert ((expected - plain) / size).max() <= 1e-4
        # above the plain ones where a lower slope has flipped, or where intervals were better for a neuron
        assert np.median((expected - sound) / size) <= 5e-3
        assert int((sound.min(1) > 0).sum()) >= int((expected.min(1) > 0).sum())


@pytest.mark.parametrize("name", NETS)
def test_bounds_of_logits(name: str) -> None:
    data = published(name)
    radius = min({key.split("/")[0] for key in data if key.startswith("eps")}, key=lambda key: float(key[3:]))
    for method in METHODS:
        low, high = (data.get(f"logits/{method.upper()}/{end}") for end in ("lb", "ub"))
        assert low is not None
        assert high is not None
        x_lower, x_upper = (torch.from_numpy(data[f"{radius}/{key}"][: len(low)]) for key in ("x_L", "x_U"))
        model = bounded(name, tuple(x_lower.shape[1:]))
        plain = model.bounds(x_lower=x_lower, x_upper=x_upper, method=method, sound=False)
        # the published bounds are single precision
        assert ((low - plain.lower.numpy()) / (1 + np.abs(low))).max() <= 1e-3
        assert ((plain.upper.numpy() - high) / (1 + np.abs(high))).max() <= 1e-3


def test_labels_and_rows_agree() -> None:
    """Check that ``margins`` bounds its documented specification rows."""
    data = published("mnist_6_100")
    radius = next(key.split("/")[0] for key in data if key.startswith("eps"))
    lower, upper = (torch.from_numpy(data[f"{radius}/{key}"][:10]) for key in ("x_L", "x_U"))
    y = torch.from_numpy(data["y"][:10])
    model = bounded("mnist_6_100", tuple(lower.shape[1:]))
    rows = model.bounds(x_lower=lower, x_upper=upper, C=margins(y, 10)).lower
    assert torch.equal(rows, model.margins(y=y, x_lower=lower, x_upper=upper).lower)
