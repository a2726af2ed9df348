"""Lowering rules of recurrent layers and their cells, unrolled over the steps of the sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering import affine
from pyrobust.bounds.graph.lowering.elementwise import activation
from pyrobust.bounds.graph.lowering.layout import MOVES, Displaced, gathered, moved, rearranged
from pyrobust.bounds.graph.lowering.products import product
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, lowers
from pyrobust.bounds.graph.nodes import Linear, Node, Sum

aten = torch.ops.aten

#: The state of a layer: (h,), or (h, c) of an LSTM.
State = tuple[Node, ...]

#: (lowering, Wx + b of one step, state, W of the state, b of the state) → the next state.
Cell = Callable[[Lowering, Node, State, Constant, Constant | None], State]


def _linear(lowering: Lowering, z: Node, weight: Constant, bias: Constant | None) -> Node:
    return Linear(name=lowering.name, shape=(weight.shape[0],), inputs=(z,), weight=weight, bias=bias)


def _sum(lowering: Lowering, a: Node, b: Node, sign: int = 1) -> Node:
    return Sum(name=lowering.name, shape=a.shape, inputs=(a, b), signs=(1, sign))


def _function(lowering: Lowering, z: Node, name: str) -> Node:
    """Apply an elementwise function, and mark its node as computed by a fused kernel."""
    return dataclasses.replace(activation(lowering, z, name), deployable=False)


def _gates(lowering: Lowering, z: Node, count: int) -> list[Node]:
    """Split a node [count·H] into ``count`` equal parts."""

    def gate(i: int) -> Node:
        return moved(lowering, z, lambda t: t.chunk(count, 1)[i])

    return [gate(i) for i in range(count)]


def _simple(function: str) -> Cell:
    """Return the cell with h' = f(Wx + b + Vh + d) (Elman, 1990)."""

    def step(lowering: Lowering, x: Node, state: State, weight: Constant, bias: Constant | None) -> State:
        total = _sum(lowering, x, _linear(lowering, state[0], weight, bias))
        return (_function(lowering, total, function),)

    return step


def _gated(lowering: Lowering, x: Node, state: State, weight: Constant, bias: Constant | None) -> State:
    """Compute h' = n + z·(h − n) with n = tanh(x_n + r·h_n) and gates r, z (Cho et al., 2014; ``torch.nn.GRU``)."""
    (h,) = state
    x_r, x_z, x_n = _gates(lowering, x, 3)
    h_r, h_z, h_n = _gates(lowering, _linear(lowering, h, weight, bias), 3)
    reset = _function(lowering, _sum(lowering, x_r, h_r), "sigmoid")
    update = _function(lowering, _sum(lowering, x_z, h_z), "sigmoid")
    new = _function(lowering, _sum(lowering, x_n, product(lowering, reset, h_n)), "tanh")
    following = _sum(lowering, new, product(lowering, update, _sum(lowering, h, new, -1)))
    # h' lies between h and n, hence in [−1, 1] if the first state does
    return (dataclasses.replace(following, known=h.known),)


def _long_short(lowering: Lowering, x: Node, state: State, weight: Constant, bias: Constant | None) -> State:
    """Compute c' = f·c + i·g and h' = o·tanh(c') with gates i, f and o (Hochreiter and Schmidhuber, 1997)."""
    h, c = state
    total = _sum(lowering, x, _linear(lowering, h, weight, bias))
    i, f, g, o = (
        _function(lowering, gate, function)
        for gate, function in zip(_gates(lowering, total, 4), ("sigmoid", "sigmoid", "tanh", "sigmoid"), strict=True)
    )
    cell = _sum(lowering, product(lowering, f, c), product(lowering, i, g))
    return product(lowering, o, _function(lowering, cell, "tanh")), cell


_CELLS: dict[str, Cell] = {
    "rnn_tanh": _simple("tanh"),
    "rnn_relu": _simple("leaky_relu"),
    "gru": _gated,
    "lstm": _long_short,
}


def _first(lowering: Lowering, x: Node, value: Value | Displaced, index: int | None) -> Node:
    """Return the first state [H] of a layer: ``value`` [B, H], or entry ``index`` of ``value`` [L, B, H]."""
    if not isinstance(value, Constant):
        state = value if index is None else rearranged(lowering, value, lambda t: t[index])
        if not isinstance(state, Node):
            raise lowering.unsupported("expected a first state whose batch is its second dimension")
        return state
    h = gathered(lowering, (x, value), lambda _, t: t if index is None else t[index])
    bounded = bool((value.value().abs() <= 1).all())
    return dataclasses.replace(h, known=(-1.0, 1.0)) if bounded else h


def _unrolled(
    lowering: Lowering, cell: Cell, x: Node, state: State, weights: Sequence[Constant], *, backward: bool
) -> tuple[Node, State]:
    """Unroll one layer in one direction over x [T, F], and return (all h [T, H], last state).

    ``weights`` holds the weights of the input and of the state, then the two biases and the weights of the projection
    of h, if there are any.
    """
    length, projected = x.shape[0], len(weights) % 2 == 1
    biases: Sequence[Constant | None] = weights[2:4] if len(weights) > 3 else (None, None)
    whole = lowering.shape
    lowering.shape = (length, weights[0].shape[0])
    inputs = affine.linear(lowering, x, weights[0], biases[0])
    lowering.shape = whole
    outputs: list[Node] = []
    for k in reversed(range(length)) if backward else range(length):

        def step_of(t: Tensor, k: int = k) -> Tensor:
            return t[:, k]

        state = cell(lowering, moved(lowering, inputs, step_of), state, weights[1], biases[1])
        if projected:
            state = (_linear(lowering, state[0], weights[-1], None), *state[1:])
        outputs.append(state[0])
    if backward:
        outputs.reverse()
    return gathered(lowering, outputs, lambda *steps: torch.stack(steps, 1)), state


def _run(
    lowering: Lowering,
    cell: Cell,
    x: Node | Displaced,
    first: Sequence[Value | Displaced],
    weights: Sequence[Constant],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """Run all layers; return the outputs, then the last states [L, B, H]."""
    if train and dropout:
        raise lowering.unsupported("expected a module in evaluation mode, without dropout")
    if not batch_first:
        x = rearranged(lowering, x, lambda t: t.transpose(0, 1))
    if not isinstance(x, Node):
        raise lowering.unsupported(f"expected sequences of {'[B, T, F]' if batch_first else '[T, B, F]'}")
    directions = 1 + bidirectional
    each = len(weights) // (layers * directions)
    finals: list[State] = []
    z = x
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            state = tuple(_first(lowering, x, tensor, number) for tensor in first)
            rows = weights[number * each : (number + 1) * each]
            out, final = _unrolled(lowering, cell, z, state, rows, backward=bool(direction))
            outputs.append(out)
            finals.append(final)
        z = outputs[0] if len(outputs) == 1 else gathered(lowering, outputs, lambda *ts: torch.cat(ts, 2))
    result = z if batch_first else rearranged(lowering, z, lambda t: t.transpose(0, 1))
    return result, *(rearranged(lowering, tensor, lambda *ts: torch.stack(ts)) for tensor in zip(*finals, strict=True))


@lowers(aten.lstm.input)
def lstm(
    lowering: Lowering, x: Node | Displaced, first: Sequence[Value], weights: Sequence[Constant], *settings: Any
) -> tuple[Any, ...]:
    """Compute ``torch.nn.LSTM``."""
    return _run(lowering, _long_short, x, first, weights, *settings)


def _layer(name: str) -> None:
    cell = _CELLS[name]

    def rule(
        lowering: Lowering, x: Node | Displaced, first: Value, weights: Sequence[Constant], *settings: Any
    ) -> tuple[Any, ...]:
        return _run(lowering, cell, x, (first,), weights, *settings)

    lowers(getattr(aten, name).input)(rule)


def _single(name: str) -> None:
    """Register the rule of a cell, which processes a single step [B, F]."""
    step = _CELLS[name]

    def rule(lowering: Lowering, x: Node, first: Any, *weights: Constant | None) -> Any:
        of_x, of_h, *biases = weights
        if not isinstance(x, Node) or of_x is None or of_h is None:
            raise lowering.unsupported("expected an input [B, F] and constant weights")
        values = first if isinstance(first, (list, tuple)) else (first,)
        state = tuple(_first(lowering, x, value, None) for value in values)
        bias_x, bias_h = biases or (None, None)
        after = step(lowering, _linear(lowering, x, of_x, bias_x), state, of_h, bias_h)
        return after if name == "lstm" else after[0]

    operator = getattr(aten, f"{name}_cell")
    lowers(operator.default if hasattr(operator, "default") else operator.input)(rule)


for _name in _CELLS:
    _single(_name)
    if _name != "lstm":
        _layer(_name)

MOVES.update({aten.lstm.input, *(getattr(aten, name).input for name in _CELLS)})
