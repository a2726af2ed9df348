"""Verification in stages: each method bounds only the examples that cheaper methods left undecided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from pyrobust.bounds.input_set import ball, clip_ends
from pyrobust.bounds.options import LIPSCHITZ, METHODS, BoundOptions
from pyrobust.bounds.result import Verdicts
from pyrobust.checks import NormName, class_labels, first_wrong, kind, radii, shape_text, shown
from pyrobust.correctness import Judge
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics.distance import distances, is_within
from pyrobust.runner import Runner

if TYPE_CHECKING:
    from pyrobust.bounds.model import BoundedModel

#: Maps x [M, ...] and y [M] to x_adv [M, ...], like ``generate`` of an attack.
Attack: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def run_cascade(
    bounded: BoundedModel,
    x: Tensor,
    y: Tensor,
    epsilon: Any,
    methods: Sequence[str],
    attack: Attack | None,
    options: BoundOptions,
) -> Verdicts:
    """Run the stages of ``BoundedModel.verify``."""
    known = (*METHODS, LIPSCHITZ)
    named = isinstance(methods, tuple | list) and len(methods) > 0 and all(method in known for method in methods)
    if not named or len(set(methods)) != len(methods):
        raise InputError(
            f"methods: expected names among {', '.join(known)}, each at most once, such as ('ibp', 'crown'), got "
            f"{shown(methods)}"
        )
    if attack is not None and not callable(attack):
        raise InputTypeError(f"attack: expected a function of x and y, got {type(attack).__name__}")
    norm, clip = options.norm, options.clip
    ball(x, epsilon, norm, clip, bounded.shape, bounded.device)  # checks them
    labels = class_labels("y", y, len(x), bounded.outputs)
    sizes = radii("epsilon", epsilon, len(x))
    for method in methods:  # checks what each method supports before any work
        bounded.margins(x[:0], labels[:0], 0.0, method=method, options=options)
    judge = Judge(Runner(bounded.model))
    status, stage = ["unknown"] * len(x), [""] * len(x)
    margin = torch.full((len(x),), torch.nan, dtype=torch.float64, device="cpu")
    counterexample = x.detach().clone()

    def settle(examples: Tensor, verdict: str, by: str) -> None:
        for i in examples.tolist():
            status[i], stage[i] = verdict, by

    right = judge.right(x, labels)
    settle((~right).nonzero()[:, 0], "falsified", "forward")
    left = right.nonzero()[:, 0]
    for method in methods:
        if not len(left):
            break
        bounds = bounded.margins(x[left], labels[left], sizes[left], method=method, options=options)
        margin[left] = bounds.lower.amin(1) if bounds.lower.shape[1] else torch.inf
        proved = bounds.positive()
        settle(left[proved], "verified", method)
        left = left[~proved]
    if attack is not None and len(left):
        x_adv = _checked(attack(x[left].clone(), labels[left]), x[left], norm, sizes[left], clip)
        fooled = ~judge.right(x_adv, labels[left])
        settle(left[fooled], "falsified", "attack")
        counterexample[left[fooled]] = x_adv[fooled].to(counterexample.device)
    return Verdicts(status, stage, margin, counterexample)


def _checked(x_adv: Any, x: Tensor, norm: NormName, epsilon: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """Return what the attack returned, checked to lie in the sets."""
    if not isinstance(x_adv, Tensor) or not x_adv.dtype.is_floating_point:
        raise InputTypeError(f"attack: expected it to return a float tensor, got {kind(x_adv)}")
    if x_adv.shape != x.shape:
        raise InputError(f"attack: expected it to return shape {shape_text(x.shape)}, got {shape_text(x_adv.shape)}")
    points: Tensor = x_adv.detach().to(x)  # checked in the dtype that the result has
    lowest, highest = clip_ends(clip)
    wrong = ~(points.isfinite() & (points.double() >= lowest) & (points.double() <= highest))
    if bool(wrong.any()):
        limits = "finite values" if clip is None else f"values in the clip range [{lowest}, {highest}]"
        raise InputError(f"attack: expected it to return {limits}, got {first_wrong(points, wrong)}")
    beyond = ~is_within(points, x, norm, epsilon)
    if bool(beyond.any()):
        example = int(beyond.nonzero()[0])
        distance = float(distances(points[example : example + 1], x[example : example + 1], norm))
        raise InputError(
            f"attack: expected it to return points within epsilon, {norm} {float(epsilon[example])}, got one at "
            f"{distance} for example {example} of {len(x)}"
        )
    return points
