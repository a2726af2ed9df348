"""Examine a forward pass for randomness, training mode, outputs that are not logits, and gradients computed in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pyrobust.errors import PyrobustError, RowDependenceError
from pyrobust.machine import is_out_of_memory
from pyrobust.row_causes import Rows, find_cause
from pyrobust.runner import evaluation_mode, logits_of

from ..engine.queries import NoGradientError
from ..eot import EOT
from ..model_checks import LOGIT_TOLERANCE, are_probabilities, differing_rows, watch_for_gradients
from .catalogue import make_finding
from .finding import Finding
from .operations import Operations, record_operations
from .subject import ExaminedModel, cross_entropy

# Median cosine between two draws' gradients below which a step follows the draw rather than the model.
_SAME_DIRECTION = 0.5
# Number of forward passes after the first: a single draw, if of few values, may repeat the first.
_REPEATS = 8
# Number of examples whose operations are recorded.
_RECORDED = 2
# Number of examples that also run alone.
_ALONE = 8


@dataclass(frozen=True)
class Forward:
    """The findings in the forward pass, and the facts about it that the other checks need."""

    findings: list[Finding]
    random: bool
    operations: Operations
    undecided: dict[str, str]


def examine_forward(subject: ExaminedModel, training: list[nn.Module]) -> Forward:
    """Run the model several times and examine its outputs.

    Args:
        subject: the model and a few examples.
        training: the submodules that were given in training mode.
    """
    first = subject.logits(subject.x)
    with watch_for_gradients() as called:
        repeats = [subject.logits(subject.x)]
    repeats += [subject.logits(subject.x) for _ in range(_REPEATS - 1)]
    few = subject.x[:_RECORDED]
    operations = record_operations(lambda: subject.logits(few))
    random = any(bool(differing_rows(first, other).any()) for other in repeats)
    undecided: dict[str, str] = {}
    findings = [
        *(_randomized(subject, first, repeats, operations) if random else _training_mode(subject, training)),
        *(() if random else _batch_dependent(subject, first, undecided)),
        *_not_finite(first),
        *_dynamic(called),
        *_not_logits(first, operations),
    ]
    return Forward(findings, random, operations, undecided)


def _training_mode(subject: ExaminedModel, training: list[nn.Module]) -> Iterator[Finding]:
    """Compare the outputs in evaluation mode with the outputs in the module's original mode."""
    model = subject.model
    if not training or not isinstance(model, nn.Module):
        return
    # Copies, because batch normalization changes its statistics.
    state = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    runner = subject.queries.runner
    batch = runner.batch(subject.x).to(runner.dtype)
    with runner.session(), evaluation_mode(model):
        usual = logits_of(functional_call(model, state, (batch,)))
        for module in training:
            module.training = True
        try:
            moved = logits_of(functional_call(model, state, (batch,)))
        except (RuntimeError, ValueError):  # such as those of batch statistics of a single example
            moved = usual * torch.nan
    changed = int(differing_rows(usual, moved).sum()) if moved.shape == usual.shape else len(usual)
    if changed:
        kinds = list(dict.fromkeys(type(module).__name__ for module in training if not list(module.children())))
        yield make_finding(
            "training-mode",
            "suspicious",
            f"{changed} of {len(usual)} examples have other logits in the mode in which the module was given",
            {"changed": changed, "examples": len(usual), "modules": kinds},
        )


def _randomized(
    subject: ExaminedModel, first: Tensor, repeats: list[Tensor], operations: Operations
) -> Iterator[Finding]:
    changed = torch.stack([differing_rows(first, other) for other in repeats]).any(0)
    classes = subject.predictions(first)
    other_class = torch.stack([subject.predictions(other) != classes for other in repeats]).any(0)
    moves = torch.stack([(other - first).double().norm(dim=1) for other in repeats]).amax(0)
    change = float((moves / first.double().norm(dim=1).clamp(min=1e-10)).nanmedian())
    cosine = _agreement(subject.rows((subject.y >= 0).nonzero()[:, 0]))
    averaged = isinstance(subject.model, EOT)
    follows_draw = cosine is not None and cosine < _SAME_DIRECTION
    if averaged and not follows_draw:
        return  # the remedy, averaging, has been applied and suffices
    runner = subject.queries.runner
    batch = runner.batch(subject.x)
    with runner.session(gradients=True):
        everywhere = torch.arange(len(batch), device=batch.device)
        rows = Rows(batch, everywhere)
        where = find_cause(subject.model, subject.queries.logits, rows, rows)
    text = (
        f"{int(changed.sum())} of {len(first)} examples have other logits in {len(repeats)} more passes (median of the "
        f"largest relative changes {change:.2g}), {int(other_class.sum())} another class; the first module that "
        f"differs is {where}"
    )
    if not operations.random:
        text += ", without a random operator of torch: it keeps state from call to call, or draws elsewhere"
    if cosine is not None:
        text += f"; the gradients of two draws have a median cosine of {cosine:.2f}"
    if averaged:
        text += f", although each averages {subject.queries.draws} draws"
    evidence = {
        "changed": int(changed.sum()),
        "examples": len(first),
        "passes": len(repeats),
        "other_class": int(other_class.sum()),
        "relative_change": change if math.isfinite(change) else None,
        "gradient_cosine": cosine,
        "module": where,
        "operations": operations.random,
    }
    yield make_finding("randomized", "masked" if follows_draw else "suspicious", text, evidence)


def _agreement(subject: ExaminedModel) -> float | None:
    """Median cosine between the gradients of repeated randomised passes; None if there are no gradients."""
    if not len(subject):
        return None
    try:
        a, *others = (subject.gradient(subject.x, cross_entropy)[2].double().flatten(1) for _ in range(_REPEATS))
    except NoGradientError:
        return None
    cosines = torch.cat([(a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)) for b in others])
    cosines = cosines[cosines.isfinite()]  # NaN where a gradient is zero
    return float(cosines.median()) if len(cosines) else None


def _batch_dependent(subject: ExaminedModel, logits: Tensor, undecided: dict[str, str]) -> Iterator[Finding]:
    """Compare a few examples' outputs in a batch and alone; if they agree, probe whether rows depend on each other."""
    rows = list(range(min(_ALONE, len(subject))))
    alone = torch.cat([subject.logits(subject.x[i : i + 1]) for i in rows])
    tolerance = subject.queries.runner.unit**0.5
    changed = int(differing_rows(logits[: len(rows)], alone, max(tolerance, LOGIT_TOLERANCE)).sum())
    evidence = {"changed": changed, "examples": len(rows), "batch": len(logits)}
    text = f"{changed} of {len(rows)} examples have other logits in a batch of one than among {len(logits)}"
    if not changed:
        try:
            subject.queries.runner.probe_rows(subject.x)
            return
        except Exception as error:  # a defense may refuse the probe's rows, which are not images
            if not isinstance(error, RowDependenceError):
                if isinstance(error, PyrobustError) or is_out_of_memory(error):
                    raise
                reason = f"the model failed at rows outside of the clip range ({type(error).__name__}: {error})"
                undecided["batch-dependent"] = reason
                return
            text = error.problem
    yield make_finding("batch-dependent", "suspicious", text, evidence)


def _not_finite(logits: Tensor) -> Iterator[Finding]:
    # -inf is the logit of a class that is switched off.
    rows = int((logits.isnan() | (logits == torch.inf)).any(1).sum())
    if rows:
        yield make_finding(
            "not-finite",
            "suspicious",
            f"{rows} of {len(logits)} examples have logits with NaN or +inf",
            {"rows": rows, "examples": len(logits)},
        )


def _dynamic(called: list[str]) -> Iterator[Finding]:
    if called:
        names = list(dict.fromkeys(called))
        text = f"the forward pass calls torch.autograd.{' and torch.autograd.'.join(names)}"
        yield make_finding("dynamic", "suspicious", text, {"calls": names})


def _not_logits(logits: Tensor, operations: Operations) -> Iterator[Finding]:
    """Find outputs that are probabilities, or hard decisions: one value for one class, a smaller one for all others."""
    if not bool(logits.isfinite().all()) or logits.shape[1] < 2:
        return
    high, low = logits.amax(1, keepdim=True), logits.amin(1, keepdim=True)
    evidence = {"examples": len(logits), "classes": logits.shape[1], "operations": operations.steps}
    once = ((logits == high).sum(1) == 1) & ((logits == high) | (logits == low)).all(1) & (high != low)[:, 0]
    alike = bool((high == high[0]).all()) and bool((low == low[0]).all())
    enough = logits.shape[1] > 2 or len(logits) > 2
    if bool(once.all()) and alike and enough and not operations.softmax:
        text = (
            f"all {len(logits)} outputs are {float(high[0]):.3g} for one class and {float(low[0]):.3g} for the others"
        )
        if operations.steps:
            text += f"; the forward pass calls {', '.join(operations.steps)}"
        yield make_finding("arg-max", "masked", text, evidence)
    elif are_probabilities(logits):
        text = f"all {len(logits)} outputs are non-negative and sum to 1"
        yield make_finding("probabilities", "suspicious", text, evidence)
