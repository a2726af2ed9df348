"""Kernels of smooth functions: at every SIMD level, against ball arithmetic and against their torch operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bound_functions import FUNCTIONS, intervals, node_of, violations

from pyrobust import _C
from pyrobust.bounds.engines.tensor.directed_rounding import Outward
from pyrobust.bounds.graph.activations import ACTIVATIONS
from pyrobust.bounds.graph.activations.kernels import KERNELS

NAMES = [name for name in FUNCTIONS if name.partition(":")[0] in KERNELS]


def kernel(name: str, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, ...]:
    """(lower slope, lower intercept, upper slope, upper intercept, low, high)."""
    node = node_of(name)
    return _C.curve_relaxation(node.function, node.parameters, lower, upper)


def test_every_kernel_has_a_case() -> None:
    assert {name.partition(":")[0] for name in NAMES} == set(KERNELS)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_enclose_the_function(name: str, simd_level: str) -> None:
    assert violations(name, *intervals(name, 200, 3)) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_torch_operations_enclose_the_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = name.partition(":")[0]
    monkeypatch.setitem(ACTIVATIONS, function, KERNELS[function])
    assert violations(name, *intervals(name, 200, 4)) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_as_tight_as_exact_tangents(name: str, simd_level: str) -> None:
    """Compare areas, which are proportional to heights in the middle, with those of the torch operations."""
    rng, node = np.random.default_rng(0), node_of(name)
    center, radius = rng.normal(0, 3, 4000), 6 * rng.uniform(0, 1, 4000) ** 2
    if ACTIVATIONS[node.function].defined(node) is not None:
        center, radius = np.abs(center) + 1e-3, np.minimum(radius, np.abs(center))
    lower, upper = center - radius, center + radius
    rule = KERNELS[node.function].rule
    assert rule is not None
    heights = [
        (above - below) * center + high - low
        for below, low, above, high in (kernel(name, lower, upper)[:4], rule(node)(lower, upper)[:4])
    ]
    assert heights[0].sum() < heights[1].sum() * (1 + 2e-6)
    # of a tangent that touches the curve far away, and may not exist
    assert ((heights[0] + 1e-9) / (heights[1] + 1e-9)).max() < 1.02


@pytest.mark.parametrize("name", NAMES)
def test_results_depend_on_the_range_alone(name: str, simd_level: str) -> None:
    """Compare the bits of ranges bounded together, in parts and without their relaxation."""
    lower, upper = (ends.numpy() for ends in intervals(name, 61, 5))
    lower[::9], upper[::7], lower[3], upper[5] = -np.inf, np.inf, np.nan, np.nan
    whole = np.stack(kernel(name, lower, upper))
    for size in (1, 3, 8, 13):
        parts = [np.stack(kernel(name, lower[k : k + size], upper[k : k + size])) for k in range(0, len(lower), size)]
        np.testing.assert_array_equal(np.concatenate(parts, 1), whole)
    node = node_of(name)
    np.testing.assert_array_equal(np.stack(_C.curve_interval(node.function, node.parameters, lower, upper)), whole[4:])
    unknown = np.isinf(lower) | np.isinf(upper)
    assert not whole[[0, 2]][:, unknown].any()  # constants
    assert np.isnan(whole[4:, [3, 5]]).all()
    assert not np.isnan(np.delete(whole, [3, 5], 1)).any()


@pytest.mark.parametrize("name", NAMES)
def test_the_torch_engine_uses_the_kernels(name: str) -> None:
    node, row = node_of(name), ACTIVATIONS[node_of(name).function]
    lower, upper = (ends.view(3, 7) for ends in intervals(name, 21, 6))
    assert row.interval is not None
    assert row.relaxation is not None
    parts = *row.relaxation(node, lower, upper, Outward(True)), *row.interval(node, lower, upper, Outward(True))
    for part, expected in zip(parts, kernel(name, lower.flatten().numpy(), upper.flatten().numpy()), strict=True):
        torch.testing.assert_close(part, torch.from_numpy(expected).view(3, 7), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES[::5])
def test_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that ball arithmetic refutes bounds that lack the margin for rounding."""
    exact = _C.curve_relaxation

    def without_margin(*arguments: object) -> tuple[np.ndarray, ...]:
        below, low, above, high, least, most = exact(*arguments)  # type: ignore[arg-type]
        margin = 2.0**-44

        def raised(a: np.ndarray) -> np.ndarray:
            return a + np.abs(np.where(np.isfinite(a), a, 0)) * margin

        return below, raised(low), above, -raised(-high), raised(least), -raised(-most)

    monkeypatch.setattr(_C, "curve_relaxation", without_margin)
    relaxed, ranged = violations(name, *intervals(name, 300, 0))
    assert relaxed > 20
    assert ranged > 20


def test_wrong_calls_are_refused() -> None:
    ends = np.zeros(2)
    with pytest.raises(RuntimeError, match="curve: unknown: sine"):
        _C.curve_interval("sine", (), ends, ends)
    with pytest.raises(RuntimeError, match="softplus: expected a positive beta and a threshold"):
        _C.curve_interval("softplus", (), ends, ends)
    with pytest.raises(RuntimeError, match=r"curve: expected lower \[n\] and upper \[n\]"):
        _C.curve_relaxation("tanh", (), ends, ends[:1])
