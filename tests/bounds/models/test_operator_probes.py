"""The probes of operators: bounds enclose the module's values, or an error names the operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operator_probes import PROBES, Probe
from refused_probes import REFUSED
from torch import Tensor

from pyrobust.bounds import BoundedModel
from pyrobust.errors import PyrobustError

_EPSILON = 0.05
#: Each probe of this many is part of the usual run.
_SHARE = 6
_TOLERANCE = 1e-5  # of float32 forward passes; the tests of exact values have none
#: Functions that jump: torch's softplus is z beyond its threshold.
JUMPS = {"Softplus(beta=2, threshold=1) on 4x6x6"}
#: Roots of sums of squares: the linear lower bound of the sum may be negative, where nothing is known of the root.
ROOTS = {"LPPool1d(norm_type=2, 2, stride=None, ceil_mode=False) on 4x8"}

CASES = [
    pytest.param(probe, id=probe.name, marks=[] if i % _SHARE == 0 else pytest.mark.full)
    for i, probe in enumerate(PROBES)
]


def logits(output: Any) -> Tensor:
    """Take the tensor from a dictionary or an object with logits, or from a tuple of one."""
    if isinstance(output, tuple):
        return output[0]
    if isinstance(output, dict):
        return output["logits"]
    return getattr(output, "logits", output)


def points(x: Tensor) -> Tensor:
    """Draw points of the ball around one example, half of them corners: [P, ...]."""
    signs = torch.rand(128, *x.shape, generator=torch.Generator().manual_seed(2)) * 2 - 1
    signs[::2] = signs[::2].sign()
    signs[0] = 0
    return (x + _EPSILON * signs).clamp(x - _EPSILON, x + _EPSILON)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("probe", CASES)
def test_probe(probe: Probe) -> None:
    x = torch.rand(2, *probe.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
    if probe.name in REFUSED:
        with pytest.raises(PyrobustError, match=REFUSED[probe.name]):
            BoundedModel(probe.model(), x).bounds(x, _EPSILON)
        return
    bounded, module = BoundedModel(probe.model(), x), probe.model()
    with torch.no_grad():
        values = torch.stack([logits(module(points(row))).flatten(1) for row in x], 1)
    tolerance = _TOLERANCE * (1 + values.abs())
    for method in ("ibp", "crown-ibp", "crown"):
        bounds = bounded.bounds(x, _EPSILON, method=method)
        finite = bounds.lower.isfinite() & bounds.upper.isfinite()
        assert finite.all() or (probe.name in ROOTS and method != "ibp")
        assert (bounds.lower <= values + tolerance).all()
        assert (values - tolerance <= bounds.upper).all()
        assert ((bounds.upper - bounds.lower) >= (values.amax(0) - values.amin(0) - tolerance.amax(0))).all()
    thin = bounded.bounds(x, 1e-6)
    assert probe.name in JUMPS or ((thin.upper - thin.lower) < 1e-3).all()
    deployed_encloses(bounded, x, values)


def deployed_encloses(bounded: BoundedModel, x: Tensor, values: Tensor) -> None:
    """Check the bounds of the deployed forward pass, without a tolerance; a refusal has to name what is asked."""
    try:
        bounds = bounded.bounds(x, _EPSILON * (1 + 1e-6), semantics="float32")
    except PyrobustError as error:
        assert "float32" in str(error)  # noqa: PT017
        return
    assert (bounds.lower <= values).all()
    assert (values <= bounds.upper).all()


def test_names_are_unique_and_refusals_are_probes() -> None:
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names) >= 300
    assert set(REFUSED) <= set(names)
