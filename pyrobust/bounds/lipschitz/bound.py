"""Lipschitz constants of networks, and certificates derived from them."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.bounds.engines.denormals import denormals_kept
from pyrobust.bounds.engines.engine_bounds import EngineBounds
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.select import engine_for
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.graph.capture import capture, example_of
from pyrobust.bounds.graph.nodes import Linear, Node, Reshape
from pyrobust.bounds.input_set import CPU, InputSet
from pyrobust.bounds.lipschitz.composition import Constants, LayerNorm
from pyrobust.bounds.lipschitz.observed import observed_slope
from pyrobust.bounds.lipschitz.operator_norms import Weights
from pyrobust.bounds.options import LIPSCHITZ
from pyrobust.bounds.specification import Margins, Rows, margins
from pyrobust.checks import NormLike, Numbers, norm_name, summary
from pyrobust.errors import InputError
from pyrobust.frames import Tabular, columns_of, plain_fields

_UP = 1 + 2.0**-49
_UNIT = 2.0**-53
# Factor below 1 on the quotient of margin and slope, so that the margin at a radius is above zero.
_INSIDE = 1 - 2.0**-40
# Largest number of float64 elements in memory at once: 128 MiB.
_NUMBERS = 1 << 24


@dataclasses.dataclass(frozen=True)
class LipschitzBound(Tabular):
    """A number L with ‖f(x) − f(x′)‖ ≤ L·‖x − x′‖ for all x and x′.

    Attributes:
        norm: the norm of both inputs and outputs: "linf", "l2" or "l1".
        value: L, proved for the exact network with the given parameters; inf where it is too large for a float.
        lower: the largest observed slope ‖f(x) − f(x′)‖ / ‖x − x′‖, computed in floating point. No number smaller than
            this slope is a valid L.
        layers: constants of the layers, from which L is composed.
    """

    norm: str
    value: float
    lower: float
    layers: tuple[LayerNorm, ...]

    def __repr__(self) -> str:
        return summary(self, norm=self.norm, value=self.value, lower=self.lower, layers=len(self.layers))

    def _columns(self) -> dict[str, Any]:
        """One row for each layer."""
        return columns_of(self.layers, LayerNorm.__dataclass_fields__)

    def _attributes(self) -> dict[str, Any]:
        return {"norm": self.norm, "value": self.value, "lower": self.lower}

    to_dict = plain_fields


@denormals_kept()
def lipschitz_bound(model: nn.Module, example_input: Numbers, norm: NormLike = "l2") -> LipschitzBound:
    """Compute a proved upper bound of a network's Lipschitz constant, rounding errors included.

    The constants of the layers are multiplied along paths and added where paths meet. In l2, the constants of linear
    and convolution layers come from Gram iteration (Delattre et al., 2023). Small convolutions are bounded with their
    true zero padding. Large ones are bounded on a torus that contains their input; the constant there is no smaller. In
    l∞ and l1, the constants are exact up to rounding. For most deep nets, the product of the constants is far larger
    than any observed slope (``lower``), and ``method="lipschitz"`` proves smaller radii for single examples than the
    other methods do. It may prove larger ones for nets whose layers have constants near 1, such as orthogonal layers
    with sorting.

    Args:
        model: a module with outputs of any shape, bounded in evaluation mode, see ``BoundedModel``.
        example_input: [B, ...]; ``lower`` is searched for around the first four examples.
        norm: the norm of both inputs and outputs: "linf", "l2" or "l1".

    Returns:
        LipschitzBound.

    Raises:
        InputTypeError: the model is not a module, or the example is not a floating-point tensor.
        InputError: an unknown norm, no example, or a submodule that stays in training mode.
        ModelError: the model has an operator without a bound rule, a product of two tensors that depend on the input
            (as in layer norm and attention), an activation without a slope range (see ``register_rule``), or parameters
            that are not finite.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).eval()
    >>> _ = model.load_state_dict({"0.weight": torch.tensor([[3.0, 0.0], [0.0, 1.0]]), "2.weight": torch.ones(1, 2)})
    >>> constant = lipschitz_bound(model, torch.ones(1, 2), norm="linf")
    >>> round(constant.value, 6), round(constant.lower, 6), [layer.kind for layer in constant.layers]
    (6.0, 4.0, ['linear', 'activation', 'linear'])
    """
    norm = norm_name("norm", norm)
    example_input = example_of(model, example_input)
    output = capture(model, example_input)
    if not len(example_input):
        raise InputError("example_input", "at least one example", "none")
    constants = Constants(output, norm)
    lower = observed_slope(output, example_input[:4], norm)
    return LipschitzBound(norm, constants.of(output), lower, tuple(constants.layers))


class LipschitzEngine:
    """An engine, on the CPU, whose bounds over a ball follow from the output at its center and a Lipschitz constant.

    Args:
        output: output node of the graph.
    """

    def __init__(self, output: Node) -> None:
        self._output = output
        self._slopes: dict[str, _RowSlopes] = {}

    @functools.cached_property
    def _values(self) -> Engine | TensorEngine:
        """The engine that encloses the values at the centers, in float64."""
        return engine_for(self._output, torch.float64, CPU, None)

    def run(self, inputs: InputSet, rows: Rows, query: Query, *, with_upper: bool = True) -> EngineBounds:
        """Return bounds [B, S] of the products of rows [S, K] or [B, S, K] with the outputs; see ``Engine.run``.

        Raises:
            InputError: the sets are not balls, or semantics is not "real".
        """
        inputs = inputs.cpu()
        if inputs.center is None or inputs.epsilon is None:
            raise InputError("x_lower, x_upper", 'x and epsilon with method "lipschitz"')
        rows = torch.eye(self._output.size, dtype=torch.float64) if rows is None else rows.cpu()
        lower, upper = self._at_centers(inputs.center, rows, query, with_upper)
        slopes = self._of(inputs.norm)(rows, len(inputs))
        change = torch.where(inputs.epsilon[:, None] == 0, 0.0, slopes * inputs.epsilon[:, None] * _UP)
        infinity = torch.tensor(torch.inf, dtype=torch.float64)
        lower, upper = torch.nextafter(lower - change, -infinity), torch.nextafter(upper + change, infinity)
        return EngineBounds.by(LIPSCHITZ, lower, upper)

    def radius(self, inputs: InputSet, rows: Margins, query: Query) -> Tensor:
        """Return radii of balls, float64 [B], in which products of rows [B, S, K] and outputs are proved positive.

        The radius is ``min_s m_s / g_s``, rounded down, with margins m at the center and slopes g. It is infinite where
        all slopes are 0, and 0 where a margin is not proved to be positive.

        Raises:
            InputError: as for ``run``.
        """
        inputs, rows = inputs.cpu(), rows.cpu()
        assert inputs.center is not None
        margin = self._at_centers(inputs.center, rows, query, False).lower
        radii = margin / self._of(inputs.norm)(rows, len(inputs)) * _INSIDE
        radii = torch.where(margin > 0, radii.nan_to_num(0.0, posinf=torch.inf), 0.0)
        return radii.amin(1) if rows.shape[1] else torch.full((len(inputs),), torch.inf, dtype=torch.float64)

    def _at_centers(self, center: Tensor, rows: Rows, query: Query, with_upper: bool) -> EngineBounds:
        if query.semantics != "real":
            raise InputError("semantics", '"real" with method "lipschitz"', repr(query.semantics))
        points = InputSet((center, center), "linf", None, None)
        query = dataclasses.replace(query, method="crown", watch=None)
        return self._values.run(points, rows, query, with_upper=with_upper)

    def _of(self, norm: str) -> _RowSlopes:
        if norm not in self._slopes:
            self._slopes[norm] = _RowSlopes(self._output, norm)
        return self._slopes[norm]


class _RowSlopes:
    """Lipschitz constants of specification rows c: |c·Δf| ≤ slope·‖Δx‖.

    By Hölder's inequality, ‖c‖·L is a slope, where ‖c‖ is the dual norm of c, and L is the constant of the outputs. If
    the last layer is linear, with f = W·z + b, then ‖c·W‖·M is also a slope, where M is the constant of z. It is often
    smaller than ‖c‖·L.
    """

    def __init__(self, output: Node, norm: str) -> None:
        constants = Constants(output, norm)
        self._norm = norm
        self._whole = constants.of(output)
        self._last: Weights | None = None
        self._before = math.inf
        while isinstance(output, Reshape):
            output = output.inputs[0]
        if isinstance(output, Linear):
            self._last, z = constants.with_scale_before(output, Weights.of(*output.weight.enclosure()))
            self._before = constants.of(z)

    def __call__(self, rows: Tensor | Margins, batch: int) -> Tensor:
        """Return slopes [B, S] of specification rows [S, K] or [B, S, K], rounded up; inf where they are unknown."""
        if isinstance(rows, Tensor) and rows.dim() == 2:
            return self(rows[None], 1).expand(batch, -1)
        each = rows.shape[2] if self._last is None else max(self._last.middle.shape)
        held = rows.shape[1] * each
        if isinstance(rows, Margins):
            if held <= _NUMBERS:
                pieces = rows.y.split(max(1, _NUMBERS // max(1, held)))
                return torch.cat([self._slopes(margins(y, rows.classes)) for y in pieces])
            numbers = torch.arange(rows.shape[1]).split(max(1, _NUMBERS // each))
            every = torch.arange(len(rows.y)).unbind()
            return torch.stack(
                [torch.cat([self._slopes(rows.some(i.expand_as(n), n)[None])[0] for n in numbers]) for i in every]
            )
        chunks = torch.split(rows, max(1, _NUMBERS // max(1, held)))
        return torch.cat([self._slopes(chunk) for chunk in chunks]) if len(rows) else rows.sum(2)

    def _slopes(self, rows: Tensor) -> Tensor:
        whole = _times(self._dual(rows.abs()), self._whole)
        if self._last is None:
            return whole
        middle, radius = self._last.middle, self._last.radius
        spread = (rows.abs() @ middle.abs()) * ((rows.shape[2] + 4) * 2 * _UNIT) + (rows.abs() @ radius) * _UP
        tiny = rows.shape[2] * 2.0**-1022
        exact = rows.count_nonzero(2)[..., None] == 0
        row = torch.where(exact, 0.0, ((rows @ middle).abs() + spread + tiny) * _UP)
        return torch.minimum(whole, _times(self._dual(row), self._before))

    def _dual(self, row: Tensor) -> Tensor:
        """Return the dual norm of numbers ≥ 0 along the last dimension, rounded up."""
        if not row.shape[-1]:
            return row.sum(-1)
        if self._norm == "l1":
            return row.amax(-1)
        if self._norm == "linf":
            return row.sum(-1) * (1 + (row.shape[-1] + 8) * _UNIT) * _UP
        largest = row.amax(-1, keepdim=True)
        # Squares of the quotients cannot overflow, and are negligible where they underflow.
        share = torch.where(largest > 0, row / largest, 0.0)
        return largest[..., 0] * share.square().sum(-1).sqrt() * (1 + (row.shape[-1] + 16) * _UNIT) * _UP


def _times(norms: Tensor, constant: float) -> Tensor:
    """Return the products, rounded up; a product is 0 if either factor is 0."""
    if constant == 0:
        return torch.zeros_like(norms)
    return torch.where(norms == 0, 0.0, norms * constant * _UP + 2.0**-1022)
