"""Attacks of other libraries, run as attacks of this library."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.checks import NormLike, image_indices, integer, is_finite, kind, shape_text
from pyrobust.clip import OMITTED, ClipArgument, joined, need_range
from pyrobust.errors import InputError, InputTypeError
from pyrobust.machine import seeded_generators
from pyrobust.metrics.distance import distances, is_within
from pyrobust.runner import Classifier, Progress, Runner, reporting
from pyrobust.zoo import model_hash

from .engine.base import AdversarialAttack
from .engine.levels import GridLike
from .engine.queries import Queries
from .engine.settings import state

logger = logging.getLogger(__name__)

# Nesting depth to which the settings of an attack's parts are read.
_DEPTH = 4


@dataclass(frozen=True)
class AdaptedResult:
    """Whether the points that another library's attack returned lie in the ball, and how far outside.

    Attributes:
        examples: number of examples that the attack was run on: those that the model classifies correctly.
        outside: number of returned points that are not finite or, rounded to x's dtype, outside the ball or clip range
            in exact arithmetic.
        largest_excess: largest ‖x_adv − x‖ − epsilon of the finite points before this rounding; 0 if none is positive.
        forwards: rows pushed through the model by the attack and by the check of x before it; incomplete for ART's
            attacks, which may run single layers of the model.
    """

    examples: int
    outside: int
    largest_excess: float
    forwards: int


class AdaptedAttack(AdversarialAttack):
    """An attack of foolbox, torchattacks, ART or adversarial-lib, or any function, evaluated by this library.

    The attack is run on the examples that the model classifies correctly. The points that it returns are then checked.
    A point that lies outside the ball or the clip range, however slightly, is projected onto both, so that x_adv lies
    inside in exact arithmetic. A point that is not finite is replaced by x. ``evaluate`` and ``attack_dataset`` then
    judge whether x_adv fools the model. If the point that the attack returned was outside the ball, it may fool the
    model although x_adv does not. ``result`` says how many points lay outside, and by how much.

    ========================= =========================================================================================
    foolbox                   an attack such as ``foolbox.attacks.LinfPGD()``, called with ``epsilons=epsilon``
    torchattacks              an attack made for this model; its images are in [0, 1]
    ART                       an evasion attack whose estimator is a ``PyTorchClassifier`` of this model
    adversarial-lib, or yours a function (model, x, y) → x_adv, such as ``adv_lib.attacks.ddn``;
                              if targeted it is called as (model, x, labels, targeted=True)
    ========================= =========================================================================================

    Attacks of torchattacks and ART have an epsilon of their own: set it to the same value as ``epsilon``. An attack of
    ART that is to be targeted must be constructed with targeted=True. For every batch, the random number generators of
    torch, numpy and Python are seeded from the attack's seed and the index of the batch's first example; afterwards
    their states are restored. Results are therefore reproducible, but depend on the batch size.

    Args:
        model, norm, clip_min, clip_max, device, clip, grid: see ``AdversarialAttack``.
        epsilon: radius of the ball, a number.
        attack: the other library's attack.
        seed: random seed, in [0, 2**64).
        batch_size: examples per call of the attack; default: found so that it fits in memory.
        dtype: dtype of the batches, see ``pyrobust.runner.Runner``; attacks of torchattacks and ART call the model
            directly, as it is.
        progress: True for a progress bar on the terminal, or a function of (examples done, examples).

    Raises:
        InputError: a value out of range, or an attack made for another model.
        InputTypeError: a value of the wrong type, or an attack of an unsupported kind.

    >>> def darken(model, x, y):  # a function of one's own
    ...     return x - 0.5
    >>> model = lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1)
    >>> attack = AdaptedAttack(model, epsilon=0.25, attack=darken)
    >>> attack(torch.tensor([[0.625], [0.875]]), torch.tensor([0, 0]))
    tensor([[0.3750],
            [0.6250]])
    >>> attack.result
    AdaptedResult(examples=2, outside=2, largest_excess=0.25, forwards=2)
    """

    _elementwise = ()
    seed: int = state(0)
    progress: bool | Progress = state(False)
    _attack: Any = state(None)
    _result: AdaptedResult | None = state(None)  # comparison of the last call's points with the ball

    def __init__(
        self,
        model: Classifier,
        epsilon: float = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        attack: Any,
        clip: ClipArgument = OMITTED,
        grid: GridLike = None,
        seed: int = 0,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        progress: bool | Progress = False,
    ) -> None:
        self._runner_settings = {"batch_size": batch_size, "dtype": dtype}
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, clip=clip, grid=grid)
        if isinstance(self.epsilon, Tensor):
            raise InputError("epsilon", "a number", f"a tensor of {len(self.epsilon)}")
        self.seed = integer("seed", seed, 0, (1 << 64) - 1)
        self.progress = progress
        self._attack = attack
        _caller(attack, self, _Logits(self.runner))  # raises for an attack that it cannot run

    @property
    def name(self) -> str:
        """Library and name of the adapted attack, such as "foolbox LinfPGD"."""
        library = _library(self._attack)
        return f"{library} {type(self._attack).__name__}" if library else _function_name(self._attack)

    @property
    def result(self) -> AdaptedResult | None:
        """Whether the points of the last ``generate`` call lay in the ball, and how far outside."""
        return self._result

    def settings(self) -> dict[str, bool | int | float | str | None]:
        """Return the settings of the adapted attack; a resumed run must have the same settings.

        Attributes with plain values, or the keywords of a partial function, are listed by name. All other settings,
        including those of the attack's parts, are combined into one hash. The model, devices and loggers are left out.
        """
        described = _described(self._attack, self.model, _DEPTH)
        plain = {name: value for name, value in described.items() if _is_plain(name, value)}
        holder: Any = nn.Module()
        holder.parts = {name: value for name, value in described.items() if name not in plain}
        return plain | ({"parts": f"sha256 {model_hash(holder)}"} if holder.parts else {})

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, attack={self.name})"

    def generate(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        indices: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Generate adversarial examples; ``result`` then says whether all points returned were inside the ball.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: success means that the model predicts the target label, rather than any class other than y.
            target_labels: [N], integers, required with targeted=True, else None.
            indices: [N], the index of each example in its data set; default 0 … N - 1.

        Returns:
            [N, ...], in x's dtype (float32 if float64 x was cast for the model) and on its device, inside the ball and
            the clip range; x itself where the model already misclassifies x.

        Raises:
            InputError: shapes do not match, values or labels are out of range, or the attack returns another shape or
                cannot be targeted.
            InputTypeError: images that are not float, labels that are not integers, or an attack that returns anything
                but a float tensor or array.
        """
        x = self._examples(x)
        y = self._success_labels(y, targeted, target_labels, len(x))
        index = image_indices(indices, len(x))
        queries = Queries(self.runner)
        logits = _Logits(self.runner)
        call = _caller(self._attack, self, logits)
        x_adv = x.clone()
        correct = self._correct(queries, x, y, targeted=targeted)
        rows = correct.nonzero()[:, 0]
        outside, excess, device = 0, 0.0, self.runner.device_for(x)
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(reporting(self.progress, len(x)))
            counted = stack.enter_context(_counted_rows(self.model if isinstance(self.model, nn.Module) else logits))
            stack.enter_context(_gradients_of_parameters_restored(self.model))
            stack.enter_context(self.runner.session(gradients=True))
            stack.enter_context(torch.enable_grad())

            def step(begin: int, stop: int) -> None:
                nonlocal outside, excess
                batch = rows[begin:stop]
                clean = x[batch.to(x.device)]
                with _seeded(f"{self.seed} {index[int(batch[0])]}", device):
                    points = call(self.runner.batch(clean).clone(), y[batch].to(device), targeted)
                points, excess_rows, beyond = self._fitted(self._checked(points, clean), clean)
                x_adv[batch.to(x.device)] = points
                outside, excess = outside + excess_rows, max(excess, beyond)
                report(len(x) - len(rows) + stop)

            self.runner.for_each(len(rows), tuple(x.shape[1:]), step, gradients=True)
        self._result = AdaptedResult(len(rows), outside, excess, queries.forwards + sum(counted))
        if outside:
            logger.info(
                "%s: %d of %d points outside the ball or the clip range, by up to %g: projected",
                self.name,
                outside,
                len(rows),
                excess,
            )
        return x_adv

    def _checked(self, points: Any, x: Tensor) -> Tensor:
        """Move points to the device of x; raise unless they are a float tensor in the shape of x."""
        if isinstance(points, np.ndarray):
            points = torch.from_numpy(points)
        if not isinstance(points, Tensor) or not points.dtype.is_floating_point:
            raise InputTypeError("attack", f"{self.name} to return a float tensor", kind(points))
        if points.shape != x.shape:
            shapes = f"shape {shape_text(x.shape)}, got {shape_text(points.shape)}"
            raise InputError("attack", f"{self.name} to return {shapes}")
        return points.detach().to(x.device)

    def _fitted(self, points: Tensor, x: Tensor) -> tuple[Tensor, int, float]:
        """Move points into the ball and the clip range; also return how many were outside, and their largest excess."""
        finite = points.isfinite().flatten(1).all(1)
        points = torch.where(finite.view(-1, *[1] * (x.dim() - 1)), points, x.to(points.dtype))
        epsilon = self._epsilons(len(x))
        distance = distances(points, x, self.norm).cpu()
        rounded = points.to(x.dtype)
        inside = is_within(rounded, x, self.norm, epsilon)
        rounded_points = rounded.double().flatten(1)
        inside &= ((rounded_points.amin(1) >= self.clip_min) & (rounded_points.amax(1) <= self.clip_max)).cpu()
        projected = x + self.project(points - x, x)
        kept = inside.to(x.device).view(-1, *[1] * (x.dim() - 1))
        excess = float((distance - epsilon).amax().clamp(min=0))
        return torch.where(kept, rounded, projected), int((~inside | ~finite.cpu()).sum()), excess


def _library(attack: Any) -> str:
    """Return the name of the attack's library, "foolbox", "torchattacks" or "art"; empty for any other attack."""
    names = {base.__module__.split(".")[0] for base in type(attack).__mro__}
    return next((name for name in ("foolbox", "torchattacks", "art") if name in names), "")


def _caller(attack: Any, adapted: AdaptedAttack, logits: _Logits) -> Callable[[Tensor, Tensor, bool], Any]:
    """Return a function (x, labels, targeted) → points that calls the attack as its library requires."""
    library = _library(attack)
    if library == "foolbox":
        need_range("foolbox", joined(adapted.clip_min, adapted.clip_max))
        return functools.partial(_foolbox, attack, adapted, logits)
    if library == "torchattacks":
        _same_model(attack.model, adapted.model, "the model of the torchattacks attack")
        if (adapted.clip_min, adapted.clip_max) != (0.0, 1.0):
            raise InputError("clip_min", "[0, 1] for torchattacks", f"[{adapted.clip_min}, {adapted.clip_max}]")
        return functools.partial(_torchattacks, attack)
    if library == "art":
        _same_model(getattr(attack.estimator, "model", None), adapted.model, "the model of the attack's estimator")
        return functools.partial(_art, attack)
    if isinstance(attack, AdversarialAttack):
        raise InputTypeError("attack", "an attack of another library", kind(attack), "use it as it is")
    if inspect.isclass(attack) or not callable(attack) or isinstance(attack, nn.Module):
        expected = "an attack of foolbox, torchattacks or ART, or a function (model, x, y)"
        hint = "make an instance of the class" if inspect.isclass(attack) else ""
        raise InputTypeError("attack", expected, kind(attack), hint)
    return functools.partial(_function, attack, logits)


def _foolbox(attack: Any, adapted: AdaptedAttack, logits: _Logits, x: Tensor, labels: Tensor, targeted: bool) -> Any:
    foolbox: Any = importlib.import_module("foolbox")  # it is installed, since the attack is one of its objects
    model = foolbox.PyTorchModel(logits, bounds=(adapted.clip_min, adapted.clip_max), device=x.device)
    criteria = foolbox.criteria
    criterion = criteria.TargetedMisclassification(labels) if targeted else criteria.Misclassification(labels)
    _, clipped, _ = attack(model, x, criterion, epsilons=adapted.epsilon)
    return clipped


def _torchattacks(attack: Any, x: Tensor, labels: Tensor, targeted: bool) -> Any:
    if targeted and "targeted" not in attack.supported_mode:
        raise InputError("targeted", f"False, because {type(attack).__name__} has no targets")
    before = {name: value for name, value in vars(attack).items() if "target" in name or name == "attack_mode"}
    try:
        if targeted:
            attack.set_mode_targeted_by_label(quiet=True)
        elif attack.targeted:
            attack.set_mode_default()
        return attack(x, labels)
    finally:
        vars(attack).update(before)


def _art(attack: Any, x: Tensor, labels: Tensor, targeted: bool) -> Any:
    aims = bool(getattr(attack, "targeted", False))
    if aims != targeted:
        raise InputError("targeted", f"{aims}, as in the ART attack", targeted, "make it with targeted=")
    return attack.generate(x=x.detach().cpu().float().numpy(), y=labels.cpu().numpy())


def _function(attack: Callable[..., Any], model: nn.Module, x: Tensor, labels: Tensor, targeted: bool) -> Any:
    return attack(model, x, labels, targeted=True) if targeted else attack(model, x, labels)


class _Logits(nn.Module):
    """A module that runs a runner's model for other libraries and returns the logits of a batch, float32 or float64."""

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner = runner
        self.model = runner.model if isinstance(runner.model, nn.Module) else None
        self.training = False  # libraries read this attribute; ``eval`` would change the model's mode permanently

    def forward(self, x: Tensor) -> Tensor:
        logits = self._runner.logits(x.to(self._runner.dtype))
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def _same_model(theirs: Any, ours: Classifier, what: str) -> None:
    if theirs is not ours:
        raise InputError("attack", f"{what} to be the attacked one", f"another {kind(theirs)}")


def _function_name(attack: Any) -> str:
    """Return the name of a function, of the function inside a partial, or of a callable object's class."""
    while isinstance(attack, functools.partial):
        attack = attack.func
    return getattr(attack, "__name__", type(attack).__name__)


def _described(value: Any, model: Classifier, depth: int) -> dict[str, Any]:
    """Collect the settings of an attack object or function, including those of library objects that it holds."""
    if isinstance(value, functools.partial):
        inner = {**({"args": list(value.args)} if value.args else {}), **value.keywords}
        return {**_described(value.func, model, depth), **_plain(inner, model, depth)}
    if inspect.isroutine(value):
        return {"function": f"{value.__module__}.{value.__qualname__}"}
    # ART's attacks list their settings; their other attributes change during a run.
    names = getattr(value, "attack_params", None) if _library(value) == "art" else None
    settings = vars(value) if names is None else {name: getattr(value, name, None) for name in names}
    return {"class": f"{type(value).__module__}.{type(value).__qualname__}", **_plain(settings, model, depth)}


def _plain(values: dict[str, Any], model: Classifier, depth: int) -> dict[str, Any]:
    """Return settings by name, without models, devices and loggers; containers and attack objects are expanded."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if value is model or isinstance(value, torch.device) or "estimator" in name or "writer" in name:
            continue
        if isinstance(value, dict):
            result[name] = _plain({str(key): item for key, item in value.items()}, model, depth)
        elif isinstance(value, list | tuple):
            result[name] = _plain({str(i): item for i, item in enumerate(value)}, model, depth)
        elif inspect.isroutine(value) or inspect.isclass(value):
            result[name] = f"{value.__module__}.{value.__qualname__}"
        elif depth and (_library(value) or isinstance(value, functools.partial)):
            result[name] = _described(value, model, depth - 1)
        else:
            result[name] = value.item() if isinstance(value, np.generic) else value
    return result


def _is_plain(name: str, value: Any) -> bool:
    """Whether a run can store the setting unchanged."""
    if isinstance(value, str):
        return len(name) <= 64 and len(value) <= 256 and value.isprintable()
    return len(name) <= 64 and (value is None or isinstance(value, bool) or is_finite(value))


@contextlib.contextmanager
def _counted_rows(model: nn.Module) -> Iterator[list[int]]:
    """Yield a list that receives the size of each batch that the module is run on."""
    sizes: list[int] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        sizes.append(len(arguments[0]) if arguments and isinstance(arguments[0], Tensor) else 0)

    handle = model.register_forward_pre_hook(note)
    try:
        yield sizes
    finally:
        handle.remove()


@contextlib.contextmanager
def _gradients_of_parameters_restored(model: Classifier) -> Iterator[None]:
    """Restore the parameters' gradients, which libraries overwrite when they call ``backward``."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def _seeded(text: str, device: torch.device) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python from a text, and restore them on exit."""
    seed = random.Random(text).getrandbits(63)
    # Includes the generator that ART draws from.
    numbers, python = np.random.get_state(), random.getstate()  # noqa: NPY002 - ART draws from it
    with seeded_generators(seed, device):
        np.random.seed(seed % (1 << 32))  # noqa: NPY002 - ART draws from it
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002 - ART draws from it
            random.setstate(python)
