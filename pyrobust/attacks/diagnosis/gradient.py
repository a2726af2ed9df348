"""Examine a model's gradient: is it missing, zero, not finite, saturated, or not the model's own?"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..bpda import BPDA
from ..engine.queries import NoGradientError
from .continuity import Cause, find_cause_of_gradient
from .finding import share_severity
from .forward import Forward
from .notes import Notes
from .segments import measure_segments
from .subject import ExaminedModel, cross_entropy, margin

# Share of a segment's change unexplained by the gradient from which the gradient counts as another function's. In seven
# ordinary nets, at epsilons up to 0.6, its median is 0.001 to 0.05 and its 90 % quantile at most 0.12.
_UNEXPLAINED = 1 / 3
# Steadiness of the slope below which the loss is noisy; in the same nets its median is 0.95 to 1, its 10 % quantile at
# least 0.39.
_STEADY = 0.25


def examine_gradient(subject: ExaminedModel, forward: Forward, notes: Notes) -> bool:
    """Examine the gradient at x and around it; return whether there is a gradient.

    Args:
        subject: the model and a few examples with a predicted class.
        forward: the findings in the forward pass.
        notes: collects the findings.
    """
    n = len(subject)
    try:
        zero = _at_points(subject, forward, notes)
        if forward.random:
            notes.undecided["gradient-mismatch"] = "the model is random: its changes are not those of one function"
        elif zero < n:
            _along_segments(subject, forward, notes)
    except NoGradientError as error:
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        _explain(
            subject,
            forward,
            notes,
            "no-gradient",
            count=n,
            text=f"the logits have no gradient by the input{reason}",
            evidence={},
        )
        return False
    return True


def _at_points(subject: ExaminedModel, forward: Forward, notes: Notes) -> int:
    """Examine the gradient at x and at random points in the ball; return how many examples have a zero gradient."""
    n = len(subject)
    inside = subject.x + (subject.corner(subject.x) - subject.x) / 2
    logits, _, gradient = subject.gradient(subject.x, cross_entropy)
    _, _, beside = subject.gradient(inside, cross_entropy)
    bad = [int((~gradients.isfinite()).flatten(1).any(1).sum()) for gradients in (gradient, beside)]
    text = f"NaN or infinite gradients at {bad[0]} of {n} examples, and beside {bad[1]}"
    notes.share("not-finite-gradient", max(bad), n, text, {"at_x": bad[0], "beside": bad[1]})
    zero = [int((gradients == 0).flatten(1).all(1).sum()) for gradients in (gradient, beside)]
    text = f"the gradient is exactly zero at {zero[0]} of {n} examples, and at random points near {zero[1]}"
    _explain(
        subject,
        forward,
        notes,
        "zero-gradient",
        count=max(zero),
        text=text,
        evidence={"at_x": zero[0], "beside": zero[1]},
    )
    _saturated(subject, logits, notes)
    return max(zero)


def _explain(
    subject: ExaminedModel,
    forward: Forward,
    notes: Notes,
    name: str,
    count: int,
    text: str,
    evidence: dict[str, object],
) -> None:
    """Add a finding about the gradient, and name its cause."""
    if not count:
        return
    steps = forward.operations.steps
    guessed: Cause = "piecewise constant" if steps else "replaced"
    # A random model's outputs change even if the input does not move.
    cause = guessed if forward.random else find_cause_of_gradient(subject)
    if steps and cause != "replaced":
        text += f"; the forward pass calls {', '.join(steps)}"
    evidence = {**evidence, "operations": steps}
    if cause == "constant":
        notes.share("constant", count, len(subject), f"{text}; no output changes within the clip range", evidence)
    elif name == "no-gradient":
        notes.add(name, "masked", text, evidence, cause)
    else:
        notes.share(name, count, len(subject), text, evidence, cause)


def saturates(logits: Tensor, y: Tensor) -> Tensor:
    """Whether the cross-entropy's gradient with respect to the logits [N, K] is exactly 0 in their dtype: bool [N].

    >>> saturates(torch.tensor([[200.0, 0.0], [20.0, 0.0]]), torch.tensor([0, 0]))
    tensor([ True, False])
    """
    slope = logits.softmax(1) - torch.nn.functional.one_hot(y, logits.shape[1])
    return (slope == 0).all(1)


def _saturated(subject: ExaminedModel, logits: Tensor, notes: Notes) -> None:
    y = subject.y.to(logits.device)
    rows = int(saturates(logits, y).sum())
    gap = -float(margin(logits, y).value.median())
    text = (
        f"the cross-entropy's gradient by the logits underflows to zero at {rows} of {len(logits)} examples; the "
        f"median lead of the predicted class is {gap:.3g}"
    )
    notes.share("saturated-loss", rows, len(logits), text, {"median_lead": gap if math.isfinite(gap) else None})


def _along_segments(subject: ExaminedModel, forward: Forward, notes: Notes) -> None:
    """Compare the margin's change along segments with the integral of its gradient."""
    segments = measure_segments(subject)
    n = int(segments.usable.sum())
    if not n:
        notes.undecided["gradient"] = "the margin changes by no more than rounding within the ball"
        return
    unsteady = int((segments.steadiness() < _STEADY).sum())
    text = f"at {unsteady} of {n} examples the slope of the margin changes its sign again and again across the ball"
    evidence: dict[str, object] = {"median_steadiness": float(segments.steadiness().median())}
    notes.share("noisy-loss", unsteady, n, text, evidence, worst="suspicious")
    if any(isinstance(module, BPDA) for module in _modules(subject.model)):
        notes.undecided["gradient-mismatch"] = "the model has a BPDA, whose gradient is another function's on purpose"
        return
    unexplained = segments.unexplained()
    rows, median = int((unexplained > _UNEXPLAINED).sum()), float(unexplained.median())
    if not rows:
        return
    text = (
        f"at {rows} of {n} examples the gradient does not explain a third of the margin's change across the ball "
        f"(median share unexplained {median:.2f})"
    )
    evidence = {"median_unexplained": median, "operations": forward.operations.steps}
    factor = segments.factor()
    remaining = int((segments.unexplained(factor) > _UNEXPLAINED).sum()) if 0 < factor < math.inf else n
    if share_severity(remaining, n) is None and share_severity(rows, n) is not None:
        text += f"; {factor:.3g} times the gradient does"
        notes.share("gradient-mismatch", rows, n, text, {**evidence, "factor": factor}, "rescaled", worst="suspicious")
        return
    cause = find_cause_of_gradient(subject)
    if forward.operations.steps and cause != "replaced":
        text += f"; the forward pass calls {', '.join(forward.operations.steps)}"
    notes.share("gradient-mismatch", rows, n, text, evidence, "piecewise constant" if cause == "constant" else cause)


def _modules(model: object) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []
