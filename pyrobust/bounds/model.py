"""Bounds of a network's outputs over sets of inputs, by IBP, CROWN-IBP, CROWN, alpha-CROWN or a Lipschitz constant."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from pyrobust.bounds.captured_state import CapturedState
from pyrobust.bounds.deployed_arithmetic import other_on_gpu
from pyrobust.bounds.engines.chunks import ENGINE_SHARE
from pyrobust.bounds.engines.denormals import denormals_kept
from pyrobust.bounds.engines.engine_bounds import EngineBounds
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import WatchedQuery
from pyrobust.bounds.engines.select import check_engine, engine_for
from pyrobust.bounds.engines.tensor.engine import TensorEngine
from pyrobust.bounds.engines.watch import SHARES, Watch
from pyrobust.bounds.graph.capture import capture_classifier, example_of, leading_tensor
from pyrobust.bounds.graph.nodes import in_order
from pyrobust.bounds.input_set import (
    CPU,
    Choices,
    InputSet,
    ball,
    box,
    check_radii,
    exact_input,
    of_examples,
    product_of,
)
from pyrobust.bounds.lipschitz.bound import LipschitzEngine
from pyrobust.bounds.methods import METHODS, BoundEngine
from pyrobust.bounds.options import LIPSCHITZ, BoundOptions, merge_options
from pyrobust.bounds.radius_search import LARGEST_RADIUS, search_radius
from pyrobust.bounds.result import Bounds, LinearBounds, Verdicts
from pyrobust.bounds.specification import Margins, Rows, check_rows
from pyrobust.bounds.verify import Attack, run_cascade
from pyrobust.checks import (
    Numbers,
    class_labels,
    first_values,
    float_tensor,
    non_negative,
    radii,
    shape_text,
    summary,
)
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics.distance import scaled_boxes
from pyrobust.runner import Progress, Runner, model_name, reporting
from pyrobust.scale import warn_of_wide_ball

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyrobust.bounds.options import BoundKeywords


# Number of float64 copies of an input while its set is made.
_SET_COPIES = 8


class _Sets(NamedTuple):
    """The arguments of a call that describe input sets."""

    x: Tensor | None
    epsilon: Any
    x_lower: Tensor | None
    x_upper: Tensor | None
    choices: Choices | None = None


class BoundedModel:
    """A network whose outputs can be bounded over sets of inputs.

    The network is bounded in evaluation mode; the model's modes stay as they are. The parameters are read once, at
    construction. A call after a change of the parameters, buffers or submodules raises a ModelError that names them;
    ``refresh`` reads the model again. Not every change is noticed. Only a few elements of each tensor are compared, so
    a write through ``.data`` or NumPy may be missed. New parameters and buffers, new hooks and changes of other
    attributes are missed, too. Call ``refresh`` after such changes. The methods are as follows, each usually tighter
    and slower than the one before:

    - "ibp": interval bounds, layer by layer (Gowal et al., 2018);
    - "crown-ibp": interval bounds for the hidden layers, then a backward pass of linear bounds from the output to the
      input (Zhang et al., 2020);
    - "crown": a backward pass of linear bounds from every layer to the input, with the adaptive lower slope of ReLU
      (Zhang et al., 2018);
    - "alpha-crown": like "crown", but the lower slopes of ReLU and leaky ReLU (in the native engine also of PReLU and
      abs) are optimised for each bound (Xu et al., 2021). All other activations keep the relaxations of "crown".

    The methods "crown-ibp", "crown" and "alpha-crown" intersect their results, including the refined ranges of hidden
    layers, with interval bounds. Up to rounding, the results are therefore never looser than the bounds of "ibp". For
    balls there is also "lipschitz", which widens the outputs at the center by the network's Lipschitz constant times
    epsilon (see ``lipschitz_bound``); its bounds are usually far looser.

    Bounds hold in exact arithmetic: they account for every rounding error, including the engine's own. ``sound=False``
    instead computes plain floating-point bounds by the chosen method alone, for comparison with other programs.
    ``BoundOptions`` documents all settings, which the functions below take as keywords, too.

    Args:
        model: a module that maps [B, ...] to outputs [B, K] or to an object with ``.logits``. The module may consist of
            linear and convolution layers, batch norm, pooling, elementwise functions, residual connections, and
            operators that only move elements.
        example_input: [B, ...], of the shape and dtype of later inputs; its values do not matter.
        engine: "native" computes on the CPU, wherever the model is; "torch" uses float64 torch operations on the
            model's device. Default: "native" for a model on the CPU, "torch" for one on a GPU.

    Attributes:
        device: device that computes the bounds. Inputs may be on any device; results are on the CPU.

    Raises:
        InputTypeError: the model is not a module, or the example is not a floating-point tensor.
        InputError: outputs other than [B, K], a submodule that stays in training mode, sparse parameters, or an unknown
            engine.
        ModelError: the model has an operator without a bound rule, a data-dependent branch, or parameters that are not
            finite.

    >>> bounded = BoundedModel(nn.Linear(2, 2).eval(), torch.zeros(1, 2))
    >>> bounds = bounded.bounds(torch.zeros(3, 2), epsilon=0.1)
    >>> bounds.lower.shape, bool((bounds.lower <= bounds.upper).all())
    (torch.Size([3, 2]), True)
    """

    @denormals_kept()
    def __init__(self, model: nn.Module, example_input: Numbers, *, engine: str | None = None) -> None:
        check_engine(engine)
        self.model = model
        self._engine_name = engine
        self._capture(example_of(model, example_input))

    def _capture(self, example_input: Tensor) -> None:
        """Capture the model's graph and parameters."""
        model, engine = self.model, self._engine_name
        self.output = capture_classifier(model, example_input)
        self.shape = tuple(example_input.shape[1:])
        self.outputs = self.output.size
        first = leading_tensor(model, example_input)
        self._parameter_dtype = first.dtype
        self._model_device = first.device
        self._engine = engine_for(self.output, example_input.dtype, self._model_device, engine)
        self._lipschitz = LipschitzEngine(self.output)
        self.device = self._engine.device
        self._example = example_input.detach()[:0].clone()
        self._state = CapturedState(model)
        self._announced: dict[str, float] = {}
        self.__dict__.pop("_tensor_engine", None)

    @functools.cached_property
    def _tensor_engine(self) -> TensorEngine:
        """The torch engine on this model's device; it computes bounds that the native engine lacks."""
        engine = self._engine
        return engine if isinstance(engine, TensorEngine) else TensorEngine(self.output, self._example.dtype, CPU)

    @denormals_kept()
    def refresh(self) -> None:
        """Read the model again, after a change of its parameters, buffers, dtype or device.

        Raises:
            InputError, ModelError: as at construction.

        >>> model = nn.Linear(1, 1).eval()
        >>> bounded = BoundedModel(model, torch.zeros(1, 1))
        >>> _ = nn.init.constant_(model.weight, 2.0), nn.init.zeros_(model.bias)
        >>> bounded.refresh()
        >>> bounded.bounds(torch.ones(1, 1), 0.5, method="ibp").lower.round().item()
        1.0
        """
        example = self._example
        now = leading_tensor(self.model, example)
        dtype = now.dtype if example.dtype == self._parameter_dtype else example.dtype
        self._capture(example.to(now.device, dtype))

    def __repr__(self) -> str:
        engine = "native" if isinstance(self._engine, Engine) else "torch"
        return summary(
            self,
            model=model_name(self.model),
            shape=self.shape,
            outputs=self.outputs,
            layers=len(in_order(self.output)),
            engine=engine,
            device=str(self.device),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model; unpickling captures it and packs the engine's weights again."""
        if not self._state.same_values:
            raise InputError("model", "the parameters of the capture", "others", "call refresh() to pickle it")
        return _restored, (self.model, self._example, self._engine_name)

    @denormals_kept()
    def bounds(
        self,
        x: Numbers | None = None,
        epsilon: Any = None,
        *,
        C: Tensor | None = None,
        x_lower: Numbers | None = None,
        x_upper: Numbers | None = None,
        choices: Choices | None = None,
        progress: bool | Progress = False,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> Bounds:
        """Bound C·f(x′) over all inputs x′ of each set.

        The sets are balls ‖x′ − x‖ ≤ epsilon within the clip range, boxes x_lower ≤ x′ ≤ x_upper, or products of finite
        sets, see ``Choices``.

        Args:
            x: [B, ...], in the clip range. For a float32 model, float64 inputs must be exact in float32.
            epsilon: radius of the balls, at least 0: a number, or one for each example, [B]. With norm "linf", epsilon
                may also hold a radius for each element: a tensor that has as many dimensions as x or as one example,
                and broadcasts to it. If an example is a vector [N], a tensor [B] holds a radius for each example, and
                radii for the elements have the shape [1, N]. With "linf" and B = N > 1, a tensor [B] is refused,
                because it may be either; pass [B, 1] or [1, N]. A radius may be infinite if there is a clip range.
            C: specification, [S, K], or [B, S, K] with one for each example; default: the identity.
            x_lower: [B, ...], lower corners of boxes, given with x_upper in place of x and epsilon; may contain -inf.
            x_upper: [B, ...], upper corners; may contain +inf.
            choices: products of finite sets, in place of balls or boxes.
            progress: True for a progress bar on the terminal, or a function that is called with two numbers: how many
                thousandths of the work are done, and 1000.
            options: settings; default: ``BoundOptions()``.
            keywords: fields of ``BoundOptions``, such as ``norm="l2", method="ibp", clip=(0, 1)``; they override
                ``options``.

        Returns:
            Bounds, with lower and upper [B, S].

        Raises:
            KeyboardInterrupt: on Ctrl-C; its attribute ``result`` holds the bounds so far.
            InputError: a mismatched shape, a value out of range, or an unknown name.
            InputTypeError: an argument of the wrong type, or an unknown keyword.
            ModelError: the model has changed since its capture, see ``refresh``.

        >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).eval()
        >>> bounds = BoundedModel(model, torch.zeros(1, 1)).bounds(torch.zeros(1, 1), 0.5, method="ibp")
        >>> bool(bounds.lower <= model(torch.zeros(1, 1)) <= bounds.upper)
        True
        """
        options = merge_options(BoundedModel.bounds, options, keywords)

        def problem_of(chosen: slice, subset: _Sets) -> tuple[InputSet, Rows]:
            inputs = self._inputs(*subset, options)
            rows = C[chosen] if isinstance(C, Tensor) and C.dim() == 3 else C
            return inputs, None if rows is None else check_rows(rows, len(inputs), self.outputs, self.device)

        shared = not isinstance(C, Tensor) or C.dim() != 3
        row_numbers = 0 if shared or C is None else C[:1].numel()
        parts = self._parts(self._sets(x, epsilon, x_lower, x_upper, choices), options, row_numbers)
        if not shared and C is not None and len(parts) > 1:
            check_rows(C[:, :0], parts[-1][0].stop, self.outputs, self.device)
        return self._bounds(parts, problem_of, options, progress)

    @denormals_kept()
    def linear_bounds(
        self,
        x: Numbers | None = None,
        epsilon: Any = None,
        *,
        C: Tensor | None = None,
        x_lower: Numbers | None = None,
        x_upper: Numbers | None = None,
        choices: Choices | None = None,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> LinearBounds:
        """Bound C·f(x′) by linear functions of x′, for all inputs x′ of each set.

        The functions satisfy lower_A·x′ + lower_b ≤ C·f(x′) ≤ upper_A·x′ + upper_b. They are the result of the backward
        pass (Zhang et al., 2018), before any minimum or maximum over the set is taken. lower_b and upper_b include the
        rounding errors.

        Args:
            x: as for ``bounds``.
            epsilon: as for ``bounds``.
            C: as for ``bounds``.
            x_lower: as for ``bounds``.
            x_upper: as for ``bounds``.
            choices: as for ``bounds``.
            keywords: as for ``bounds``.
            options: settings; the method is "crown" or "crown-ibp".

        Returns:
            LinearBounds, with A ``[B, S, *input]`` and b [B, S].

        Raises:
            InputError, InputTypeError: as for ``bounds``, or a method without linear bounds.
            ModelError: as for ``bounds``, or the torch engine cannot bound the model.

        >>> bounded = BoundedModel(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).eval(), torch.zeros(1, 2))
        >>> linear = bounded.linear_bounds(torch.zeros(3, 2), 0.5)
        >>> linear.lower_A.shape, linear.lower_b.shape
        (torch.Size([3, 1, 2]), torch.Size([3, 1]))
        >>> x = torch.rand(3, 2).double() - 0.5
        >>> below = (linear.lower_A * x[:, None]).sum(2) + linear.lower_b
        >>> bool((below <= bounded.model(x.float()).double() + 1e-6).all())
        True
        """
        options = merge_options(BoundedModel.linear_bounds, options, keywords)
        query = self._query(options, 0, None)
        if query.method not in ("crown", "crown-ibp"):
            raise InputError("method", '"crown" or "crown-ibp", which have linear bounds', f'"{query.method}"')
        inputs = self._inputs(x, epsilon, x_lower, x_upper, choices, options)
        query = self._query(options, len(inputs), _deadline(options), what="linear bounds by {}")
        rows = None if C is None else check_rows(C, len(inputs), self.outputs, self.device)
        lower_a, lower_b, upper_a, upper_b = self._tensor_engine.linear(inputs, rows, query)
        sizes = (*lower_b.shape, *self.shape)
        bounds = LinearBounds(
            lower_a.view(sizes),
            lower_b,
            upper_a.view(sizes),
            upper_b,
            method=query.method,
            norm=inputs.norm,
            sound=query.sound,
            semantics=query.semantics,
        )
        query.watch.raise_interrupt(bounds)
        return bounds

    @denormals_kept()
    def intermediate_bounds(
        self,
        x: Numbers | None = None,
        epsilon: Any = None,
        *,
        x_lower: Numbers | None = None,
        x_upper: Numbers | None = None,
        choices: Choices | None = None,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> dict[str, Bounds]:
        """Bound the values of every layer over all inputs of each set; the output comes last.

        The bounding methods compute their linear relaxations from these bounds. With "crown" and "alpha-crown", a
        backward pass bounds those outputs of affine layers and products to which a function is applied that is not
        linear on their range (of the inputs of a max pool, the possible maxima). All other neurons get interval bounds.
        There is one exception: for balls of another norm than "linf" and for ``Choices``, a backward pass of sound
        bounds also bounds, with any method, the last layers that are affine in the input. The torch engine computes the
        ranges in float64.

        Args:
            x: as for ``bounds``.
            epsilon: as for ``bounds``.
            x_lower: as for ``bounds``.
            x_upper: as for ``bounds``.
            choices: as for ``bounds``.
            options: as for ``bounds``.
            keywords: as for ``bounds``.

        Returns:
            Bounds ``[B, *shape]`` by layer name: "module path (operator)" as in error messages, with " #2", " #3" and
            so on for repeated names. Layers that only reshape are left out.

        Raises:
            InputError, InputTypeError: as for ``bounds``, or the method is "lipschitz".
            ModelError: as for ``bounds``, or the torch engine cannot bound the model.

        >>> bounded = BoundedModel(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).eval(), torch.zeros(1, 2))
        >>> [(name, tuple(z.lower.shape)) for name, z in bounded.intermediate_bounds(torch.zeros(3, 2), 0.5).items()]
        [('0 (aten.linear)', (3, 4)), ('1 (aten.relu)', (3, 4)), ('2 (aten.linear)', (3, 1))]
        """
        options = merge_options(BoundedModel.intermediate_bounds, options, keywords)
        query = self._query(options, 0, None)
        if query.method == LIPSCHITZ:
            raise InputError("method", f"one of {', '.join(METHODS)}", '"lipschitz", which bounds no layers')
        inputs = self._inputs(x, epsilon, x_lower, x_upper, choices, options)
        query = self._query(options, len(inputs), _deadline(options), what="ranges of layers by {}")
        result: dict[str, Bounds] = {}
        times: Counter[str] = Counter()
        for node, lower, upper in self._tensor_engine.ranges(inputs, query):
            times[node.name] += 1
            name = node.name if times[node.name] == 1 else f"{node.name} #{times[node.name]}"
            lower, upper = (bound.view(len(inputs), *node.shape) for bound in (lower, upper))
            result[name] = Bounds(lower, upper, query.method, inputs.norm, query.sound, query.semantics)
        query.watch.raise_interrupt(result)
        return result

    def margins(
        self,
        x: Numbers | None = None,
        y: Numbers | None = None,
        epsilon: Any = None,
        *,
        x_lower: Numbers | None = None,
        x_upper: Numbers | None = None,
        choices: Choices | None = None,
        progress: bool | Progress = False,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> Bounds:
        """Bound the margins f_y − f_j from below for all j ≠ y, in increasing order of j: [B, K − 1].

        Args:
            y: [B], the labels.
            x: as for ``bounds``.
            epsilon: as for ``bounds``.
            x_lower: as for ``bounds``.
            x_upper: as for ``bounds``.
            choices: as for ``bounds``.
            progress: as for ``bounds``.
            options: as for ``bounds``.
            keywords: as for ``bounds``.

        Returns:
            Bounds; its upper bounds are +inf.

        Raises:
            InputError, InputTypeError, ModelError, KeyboardInterrupt: as for ``bounds``.

        >>> model = nn.Linear(2, 3).eval()
        >>> BoundedModel(model, torch.zeros(1, 2)).margins(torch.zeros(4, 2), torch.zeros(4).long(), 0.1).lower.shape
        torch.Size([4, 2])
        """
        options = merge_options(BoundedModel.margins, options, keywords)
        return self._margins(self._sets(x, epsilon, x_lower, x_upper, choices), y, options, progress)

    def _prove(
        self, x: Tensor, y: Tensor, epsilon: Any, options: BoundOptions, progress: bool | Progress = False
    ) -> Bounds:
        """Bound the margins of balls; stop improving a margin once it is known to be positive."""
        return self._margins(_Sets(x, epsilon, None, None), y, options, progress, decides=True)

    @denormals_kept()
    def _margins(
        self,
        sets: _Sets,
        y: Numbers | None,
        options: BoundOptions,
        progress: bool | Progress = False,
        *,
        decides: bool = False,
    ) -> Bounds:
        """Bound margins; with ``decides``, stop improving a margin once it is known to be positive."""
        parts = self._parts(sets, options, 0)
        every = class_labels("y", y, parts[-1][0].stop, self.outputs) if len(parts) > 1 else None

        def problem_of(chosen: slice, subset: _Sets) -> tuple[InputSet, Rows]:
            inputs = self._inputs(*subset, options)
            classes = class_labels("y", y, len(inputs), self.outputs) if every is None else every[chosen]
            return inputs, Margins(classes.to(self.device), self.outputs)

        return self._bounds(parts, problem_of, options, progress, with_upper=False, decides=decides)

    def certify(
        self,
        x: Numbers | None,
        y: Numbers,
        epsilon: Any,
        *,
        x_lower: Numbers | None = None,
        x_upper: Numbers | None = None,
        choices: Choices | None = None,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> Tensor:
        """Return whether all inputs of each set are proved to be classified as y, as a bool tensor [B].

        A ball contains x itself, so an example that the network of ``semantics`` misclassifies is never certified,
        unless ``sound`` is False. With "real", the model's own forward pass may still misclassify a certified example,
        because of rounding; ``verify`` runs a forward pass first.

        Args:
            y: [B], the labels.
            x: as for ``bounds``; x and epsilon are None for boxes and choices.
            epsilon: as for ``bounds``.
            x_lower: as for ``bounds``.
            x_upper: as for ``bounds``.
            choices: as for ``bounds``.
            options: as for ``bounds``.
            keywords: as for ``bounds``.

        Returns:
            True where every margin is proved to be above zero.

        Raises:
            InputError, InputTypeError, ModelError: as for ``bounds``.

        >>> model = nn.Linear(2, 2).eval()
        >>> BoundedModel(model, torch.zeros(1, 2)).certify(torch.zeros(1, 2), torch.tensor([0]), 1e6)
        tensor([False])
        """
        options = merge_options(BoundedModel.certify, options, keywords)
        return self._margins(self._sets(x, epsilon, x_lower, x_upper, choices), y, options, decides=True).positive()

    @denormals_kept()
    def certified_radius(
        self,
        x: Numbers,
        y: Numbers,
        *,
        largest: float | Tensor | None = None,
        box: Tensor | None = None,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> Tensor:
        """Search for the largest radius that can be proved for each example: float64 [B].

        Every returned radius is proved. The search ends once the largest radius to try is proved, at the time limit, or
        after 100 rounds. It also ends once a proof has failed at a radius only slightly above the returned radius: the
        difference is at most 2⁻²⁰·largest (without ``largest``, at most 2⁻²⁰·max(1, radius)). No radius is inferred
        from a proof at another radius, because bounds are not monotone in epsilon. Only "lipschitz" bounds are
        monotone; with this method, the radius is computed without a search, as a margin divided by a slope.

        Args:
            x: [B, ...], in the clip range.
            y: [B], the labels.
            largest: largest radius to try, finite and at least 0: a number, or a float tensor [B] with one for each
                example. Default: the distance to the farthest input in the clip range; without a clip range, 2⁹⁶⁰.
            box: [...], float64, finite and at least 0: radii of an example's elements. The radius r then stands for the
                set of x + δ with |δᵢ| ≤ r·boxᵢ. ``box`` requires norm "linf", and a method other than "lipschitz".
            options: as for ``bounds``.
            keywords: as for ``bounds``.

        Returns:
            The radii; 0 where the margins at x itself are not proved to be positive. If the proof succeeds at the limit
            (``largest`` or 2⁹⁶⁰), this limit is returned. Without ``largest``, the radius is infinite if the whole clip
            range is proved.

        Raises:
            InputError, InputTypeError, ModelError: as for ``bounds``.

        >>> model = nn.Linear(1, 2).eval()
        >>> _ = model.load_state_dict({"weight": torch.tensor([[0.0], [1.0]]), "bias": torch.tensor([8.0, 0.0])})
        >>> bounded, x, y = BoundedModel(model, torch.zeros(1, 1)), torch.zeros(1, 1), torch.zeros(1).long()
        >>> [round(float(bounded.certified_radius(x, y, clip=clip)), 4) for clip in (None, (-9, 9), (-7, 7))]
        [8.0, 8.0, inf]
        >>> float(bounded.certified_radius(x, y, largest=2))
        2.0
        """
        options = merge_options(BoundedModel.certified_radius, options, keywords)
        x = self._exact(x)
        self._state.check()
        deadline = _deadline(options)
        query = self._query(options, len(x) if x.dim() else 0, deadline, what="one radius of {}", decides=True)
        if box is not None:
            box = self._checked_box(box, options.norm, query.method)
        parts = self._parts(_Sets(x, 0.0, None, None), options, 0)
        if len(parts) > 1:
            limits = None if largest is None else _limits(largest, len(x))
            labels = class_labels("y", y, len(x), self.outputs)
            radii_of_parts: list[Tensor] = []
            try:
                for chosen, _ in parts:
                    seconds_left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    radii_of_parts.append(
                        self.certified_radius(
                            x[chosen],
                            labels[chosen],
                            largest=None if limits is None else limits[chosen],
                            box=box,
                            options=dataclasses.replace(options, time_limit=seconds_left),
                        )
                    )
            except KeyboardInterrupt as interrupt:
                radii_of_parts.append(interrupt.__dict__.get("result", torch.zeros(0)))
                missing = len(x) - sum(map(len, radii_of_parts))
                interrupt.__dict__["result"] = torch.cat([*radii_of_parts, torch.zeros(missing)])
                raise
            return torch.cat(radii_of_parts)

        def around(points: Tensor, epsilon: Any) -> InputSet:
            return ball(points, epsilon, options.norm, options.clip, self.shape, self.device)

        centers = around(x, 0.0)
        farthest = None if options.clip is None else around(x, math.inf).epsilon
        default = torch.full((len(centers),), torch.inf) if farthest is None else farthest.cpu()
        if box is not None and bool((box > 0).any()):  # all elements have reached their farthest value there
            default = (default.double() / box[box > 0].min()).nextafter(torch.tensor(torch.inf).double())
        limit = default.double().clamp(max=LARGEST_RADIUS) if largest is None else _limits(largest, len(centers))
        labels = class_labels("y", y, len(centers), self.outputs)
        rows = Margins(labels.to(self.device), self.outputs)

        def smallest_margin(chosen: Tensor, epsilon: Tensor) -> Tensor:
            radius = of_examples(epsilon, self.shape) if box is None else scaled_boxes(box, epsilon, up=True)
            inputs = around(x[chosen], radius)
            lower = self._engine.run(inputs, rows[chosen], query, with_upper=False).lower
            return lower.amin(1) if lower.shape[1] else lower.new_full((len(lower),), torch.inf)

        if query.method == LIPSCHITZ:
            radius = self._lipschitz.radius(centers, rows, query).minimum(limit)
        else:
            scale = limit.clamp(max=1) if largest is None else limit
            radius = search_radius(smallest_margin, limit, scale, query.watch.goes_on)
        radius = radius.masked_fill(radius == default, torch.inf) if largest is None else radius
        query.watch.raise_interrupt(radius)
        return radius

    def _checked_box(self, box: Tensor, norm: str, method: str) -> Tensor:
        if norm != "linf" or method == LIPSCHITZ:
            raise InputError("box", 'none but in linf, by another method than "lipschitz"', f"one in {norm}, {method}")
        radius = radii("epsilon", box[None], 1, self.shape)
        return radius.reshape(self.shape)

    def verify(
        self,
        x: Numbers,
        y: Numbers,
        epsilon: Any,
        *,
        methods: Sequence[str] | None = None,
        attack: Attack | None = None,
        progress: bool | Progress = False,
        options: BoundOptions | None = None,
        **keywords: Unpack[BoundKeywords],
    ) -> Verdicts:
        """Give each ball one of the verdicts "verified", "falsified" and "unknown".

        A forward pass comes first: an example that the model misclassifies is falsified by x itself. Then the methods
        run in turn, each on the examples that are still undecided, and finally the attack.

        Args:
            x: [B, ...], in the clip range.
            y: [B], the labels.
            epsilon: radius of the balls, as for ``bounds``.
            methods: names among "lipschitz", "ibp", "crown-ibp", "crown" and "alpha-crown", each at most once, in the
                order in which they run. Default: the option ``method``, whose default "cascade" stands for "ibp",
                "crown-ibp" and "crown".
            attack: a function, for example ``PGD(model, epsilon).generate``. It is called as attack(x, y) with the
                undecided examples, and returns x_adv in the ball and the clip range. An example is falsified if the
                model misclassifies x_adv.
            progress: as for ``bounds``; the progress of each method starts at 0.
            options: as for ``bounds``.
            keywords: as for ``bounds``.

        Returns:
            Verdicts.

        Raises:
            KeyboardInterrupt: on Ctrl-C; its attribute ``result`` holds the verdicts so far.
            InputError: a mismatched shape, a value out of range, an unknown name, or an attack that returns points
                outside the set.
            InputTypeError: an argument of the wrong type, or an unknown keyword.
            ModelError: the model failed in the forward pass, or has changed since its capture, see ``refresh``.

        >>> model = nn.Linear(2, 2).eval()
        >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.2, 0.8]]), torch.tensor([0, 0, 0])
        >>> verdicts = BoundedModel(model, x).verify(x, y, 0.1)
        >>> verdicts.status, verdicts.stage
        (['verified', 'unknown', 'falsified'], ['ibp', '', 'forward'])
        """
        if methods is not None and keywords.get("method") is not None:
            raise InputError("methods", "either method or methods", "both")
        options = merge_options(BoundedModel.verify, options, keywords)
        chosen = options.methods() if methods is None else methods
        x = self._exact(x)
        if isinstance(epsilon, int | float):
            warn_of_wide_ball(epsilon, options.norm, options.clip, math.prod(self.shape))
        return run_cascade(self, x, y, epsilon, methods=chosen, attack=attack, options=options, progress=progress)

    def _exact(self, x: Numbers) -> Tensor:
        """Return examples for the model; unless it takes float64, float64 examples become float32, exactly."""
        return exact_input("x", x, self._example.dtype)

    def _sets(self, x: Any, epsilon: Any, x_lower: Any, x_upper: Any, choices: Choices | None) -> _Sets:
        """Return the arguments that describe input sets, with arrays and lists converted to tensors."""
        x = None if x is None else self._exact(x)
        x_lower = None if x_lower is None else float_tensor("x_lower", x_lower, dtype=torch.float64)
        x_upper = None if x_upper is None else float_tensor("x_upper", x_upper, dtype=torch.float64)
        return _Sets(x, epsilon, x_lower, x_upper, choices)

    def _parts(self, sets: _Sets, options: BoundOptions, row_numbers: int) -> list[tuple[slice, _Sets]]:
        """Split a batch into parts that fit a share of the memory limit, given the number of elements of C per set."""
        tensors = [t for t in (sets.x, sets.x_lower, sets.x_upper) if t is not None]
        if options.memory_limit is not None and isinstance(sets.choices, Choices):
            count, example = len(sets.choices), 8 * (3 * sets.choices.points[:1].numel() + row_numbers)
            size = max(1, int(options.memory_limit * (1 - ENGINE_SHARE)) // example)
            slices = [slice(begin, min(begin + size, count)) for begin in range(0, max(1, count), size)]
            return [(rows, sets._replace(choices=sets.choices.mapped(operator.itemgetter(rows)))) for rows in slices]
        whole = [(slice(None), sets)]
        usual = all(isinstance(t, Tensor) and t.dim() == 1 + len(self.shape) for t in tensors)
        if options.memory_limit is None or not tensors or not usual or len({len(t) for t in tensors}) > 1:
            return whole  # wrong shapes raise errors elsewhere
        count = len(tensors[0])
        example = 8 * (_SET_COPIES * math.prod(self.shape) + row_numbers)
        size = max(1, int(options.memory_limit * (1 - ENGINE_SHARE)) // example)
        if count <= size:
            return whole
        epsilon = sets.epsilon
        if epsilon is not None:
            epsilon = of_examples(check_radii(epsilon, options.norm, options.clip, count, self.shape), self.shape)
        fields: list[Any] = [sets.x, epsilon, sets.x_lower, sets.x_upper]
        return [
            (rows, _Sets(*(None if t is None else t[rows] for t in fields)))
            for rows in (slice(begin, min(begin + size, count)) for begin in range(0, count, size))
        ]

    def _inputs(
        self,
        x: Any,
        epsilon: Any,
        x_lower: Any,
        x_upper: Any,
        choices: Choices | None,
        options: BoundOptions,
    ) -> InputSet:
        self._state.check()
        if choices is not None:
            if any(other is not None for other in (x, epsilon, x_lower, x_upper, options.clip)):
                raise InputError("choices", "no x, epsilon, x_lower, x_upper and clip beside them")
            return product_of(choices, self.shape, self.device)
        if x_lower is None and x_upper is None:
            if x is None or epsilon is None:
                raise InputError("x, epsilon", "both, or x_lower and x_upper")
            return ball(self._exact(x), epsilon, options.norm, options.clip, self.shape, self.device)
        if x is not None or epsilon is not None or options.clip is not None or x_lower is None or x_upper is None:
            raise InputError("x_lower, x_upper", "both, without x, epsilon and clip")
        return box(x_lower, x_upper, self.shape, self.device)

    def _bounds(
        self,
        parts: Sequence[tuple[slice, _Sets]],
        problem_of: Callable[[slice, _Sets], tuple[InputSet, Rows]],
        options: BoundOptions,
        progress: bool | Progress,
        *,
        with_upper: bool = True,
        decides: bool = False,
    ) -> Bounds:
        """Bound the parts of a batch in turn; parts that are not reached in time get infinite bounds."""
        deadline = _deadline(options)
        results: list[EngineBounds] = []
        with reporting(progress, SHARES, "bounds") as report:
            for chosen, subset in parts:
                inputs, rows = problem_of(chosen, subset)
                if not results:
                    examples = len(inputs) if len(parts) == 1 else parts[-1][0].stop
                    query = self._query(options, examples, deadline, report, decides=decides)
                engine: BoundEngine = self._engine
                if query.method == LIPSCHITZ:
                    engine = self._lipschitz
                elif not inputs.bounded or inputs.choices is not None:
                    engine = self._tensor_engine
                with query.watch.keeping():
                    results.append(engine.run(inputs, rows, query, with_upper=with_upper))
                    query.watch.finish(len(inputs))
                if query.ended:
                    break
        missing = examples - sum(len(bounds.lower) for bounds in results)
        if missing:
            count = self.outputs if rows is None else rows.shape[-2]
            results.append(EngineBounds.unknown(query.method, missing, count))
        joined = EngineBounds.joined(results)
        lower_by, upper_by = joined.names()
        bounds = Bounds(
            joined.lower,
            joined.upper,
            query.method,
            inputs.norm,
            query.sound,
            query.semantics,
            lower_by=lower_by,
            upper_by=upper_by,
        )
        query.watch.raise_interrupt(bounds)
        return bounds

    def _query(
        self,
        options: BoundOptions,
        examples: int,
        deadline: float | None,
        report: Callable[[int], None] = lambda done: None,
        *,
        what: str = "{}",
        decides: bool = False,
    ) -> WatchedQuery:
        """Return the settings that an engine needs, except the norm and the clip range, which the input set has.

        Args:
            options: options of the call.
            examples: number of input sets in the call.
            deadline: time of ``time.monotonic`` at which the call ends.
            report: receives progress.
            what: text for the log that says what is computed; "{}" in it stands for the method.
            decides: whether the engine may stop improving a row once its lower bound is positive.
        """
        if options.semantics == "float32" and not self._engine.deployable:
            raise InputError("semantics", '"real" for a model in 16-bit floats', '"float32"')
        if options.semantics == "float32":
            fused = next((node.name for node in in_order(self.output) if not node.deployable), None)
            if fused is not None:
                raise InputError(
                    "semantics", f'"real", since the rounding of {fused} in a forward pass is not bounded', '"float32"'
                )
            reason = other_on_gpu(self.output, self._model_device)
            if reason is not None:
                raise InputError(
                    "semantics",
                    f'"real", since "float32" would not cover the forward pass on {self._model_device}: {reason}',
                )
        method = options.single_method()
        searches = method in METHODS and METHODS[method].slope_search is not None
        watch = Watch(what.format(method), examples, deadline, report, self._announced, searches=searches)
        return WatchedQuery(
            method,
            options.sound,
            options.semantics,
            options.memory_limit,
            iterations=options.iterations,
            decides=decides,
            watch=watch,
        )


def _limits(largest: Any, count: int) -> Tensor:
    """Return the largest radius to try for each example, float64 [B]."""
    if not isinstance(largest, Tensor) or not largest.dim():
        return torch.full((count,), non_negative("largest", largest), dtype=torch.float64, device="cpu")
    if largest.shape != (count,):
        raise InputError("largest", f"one number for each of {count} examples", shape_text(largest.shape))
    if not largest.dtype.is_floating_point:
        raise InputTypeError("largest", "a float tensor", largest.dtype, "convert with .double()")
    limits = largest.detach().cpu().double()
    if not bool((limits >= 0).all() and limits.isfinite().all()):
        raise InputError("largest", "finite numbers of at least 0", first_values(limits.tolist()))
    return limits


def _deadline(options: BoundOptions) -> float | None:
    """Return the time, on the clock of ``time.monotonic``, at which a call that begins now must end."""
    return None if options.time_limit is None else time.monotonic() + options.time_limit


def _restored(model: nn.Module, example: Tensor, engine: str | None) -> BoundedModel:
    """Rebuild a pickled BoundedModel, even if its model has since been put into training mode."""
    with Runner(model).session(gradients=True):
        return BoundedModel(model, example, engine=engine)
