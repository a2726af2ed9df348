"""Verification in stages: each method bounds only the examples that cheaper methods left undecided."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from pyrobust.bounds.input_set import ball, check_radii, of_examples
from pyrobust.bounds.methods import METHODS
from pyrobust.bounds.options import LIPSCHITZ, BoundOptions, spelled_method
from pyrobust.bounds.result import Verdicts
from pyrobust.checks import NormName, Numbers, class_labels, first_wrong, kind, shape_text, shown
from pyrobust.clip import ClipRange, clip_ends
from pyrobust.correctness import Judge
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics.distance import distances, is_within
from pyrobust.runner import Progress, Runner

if TYPE_CHECKING:
    from pyrobust.bounds.model import BoundedModel

#: Maps x [M, ...] and y [M] to x_adv [M, ...], like ``generate`` of an attack.
Attack: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def run_cascade(
    bounded: BoundedModel,
    x: Tensor,
    y: Numbers,
    epsilon: Any,
    methods: Sequence[str],
    attack: Attack | None,
    options: BoundOptions,
    progress: bool | Progress,
) -> Verdicts:
    """Run the stages of ``BoundedModel.verify``."""
    choices = (*METHODS, LIPSCHITZ)
    named = isinstance(methods, tuple | list) and len(methods) > 0
    names = [spelled_method(method) for method in methods] if named else []
    if not named or any(name not in choices for name in names) or len(set(names)) != len(names):
        raise InputError(
            "methods", f"names among {', '.join(choices)}, each at most once, such as ('ibp', 'crown')", shown(methods)
        )
    if attack is not None and not callable(attack):
        raise InputTypeError("attack", "a function of x and y", type(attack).__name__)
    norm, clip = options.norm, options.clip
    ball(x, epsilon, norm, clip, bounded.shape, bounded.device)  # checks the arguments
    labels = class_labels("y", y, len(x), bounded.outputs)
    sizes = check_radii(epsilon, norm, clip, len(x), bounded.shape)
    for method in names:  # before any work, checks that each method supports the arguments
        bounded.margins(x[:0], labels[:0], 0.0, method=method, options=options)
    judge = Judge(Runner(bounded.model))
    status, stage = ["unknown"] * len(x), [""] * len(x)
    margin = torch.full((len(x),), torch.nan, dtype=torch.float64, device="cpu")
    counterexample = x.detach().clone()

    def settle(examples: Tensor, verdict: str, by: str) -> None:
        for i in examples.tolist():
            status[i], stage[i] = verdict, by

    def prove(undecided: Tensor, method: str, time_limit: float | None) -> Tensor:
        """Verify examples by a method; return the examples that are still undecided."""
        radius, limited = of_examples(sizes[undecided], bounded.shape), dataclasses.replace(options, method=method)
        limited = dataclasses.replace(limited, time_limit=time_limit)
        interrupted: KeyboardInterrupt | None = None
        try:
            bounds = bounded._prove(x[undecided], labels[undecided], radius, limited, progress)
        except KeyboardInterrupt as interrupt:
            if "result" not in interrupt.__dict__:
                raise
            interrupted, bounds = interrupt, interrupt.__dict__["result"]
        least = bounds.lower.amin(1) if bounds.lower.shape[1] else margin.new_full((len(undecided),), torch.inf)
        # rows not reached in time keep the margins of earlier methods
        margin[undecided] = least if interrupted is None and time_limit is None else least.fmax(margin[undecided])
        proved = bounds.positive()
        settle(undecided[proved], "verified", method)
        if interrupted is not None:
            raise interrupted
        return undecided[~proved]

    deadline = None if options.time_limit is None else time.monotonic() + options.time_limit
    try:
        correct = judge.correct(x, labels)
        settle((~correct).nonzero()[:, 0], "falsified", "forward")
        undecided = correct.nonzero()[:, 0]
        for method in names:
            seconds_left = None if deadline is None else deadline - time.monotonic()
            if not len(undecided) or (seconds_left is not None and seconds_left <= 0):
                break
            undecided = prove(undecided, method, seconds_left)
        if attack is not None and len(undecided):
            x_adv = _checked(
                attack(x[undecided].clone(), labels[undecided]), x[undecided], norm, sizes[undecided], clip
            )
            fooled = ~judge.correct(x_adv, labels[undecided])
            settle(undecided[fooled], "falsified", "attack")
            counterexample[undecided[fooled]] = x_adv[fooled].to(counterexample.device)
    except KeyboardInterrupt as interrupt:
        interrupt.__dict__["result"] = Verdicts(status, stage, margin, counterexample)
        raise
    return Verdicts(status, stage, margin, counterexample)


def _checked(x_adv: Any, x: Tensor, norm: NormName, epsilon: Tensor, clip: ClipRange | None) -> Tensor:
    """Return the attack's output, once it is checked to lie in the sets."""
    if not isinstance(x_adv, Tensor) or not x_adv.dtype.is_floating_point:
        raise InputTypeError("attack", "it to return a float tensor", kind(x_adv))
    if x_adv.shape != x.shape:
        raise InputError("attack", f"it to return shape {shape_text(x.shape)}", shape_text(x_adv.shape))
    points: Tensor = x_adv.detach().to(x)  # checked in the dtype that the result has
    lowest, highest = clip_ends(clip, tuple(x.shape[1:]), x.device)
    flat = points.double().flatten(1)
    wrong = ~(flat.isfinite() & (flat >= lowest) & (flat <= highest)).view_as(points)
    if bool(wrong.any()):
        limits = "finite values" if clip is None else "values in the clip range"
        limits += f" [{lowest}, {highest}]" if clip is not None and isinstance(lowest, float) else ""
        raise InputError("attack", f"it to return {limits}", first_wrong(points, wrong))
    if epsilon.dim() > 1:
        above = _exceeds(points.double(), x.double(), epsilon.to(x.device))
        if bool(above.any()):
            raise InputError(
                "attack",
                "it to return points within epsilon of every element",
                f"{first_wrong(points, above)} for {first_wrong(x, above)}",
            )
        return points
    beyond = ~is_within(points, x, norm, epsilon)
    if bool(beyond.any()):
        example = int(beyond.nonzero()[0])
        distance = float(distances(points[example : example + 1], x[example : example + 1], norm))
        raise InputError(
            "attack",
            f"it to return points within epsilon, {norm} {float(epsilon[example])}",
            f"one at {distance} for example {example} of {len(x)}",
        )
    return points


def _exceeds(a: Tensor, b: Tensor, epsilon: Tensor) -> Tensor:
    """Whether |a − b| > epsilon in exact arithmetic, elementwise; uses the rounded difference and its error (Knuth)."""
    difference = a - b
    virtual_b = difference - a
    error = (a - (difference - virtual_b)) + (-b - virtual_b)
    rounded = difference.abs()
    return (rounded > epsilon) | ((rounded == epsilon) & (error * difference.sign() > 0))
