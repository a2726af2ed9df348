"""The analysis of a graph, and the native engine's checks of the analysis it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pyrobust import _C
from pyrobust.bounds.graph.analysis import Analysis, Step, consumers, read_counts
from pyrobust.bounds.graph.nodes import Activation, Gather, Input, MaxPool, Node, Sum, in_order

X = Input(name="x", shape=(3,), inputs=())
#: Reads element 0 of its first input three times and element 1 of its second input once.
TWICE = Gather(name="g", shape=(4,), inputs=(X, X), index=torch.tensor([0, 0, 0, 4]))


def relu(z: Node) -> Activation:
    return Activation(name="relu", shape=z.shape, inputs=(z,), function="leaky_relu")


def analysis(*nodes: Node) -> Analysis:
    number = {node: i for i, node in enumerate(nodes)}
    steps = [Step(node, tuple(number[source] for source in node.inputs)) for node in nodes]
    return Analysis(steps, len(nodes) - 1)


def test_consumers_are_counted_once_for_each_read() -> None:
    double = Sum(name="s", shape=(3,), inputs=(X, X), signs=(1, 1))
    last, unused = relu(double), relu(X)
    order = in_order(last)
    assert consumers(order, [last]) == {last: [], double: [last], X: [double, double]}
    assert consumers([*order, unused], [double]) == {double: [], X: [double, double]}


def test_an_affine_layer_is_fused_with_its_only_reader() -> None:
    moved = Gather(name="g", shape=(3,), inputs=(X,), index=torch.arange(3))
    first = relu(moved)
    result = analysis(X, moved, first)
    assert result.fused == [False, True, False]
    assert result.affine_in_input == [True, True, False]
    assert result.ends_affine_part == [False, True, False]
    both = Sum(name="s", shape=(3,), inputs=(first, moved), signs=(1, 1))
    result = analysis(X, moved, first, both)
    assert result.fused == [False] * 4
    assert result.consumers == [[1], [2, 3], [3], []]
    assert result.ends_affine_part == [False, True, False, False]


def test_repeated_reads() -> None:
    assert [counts.tolist() for counts in read_counts(TWICE)] == [[3, 0, 0], [0, 1, 0]]
    result = analysis(X, TWICE)
    assert result.repeats(1) == [3, 1]
    assert result.repeats_in_all(1) == [3, 3]
    assert result.repeats(0) == []
    windows = MaxPool(name="m", shape=(2,), inputs=(X,), windows=torch.tensor([[0, 1], [1, -1]]))
    assert analysis(X, windows).repeats(1) == [2]


GIVEN = {
    "consumers": [1, 1, 0],
    "fused": [False, True, False],
    "affine_in_input": [True, True, False],
    "ends_affine_part": [False, True, False],
    "repeats": [[], [2], [1]],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumers", [1, 2, 0]),
        ("fused", [False, False, False]),
        ("affine_in_input", [True, True, True]),
        ("ends_affine_part", [False, False, False]),
        ("repeats", [[], [0], [1]]),
        ("repeats", [[], [1], [1]]),  # too few: the bounds would be too tight
        ("repeats", [[], [2], [2]]),
        ("repeats", [[], [2, 2], [1]]),
        ("repeats", [[], [2]]),
    ],
)
def test_the_native_engine_refuses_an_analysis_of_other_layers(name: str, value: Any) -> None:
    def network() -> _C.BoundNetwork32:
        layers = _C.BoundNetwork32()
        layers.input([3, 1, 1])
        layers.gather([0], np.array([0, 0, 1]), [3, 1, 1])
        layers.activation(1, "leaky_relu", 0.0, 0.0, 0.0, 2, None)
        return layers

    network().finish(**GIVEN)
    with pytest.raises(ValueError, match="expected an analysis of these layers"):
        network().finish(**{**GIVEN, name: value})
