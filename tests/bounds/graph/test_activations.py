"""The table of activations: engines refuse functions without a row and rows without a part that they need."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds.layers import Called
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, Curve, DifferentiableBounds, lipschitz_bound, register_rule
from pyrobust.bounds.differentiable.intervals import check_differentiable
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph import activations
from pyrobust.bounds.graph.activations import ACTIVATIONS, ActivationRow
from pyrobust.bounds.graph.activations.sampled_check import check_slopes
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.evaluate import forward
from pyrobust.bounds.graph.lowering import elementwise
from pyrobust.bounds.graph.nodes import Activation, Input, in_order
from pyrobust.bounds.lipschitz.composition import Constants
from pyrobust.errors import InputError, InputTypeError, ModelError

CPU = torch.device("cpu")


@pytest.fixture
def own_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what the test registers."""
    monkeypatch.setattr(elementwise, "RULES", dict(elementwise.RULES))
    monkeypatch.setattr("pyrobust.bounds.graph.capture.RULES", elementwise.RULES)
    rows = dict(ACTIVATIONS)
    yield
    ACTIVATIONS.clear()
    ACTIVATIONS.update(rows)


#: Of functions with another number of parameters than one.
PARAMETERS = {"elu": (2.0, 1.0, 0.5), "softplus": (2.0, 20.0)}


def activation(function: str) -> Activation:
    x = Input(name="x", shape=(2,), inputs=())
    weight = Constant.of(torch.tensor([-0.5, 2.0]))
    parameters: dict[str, Any] = {"lower": -1.0, "upper": 1.0, "weight": weight}
    parameters["parameters"] = PARAMETERS.get(function, (2.0,))
    return Activation(name="1 (planted)", shape=(2,), inputs=(x,), function=function, **parameters)


#: Each engine, and a call that reads the table.
ENGINES: dict[str, Callable[[Activation], Any]] = {
    "the evaluation of a graph": lambda node: forward(node, torch.zeros(1, 2)),
    "the native engine": lambda node: Engine(node, torch.float32),
    "the torch engine": lambda node: TensorEngine(node, torch.float32, CPU),
    "differentiable bounds": lambda node: check_differentiable(in_order(node)),
    "the Lipschitz bound": lambda node: Constants(node, "l2"),
}

#: (engine, parts that it needs, what its error says is missing)
PARTS = [
    ("the evaluation of a graph", ["forward"], "has no forward function"),
    ("the native engine", ["native_code", "rule"], "has no native code and no rule"),
    ("the torch engine", ["interval"], "has no interval"),
    ("the torch engine", ["relaxation"], "has no linear relaxation"),
    ("differentiable bounds", ["differentiable"], "has no differentiable bounds"),
    ("the Lipschitz bound", ["slope_range"], "has no known Lipschitz constant"),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_without_a_row_is_refused(engine: str) -> None:
    with pytest.raises(ModelError, match=rf"1 \(planted\): {engine} does not support the activation 'planted'"):
        ENGINES[engine](activation("planted"))


@pytest.mark.parametrize(("engine", "parts", "message"), PARTS)
def test_a_row_without_a_part_is_refused(
    engine: str, parts: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = dataclasses.replace(ACTIVATIONS["clamp"], **dict.fromkeys(parts))
    monkeypatch.setitem(ACTIVATIONS, "planted", row)
    with pytest.raises(ModelError, match=rf"1 \(planted\) {message}"):
        ENGINES[engine](activation("planted"))
    # With the part restored, the engine accepts the row.
    monkeypatch.setitem(ACTIVATIONS, "planted", ACTIVATIONS["clamp"])
    ENGINES[engine](activation("planted"))


def test_every_optional_part_has_a_case() -> None:
    """Require a case above for every optional part of a row."""
    optional = {field.name for field in dataclasses.fields(ActivationRow) if field.default is dataclasses.MISSING}
    assert optional == {name for _, names, _ in PARTS for name in names}


def test_differentiable_bounds_need_kernels_or_a_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = activations.Differentiable(lambda node, lower, upper: (lower, upper), None)
    row = dataclasses.replace(ACTIVATIONS["clamp"], differentiable=bare)
    monkeypatch.setitem(ACTIVATIONS, "clamp", row)
    bounds = DifferentiableBounds(nn.Sequential(nn.Linear(2, 2), nn.ReLU6()).eval(), torch.zeros(1, 2))
    bounds.bounds(torch.zeros(1, 2), 0.1)
    with pytest.raises(ModelError, match="has no differentiable linear relaxation"):
        bounds.bounds(torch.zeros(1, 2), 0.1, method="crown-ibp")


def test_the_native_engine_refuses_unknown_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "planted", dataclasses.replace(ACTIVATIONS["clamp"], native_code="erf"))
    with pytest.raises(Exception, match="function without a rule: unknown: erf"):
        Engine(activation("planted"), torch.float32)


#: Functions without a finite Lipschitz constant: softplus jumps at its threshold.
STEEP = {"exp", "exp2", "expm1", "log", "log1p", "log2", "power", "reciprocal", "rsqrt", "softplus", "sqrt", "square"}


@pytest.mark.parametrize("function", sorted(ACTIVATIONS))
def test_every_row_is_complete(function: str) -> None:
    """Check the library's functions."""
    row, node = ACTIVATIONS[function], activation(function)
    missing = {engine for engine, call in ENGINES.items() if _refuses(call, node)}
    steep = {"the Lipschitz bound"} if function in STEEP else set()
    assert missing - {"differentiable bounds"} == steep
    if function in STEEP:
        return
    assert row.slope_range is not None
    low, high = row.slope_range(node)
    z = torch.linspace(-3, 3, 602, dtype=torch.float64).view(301, 2).requires_grad_()
    assert row.forward is not None
    (slopes,) = torch.autograd.grad(row.forward(node, z).sum(), z)
    assert low <= slopes.min()
    assert slopes.max() <= high + 1e-15


def _refuses(call: Callable[[Activation], Any], node: Activation) -> bool:
    try:
        call(node)
    except ModelError:
        return True
    return False


def absolute(l: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, ...]:  # noqa: E741 - the field's names
    zero, largest = np.zeros_like(l), np.maximum(-l, u)
    return zero, zero, zero, largest, np.maximum(np.maximum(l, -u), 0), largest


@pytest.mark.usefixtures("own_tables")
def test_a_registered_rule_with_all_optional_parts() -> None:
    """Use the slope range for Lipschitz bounds and the differentiable rule for training; refuse both without them."""
    operator = torch.ops.aten.log_sigmoid.default
    del elementwise.RULES[operator]

    def rule(l: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, ...]:  # noqa: E741 - the field's name
        zero = np.zeros_like(l)
        low, high = -np.logaddexp(0, -l) * (1 + 1e-12) - 1e-12, -np.logaddexp(0, -u) * (1 - 1e-12)
        return zero, low, zero, high, low, high

    def differentiable(l: Tensor, u: Tensor) -> tuple[Tensor, ...]:  # noqa: E741 - the field's name
        zero, low, high = torch.zeros_like(l), nn.functional.logsigmoid(l), nn.functional.logsigmoid(u)
        return zero, low, zero, high, low, high

    net = nn.Sequential(nn.Linear(2, 3), Called(lambda z: nn.functional.logsigmoid(z)), nn.Linear(3, 2)).eval()
    x = torch.randn(4, 2)
    register_rule(operator, rule)
    for call, words in ((lipschitz_bound, "no known Lipschitz constant"), (DifferentiableBounds, "no differentiable")):
        with pytest.raises(ModelError, match=rf"log_sigmoid.* has {words}"):
            call(net, x)
    del elementwise.RULES[operator], ACTIVATIONS[str(operator)]
    register_rule(operator, rule, slope_range=(0.0, 1.0), differentiable=differentiable)
    assert lipschitz_bound(net, x).value > 0
    for method in ("ibp", "crown-ibp"):
        lower, upper = DifferentiableBounds(net, x).bounds(x, 0.1, method=method)
        for engine in ("native", "torch"):
            sound = BoundedModel(net, x, engine=engine).bounds(x, 0.1, method=method)
            torch.testing.assert_close(lower.double(), sound.lower, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(upper.double(), sound.upper, rtol=1e-4, atol=1e-5)
        (upper - lower).sum().backward()
    assert net[0].weight.grad is not None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"slope_range": (1.0, 0.0)}, InputError, "slope_range: expected finite numbers with smallest <= largest"),
        ({"slope_range": (0.0, torch.inf)}, InputError, "slope_range: expected finite numbers"),
        ({"slope_range": 1.0}, InputTypeError, r"slope_range: expected \(smallest, largest\) or None, got 1.0"),
        ({"differentiable": 3}, InputTypeError, "differentiable: expected a function or None, got int"),
    ],
)
def test_wrong_options_of_register_rule(options: dict[str, Any], error: type[Exception], message: str) -> None:
    operator = torch.ops.aten.cosh.default
    with pytest.raises(error, match=message):
        register_rule(operator, absolute, **options)
    assert str(operator) not in ACTIVATIONS
    assert operator not in elementwise.RULES


def test_values_outside_of_a_registered_rule_are_found() -> None:
    operator = torch.ops.aten.cosh.default
    wrong = "rule: expected at least .* as the upper linear relaxation on .* at z = .*, got .*; mend the bound"
    with pytest.raises(InputError, match=wrong):
        register_rule(operator, absolute)
    curve = Curve(
        value=torch.cosh,
        slope=lambda z, piece: torch.sinh(z),
        breaks=(-math.inf, math.inf),
        middle_convex=True,
        stationary=(0.0,),
        limits=(math.inf, math.inf),
        image=(1.0, math.inf),
    )
    for planted, message in (
        (dataclasses.replace(curve, stationary=()), "rule: expected at most"),
        (dataclasses.replace(curve, middle_convex=False), "linear relaxation"),
        (dataclasses.replace(curve, image=(1.25, math.inf)), "rule: expected at most"),
        (dataclasses.replace(curve, value=torch.sinh), "rule: expected"),
    ):
        with pytest.raises(InputError, match=message):
            register_rule(operator, planted)
    with pytest.raises(InputError, match="slope_range: expected to contain the slope"):
        register_rule(operator, curve, slope_range=(-1.0, 1.0))
    with pytest.raises(InputError, match="slope_range: expected to contain the slope"):
        check_slopes(lambda z: (z == z.max()).double(), (0.0, 0.0))  # a single chord
    with pytest.raises(InputError, match="differentiable: expected"):
        register_rule(operator, curve, differentiable=lambda z, u: (0 * z, 0 * z, 0 * z, 0 * z + 1, 0 * z, 0 * z))
    with pytest.raises(InputTypeError, match="rule: expected a function or a Curve, got int"):
        register_rule(operator, 3)  # type: ignore[arg-type]  # a wrong type
    assert operator not in elementwise.RULES


@pytest.mark.usefixtures("own_tables")
def test_float32_semantics_refuses_a_registered_operator_that_cancels() -> None:
    """1 − cos z is off by half a unit of 1 near 0, whatever the rule."""

    @torch.library.custom_op("pyrobust_tests::versine", mutates_args=())
    def versine(z: Tensor) -> Tensor:
        return 1 - torch.cos(z)

    versine.register_fake(torch.empty_like)
    operator = torch.ops.pyrobust_tests.versine.default

    def rule(l: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, ...]:  # noqa: E741 - the field's name
        zero, two = np.zeros_like(l), np.full_like(l, 2.0)
        return zero, zero, zero, two, zero, two

    register_rule(operator, rule)
    net = nn.Sequential(nn.Linear(2, 2), Called(lambda z: versine(z))).eval()
    bounded = BoundedModel(net, torch.zeros(1, 2))
    bounded.bounds(torch.zeros(1, 2), 0.1)
    with pytest.raises(InputError, match=r'expected "real", since the rounding of .*versine.* is not bounded'):
        bounded.bounds(torch.zeros(1, 2), 0.1, semantics="float32")
