"""``diagnose``: does the failure of attacks on a model mean that the model is robust?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import NORMS, NormLike, Numbers, class_labels, clip_range, positive
from pyrobust.clip import need_range
from pyrobust.errors import InputError, ModelError
from pyrobust.machine import seeded_generators
from pyrobust.runner import Classifier, Progress, evaluation_mode, modules_with_a_mode, reporting

from ..engine.base import read_epsilon
from ..engine.norms import norm_of
from ..engine.queries import Queries
from ..model_checks import CHECKED_EXAMPLES
from ..pgd import PGD
from ..transfer import TransferAttack
from .finding import Diagnosis
from .forward import examine_forward
from .gradient import examine_gradient
from .notes import Notes
from .subject import ExaminedModel
from .trials import Trials

# Steps of the progress bar: two examinations and at most eight attacks.
_STAGES = 10


def diagnose(
    model: Classifier,
    x: Numbers,
    y: Numbers,
    epsilon: float | str | Fraction,
    norm: NormLike = "linf",
    *,
    clip: tuple[float, float] = (0.0, 1.0),
    surrogate: Classifier | Sequence[Classifier] | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    progress: bool | Progress = False,
) -> Diagnosis:
    """Distinguish a robust model from one whose gradients mislead attacks (obfuscated gradients; Athalye et al., 2018).

    Checks AutoAttack's flags (Croce and Hein, 2020), the indicators of attack failure (Pintor et al., 2022) and the
    signs of masked gradients (Athalye et al., 2018; Carlini et al., 2019) in three examinations:

    - the forward pass, on at most 64 examples: outputs that are random, differ in training mode, are NaN, or are
      probabilities or hard decisions instead of logits; or gradients computed inside the forward pass;
    - the gradient, on the same examples: missing, zero, not finite, saturated, or not the model's own. For the last
      check, the margin's change along segments of the ball is compared with the integral of the gradient;
    - attacks, on all examples that the model classifies correctly. It is a sign if one step fools more examples than
      many steps; if queries (Square) or a surrogate's adversarial examples fool more than gradient-based attacks; if
      more steps and restarts fool more than fewer, by at least 5 % of the examples; if the loss does not rise; or if an
      attack on the whole clip range fails. A random model is not attacked here: an attack that averages over more draws
      than another would fool more examples for this reason alone.

    A sign counts only if more than 10 % of the examples show it, with confidence 99 % (exact binomial bound). Whether
    an attack fools more examples than another is decided by an exact paired test, one-sided and Holm-corrected, at
    level 0.01 for all comparisons together (``pyrobust.metrics.paired_test``, ``pyrobust.stats.holm``).

    A module runs in evaluation mode, and every submodule is then put back into its own mode. torch's random generators
    are seeded, and their states are restored at the end.

    Args:
        model: module or callable, [N, ...] → logits [N, K], K ≥ 2, or an object with ``.logits``; an ``EOT`` is
            averaged. It need not be differentiable.
        x: [N, ...], N ≥ 1, float, finite, in the clip range. A hundred examples suffice for most checks; if the model
            classifies fewer than nine correctly, the verdict is "undecided" unless something is found.
        y: [N], integers, the labels.
        epsilon: radius of the ball at which the model is evaluated, above 0: a number, or a fraction such as "8/255".
        norm: "linf", "l2" or "l1".
        clip: smallest and largest valid input value; None is refused, since inputs at both ends are tried.
        surrogate: model or models for the transfer attack, see ``TransferAttack``; default: a small net, trained here
            on the classes that the model predicts at x and near it. A surrogate's logits at x must not be NaN.
        seed: random seed, in [0, 2**64).
        batch_size: rows per forward pass; default: found so that it fits in memory.
        device: where to run; default: the device of the model's first parameter, else the CPU.
        dtype: of the batches, see ``pyrobust.runner.Runner``.
        memory_format: of the batches, see ``pyrobust.runner.Runner``.
        progress: True for a progress bar on the terminal, or a function of (stages done, stages).

    Returns:
        Diagnosis: the verdict, and each finding with its evidence, meaning, remedy and source.

    Raises:
        InputError: no examples, mismatched shapes, values or labels out of range.
        InputTypeError: an argument of the wrong type.
        ModelError: a model that does not return logits, or a surrogate that returns NaN.

    >>> from pyrobust.zoo import load_data, load_model
    >>> digits, net = load_data("digits"), load_model("zoo:digits-smooth-0.25")
    >>> def quantized(x):
    ...     return net((8 * x).round() / 8)
    >>> diagnosis = diagnose(quantized, digits.x[:20], digits.y[:20], epsilon=0.1)
    >>> diagnosis.verdict, diagnosis.findings[0].name, diagnosis.findings[0].evidence["cause"]
    ('masked', 'zero-gradient', 'piecewise constant')
    """
    training = [module for module in modules_with_a_mode(model) if module.training]
    radius = positive("epsilon", read_epsilon(epsilon))
    need_range("a diagnosis", clip)
    clip = clip_range("clip", clip)
    ball = norm_of(norm, NORMS)
    options: dict[str, Any] = {
        "device": device,
        "seed": seed,
        "batch_size": batch_size,
        "dtype": dtype,
        "memory_format": memory_format,
    }
    # This checks all arguments that attacks share.
    with evaluation_mode(model):
        checked = PGD(model, radius, norm, clip=clip, **options)
        transfer = None
        if surrogate is not None:
            transfer = TransferAttack(model, radius, norm, clip=clip, surrogate=surrogate, **options)
    x = checked._examples(x)
    y = class_labels("y", y, len(x))
    if not len(x):
        raise InputError("x", "at least one example", "none")
    queries = Queries(checked.runner)
    whole = ExaminedModel(
        model=model,
        queries=queries,
        x=x,
        y=y,
        norm=ball,
        epsilon=min(radius, ball.diameter(x[0].numel(), checked.clip_max - checked.clip_min)),
        lower=checked.clip_min,
        upper=checked.clip_max,
        options=options,
        generator=torch.Generator("cpu").manual_seed(checked.seed % (1 << 63)),
    )
    notes = Notes()
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        evaluation_mode(model),
        seeded_generators(checked.seed % (1 << 63), checked.runner.device_for(x)),
        reporting(progress, _STAGES) as report,
    ):
        stages = iter(range(1, _STAGES))

        def done() -> None:
            report(next(stages, _STAGES))

        if transfer is not None:
            imitated = whole.predictions(replace(whole, queries=Queries(transfer._surrogate)).logits(x))
            if bool((imitated < 0).any()):
                raise ModelError(
                    f"surrogate: expected logits without NaN and +inf, got some at {int((imitated < 0).sum())} of "
                    f"{len(x)} examples; pass a surrogate that works at x"
                )
        correct = queries.judge.correct(x, y).nonzero()[:, 0]
        wrong = torch.tensor(sorted({*range(len(x))} - {*correct.tolist()}), dtype=torch.int64)
        few = whole.rows(torch.cat([correct, wrong])[:CHECKED_EXAMPLES])
        logits = few.logits(few.x)
        if logits.shape[1] < 2:
            raise ModelError(f"model: expected logits of at least two classes, got shape {tuple(logits.shape)}")
        few.y = few.predictions(logits)
        forward = examine_forward(few, training)
        notes.findings += forward.findings
        notes.undecided |= forward.undecided
        done()
        predicted = few.rows((few.y >= 0).nonzero()[:, 0])
        differentiable = bool(len(predicted)) and examine_gradient(predicted, forward, notes)
        if not len(predicted):
            notes.undecided["gradient"] = "no example has a predicted class"
        done()
        fooled: dict[str, Tensor] = {}
        if forward.random:
            notes.undecided["attacks"] = "the model is random: an attack with more draws of its noise would win"
        elif not len(correct):
            notes.undecided["attacks"] = "no example is classified correctly; check y and the scale of x"
        else:
            trials = Trials(whole.rows(correct), notes, done)
            trials.run(differentiable=differentiable, classes=logits.shape[1], surrogate=surrogate)
            fooled = trials.fooled
        report(_STAGES)
    return Diagnosis(
        findings=tuple(notes.findings),
        undecided=notes.undecided,
        fooled={name: int(rows.sum()) for name, rows in fooled.items()},
        examples=len(x),
        correct=len(correct),
        epsilon=radius,
        norm=whole.norm.name,
    )
