"""Relaxations of smooth functions: against ball arithmetic, the smallest area, and in training.

Their kernels too: at every SIMD level, and against their torch operations.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from support.bounds.engines import NAMES
from support.bounds.functions import FUNCTIONS, intervals, node_of, violations
from support.bounds.nets import fill
from torch import Tensor, nn

from pyrobust import _C
from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.bounds.engines.tensor.directed_rounding import Outward
from pyrobust.bounds.graph.activations import ACTIVATIONS, LARGEST, curves
from pyrobust.bounds.graph.activations.kernels import KERNELS

OF_KERNELS = [name for name in FUNCTIONS if name.partition(":")[0] in KERNELS]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("seeds", "count"), [(range(2), 300), pytest.param(range(2, 102), 10_000, marks=pytest.mark.full)]
)
def test_relaxations_enclose_the_function(name: str, seeds: range, count: int) -> None:
    for seed in seeds:
        assert violations(name, *intervals(name, count, seed)) == (0, 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_extreme_ranges_are_unknown_or_right(name: str) -> None:
    """Check huge, denormal and infinite ends: no NaN but for NaN, and no bound that a value refutes."""
    sizes = [5e-324, 1e-300, 1e-5, 30.0, 800.0, 1e30, 1e308, np.inf]
    ends = [-size for size in sizes] + [0.0] + sizes
    lower, upper = np.array([(a, b) for a in ends for b in ends if (a <= b and abs(a + b) < np.inf) or a < b]).T
    node = node_of(name)
    row = ACTIVATIONS[node.function]
    assert row.rule is not None
    assert row.forward is not None
    below, low, above, high, least, most = parts = row.rule(node)(lower, upper)
    assert not any(np.isnan(column).any() for column in parts)
    for share in np.linspace(0, 1, 7):
        z = np.clip(np.clip(lower, -1e308, 1e308) * (1 - share) + np.clip(upper, -1e308, 1e308) * share, lower, upper)
        value = row.forward(node, torch.from_numpy(z)).numpy()
        right = np.isfinite(value)
        error = 1e-12 * (np.abs(value) + np.abs(below * z) + np.abs(above * z)) + 1e-18
        for bound, side in ((least, 1), (most, -1), (below * z + low, 1), (above * z + high, -1)):
            assert (side * (value - bound) >= -error)[right].all()
        assert np.isinf(low[np.isnan(value)]).all()  # where the function is undefined
    assert not any(np.isfinite(bound).any() for bound in row.rule(node)(np.array([np.nan]), np.array([np.nan]))[4:])


def test_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the tests above can fail: without margins, and with a tangent in place of its bound."""
    for margin in ("ERROR", "ROUNDED", "TINY"):
        monkeypatch.setattr(curves, margin, 0.0)
    relaxed, ranged = violations("atan", *intervals("atan", 300, 0))
    assert relaxed > 20
    assert ranged > 20
    monkeypatch.undo()
    row = ACTIVATIONS["atan"]
    monkeypatch.setattr(
        curves._Side, "intercept", lambda side, touch: side.value(touch.left) - touch.slope * touch.left + 1e-9
    )
    monkeypatch.setitem(ACTIVATIONS, "atan", dataclasses.replace(row, slope_range=None))
    monkeypatch.setattr(curves, "_contacts", lambda *arguments: curves._Contacts(0.0, torch.full((1400,), 1e-3)))
    assert violations("atan", *intervals("atan", 300, 0))[0] > 20


def rounding_errors(name: str, stride: int) -> float:
    """The largest error of a float32 forward pass, in roundings of |f(z)| + offset, over every ``stride``-th float."""
    node = node_of(name)
    row = ACTIVATIONS[node.function]
    assert row.rule is not None
    assert row.forward is not None
    positive = torch.arange(0, 0x7F800000, stride, dtype=torch.int32).view(torch.float32)
    largest = 0.0
    for z in torch.cat([positive, -positive]).split(2**20):
        low, high = (torch.from_numpy(bound) for bound in row.rule(node)(z.double().numpy(), z.double().numpy())[4:])
        value, size = row.forward(node, z).double(), torch.maximum(low.abs(), high.abs())
        error = torch.maximum(low - value, value - high).nan_to_num(torch.inf) / (size + row.offset(node) + 2.0**-100)
        in_range = low.isfinite() & high.isfinite() & (size < LARGEST * 2.0**128)
        largest = max(largest, float(error[in_range].max()) * 2.0**24)
    return largest


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("stride", [100_003, pytest.param(101, marks=pytest.mark.full)])
def test_float32_functions_err_less_than_their_roundings(name: str, stride: int) -> None:
    node = node_of(name)
    assert rounding_errors(name, stride) <= ACTIVATIONS[node.function].roundings(node)


def envelope(values: Tensor) -> Tensor:
    """The concave envelope of samples [K, n] at the middle one, by all chords over it."""
    half = len(values) // 2
    left, right = values[: half + 1, None], values[None, half:]
    i, j = torch.arange(half + 1)[:, None, None], torch.arange(half, len(values))[None, :, None]
    height = left + (right - left) * ((half - i) / (j - i).clamp(min=1))
    return height.flatten(0, 1).amax(0)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "softplus:0.5,2"])  # that jumps
def test_relaxations_have_the_smallest_area(name: str) -> None:
    """Compare the height between both lines in the middle of the range, which is the area over the width."""
    node, rng = node_of(name), np.random.default_rng(0)
    row = ACTIVATIONS[node.function]
    assert row.rule is not None
    center, radius = rng.normal(0, 2, 60), rng.uniform(0.01, 1.5, 60)
    lower, upper = center - radius, center + radius
    if row.rule(node)(lower, upper)[4].min() == -np.inf:  # not defined for all
        lower, upper = 0.1 + np.minimum(abs(lower), abs(upper)), 0.1 + np.maximum(abs(lower), abs(upper))
    below, low, above, high = row.rule(node)(lower, upper)[:4]
    height = (above - below) * (lower + upper) / 2 + high - low
    assert row.forward is not None
    share = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    values = row.forward(node, torch.from_numpy(lower) * (1 - share) + torch.from_numpy(upper) * share)
    best = (envelope(values) + envelope(-values)).numpy()
    excess = (height - best) / (best + 1e-3)
    # two neighbouring humps of a sine have a common tangent, which is not looked for
    assert np.quantile(excess, 0.8 if name in ("sin", "cos") else 1) < 0.02
    assert np.median(excess) < 1e-3


MODULES: list[type[nn.Module]] = [
    *(nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU),
    *(nn.Softplus, nn.Hardswish, nn.PReLU, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Softsign),
]


class Every(nn.Module):
    """All of these functions of the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = nn.ModuleList(module() for module in MODULES)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([function(z) for function in self.functions], 1)


def test_training_bounds_are_the_engines() -> None:
    """Compare differentiable bounds to the engine's, and their gradients to differences of bounds."""
    net = nn.Sequential(nn.Linear(4, 3), Every(), nn.Linear(42, 3), Every(), nn.Linear(42, 3)).double().eval()
    fill(net, "normal", np.random.default_rng(0)).requires_grad_()
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    trained, bounded = DifferentiableBounds(net, x), BoundedModel(net, x)
    for method, epsilon in itertools.product(("ibp", "crown-ibp"), (0.0, 0.05, 0.5)):
        lower, upper = trained.bounds(x, epsilon, method=method)
        expected = bounded.bounds(x, epsilon, method=method, sound=method == "ibp")
        # points of contact from tables are not exact
        torch.testing.assert_close(lower, expected.lower, rtol=3e-6, atol=3e-6)
        torch.testing.assert_close(upper, expected.upper, rtol=3e-6, atol=3e-6)

    weight = net.get_parameter("2.weight")  # of each function

    def total() -> Tensor:
        lower, upper = trained.bounds(x, 0.3, method="crown-ibp")
        return (upper - lower).sum()

    (gradient,) = torch.autograd.grad(total(), weight)
    start = weight.detach().clone()
    with torch.no_grad():
        for i in range(0, 42, 9):  # those of three functions
            ends = []
            for step in (1e-5, -1e-5):
                weight.copy_(start)
                weight[:, i : i + 9] += step
                ends.append(total())
            difference = (ends[0] - ends[1]) / 2e-5
            torch.testing.assert_close(difference, gradient[:, i : i + 9].sum(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("engine", NAMES)
def test_deployed_values_are_inside(engine: str) -> None:
    """Compare bounds of float32 forward passes with the values themselves, where they cancel or vanish, too."""
    z = torch.randn(16, 50, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 2, 50)
    if engine == "torch":  # takes time for every row, the native engine for every example
        z = z.view(200, 4)
    net = Every().eval()
    bounds = BoundedModel(net, z, engine=engine).bounds(z, 0.0, semantics="float32")
    with torch.no_grad():
        value = net(z).double()
    assert bool(((bounds.lower <= value) & (value <= bounds.upper)).all())


def kernel(name: str, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, ...]:
    """(lower slope, lower intercept, upper slope, upper intercept, low, high)."""
    node = node_of(name)
    return _C.curve_relaxation(node.function, node.parameters, lower, upper)


def test_every_kernel_has_a_case() -> None:
    assert {name.partition(":")[0] for name in OF_KERNELS} == set(KERNELS)


@pytest.mark.parametrize("name", OF_KERNELS)
def test_kernels_enclose_the_function(name: str, simd_level: str) -> None:
    assert violations(name, *intervals(name, 200, 3)) == (0, 0)


@pytest.mark.parametrize("name", OF_KERNELS)
def test_torch_operations_enclose_the_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = name.partition(":")[0]
    monkeypatch.setitem(ACTIVATIONS, function, KERNELS[function])
    assert violations(name, *intervals(name, 200, 4)) == (0, 0)


@pytest.mark.parametrize("name", OF_KERNELS)
def test_results_of_kernels_depend_on_the_range_alone(name: str, simd_level: str) -> None:
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


@pytest.mark.parametrize("name", OF_KERNELS)
def test_the_torch_engine_uses_the_kernels(name: str) -> None:
    node, row = node_of(name), ACTIVATIONS[node_of(name).function]
    lower, upper = (ends.view(3, 7) for ends in intervals(name, 21, 6))
    assert row.interval is not None
    assert row.relaxation is not None
    parts = *row.relaxation(node, lower, upper, Outward(True)), *row.interval(node, lower, upper, Outward(True))
    for actual, expected in zip(parts, kernel(name, lower.flatten().numpy(), upper.flatten().numpy()), strict=True):
        torch.testing.assert_close(actual, torch.from_numpy(expected).view(3, 7), rtol=0, atol=0)


def test_wrong_calls_of_kernels_are_refused() -> None:
    ends = np.zeros(2)
    with pytest.raises(RuntimeError, match="curve: unknown: sine"):
        _C.curve_interval("sine", (), ends, ends)
    with pytest.raises(RuntimeError, match="softplus: expected a positive beta and a threshold"):
        _C.curve_interval("softplus", (), ends, ends)
    with pytest.raises(RuntimeError, match=r"curve: expected lower \[n\] and upper \[n\]"):
        _C.curve_relaxation("tanh", (), ends, ends[:1])


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_softplus_where_a_float32_pass_takes_the_other_side_of_the_threshold(engine: str) -> None:
    """z·beta and the threshold are rounded: z itself is returned for some z below the threshold."""
    rng = np.random.default_rng(0)
    jumps = 0
    for beta, threshold in [(6.987542392843331, 0.6668992876321294), *rng.uniform((0.1, 0), (9, 3), (400, 2)).tolist()]:
        model = nn.Softplus(beta, threshold)
        middle = np.float32(threshold / beta)
        z = torch.from_numpy(middle + np.spacing(middle) * np.arange(-6, 7, dtype=np.float32))[:, None]
        values = model(z).double()
        if not ((values == z) & (z.double() * beta <= threshold)).any():
            continue
        jumps += 1
        bounded = BoundedModel(model, z, engine=engine)
        for method in ("ibp", "crown"):
            bounds = bounded.bounds(z, 0.0, semantics="float32", method=method)
            assert ((bounds.lower <= values) & (values <= bounds.upper)).all(), (beta, threshold, method)
    assert jumps > 3
