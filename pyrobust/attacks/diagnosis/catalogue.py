"""Known signs that attacks fail for a reason other than robustness, with their meaning, remedy and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .finding import Finding, Severity


class Sign(NamedTuple):
    """An entry of the catalogue."""

    meaning: str
    remedy: str
    source: str


_ATHALYE = "Athalye, Carlini and Wagner, 2018"
_CARLINI = "Carlini et al., 2019"
_PINTOR = "Pintor et al., 2022"
_CROCE = "Croce and Hein, 2020"

_STEPS = "the forward pass is piecewise constant (rounding, thresholds, a code of levels), so that its true gradient is"
_REPLACED = (
    "the outputs change smoothly with the input, but the backward pass does not return their derivative: gradients are "
    "clipped, zeroed, detached or replaced on the way"
)
_REPAIR = "repair the backward pass, or wrap the part in BPDA(module), which gives it the gradient of another function"
_WRAP = "wrap the part in BPDA(module), with backward= where its output has another shape than its input; or attack by"

#: By sign, or by (sign, cause) if the cause decides meaning and remedy.
CATALOGUE: dict[str | tuple[str, str], Sign] = {
    "training-mode": Sign(
        "the module was given in training mode, in which its outputs differ; this diagnosis and the attacks run it in "
        "evaluation mode",
        "call model.eval() before evaluating the model anywhere else",
        _CARLINI,
    ),
    "randomized": Sign(
        "the model is random: its gradients are those of one draw, which the next forward pass does not repeat",
        'average over draws: EOT(model, samples), AutoAttack(version="rand") or --version rand; where dropout was left '
        "on by mistake, switch it off",
        f"{_ATHALYE} (stochastic gradients); {_PINTOR} (unstable predictions)",
    ),
    "batch-dependent": Sign(
        "rows of a batch depend on each other, so that an attack on a batch sees another function than a user who runs "
        "one image",
        "normalize with stored statistics, operate along dimensions 1 on, or pass batch_size=1",
        _CARLINI,
    ),
    "not-finite": Sign(
        "the model returns NaN or infinite logits, which predict no class and count as misclassified",
        "find the operation that overflows or divides by zero, such as with torch.autograd.set_detect_anomaly(True)",
        _PINTOR,
    ),
    "dynamic": Sign(
        "the model computes gradients in its forward pass: it optimizes or purifies its input, and can adapt to an "
        "attack made for a static model",
        "attack the whole process: differentiate through it, or replace the optimization by BPDA(module)",
        f"{_CROCE} (flag of AutoAttack); {_ATHALYE}",
    ),
    "probabilities": Sign(
        "the outputs are probabilities: a softmax before the loss saturates and flattens its gradient",
        "return the logits, from before the softmax",
        f"{_CROCE} (flag of AutoAttack); {_CARLINI}",
    ),
    "arg-max": Sign(
        "the outputs are hard decisions, as of an arg-max: they have two values only, and no gradient",
        "return the logits, from before the arg-max; or attack by queries, with Square or a decision-based attack",
        f"{_ATHALYE} (shattered gradients); {_CROCE}",
    ),
    ("no-gradient", "piecewise constant"): Sign(
        f"{_STEPS} zero, and torch records none", f"{_WRAP} queries, with Square", f"{_ATHALYE} (shattered gradients)"
    ),
    ("no-gradient", "discontinuous"): Sign(
        "the forward pass has jumps, and torch records no gradient",
        f"{_WRAP} queries, with Square",
        f"{_ATHALYE} (shattered gradients)",
    ),
    ("no-gradient", "replaced"): Sign(
        "the outputs change smoothly with the input, but torch cannot differentiate them: the input is detached, or "
        "passes through another library",
        f"compute in torch without detach, no_grad or numpy; {_WRAP} queries, with Square",
        f"{_ATHALYE} (shattered gradients); {_PINTOR} (unavailable gradients)",
    ),
    ("zero-gradient", "piecewise constant"): Sign(
        f"{_STEPS} zero almost everywhere", f"{_WRAP} queries, with Square", f"{_ATHALYE} (shattered gradients)"
    ),
    ("zero-gradient", "discontinuous"): Sign(
        "the forward pass has jumps between parts without any slope",
        f"{_WRAP} queries, with Square",
        f"{_ATHALYE} (shattered gradients)",
    ),
    ("zero-gradient", "replaced"): Sign(
        _REPLACED, _REPAIR, f"{_ATHALYE} (shattered gradients); {_PINTOR} (unavailable gradients)"
    ),
    "constant": Sign(
        "the outputs do not change within the clip range: the model ignores its input",
        "check the model, its weights and the scale of the images",
        _PINTOR,
    ),
    "not-finite-gradient": Sign(
        "the gradient has NaN or infinite elements, as of a square root at 0 or an overflow: attacks skip them",
        "keep the derivative finite, such as √(z + 1e-12), or run the model in float64",
        f"{_ATHALYE} (vanishing and exploding gradients)",
    ),
    ("gradient-mismatch", "piecewise constant"): Sign(
        "the model is piecewise constant, and its backward pass, of some approximation, does not describe its changes",
        "give the part a better approximation: BPDA(module, backward=...)",
        f"{_ATHALYE} (shattered gradients)",
    ),
    ("gradient-mismatch", "discontinuous"): Sign(
        "the model is discontinuous: its outputs jump (k-winners-take-all, sorting, switching, a code of levels), and "
        "the gradient, which does not see the jumps, is noise on the scale of the attack's steps",
        "replace the discontinuous part by a continuous one, BPDA(module, backward=...), or average the gradient over "
        "nearby points: EOT(model, samples, transform=noise); or attack by queries, with Square or SPSA",
        f"{_ATHALYE} (shattered gradients)",
    ),
    ("gradient-mismatch", "replaced"): Sign(_REPLACED, _REPAIR, f"{_ATHALYE} (shattered gradients)"),
    ("gradient-mismatch", "rescaled"): Sign(
        "the gradient is the model's times a constant, as where a part of it is detached: steps of a fixed length, and "
        "those along a normalized gradient, do not notice, but sums of gradients do",
        "repair the backward pass, or check that attacks normalize the gradient, as those of pyrobust do",
        f"{_ATHALYE} (shattered gradients)",
    ),
    "noisy-loss": Sign(
        "the loss has many small waves: its gradient is that of the wave, not of the trend, and steps follow it at "
        "random",
        "average the gradient over nearby points: EOT(model, samples, transform=noise); or attack by queries, with "
        "Square or SPSA",
        f"{_CARLINI}; {_PINTOR}",
    ),
    "saturated-loss": Sign(
        "the logits are so far apart that the gradient of the cross-entropy, softmax(z) − onehot(y), underflows to "
        "exactly zero: attacks that call torch.nn.functional.cross_entropy do not move (those of pyrobust scale the "
        "gradient and do)",
        'divide the logits by a constant, such as 1e4, or use a loss without saturation: loss="margin" or "dlr"',
        f"Carlini and Wagner, 2017; {_CROCE}; {_PINTOR}",
    ),
    "saturated-attack": Sign(
        "an attack that follows torch's cross-entropy stalls where one that scales the gradient does not",
        'divide the logits by a constant, or use loss="margin" or "dlr"; distrust results of other libraries\' attacks',
        f"Carlini and Wagner, 2017; {_CROCE}",
    ),
    "flat-loss": Sign(
        "the attack does not raise the loss above that of the clean image: the gradient leads nowhere",
        "look at the loss along the attack's path; use another loss, a smooth approximation of the model "
        "(BPDA(module, backward=...)), or attack by queries, with Square",
        f"{_PINTOR} (incomplete optimization)",
    ),
    "unbounded": Sign(
        "an attack that may use the whole clip range fails, although it could turn any image into one of another class",
        "take more steps or another loss; if it still fails, gradients are masked: use BPDA, EOT or Square",
        f"{_ATHALYE}; {_CARLINI}; {_PINTOR} (unconstrained attack failure)",
    ),
    "one-step": Sign(
        "a single gradient step fools more than many: the steps are led astray near x",
        "start at random points, average the gradient over nearby points (EOT), or replace the part that causes it "
        "(BPDA)",
        f"{_ATHALYE}; {_CARLINI}",
    ),
    "black-box": Sign(
        "an attack on the logits alone fools examples that withstand the gradients: these mislead",
        "report the black-box attack's result, and repair the gradient: BPDA, EOT, other loss",
        f"{_ATHALYE}; {_CARLINI}; {_CROCE} (flag of AutoAttack)",
    ),
    "transfer": Sign(
        "adversarial examples of a surrogate fool more than the model's own gradients: these mislead",
        "report the transfer attack's result, and repair the gradient: BPDA, EOT, other loss",
        f"{_ATHALYE}; {_CARLINI}; {_PINTOR} (transferability)",
    ),
    "more-steps": Sign(
        "more steps and restarts fool more examples: the attack has not converged, and its budget limits the result",
        "raise steps and restarts until nothing changes",
        f"{_CARLINI}; {_PINTOR} (incomplete optimization)",
    ),
}


def make_finding(
    name: str, severity: Severity, observation: str, evidence: Mapping[str, Any], cause: str | None = None
) -> Finding:
    """Make a finding from the catalogue.

    >>> make_finding("constant", "suspicious", "no change", {}).remedy
    'check the model, its weights and the scale of the images'
    """
    sign = CATALOGUE[name if cause is None else (name, cause)]
    shown = dict(evidence) if cause is None else {**evidence, "cause": cause}
    return Finding(name, severity, observation, shown, **sign._asdict())
