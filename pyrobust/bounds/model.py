"""Bounds of a network's outputs over sets of inputs: IBP, CROWN-IBP, CROWN, and by a Lipschitz constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.bounds.engines.denormals import denormals_kept
from pyrobust.bounds.engines.native import Query
from pyrobust.bounds.engines.select import check_engine, engine_for
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.input_set import InputSet, ball, box, radii
from pyrobust.bounds.lipschitz.bound import LipschitzEngine
from pyrobust.bounds.radius_search import search_radius
from pyrobust.bounds.result import Bounds, Verdicts
from pyrobust.bounds.specification import check_labels, check_rows, margins
from pyrobust.bounds.verify import Attack, run_cascade
from pyrobust.errors import InputError, InputTypeError

METHODS = ("ibp", "crown-ibp", "crown")  # each usually tighter than the one before
LIPSCHITZ = "lipschitz"
SEMANTICS = ("real", "float32")


class BoundedModel:
    """A network whose outputs can be bounded over sets of inputs.

    The parameters are read once: bounds are those of the model as it is now. Three methods, each tighter and slower
    than the one before:

    - "ibp": intervals, layer by layer (Gowal et al., 2018);
    - "crown-ibp": intervals inside, linear bounds from the output back to the input (Zhang et al., 2020);
    - "crown": linear bounds from every layer back to the input, with the adaptive lower slope of ReLU (Zhang et al.,
      2018).

    And, for balls, "lipschitz": the outputs at the centre, and how far the network's Lipschitz constant lets them go
    (see ``lipschitz_bound``); usually far looser, and linear in epsilon.

    Every bound holds in exact arithmetic: all rounding, the engine's own included, is accounted for, unless
    ``sound=False`` asks for plain floating-point bounds, to compare with other programs.

    Args:
        model: a module in evaluation mode, of linear and convolution layers, batch norm, pooling, ReLU and other
            functions of single elements, residual connections; it maps [B, ...] to outputs [B, K].
        example_input: [B, ...] like the inputs to come; only its shape and dtype matter.
        engine: "native" computes on the CPU, wherever the model is; "torch" in float64 torch operations on the model's
            device. Default: "native" for a model on the CPU, "torch" for one on a GPU.

    Attributes:
        device: where bounds are computed. Inputs may be anywhere; results are on the CPU.

    Raises:
        InputTypeError: the model is no module, or the example no floating-point tensor.
        InputError: the model is in training mode, or the engine has another name.
        ModelError: the model has an operator without a bound rule, a branch that depends on the data, or parameters
            that are not finite.

    >>> bounded = BoundedModel(nn.Linear(2, 2).eval(), torch.zeros(1, 2))
    >>> bounds = bounded.bounds(torch.zeros(3, 2), epsilon=0.1)
    >>> bounds.lower.shape, bool((bounds.lower <= bounds.upper).all())
    (torch.Size([3, 2]), True)
    """

    @denormals_kept()
    def __init__(self, model: nn.Module, example_input: Tensor, *, engine: str | None = None) -> None:
        check_engine(engine)
        self.model = model
        self.output = capture(model, example_input)
        if len(self.output.shape) != 1:
            raise InputError(f"model: expected outputs [B, K], got [B, {', '.join(map(str, self.output.shape))}]")
        self.shape = tuple(example_input.shape[1:])
        self.outputs = self.output.size
        place = next((t.device for t in (*model.parameters(), *model.buffers())), example_input.device)
        self._engine = engine_for(self.output, example_input.dtype, place, engine)
        self._lipschitz = LipschitzEngine(self.output)
        self.device = self._engine.device

    @denormals_kept()
    def bounds(
        self,
        x: Tensor | None = None,
        epsilon: Any = None,
        *,
        norm: str = "linf",
        method: str = "crown",
        C: Tensor | None = None,
        clip: tuple[float, float] | None = None,
        x_lower: Tensor | None = None,
        x_upper: Tensor | None = None,
        sound: bool = True,
        semantics: str = "real",
        memory_limit: int | None = None,
    ) -> Bounds:
        """Bounds of C·f(x′) over all inputs x′ of each set.

        The sets are either balls, ‖x′ − x‖ ≤ epsilon, within the clip range, or boxes, x_lower ≤ x′ ≤ x_upper.

        Args:
            x: [B, ...], in the clip range.
            epsilon: a number of at least 0, or one for each example.
            norm: "linf", "l2" or "l1".
            method: "ibp", "crown-ibp", "crown" or "lipschitz".
            C: [S, K], or [B, S, K] with rows for each example; default: the outputs themselves.
            clip: (lowest, highest) value of an element of x′; None for no limits.
            x_lower: [B, ...], instead of x and epsilon.
            x_upper: [B, ...].
            sound: False for plain floating-point bounds, which may be wrong in the last digits.
            semantics: "real" for the network in exact arithmetic, "float32" for its deployed forward pass: direct
                algorithms in the model's floats, sums in any order.
            memory_limit: bytes that the work may take, at least; default: a share of what is free.

        Returns:
            Bounds, with lower and upper [B, S].

        Raises:
            InputError: shapes, ranges or names that do not fit.
            InputTypeError: tensors of another kind.

        >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).eval()
        >>> bounds = BoundedModel(model, torch.zeros(1, 1)).bounds(torch.zeros(1, 1), 0.5, method="ibp")
        >>> bool(bounds.lower <= model(torch.zeros(1, 1)) <= bounds.upper)
        True
        """
        inputs = self._inputs(x, epsilon, norm, clip, x_lower, x_upper)
        rows = None if C is None else check_rows(C, len(inputs), self.outputs, self.device)
        query = self._query(method, sound, semantics, memory_limit)
        lower, upper = self._run(inputs, rows, query)
        return Bounds(lower, upper, method, inputs.norm, sound, semantics)

    @denormals_kept()
    def margins(
        self,
        x: Tensor | None = None,
        y: Tensor | None = None,
        epsilon: Any = None,
        *,
        norm: str = "linf",
        method: str = "crown",
        clip: tuple[float, float] | None = None,
        x_lower: Tensor | None = None,
        x_upper: Tensor | None = None,
        sound: bool = True,
        semantics: str = "real",
        memory_limit: int | None = None,
    ) -> Bounds:
        """Lower bounds of the margins f_y − f_j for all j ≠ y, in ascending order: [B, K − 1].

        Args:
            x: [B, ...], in the clip range.
            y: [B], the labels.
            epsilon: a number of at least 0, or one for each example.
            norm: "linf", "l2" or "l1".
            method: "ibp", "crown-ibp", "crown" or "lipschitz".
            clip: (lowest, highest) value of an element; None for no limits.
            x_lower: [B, ...], instead of x and epsilon.
            x_upper: [B, ...].
            sound: as of ``bounds``.
            semantics: as of ``bounds``.
            memory_limit: as of ``bounds``.

        Returns:
            Bounds; its upper bounds are +inf.

        Raises:
            InputError: shapes, ranges or names that do not fit.
            InputTypeError: tensors of another kind.

        >>> model = nn.Linear(2, 3).eval()
        >>> BoundedModel(model, torch.zeros(1, 2)).margins(torch.zeros(4, 2), torch.zeros(4).long(), 0.1).lower.shape
        torch.Size([4, 2])
        """
        inputs = self._inputs(x, epsilon, norm, clip, x_lower, x_upper)
        labels = check_labels(y, len(inputs), self.outputs)
        query = self._query(method, sound, semantics, memory_limit)
        rows = margins(labels.to(self.device), self.outputs)
        lower, upper = self._run(inputs, rows, query, with_upper=False)
        return Bounds(lower, upper, method, inputs.norm, sound, semantics)

    def certify(self, x: Tensor, y: Tensor, epsilon: Any, **options: Any) -> Tensor:
        """Whether all inputs of each set are proved to be classified as y: bool [B].

        That includes x itself: a wrongly classified example is never certified.

        Args:
            x: [B, ...], in the clip range.
            y: [B], the labels.
            epsilon: a number of at least 0, or one for each example.
            options: the other arguments of ``margins``.

        Returns:
            True where every margin is proved to be above zero.

        Raises:
            InputError: shapes, ranges or names that do not fit.
            InputTypeError: tensors of another kind.

        >>> model = nn.Linear(2, 2).eval()
        >>> BoundedModel(model, torch.zeros(1, 2)).certify(torch.zeros(1, 2), torch.tensor([0]), 1e6)
        tensor([False])
        """
        return self.margins(x, y, epsilon, **options).positive()

    @denormals_kept()
    def certified_radius(
        self,
        x: Tensor,
        y: Tensor,
        *,
        norm: str = "linf",
        method: str = "crown",
        clip: tuple[float, float] | None = None,
        largest: float = 1.0,
        sound: bool = True,
        semantics: str = "real",
        memory_limit: int | None = None,
    ) -> Tensor:
        """The largest radius that was proved for each example: float64 [B].

        Each radius returned was itself proved, and a radius larger by at most 2⁻²⁰·largest was tried and failed, unless
        ``largest`` itself was proved. Bounds are not monotone in epsilon: nothing is inferred from other radii. With
        "lipschitz" they are: a radius is the quotient of a margin and a slope.

        Args:
            x: [B, ...], in the clip range.
            y: [B], the labels.
            norm: "linf", "l2" or "l1".
            method: "ibp", "crown-ibp", "crown" or "lipschitz".
            clip: as of ``bounds``.
            largest: no larger radius is tried.
            sound: as of ``bounds``.
            semantics: as of ``bounds``.
            memory_limit: as of ``bounds``.

        Returns:
            The radii; 0 where not even x itself is proved to be classified as y.
        """
        query = self._query(method, sound, semantics, memory_limit)
        (limit,) = radii(largest, 1).tolist()
        centers = ball(x, 0.0, norm, clip, self.shape, self.device)
        labels = check_labels(y, len(centers), self.outputs)
        rows = margins(labels.to(self.device), self.outputs)
        if method == LIPSCHITZ:
            return self._lipschitz.radius(centers, rows, query, limit)

        def least_margin(chosen: Tensor, epsilon: Tensor) -> Tensor:
            inputs = ball(x[chosen], epsilon, norm, clip, self.shape, self.device)
            lower, _ = self._engine.run(inputs, rows[chosen], query, with_upper=False)
            return lower.amin(1) if lower.shape[1] else lower.new_full((len(lower),), torch.inf)

        return search_radius(least_margin, len(x), limit)

    def verify(
        self,
        x: Tensor,
        y: Tensor,
        epsilon: Any,
        *,
        norm: str = "linf",
        clip: tuple[float, float] | None = None,
        methods: Sequence[str] = METHODS,
        attack: Attack | None = None,
        sound: bool = True,
        semantics: str = "real",
        memory_limit: int | None = None,
    ) -> Verdicts:
        """What can be said of each ball: "verified", "falsified" or "unknown".

        First a forward pass of the model, which is to be unchanged since: what it gets wrong is falsified by x itself.
        Then the methods in turn, each for what the ones before left open; then the attack, for what is open still.

        Args:
            x: [B, ...], in the clip range.
            y: [B], the labels.
            epsilon: a number of at least 0, or one for each example.
            norm: "linf", "l2" or "l1".
            clip: as of ``bounds``.
            methods: of "lipschitz", "ibp", "crown-ibp" and "crown", in this order.
            attack: called as attack(x, y) with the examples that are left; returns x_adv, in the ball and the clip
                range, such as ``PGD(model, epsilon).generate``. What the model gets wrong of it is falsified.
            sound: as of ``bounds``.
            semantics: as of ``bounds``.
            memory_limit: as of ``bounds``.

        Returns:
            Verdicts.

        Raises:
            InputError: shapes, ranges or names that do not fit; an attack that returns points outside of the set.
            InputTypeError: tensors of another kind.
            ModelError: the model failed in the forward pass.

        >>> model = nn.Linear(2, 2).eval()
        >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.2, 0.8]]), torch.tensor([0, 0, 0])
        >>> verdicts = BoundedModel(model, x).verify(x, y, 0.1)
        >>> verdicts.status, verdicts.stage
        (['verified', 'unknown', 'falsified'], ['ibp', '', 'forward'])
        """
        return run_cascade(
            self,
            x,
            y,
            epsilon,
            norm=norm,
            clip=clip,
            methods=methods,
            attack=attack,
            sound=sound,
            semantics=semantics,
            memory_limit=memory_limit,
        )

    def _inputs(
        self,
        x: Tensor | None,
        epsilon: Any,
        norm: str,
        clip: tuple[float, float] | None,
        x_lower: Tensor | None,
        x_upper: Tensor | None,
    ) -> InputSet:
        if x_lower is None and x_upper is None:
            if x is None or epsilon is None:
                raise InputError("x, epsilon: expected both, or x_lower and x_upper")
            return ball(x, epsilon, norm, clip, self.shape, self.device)
        if x is not None or epsilon is not None or clip is not None or x_lower is None or x_upper is None:
            raise InputError("x_lower, x_upper: expected both, without x, epsilon and clip")
        return box(x_lower, x_upper, self.shape, self.device)

    def _run(
        self, inputs: InputSet, rows: Tensor | None, query: Query, *, with_upper: bool = True
    ) -> tuple[Tensor, Tensor]:
        engine = self._lipschitz if query.method == LIPSCHITZ else self._engine
        return engine.run(inputs, rows, query, with_upper=with_upper)

    def _query(self, method: str, sound: bool, semantics: str, memory_limit: int | None) -> Query:
        names = (("method", method, (*METHODS, LIPSCHITZ)), ("semantics", semantics, SEMANTICS))
        for name, value, known in names:
            if value not in known:
                raise InputError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        if memory_limit is not None and not isinstance(memory_limit, int):
            raise InputTypeError(f"memory_limit: expected a whole number of bytes, got {memory_limit!r}")
        if memory_limit is not None and not memory_limit > 0:
            raise InputError(f"memory_limit: expected a positive number of bytes, got {memory_limit}")
        if semantics == "float32" and not self._engine.deployable:
            raise InputError('semantics: expected "real" for a model in 16-bit floats, got "float32"')
        return Query(method, bool(sound), semantics, memory_limit)


def compute_ibp_bounds(model: nn.Module, x: Tensor, epsilon: Any) -> tuple[Tensor, Tensor]:
    """Interval bounds of the outputs over the l∞ ball around each example, not clipped (Gowal et al., 2018).

    Args:
        model: a module in evaluation mode, see ``BoundedModel``.
        x: [B, ...].
        epsilon: a number of at least 0, or one for each example.

    Returns:
        (lower, upper), float64 [B, K], proved.

    Raises:
        InputError, InputTypeError, ModelError: as of ``BoundedModel``.

    >>> import torch
    >>> lower, upper = compute_ibp_bounds(nn.Linear(2, 3).eval(), torch.zeros(1, 2), 0.1)
    >>> bool((lower <= upper).all())
    True
    """
    bounds = BoundedModel(model, x).bounds(x, epsilon, method="ibp")
    return bounds.lower, bounds.upper
