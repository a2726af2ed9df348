"""The base class of all attacks, which users subclass."""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import (
    ATTACK_NORMS,
    AttackNormName,
    NormLike,
    Numbers,
    class_labels,
    finite_values,
    first_wrong,
    flag,
    float_tensor,
    radii,
    shape_text,
    summary,
)
from pyrobust.clip import OMITTED, ClipArgument, attack_ends, clip_ends, finite_ends, joined, need_range
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import find_grid, is_on_grid
from pyrobust.metrics import attack_success_rate, clean_accuracy, robust_accuracy, success_rate_on_correct
from pyrobust.ops.projections import project_l1_ball
from pyrobust.runner import Classifier, evaluation_mode
from pyrobust.scale import warn_of_wide_ball

from .attacked_model import AttackedModel
from .elementwise import Elementwise
from .levels import GridLike, Levels, budgets, grid_argument
from .norms import NORMS, Ball, Norm, norm_of, project_perturbation
from .queries import Queries
from .settings import Converted, Declared, setting, state

logger = logging.getLogger(__name__)

# Number of examples moved to the grid at once.
_SNAPPED_ROWS = 256
# Attributes that ``repr`` shows in another form, or not at all.
_NOT_SHOWN = (
    "epsilon",
    "clip_min",
    "clip_max",
    "progress",
    "forwards",
    "backwards",
    "result",
    "grid",
)


class _InNorm(AttackedModel):
    """An attack's norm, which scripts may assign."""

    #: The norms that the attack knows.
    norms: ClassVar[tuple[AttackNormName, ...]] = ATTACK_NORMS
    _norm_name: AttackNormName = "linf"

    @property
    def norm(self) -> AttackNormName:
        """Norm of the ball; any spelling that the constructor takes may be assigned.

        An unknown name is stored as it is, for a subclass that defines its own projections and distances.
        """
        return self._norm_name

    @norm.setter
    def norm(self, norm: NormLike) -> None:
        try:
            self._norm_name = norm_of(norm, type(self).norms).name
        except InputError:
            self._norm_name = norm  # type: ignore[assignment] # raises when it is used

    @property
    def _norm(self) -> Norm:
        """The attack's operations that depend on the norm."""
        norms = type(self).norms
        return NORMS[self._norm_name] if self._norm_name in norms else norm_of(self._norm_name, norms)


if TYPE_CHECKING:

    class _Arguments(_InNorm, Declared):
        """The arguments of every attack, from which type checkers derive the attacks' constructors."""

        model: Classifier = setting(kw_only=False)
        epsilon: float | Tensor = setting(default=8 / 255, kw_only=False)
        norm: Converted[AttackNormName, NormLike] = setting(default="linf", kw_only=False)  # type: ignore[override]  # a property below
        clip_min: float = setting(default=0.0, kw_only=False)
        clip_max: float = setting(default=1.0, kw_only=False)
        # device and norm are properties below
        device: Converted[torch.device, torch.device | str | None] = setting(default=None, kw_only=False)  # type: ignore[override]
        clip: ClipArgument = setting(default=OMITTED)
        grid: Converted[Fraction | str | None, GridLike] = setting(default=None)

else:

    class _Arguments(_InNorm, Declared):
        """Model, ball and clip range are constructor arguments; a run's settings hold no values derived from them."""

        epsilon, clip_min, clip_max = 8 / 255, 0.0, 1.0
        #: Step of the grid of the values that the attack returns, or "auto".
        grid = None


class AdversarialAttack(_Arguments, abc.ABC):
    """An attack on a classifier: a search for a misclassified x_adv with ‖x_adv − x‖ ≤ epsilon in the clip range.

    Subclasses define ``generate`` and inherit ``project``, ``evaluate`` and the call ``attack(x, y)``. The constructor
    puts a module into evaluation mode and moves it to the device; both changes are permanent. The module's parameters
    receive no gradients. ``generate`` and ``evaluate`` run a module in evaluation mode, then put every submodule back
    into its own mode.

    The attributes ``model``, ``epsilon``, ``norm``, ``clip_min``, ``clip_max`` and ``device`` may be assigned at any
    time and take effect from then on; assigning ``model`` or ``device`` moves a module to the device. Subclasses may
    have attributes of their own, but not named ``runner`` or ``grid``.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        epsilon: radius of the ball, in the input's unit: a finite number ≥ 0, a fraction such as "8/255", or a tensor
            [N] with one radius per example. In linf, a tensor of at least two dimensions may also give one radius per
            element, the same for all examples. Such a tensor broadcasts to an example or a batch, and has the same
            number of dimensions as that example or batch. For D features, use the shape [1, D], since [D] is read as
            one radius per example. A feature of radius 0 does not change.
        norm: "linf", "l2", "l1" or "l0" (at most epsilon changed coordinates), if listed in the class attribute
            ``norms``.
        clip_min: smallest valid input value: a number, or a tensor that broadcasts to one example and has as many
            dimensions.
        clip_max: largest valid input value, a number above clip_min, or a tensor as for clip_min and nowhere below it.
        device: where to run; default: the device of the model's first parameter, else the CPU.
        clip: (clip_min, clip_max), replacing the two arguments; None for no limit, which sets them to -inf and inf.
        grid: step h of the values that an image file can hold, such as "1/255". It may be a fraction; a float, which is
            read as the simplest fraction that rounds to it; or "auto", which stands for the grid that x is on. With a
            grid, x is moved to the nearest levels k·h, with a warning if that changes x. ``generate`` returns values of
            the form float32(k·h), in x's dtype. If x is float64, and its values have the form float64(k·h) and are not
            all float32 numbers, the returned values have the form float64(k·h). The ball is defined on the levels k,
            exactly: max |Δk| ≤ ε/h, Σ Δk² ≤ (ε/h)² or Σ |Δk| ≤ ε/h, where ε is epsilon read as a fraction. Default:
            None.

    Raises:
        InputError: a value out of range, or an unknown norm.
        InputTypeError: a model that is not callable, or an epsilon that is not a number.

    >>> class Brighter(AdversarialAttack):
    ...     def generate(self, x, y, targeted=False, target_labels=None):
    ...         return x + self.project(torch.ones_like(x), x)
    >>> attack = Brighter(lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1), epsilon=0.25)
    >>> x, y = torch.tensor([[0.4], [0.1]]), torch.tensor([1, 1])
    >>> attack(x, y)  # attack.generate(x, y)
    tensor([[0.6500],
            [0.3500]])
    >>> attack.evaluate(x, y, attack(x, y))["robust_accuracy"]
    0.5
    """

    #: Whether epsilon only limits the distance of the points that a search returns, so that a large epsilon is no
    #: mistake.
    _radius_is_a_cap: ClassVar[bool] = False
    #: Whether the attack cannot run without a clip range.
    _needs_range: ClassVar[bool] = False
    #: The norms in which the attack takes a clip range per element and, in linf, a radius per element.
    _elementwise: ClassVar[tuple[AttackNormName, ...]] = ("linf", "l2", "l1")
    #: Why the attack has only a few such norms, or none.
    _one_for_all: ClassVar[str] = ""
    _levels: Levels | None = state(None)  # of the ``generate`` in progress
    _at_any_distance: bool = False  # whether balls with one radius per element are as large as the clip range
    _moved_reported = False

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        clip: ClipArgument = OMITTED,
        grid: GridLike = None,
    ) -> None:
        self._norm_name = norm_of(norm, type(self).norms).name
        self.clip_min, self.clip_max = attack_ends(clip_min, clip_max, clip)
        self.epsilon = _constructed_radius(read_epsilon(epsilon))
        self.grid = grid_argument(grid)
        self._check_clip()
        if isinstance(self.grid, Fraction):
            Levels(self.grid, self.clip_min, self.clip_max)  # raises if the clip range contains no level
        self._attack_model(model, device, **self._runner_settings)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # A user's own ``generate`` runs the model without a session; mypy forbids replacing any method.
        if "generate" in vars(cls):
            cls.generate = _in_evaluation_mode(_on_grid(vars(cls)["generate"]))  # type: ignore[method-assign]

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in _NOT_SHOWN}
        return summary(
            self,
            model=getattr(self.model, "__name__", type(self.model).__name__),
            epsilon=self.epsilon if isinstance(self.epsilon, float) else f"{self.epsilon.numel()} radii",
            norm=self.norm,
            clip=_clip_text(joined(self.clip_min, self.clip_max)),
            grid=None if self.grid is None else str(self.grid),
            progress=True if getattr(self, "progress", False) else None,
            **{name: tuple(value) if isinstance(value, dict) else value for name, value in settings.items()},
        )

    @abc.abstractmethod
    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        """Generate adversarial examples.

        Args:
            x: [N, ...], in [clip_min, clip_max]. Float64 values are cast, with one warning, for a model that takes
                float32; results and distances then refer to the cast x.
            y: [N], the labels.
            targeted: search for x_adv that the model assigns to the target label, rather than to any class other than
                y.
            target_labels: [N], required with targeted=True, otherwise None.

        Returns:
            [N, ...], the adversarial examples.
        """

    def __call__(self, x: Numbers, y: Numbers, *arguments: Any, **keywords: Any) -> Tensor:
        """Generate adversarial examples: ``attack(x, y)`` is ``attack.generate(x, y)``, with the same arguments."""
        sizes: Any = x, y
        return self.generate(*sizes, *arguments, **keywords)

    def project(self, delta: Tensor, x: Tensor) -> Tensor:
        """Project perturbations on the ball and the clip range.

        In linf and l2, delta is projected on the ball, then clipped; in l1, delta is projected on the intersection of
        ball and clip range. The result is rounded so that x + result, computed in x's dtype, lies exactly inside the
        ball and the clip range.

        If an example lies outside the clip range, x + result still lies inside the clip range, even if the norm of the
        result must then exceed epsilon. In linf and l2, delta is projected on the ball, then clipped, as for other
        examples. In l1, delta is projected on the intersection of ball and clip range, up to rounding; if the
        intersection is empty, delta is projected on the ball, then clipped. In l0, coordinates outside the clip range
        always change, and other coordinates change as far as epsilon allows.

        The result is differentiable with respect to delta and x: its gradient is that of the projection in real
        numbers.

        Args:
            delta: [N, ...] or [1, ...], finite.
            x: [N, ...], finite.

        Returns:
            [N, ...], in x's dtype.

        Raises:
            InputError: shapes that do not fit, or non-finite values (except, in l0, an infinite delta).
            InputTypeError: arguments that are not float tensors.
        """
        x, delta = _batch(float_tensor("x", x)), float_tensor("delta", delta)
        if delta.shape != x.shape:
            if delta.shape != (1, *x.shape[1:]):
                raise InputError("delta", f"x's shape {shape_text(x.shape)}", shape_text(delta.shape))
            delta = delta.expand_as(x)
        if not len(x):
            return torch.zeros_like(x)
        if type(self.epsilon) is float and not isinstance(self.clip_min, Tensor):
            norm, epsilon = self._norm, _radius(self.epsilon)
        else:
            norm, epsilon = self._geometry(x)
        ball = Ball(x, epsilon.to(x.device), *self._ends)
        if isinstance(norm, Elementwise):
            return norm.perturbation(delta.to(x), ball)
        return project_perturbation(norm, delta.to(x), ball)

    @property
    def _ends(self) -> tuple[float, float]:
        """Return the two ends of the clip range; if each element has its own range, the outermost ends."""
        low, high = self.clip_min, self.clip_max
        if isinstance(low, Tensor) and isinstance(high, Tensor):
            low, high = float(low.min()), float(high.max())
        return finite_ends(low, high)

    def _geometry(self, x: Tensor, epsilon: float | Tensor | None = None) -> tuple[Norm, Tensor]:
        """Return the norm to use for x [N, ...], and each example's radius in this norm, float64 [N] on the CPU."""
        shape = tuple(x.shape[1:])
        radius = radii("epsilon", read_epsilon(self.epsilon if epsilon is None else epsilon), len(x), shape)
        if radius.dim() == 1 and not isinstance(self.clip_min, Tensor):
            return self._norm, radius
        self._check_elements(radius)
        lower, upper = (
            torch.as_tensor(bound, dtype=torch.float64).expand(math.prod(shape)).view(shape)
            for bound in clip_ends(joined(self.clip_min, self.clip_max), shape)
        )
        if radius.dim() == 1:
            return Elementwise(self._norm, None, lower, upper), radius
        if bool((radius != radius[:1]).any()):
            raise InputError("epsilon", "the same radii of elements for all examples", "others", "attack them in turn")
        norm = Elementwise(self._norm, radius[0], lower, upper)
        scale = norm.diameter(0, 0.0) if self._at_any_distance else 1.0
        return norm, torch.full((len(x),), scale, dtype=torch.float64)

    def box_of(self, x: Tensor) -> Tensor | None:
        """Return the radius of each element of an example, float64 [...] on the CPU; None if all share one radius.

        The argument x is [N, ...].

        Raises:
            InputError: an epsilon that does not fit the shape of x, or radii that differ between the examples.
        """
        return self._geometry(x)[0].radius if self._has_box else None

    @property
    def _has_box(self) -> bool:
        return isinstance(self.epsilon, Tensor) and self.epsilon.dim() > 1

    def _given_radii(self, x: Tensor, epsilon: float | Tensor | None) -> float | Tensor | None:
        """Return the epsilon for an ensemble's attacks: radii per element as [N, ...], else the argument unchanged."""
        radius = radii(
            "epsilon", read_epsilon(self.epsilon if epsilon is None else epsilon), len(x), tuple(x.shape[1:])
        )
        return radius if radius.dim() > 1 else epsilon

    def _check_elements(self, epsilon: float | Tensor) -> None:
        """Raise InputError for radii or clip ranges per element if the attack, norm or grid does not allow them."""
        radii_differ = isinstance(epsilon, Tensor) and epsilon.dim() > 1
        if not radii_differ and not isinstance(self.clip_min, Tensor):
            return
        name, norm = "epsilon" if radii_differ else "clip", self.norm
        norms = tuple(other for other in self._elementwise if other == "linf" or not radii_differ)
        if norm not in norms or self.grid is not None:
            where = f"for {type(self).__name__}" if not norms else "with a grid" if norm in norms else f"in {norm}"
            hint = "" if norm in norms else self._one_for_all or "use linf" if norms else self._one_for_all
            raise InputError(name, f"numbers {where}", "a tensor for the elements", hint)

    def _check_clip(self) -> None:
        """Raise InputError if there is no clip range but the attack, its norm or its grid needs one."""
        needs = {type(self).__name__: self._needs_range, "norm l0": self.norm == "l0", "a grid": self.grid is not None}
        for what, needed in needs.items():
            if needed:
                need_range(what, joined(self.clip_min, self.clip_max))
        self._check_elements(self.epsilon)

    def snap(self, x: Numbers) -> Tensor:
        """Move images to the nearest levels of the attack's grid; without a grid, return them as they are.

        Args:
            x: [N, ...]. If the attack has a grid, x must be float32 or float64, and in [clip_min, clip_max].

        Returns:
            [N, ...], in x's dtype, or in float32 if float64 x was cast for the model. The first time that images
            change, a warning is logged.

        Raises:
            InputError: values out of range, or grid="auto" and values on no common grid.
            InputTypeError: an x that is not float32 or float64.

        >>> class Still(AdversarialAttack):
        ...     def generate(self, x, y, targeted=False, target_labels=None):
        ...         return x
        >>> Still(lambda x: x, grid="1/4").snap(torch.tensor([[0.25, 0.7]]))
        tensor([[0.2500, 0.7500]])
        """
        if self.grid is None:
            return self._checked_batch(x).detach()
        x = self._examples(x)
        levels = self._levels_of(x)
        if levels is None:
            return x
        images = levels.images(x)
        moved = images != x
        if not self._moved_reported and bool(moved.any()):
            self._moved_reported = True
            logger.warning("x: %s", describe_moved(images, x, levels.step))
        return images

    def _levels_of(self, x: Tensor) -> Levels | None:
        """Return the levels of the attack's grid for images x; None if the attack has no grid."""
        if self.grid is None or self._levels is not None:
            return self._levels
        if x.dtype not in (torch.float32, torch.float64):
            raise InputTypeError("x", "float32 or float64 for values on a grid", x.dtype, "use x.float()")
        step = find_grid(x) if self.grid == "auto" else self.grid
        if not isinstance(step, Fraction):
            raise InputError(
                "grid",
                'x on one of the grids that "auto" finds, of 1/255, 1/16 or 1/256',
                "x on none",
                'pass the step, as in grid="1/255", to move x to its nearest levels',
            )
        return Levels(step, self.clip_min, self.clip_max, _loader_dtype(x, step))

    @staticmethod
    def _project_l1(v: Tensor, radius: float | Tensor) -> Tensor:
        """Project each row of v [..., D] onto the l1 ball (Duchi et al., 2008)."""
        return project_l1_ball(v, radius)

    def evaluate(self, x: Numbers, y: Numbers, x_adv: Numbers) -> dict[str, float]:
        """Measure the model's accuracy with and without the attack.

        The rates are those of ``pyrobust.metrics``. An example is classified correctly if its largest logit is finite
        and belongs to y; on a tie, the lowest class is predicted. If the decision is close, the model is run again on
        this example alone. An example without a predicted class, for example because of NaN, counts as misclassified,
        and a warning is logged.

        Args:
            x: [N, ...], finite. Without a grid, x need not be in the clip range; with a grid, x must be in the clip
                range and is moved to the nearest levels.
            y: [N], the labels.
            x_adv: [N, ...], finite; need not be in the ball or the clip range.

        Returns:
            clean_accuracy; robust_accuracy, the share of examples classified correctly at x and at x_adv;
            attack_success_rate, 1 - robust_accuracy, over all examples; success_rate_on_correct, the share
            misclassified at x_adv among the examples classified correctly at x (NaN if there are none); and
            avg_perturbation, the mean of ‖x_adv - x‖ over all examples in the attack's norm, computed in float64.

        Raises:
            InputError: no examples, mismatched shapes, values or labels out of range.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits.
        """
        unsnapped = float_tensor("x", x, "attack_dataset", self.runner.list_dtype)
        x = self.snap(unsnapped)
        y = class_labels("y", y, len(x))
        finite_values("x", x)
        x_adv = float_tensor("x_adv", x_adv, dtype=unsnapped.dtype)
        if x_adv.shape != x.shape:
            raise InputError("x_adv", f"x's shape {shape_text(x.shape)}", shape_text(x_adv.shape))
        finite_values("x_adv", x_adv.detach())
        if not len(x):
            raise InputError("x", "at least one example", "none")
        x_adv = x_adv.detach().to(x.device)
        if x.dtype != unsnapped.dtype and x_adv.dtype == unsnapped.dtype:  # x was cast
            x_adv = x_adv.to(x.dtype)
        queries = Queries(self.runner)
        # The rates only need to know whether the label is predicted: the label, or no class.
        clean, adversarial = (y.where(self._correct(queries, batch, y), -1) for batch in (x, x_adv))
        accuracy = clean_accuracy(clean, y)
        return {
            "clean_accuracy": float(accuracy),
            "robust_accuracy": float(robust_accuracy(clean, adversarial, y)),
            "attack_success_rate": float(attack_success_rate(clean, adversarial, y)),
            "success_rate_on_correct": float(success_rate_on_correct(clean, adversarial, y))
            if accuracy.successes
            else math.nan,
            "avg_perturbation": float(self._norm.distance(x_adv, x).mean()),
        }

    def _correct(self, queries: Queries, x: Tensor, y: Tensor, *, targeted: bool = False) -> Tensor:
        """Which examples do not fool the model, bool [N] on the CPU."""
        correct = queries.judge.correct(x, y, "target_labels" if targeted else "y")
        return ~correct if targeted else correct

    def _success_labels(self, y: Tensor, targeted: bool, target_labels: Tensor | None, examples: int) -> Tensor:
        """Return the labels that decide success, int64 [N] on the CPU: y, or the target labels of a targeted attack."""
        y = class_labels("y", y, examples)
        if not flag("targeted", targeted):
            if target_labels is not None:
                raise InputError("target_labels", "None without targeted=True", "labels", "pass it, or leave them out")
            return y
        if target_labels is None:
            raise InputError("target_labels", "one label per example with targeted=True", "None")
        return class_labels("target_labels", target_labels, examples)

    def _epsilons(self, examples: int, epsilon: float | Tensor | None = None) -> Tensor:
        """Return the radius of each example, float64 [N], or of each element, [N, ...], on the CPU."""
        value = read_epsilon(self.epsilon if epsilon is None else epsilon)
        if isinstance(value, Tensor) and value.dim() > 1 and len(value) == examples:
            return value  # radii per element, one set for each example
        return radii("epsilon", value, examples)

    def _checked_batch(self, images: Any) -> Tensor:
        """Check type and shape, but not the values, of a batch x; convert float64 if the runner requires it."""
        x = _batch(float_tensor("x", images, "attack_dataset", self.runner.list_dtype))
        x = self._cast(x, joined(self.clip_min, self.clip_max))
        if self.runner.memory_format == torch.channels_last and x.dim() != 4:
            raise InputError("x", "[N, C, H, W] for channels_last", f"shape {shape_text(x.shape)}")
        self.runner.follow(x)
        return x

    def _examples(self, images: Any) -> Tensor:
        """Check that x is a batch of examples in the clip range, and return it detached."""
        x = self._checked_batch(images).detach()
        if len(x):
            low, high = (float(value) for value in x.double().aminmax())
            if math.isnan(low) or math.isinf(low) or math.isinf(high):
                finite_values("x", x)
            least, highest = self._ends
            if low < least or high > highest:
                raise InputError(
                    "x",
                    f"values in the clip range [{least}, {highest}]",
                    f"{low} to {high}",
                    "rescale x or set the clip range",
                )
            if isinstance(self.clip_min, Tensor):
                lower, upper = clip_ends((self.clip_min, self.clip_max), tuple(x.shape[1:]), x.device)
                flat = x.double().flatten(1)
                outside = ((flat < lower) | (flat > upper)).view_as(x)
                if bool(outside.any()):
                    raise InputError("x", "values in the clip range of their elements", first_wrong(x, outside))
        return x


class Ensemble(AdversarialAttack):
    """An attack that runs other attacks, ``attacks``, all with the ensemble's model, ball and clip range.

    A model or a clip range assigned to the ensemble is assigned to its attacks, too; a radius is passed on in each
    call. Other settings of these attacks, such as the number of steps, do not change.
    """

    attacks: dict[str, Any] = state({})  # replaced by the constructor

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("model", "device", "norm", "clip_min", "clip_max"):
            for attack in vars(self).get("attacks", {}).values():
                setattr(attack, name, value)


@functools.lru_cache(maxsize=64)
def _radius(epsilon: float) -> Tensor:
    """One radius for all examples, float64 [1]; cached, because subclasses call ``project`` in loops."""
    with torch.inference_mode(False):
        return radii("epsilon", epsilon, 1)


def _batch(x: Tensor) -> Tensor:
    """Return a batch of non-empty examples unchanged; refuse other shapes."""
    if x.dim() < 2 or 0 in x.shape[1:]:
        raise InputError("x", "a batch [N, ...] of non-empty examples", f"shape {shape_text(x.shape)}")
    return x


def _constructed_radius(epsilon: Any) -> Any:
    """Convert a constructor's epsilon to a float, to radii [N], or to float64 radii per element (at least 2-D)."""
    if np.ndim(epsilon) < 2:
        radius = radii("epsilon", epsilon)
        return radius if radius.dim() else radius.item()
    elements = torch.as_tensor(epsilon, dtype=torch.float64, device="cpu").detach().clone()
    return radii("epsilon", elements.flatten()).view(elements.shape)


def _clip_text(clip: tuple[Any, Any] | None) -> Any:
    """The clip range as ``repr`` shows it."""
    if clip is None:
        return "no limit"
    return "of each element" if isinstance(clip[0], Tensor) else clip


def read_epsilon(epsilon: Any) -> Any:
    """Convert a fraction, given as text or as a ``Fraction``, to a float; return other values unchanged.

    >>> read_epsilon("8/255") == 8 / 255
    True
    """
    if isinstance(epsilon, Fraction):
        return float(epsilon)
    if not isinstance(epsilon, str) or "/" not in epsilon:
        return epsilon
    numerator, _, denominator = epsilon.partition("/")
    try:
        value = float(numerator) / float(denominator)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError("epsilon", 'a finite number or a fraction such as "8/255"', repr(epsilon[:40]))
    return value


def describe_moved(images: Tensor, x: Tensor, step: Fraction) -> str:
    """Say how many values of x moved to the grid, and how far.

    >>> describe_moved(torch.tensor([0.25, 0.5]), torch.tensor([0.25, 0.45]), Fraction(1, 4))
    'moved 50.00 % of the pixels to the nearest multiple of 1/4, by at most 0.2 steps; distances are from there'
    """
    moved = images != x
    furthest = float((images.double() - x.double()).abs().max() / float(step))
    return (
        f"moved {float(moved.double().mean()):.2%} of the pixels to the nearest multiple of {step}, by at most "
        f"{furthest:.2g} steps; distances are from there"
    ).replace("%", " %")


def _loader_dtype(x: Tensor, step: Fraction) -> torch.dtype:
    """Return the dtype in which x was rounded to the grid; float64 only if x is float64 and on the float64 grid."""
    if x.dtype == torch.float64 and not bool((x.float().double() == x).all()):
        return torch.float64 if is_on_grid(x, step) else torch.float32
    return torch.float32


def _on_grid(generate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Move x to the grid before ``generate`` runs, and the result to the grid and into the ball afterwards."""

    @functools.wraps(generate)
    def wrapped(self: AdversarialAttack, *arguments: Any, **keywords: Any) -> Tensor:
        if self.grid is None or not (arguments or "x" in keywords):
            return generate(self, *arguments, **keywords)
        x = self.snap(arguments[0] if arguments else keywords.pop("x"))
        arguments = arguments[1:]
        before, self._levels = self._levels, self._levels_of(x)
        levels = self._levels
        try:
            x_adv = generate(self, x, *arguments, **keywords)
        finally:
            self._levels = before
        if levels is None or not isinstance(x_adv, Tensor) or x_adv.shape != x.shape or not len(x):
            return x_adv
        epsilon = self._epsilons(len(x), keywords.get("epsilon"))
        budget = budgets(self.norm, epsilon, levels.step).to(x.device)
        blocks = zip(*(torch.split(tensor, _SNAPPED_ROWS) for tensor in (x_adv.to(x), x, budget)), strict=True)
        return torch.cat([levels.snap(self.norm, *block, final=True) for block in blocks])

    return wrapped


def _outside_inference(argument: Any) -> Any:
    """Copy a tensor made in inference mode, since no loss can be differentiated through it."""
    return argument.clone() if isinstance(argument, Tensor) and argument.is_inference() else argument


def _in_evaluation_mode(generate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(generate)
    def wrapped(self: AdversarialAttack, *arguments: Any, **keywords: Any) -> Tensor:
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled():  # gradients cannot be computed in inference mode
                stack.enter_context(torch.inference_mode(False))
            stack.enter_context(evaluation_mode(self.model))
            self._check_clip()
            arguments = tuple(map(_outside_inference, arguments))
            keywords = {name: _outside_inference(value) for name, value in keywords.items()}
            x = arguments[0] if arguments else keywords.get("x")
            if x is not None and (not isinstance(x, Tensor) or self.runner.casts(x)):
                x = self._checked_batch(x)
                arguments, keywords = ((x, *arguments[1:]), keywords) if arguments else ((), keywords | {"x": x})
            if len(arguments) > 1 and not isinstance(arguments[1], Tensor) and isinstance(x, Tensor):
                arguments = (arguments[0], class_labels("y", arguments[1], len(x)), *arguments[2:])
            if isinstance(x, Tensor) and x.dim() and len(x) and not self._radius_is_a_cap:
                radius = keywords.get("epsilon")
                radius = self.epsilon if radius is None else radius
                widest = float(radius.max()) if isinstance(radius, Tensor) else radius
                low, high = self._ends
                if isinstance(widest, float) and widest > high - low:
                    warn_of_wide_ball(widest, self.norm, (low, high), x[0].numel())
            return generate(self, *arguments, **keywords)

    return wrapped
