"""Signs in the gradient: missing, zero, not finite, saturated, or not that of the model."""

from __future__ import annotations

import torch
from torch import Tensor

from ..queries import NoGradientError
from .continuity import Cause, find_cause_of_gradient
from .forward import Forward
from .notes import Notes
from .subject import Subject, cross_entropy, margin

# Points of a segment at which its gradient is taken.
_POINTS = 16
# Share of a segment's change that the gradient does not explain, from which the gradient is another function's. In
# seven ordinary nets, at epsilons up to 0.6, its median is 0.001 to 0.05 and its 90 % quantile at most 0.12.
_UNEXPLAINED = 1 / 3
# Changes of the margin below this many units of rounding are not compared.
_ROUNDING_UNITS = 500


def examine_gradient(subject: Subject, forward: Forward, notes: Notes) -> bool:
    """Look at the gradient at x and around it; return whether there is one.

    Args:
        subject: the model and a few examples with a predicted class.
        forward: the findings of the forward pass.
        notes: takes the findings.
    """
    n = len(subject)
    inside = subject.x + (subject.corner(subject.x) - subject.x) / 2
    try:
        logits, _, gradient = subject.gradient(subject.x, cross_entropy)
        _, _, beside = subject.gradient(inside, cross_entropy)
    except NoGradientError as error:
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        _explain(subject, forward, notes, "no-gradient", n, f"the logits have no gradient by the input{reason}", {})
        return False
    bad = [int((~part.isfinite()).flatten(1).any(1).sum()) for part in (gradient, beside)]
    text = f"NaN or infinite gradients at {bad[0]} of {n} examples, and beside {bad[1]}"
    notes.share("not-finite-gradient", max(bad), n, text, {"at_x": bad[0], "beside": bad[1]})
    zero = [int((part == 0).flatten(1).all(1).sum()) for part in (gradient, beside)]
    text = f"the gradient is exactly zero at {zero[0]} of {n} examples, and at random points near {zero[1]}"
    _explain(subject, forward, notes, "zero-gradient", max(zero), text, {"at_x": zero[0], "beside": zero[1]})
    _saturated(subject, logits, notes)
    if forward.random:
        notes.undecided["gradient-mismatch"] = "the model is random: its changes are not those of one function"
    elif max(zero) < n:
        _mismatch(subject, forward, notes)
    return True


def _explain(
    subject: Subject, forward: Forward, notes: Notes, name: str, count: int, text: str, evidence: dict[str, object]
) -> None:
    """Add a finding about the gradient, with its cause."""
    if not count:
        return
    steps = forward.operations.steps
    guessed: Cause = "piecewise constant" if steps else "replaced"
    # The outputs of a random model change without a move.
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
    """Where the gradient of the cross-entropy by the logits [N, K], in their dtype, is exactly zero: bool [N].

    >>> saturates(torch.tensor([[200.0, 0.0], [20.0, 0.0]]), torch.tensor([0, 0]))
    tensor([ True, False])
    """
    slope = logits.softmax(1) - torch.nn.functional.one_hot(y, logits.shape[1])
    return (slope == 0).all(1)


def _saturated(subject: Subject, logits: Tensor, notes: Notes) -> None:
    y = subject.y.to(logits.device)
    rows = int(saturates(logits, y).sum())
    gap = -float(margin(logits, y).value.median())
    text = (
        f"the cross-entropy's gradient by the logits underflows to zero at {rows} of {len(logits)} examples; the "
        f"median lead of the predicted class is {gap:.3g}"
    )
    notes.share("saturated-loss", rows, len(logits), text, {"median_lead": gap})


def _mismatch(subject: Subject, forward: Forward, notes: Notes) -> None:
    """Compare the change of the margin along segments with the integral of the gradient."""
    unexplained, usable = unexplained_share(subject)
    n = int(usable.sum())
    rows = int((unexplained > _UNEXPLAINED)[usable].sum())
    if not n:
        notes.undecided["gradient-mismatch"] = "the margin changes by no more than rounding within the ball"
        return
    text = (
        f"at {rows} of {n} examples the gradient does not explain a third of the margin's change across the ball "
        f"(median share unexplained {float(unexplained[usable].median()):.2f})"
    )
    evidence: dict[str, object] = {"median_unexplained": float(unexplained[usable].median())}
    _explain_share(subject, forward, notes, rows, n, text, evidence)


def _explain_share(
    subject: Subject, forward: Forward, notes: Notes, rows: int, n: int, text: str, evidence: dict[str, object]
) -> None:
    if not rows:
        return
    cause = find_cause_of_gradient(subject)
    steps = forward.operations.steps
    if steps and cause != "replaced":
        text += f"; the forward pass calls {', '.join(steps)}"
    cause = "piecewise constant" if cause == "constant" else cause
    notes.share("gradient-mismatch", rows, n, text, {**evidence, "operations": steps}, cause)


def unexplained_share(subject: Subject) -> tuple[Tensor, Tensor]:
    """Share of the margin's change along a segment that its gradient does not explain.

    For a model f that is continuous and differentiable almost everywhere, as networks of ReLUs are, f(b) − f(a) is the
    integral of ∇f·(b − a) over the segment. With m(t) the margin on the segment from x to a random point on the surface
    of the ball, s its slope there by the gradient and s̄ its mean over 16 midpoints, the share is
    |m(1) − m(0) − s̄| / max(|m(1) − m(0)|, mean |s|): near 0 for a true gradient, 1 for one of zero or across jumps.

    Returns:
        The share, float64 [N], and where it can be told from rounding, bool [N]; both on the CPU.
    """
    x, end = subject.x, subject.corner(subject.x)
    delta = end.double() - x.double()
    first, start, _ = subject.gradient(x, margin)
    _, stop, _ = subject.gradient(end, margin)
    slopes = []
    for point in range(_POINTS):
        at = (x.double() + (point + 0.5) / _POINTS * delta).to(x.dtype)
        _, _, gradient = subject.gradient(at, margin)
        slopes.append((gradient.double() * delta.to(gradient.device)).flatten(1).sum(1))
    slope = torch.stack(slopes)
    change = stop - start
    scale = torch.maximum(change.abs(), slope.abs().mean(0))
    unit = torch.finfo(subject.queries.runner.dtype).eps * first.double().abs().amax(1)
    share = (change - slope.mean(0)).abs() / scale
    usable = (scale > _ROUNDING_UNITS * unit) & share.isfinite()
    return share.cpu(), usable.cpu()
