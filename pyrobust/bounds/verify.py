"""Verification in stages: each method gets what the cheaper ones before it left open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from pyrobust.bounds.input_set import ball, clip_range, radii
from pyrobust.bounds.result import Verdicts
from pyrobust.bounds.specification import check_labels
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import predicted_classes
from pyrobust.metrics.distance import is_within
from pyrobust.runner import Runner

if TYPE_CHECKING:
    from pyrobust.bounds.model import BoundedModel

#: x [M, ...] and y [M] to x_adv [M, ...], such as ``generate`` of an attack.
Attack: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def run_cascade(
    bounded: BoundedModel,
    x: Tensor,
    y: Tensor,
    epsilon: Any,
    *,
    norm: str,
    clip: tuple[float, float] | None,
    methods: Sequence[str],
    attack: Attack | None,
    **options: Any,
) -> Verdicts:
    """What ``BoundedModel.verify`` does; arguments as of it.

    Args:
        bounded: the model.
        x: [B, ...].
        y: [B].
        epsilon: a number, or one for each example.
        norm: of the balls.
        clip: of the inputs.
        methods: in this order.
        attack: for what they leave open.
        options: of ``BoundedModel.margins``: sound, semantics, memory_limit.
    """
    if isinstance(methods, str) or not len(methods) or len(set(methods)) != len(methods):
        raise InputError(f"methods: expected names of methods, each once, such as ('ibp', 'crown'), got {methods!r}")
    if attack is not None and not callable(attack):
        raise InputTypeError(f"attack: expected a function of x and y, got {type(attack).__name__}")
    ball(x, epsilon, norm, clip, bounded.shape, bounded.device)  # the checks
    labels = check_labels(y, len(x), bounded.outputs)
    sizes = radii(epsilon, len(x))
    for method in methods:  # names are checked before any work is done
        bounded.margins(x[:0], labels[:0], 0.0, norm=norm, clip=clip, method=method, **options)
    runner = Runner(bounded.model)
    status, stage = ["unknown"] * len(x), [""] * len(x)
    margin = torch.full((len(x),), torch.nan, dtype=torch.float64, device="cpu")
    counterexample = x.detach().clone()

    def settle(chosen: Tensor, verdict: str, by: str) -> None:
        for i in chosen.tolist():
            status[i], stage[i] = verdict, by

    right = _right(runner, x, labels)
    settle((~right).nonzero()[:, 0], "falsified", "forward")
    left = right.nonzero()[:, 0]
    for method in methods:
        if not len(left):
            break
        found = bounded.margins(x[left], labels[left], sizes[left], norm=norm, clip=clip, method=method, **options)
        margin[left] = found.lower.amin(1) if found.lower.shape[1] else torch.inf
        proved = found.positive()
        settle(left[proved], "verified", method)
        left = left[~proved]
    if attack is not None and len(left):
        x_adv = _checked(attack(x[left].clone(), labels[left]), x[left], norm, sizes[left], clip)
        fooled = ~_right(runner, x_adv, labels[left])
        settle(left[fooled], "falsified", "attack")
        counterexample[left[fooled]] = x_adv[fooled].to(counterexample.device)
    return Verdicts(status, stage, margin, counterexample)


def _right(runner: Runner, x: Tensor, labels: Tensor) -> Tensor:
    """Bool [N] on the CPU: whether the model gives each input its label, in its batch or alone.

    Rounding can turn a tie in company: wrong is what is wrong alone, too.
    """
    right = torch.zeros(len(x), dtype=torch.bool, device="cpu")

    def classes(batch: Tensor) -> Tensor:
        return predicted_classes(runner.logits(batch.detach().to(runner.device_for(batch), runner.dtype))).cpu()

    def step(begin: int, end: int) -> None:
        right[begin:end] = classes(x[begin:end]) == labels[begin:end]

    with runner.session():
        runner.for_each(len(x), tuple(x.shape[1:]), step)
        for i in (~right).nonzero()[:, 0].tolist():
            right[i] = bool(classes(x[i : i + 1])[0] == labels[i])
    return right


def _checked(x_adv: Any, x: Tensor, norm: str, epsilon: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """What the attack returned, where it is in the sets."""
    if not isinstance(x_adv, Tensor) or not x_adv.dtype.is_floating_point:
        kind = x_adv.dtype if isinstance(x_adv, Tensor) else type(x_adv).__name__
        raise InputTypeError(f"attack: expected it to return a floating-point tensor, got {kind}")
    if x_adv.shape != x.shape:
        raise InputError(f"attack: expected it to return shape {tuple(x.shape)}, got {tuple(x_adv.shape)}")
    found = x_adv.detach().to(x)  # what is judged is what is kept
    lowest, highest = clip_range(clip)
    # no comparison with NaN holds
    inside = ((found.double() >= lowest) & (found.double() <= highest)).flatten(1).all(1).cpu()
    inside &= is_within(found, x, norm, epsilon)
    if not bool(inside.all()):
        raise InputError("attack: expected points within epsilon of x and in the clip range, got others")
    return found
