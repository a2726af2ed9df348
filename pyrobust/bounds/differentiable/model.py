"""Bounds for training: IBP and CROWN-IBP in torch operations, differentiable in the parameters and the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.bounds.differentiable.backward import lower_bounds, read_ranges
from pyrobust.bounds.differentiable.intervals import CenteredRange, check_differentiable, intervals
from pyrobust.bounds.graph.capture import capture_classifier, example_of
from pyrobust.bounds.graph.nodes import in_order
from pyrobust.bounds.options import method_name
from pyrobust.checks import (
    Numbers,
    class_labels,
    clip_range,
    dense,
    first_wrong,
    float_tensor,
    kind,
    non_negative,
    shape_text,
    shown,
    summary,
)
from pyrobust.errors import InputError, InputTypeError
from pyrobust.runner import model_name

#: The methods that have differentiable bounds.
METHODS = ("ibp", "crown-ibp")


class DifferentiableBounds:
    """Bounds of a network that are differentiable with respect to its parameters, for training.

    Every call computes the bounds for the current values of the parameters and buffers, in torch operations and in x's
    dtype. The tensors themselves are those of the construction. Construct the object anew after a change of the model's
    device or dtype, which replaces buffers, and after any other replacement of a parameter, buffer or submodule. The
    bounds equal those of ``BoundedModel.bounds(..., sound=False)`` up to rounding and prove nothing. Certify a trained
    network with ``BoundedModel``.

    There are two methods, both for l∞ balls:

    - "ibp": interval bounds as center and radius, which a layer multiplies by W and |W| (Gowal et al., 2018);
    - "crown-ibp": interval bounds for the hidden layers, then a backward pass of linear bounds from the output to the
      input (Zhang et al., 2020). The lower relaxation of an unstable ReLU is the identity where upper > -lower, else 0.

    The network is bounded in evaluation mode, even while the model itself is in training mode: batch norm uses its
    running statistics, and dropout does nothing. Calls work under ``torch.compile(fullgraph=True)``, and under
    ``torch.autocast``, which leaves the bounds in x's dtype. Only first-order gradients by autograd are supported, not
    the transforms of ``torch.func``.

    Args:
        model: a module in any mode, as for ``BoundedModel``; its mode is restored.
        example_input: [B, ...], of the shape and dtype of later inputs; its values do not matter.

    Raises:
        InputTypeError: the model is not a module, or the example is not a floating-point tensor.
        InputError: outputs that are not [B, K], or a submodule that stays in training mode.
        ModelError: the model has an operator without a (differentiable) bound rule, or a data-dependent branch.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> bounds = DifferentiableBounds(model, torch.zeros(1, 2))
    >>> lower, upper = bounds.bounds(torch.zeros(5, 2), 0.1)
    >>> (upper - lower).sum().backward()
    >>> model[0].weight.grad.shape
    torch.Size([8, 2])
    """

    def __init__(self, model: nn.Module, example_input: Numbers) -> None:
        example_input = example_of(model, example_input)
        output = capture_classifier(model, example_input)
        self.model = model
        self.shape = tuple(example_input.shape[1:])
        self._dtype = example_input.dtype
        self.outputs = output.size
        self._order = in_order(output)
        check_differentiable(self._order)

    def __repr__(self) -> str:
        return summary(self, model=model_name(self.model), shape=self.shape, outputs=self.outputs)

    def bounds(
        self,
        x: Numbers,
        epsilon: float | Tensor,
        *,
        method: str = "ibp",
        C: Tensor | None = None,
        clip: tuple[float, float] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Bound C·f(x′) over all x′ with ‖x′ − x‖_∞ ≤ epsilon in the clip range.

        Args:
            x: [B, ...], float32 or float64, in the clip range; the range is not checked, to avoid synchronising with
                the device. The dtype of x is that of the computation, whatever the model's.
            epsilon: finite, at least 0; a number, a tensor [B], or a tensor in the shape of x with a radius for each
                element. Compiled code does not check the values of an epsilon tensor. Bounds are differentiable in
                epsilon, too.
            method: "ibp" or "crown-ibp".
            C: specification, [S, K], or [B, S, K] with one for each example; default: the identity.
            clip: (lowest, highest) value of an element of x′; None for no limits.

        Returns:
            (lower, upper), [B, S] each.

        Raises:
            InputError: a mismatched shape, an unknown method, or an epsilon out of range.
            InputTypeError: an x that is not float32 or float64, an epsilon that is neither a Python number nor a
                tensor, or a C that is not a floating-point tensor.

        >>> bounds = DifferentiableBounds(nn.Linear(2, 1, bias=False).eval(), torch.zeros(1, 2))
        >>> _ = bounds.model.weight.data.copy_(torch.tensor([[1.0, -2.0]]))
        >>> lower, upper = bounds.bounds(torch.zeros(1, 2), 0.5, method="crown-ibp", clip=(0.0, 1.0))
        >>> lower.tolist(), upper.tolist()
        ([[-1.0]], [[0.5]])
        """
        x = self._examples(x)
        box = self._box(x, epsilon, clip)
        rows = self._rows(C, x)
        method = _method(method)
        with torch.autocast(x.device.type, enabled=False):
            if method == "ibp" and rows is None:
                outputs = intervals(self._order, box, self._order[-1:])[self._order[-1]]
                return outputs.lower, outputs.upper
            if rows is None:
                rows = torch.eye(self.outputs, dtype=x.dtype, device=x.device).unsqueeze(0)
            stop = method == "ibp"
            ranges = intervals(self._order, box, read_ranges(self._order, stop=stop))
            both = lower_bounds(self._order, ranges, torch.cat([rows, -rows], 1), stop=stop)
        lower, negative = both.chunk(2, 1)
        return lower, -negative

    def margins(
        self,
        x: Numbers,
        y: Numbers,
        epsilon: float | Tensor,
        *,
        method: str = "ibp",
        clip: tuple[float, float] | None = None,
        share: float | Tensor = 1.0,
    ) -> Tensor:
        """Return lower bounds [B, K − 1] of the margins f_y − f_j, for all j ≠ y in increasing order.

        The margins themselves are bounded, not the two logits: with W the last weight, the bound of (W_y − W_j)·z is
        tighter than separate bounds of W_y·z and W_j·z (Gowal et al., 2018, 3).

        Args:
            x: as for ``bounds``.
            y: [B], the labels, int64, 0 to K − 1; compiled code does not check their range.
            epsilon: as for ``bounds``.
            method: as for ``bounds``.
            clip: as for ``bounds``.
            share: β in [0, 1] for "crown-ibp": the result is β times the CROWN-IBP bound plus (1 − β) times the
                interval bound (Zhang et al., 2020). A number or a tensor of one element.

        Raises:
            InputError: as for ``bounds``, or labels of another shape or out of range.
            InputTypeError: as for ``bounds``, or labels that are not integers, or a tensor of labels that is not int64.

        >>> bounds = DifferentiableBounds(nn.Linear(2, 3).eval(), torch.zeros(1, 2))
        >>> bounds.margins(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), 0.1).shape
        torch.Size([4, 2])
        """
        x = self._examples(x)
        box = self._box(x, epsilon, clip)
        if not isinstance(y, Tensor):
            y = class_labels("y", y, len(x))
        if y.dtype != torch.int64:
            raise InputTypeError("y", "an int64 tensor", kind(y))
        if tuple(y.shape) != (len(x),):
            raise InputError("y", f"shape ({len(x)},), one label per example", shape_text(y.shape))
        method = _method(method)
        if not torch.compiler.is_compiling() and len(y) > 0:  # compiled code cannot raise for numbers
            wrong = (y < 0) | (y >= self.outputs)
            if bool(wrong.any()):
                raise InputError("y", f"labels 0 to {self.outputs - 1}", first_wrong(y, wrong))
        y = y.to(x.device)
        identity = torch.eye(self.outputs, dtype=x.dtype, device=x.device)
        others = torch.arange(self.outputs - 1, device=x.device)
        others = others + (others >= y[:, None])  # [B, K - 1]: all classes but y
        rows = identity[y][:, None, :] - identity[others]
        only = method == "ibp" or (not isinstance(share, Tensor) and share == 1)
        wanted = read_ranges(self._order, stop=method == "ibp")
        with torch.autocast(x.device.type, enabled=False):
            ranges = intervals(self._order, box, wanted if only else wanted | read_ranges(self._order, stop=True))
            if method == "ibp":
                return lower_bounds(self._order, ranges, rows, stop=True)
            margins = lower_bounds(self._order, ranges, rows, stop=False)
            if only:
                return margins
            return share * margins + (1 - share) * lower_bounds(self._order, ranges, rows, stop=True)

    def _examples(self, x: Numbers) -> Tensor:
        """Return a tensor unchanged, so that calls compile; convert arrays and lists to the example's dtype."""
        return x if isinstance(x, Tensor) else float_tensor("x", x, dtype=self._dtype)

    def _box(self, x: Tensor, epsilon: Any, clip: tuple[float, float] | None) -> CenteredRange:
        if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
            raise InputTypeError("x", "a tensor of float32 or float64", kind(x))
        if x.layout != torch.strided or x.is_meta:
            dense("x", x)
        if tuple(x.shape[1:]) != self.shape or x.dim() != len(self.shape) + 1:
            raise InputError("x", f"shape {shape_text(('B', *self.shape))}", shape_text(x.shape))
        if isinstance(epsilon, Tensor):
            per_element = epsilon.dim() > 1 and epsilon.shape == x.shape
            if not (per_element or epsilon.dim() == 0 or (epsilon.dim() == 1 and len(epsilon) in (1, len(x)))):
                raise InputError(
                    "epsilon", f"a number or a tensor [{len(x)}] or {shape_text(x.shape)}", shape_text(epsilon.shape)
                )
            if not torch.compiler.is_compiling():  # compiled code cannot raise for numbers
                wrong = ~((epsilon >= 0) & epsilon.isfinite())
                if bool(wrong.any()):
                    value = first_wrong(epsilon, wrong)
                    raise InputError("epsilon", "finite numbers of at least 0", value)
        elif isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise InputTypeError("epsilon", "a number or a tensor", shown(epsilon))
        else:
            epsilon = non_negative("epsilon", epsilon)
        if isinstance(epsilon, Tensor):
            epsilon = epsilon.to(x) if epsilon.dim() > 1 else epsilon.to(x).view(-1, *[1] * len(self.shape))
        else:
            epsilon = x.new_full([1] * x.dim(), epsilon)
        if clip is None:
            return CenteredRange(x, epsilon.expand(-1, *self.shape))
        lowest, highest = clip_range("clip", clip)
        return CenteredRange.between((x - epsilon).clamp(min=lowest), (x + epsilon).clamp(max=highest))

    def _rows(self, rows: Tensor | None, x: Tensor) -> Tensor | None:
        """Return specification rows C as [1 or B, S, K], in the dtype of x."""
        if rows is None:
            return None
        rows = float_tensor("C", rows)
        shared = rows.dim() == 2
        if rows.dim() not in (2, 3) or rows.shape[-1] != self.outputs or not (shared or len(rows) == len(x)):
            raise InputError("C", f"shape (S, {self.outputs}) or ({len(x)}, S, {self.outputs})", shape_text(rows.shape))
        rows = rows.to(x)
        return rows.unsqueeze(0) if shared else rows


def _method(method: str) -> str:
    return method_name("method", method, METHODS)
