"""Success rates of attacks; each name says over which examples the share is taken."""

from __future__ import annotations

from torch import Tensor

from pyrobust.errors import InputError

from .arguments import aligned_classes
from .rate import Rate, estimate_rate


def attack_success_rate(adversarial: Tensor, labels: Tensor, alpha: float = 0.05) -> Rate:
    """Share of all N examples that are misclassified after the attack, ``(1/N)·Σ 1[f(x_advᵢ) ≠ yᵢ]``.

    Includes examples misclassified before the attack, so it is 0 only for a perfect classifier;
    ``attack_success_rate_given_correct`` leaves them out.

    Args:
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        labels: [N], integers of at least 0.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or labels that are not integer tensors.

    >>> import torch
    >>> float(attack_success_rate(torch.tensor([0, 1, -1, 1]), torch.tensor([0, 0, 0, 0])))
    0.75
    """
    adversarial, labels = aligned_classes(adversarial=adversarial, labels=labels)
    return estimate_rate(int((adversarial != labels).sum()), len(labels), alpha)


def attack_success_rate_given_correct(clean: Tensor, adversarial: Tensor, labels: Tensor, alpha: float = 0.05) -> Rate:
    """Share of the initially correct examples that are misclassified after the attack.

    ``Σ 1[f(xᵢ) = yᵢ, f(x_advᵢ) ≠ yᵢ] / Σ 1[f(xᵢ) = yᵢ]``. Robust accuracy is clean accuracy times one minus this.
    Takes the same arguments as ``robust_accuracy``.

    Returns:
        Rate, with n the number of initially correct examples.

    Raises:
        InputError: no example is initially correct; mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or labels that are not integer tensors.

    >>> import torch
    >>> clean, adversarial = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    >>> float(attack_success_rate_given_correct(clean, adversarial, torch.tensor([0, 0, 0])))
    0.5
    """
    clean, adversarial, labels = aligned_classes(clean=clean, adversarial=adversarial, labels=labels)
    correct = clean == labels
    if not bool(correct.any()):
        raise InputError(f"clean: expected at least one correctly classified example, got none of {len(labels)}")
    return estimate_rate(int((correct & (adversarial != labels)).sum()), int(correct.sum()), alpha)


def targeted_success_rate(adversarial: Tensor, targets: Tensor, alpha: float = 0.05) -> Rate:
    """Share of all N examples that reach their target, ``(1/N)·Σ 1[f(x_advᵢ) = tᵢ]``.

    Args:
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        targets: [N], integers of at least 0, the target classes of the attack.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or targets that are not integer tensors.

    >>> import torch
    >>> float(targeted_success_rate(torch.tensor([3, 1]), torch.tensor([3, 2])))
    0.5
    """
    adversarial, targets = aligned_classes(adversarial=adversarial, targets=targets)
    return estimate_rate(int((adversarial == targets).sum()), len(targets), alpha)
