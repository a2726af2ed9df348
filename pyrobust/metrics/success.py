"""Success rates of attacks; the name of each function says over which examples the rate is taken."""

from __future__ import annotations

from pyrobust.checks import Numbers
from pyrobust.errors import InputError

from .accuracy import robust_examples, robust_risk
from .arguments import aligned_classes
from .rate import Rate, estimate_rate


def attack_success_rate(clean: Numbers, adversarial: Numbers, labels: Numbers, alpha: float = 0.05) -> Rate:
    """Share of all N examples that are not robust, ``1 - robust_accuracy``.

    The rate is ``(1/N)·Σ 1[f(xᵢ) ≠ yᵢ or f(x_advᵢ) ≠ yᵢ]``, the same number as ``robust_risk``. An example that is
    misclassified without an attack counts as not robust, even if the attack corrects it, because the ball of the attack
    contains the example itself. The rate is 0 only for a classifier without errors; ``success_rate_on_correct`` leaves
    misclassified examples out.

    Args:
        clean: [N], integers of at least -1, the predictions f(x).
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        labels: [N], integers of at least 0.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or labels that are not integers, or an empty list.

    >>> import torch
    >>> clean, adversarial = torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 1, 0])
    >>> float(attack_success_rate(clean, adversarial, torch.tensor([0, 0, 0, 0])))
    0.5
    """
    return robust_risk(clean, adversarial, labels, alpha)


def success_rate_on_correct(clean: Numbers, adversarial: Numbers, labels: Numbers, alpha: float = 0.05) -> Rate:
    """Share of the correctly classified examples that the attack breaks.

    The rate is ``Σ 1[f(xᵢ) = yᵢ ≠ f(x_advᵢ)] / Σ 1[f(xᵢ) = yᵢ]``. Robust accuracy is clean accuracy times ``1 - rate``.

    Args:
        clean: [N], integers of at least -1, the predictions f(x).
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        labels: [N], integers of at least 0.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate, with n the number of correctly classified examples.

    Raises:
        InputError: no example is classified correctly; mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or labels that are not integers, or an empty list.

    >>> import torch
    >>> clean, adversarial = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    >>> float(success_rate_on_correct(clean, adversarial, torch.tensor([0, 0, 0])))
    0.5
    """
    clean, adversarial, labels = aligned_classes(clean=clean, adversarial=adversarial, labels=labels)
    correct = int((clean == labels).sum())
    if not correct:
        raise InputError("clean", "at least one correctly classified example", f"none of {len(labels)}")
    return estimate_rate(correct - int(robust_examples(clean, adversarial, labels).sum()), correct, alpha)


def targeted_success_rate(adversarial: Numbers, targets: Numbers, alpha: float = 0.05) -> Rate:
    """Share of all N examples that reach their target, ``(1/N)·Σ 1[f(x_advᵢ) = tᵢ]``.

    Args:
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        targets: [N], integers of at least 0, the target classes of the attack.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or targets that are not integers, or an empty list.

    >>> import torch
    >>> float(targeted_success_rate(torch.tensor([3, 1]), torch.tensor([3, 2])))
    0.5
    """
    adversarial, targets = aligned_classes(adversarial=adversarial, targets=targets)
    return estimate_rate(int((adversarial == targets).sum()), len(targets), alpha)
