"""Common architectures, as people write them: outputs at corners of the balls lie within the bounds."""

from __future__ import annotations

import copy

import pytest
import torch

from pyrobust.bounds import BoundedModel

nets = pytest.importorskip("studies.bounds.architecture_nets", reason="bench is not beside the tests")


@pytest.mark.parametrize("name", nets.ARCHITECTURES)
def test_outputs_at_corners_are_inside(name: str) -> None:
    if name.startswith("Hugging Face"):
        pytest.importorskip("transformers")
    net, x = nets.architecture(name, 1)
    epsilon = nets.ARCHITECTURES[name].epsilon
    model, exact = BoundedModel(net, x), copy.deepcopy(net).double()
    with torch.enable_grad():  # corners by the sign of each output's gradient, and random ones
        points = x.double().requires_grad_()
        outputs = exact(points)
        outputs = getattr(outputs, "logits", outputs)[0]
        slopes = torch.cat([torch.autograd.grad(output, points, retain_graph=True)[0] for output in outputs])
    signs = torch.cat([slopes.sign(), -slopes.sign(), (torch.rand(8, *x.shape[1:]) - 0.5).sign().double()])
    values = exact(x.double() + epsilon * signs)
    values = getattr(values, "logits", values)
    rounding = 1e-9 * (1 + values.abs())
    widths = {}
    for method in ("ibp", "crown-ibp"):
        bounds = model.bounds(x, epsilon, method=method)
        assert ((bounds.lower <= values + rounding) & (values - rounding <= bounds.upper)).all()
        widths[method] = bounds.upper - bounds.lower
        assert widths[method].isfinite().all()
    assert (widths["crown-ibp"] <= widths["ibp"] * (1 + 1e-4)).all()
