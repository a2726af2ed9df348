"""How often an attack succeeds. Over which examples the share is taken is part of each name."""

from __future__ import annotations

from torch import Tensor

from pyrobust.errors import InputError

from .arguments import aligned_classes
from .rate import Rate, estimate_rate


def attack_success_rate(adversarial: Tensor, labels: Tensor, alpha: float = 0.05) -> Rate:
    """Share of all N examples that are wrong after the attack, ``(1/N)·Σ 1[f(x_advᵢ) ≠ yᵢ]``.

    Examples that were wrong before count too: it is 0 only for a perfect classifier.
    ``attack_success_rate_given_correct`` leaves them out.

    Args:
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        labels: [N], integers of at least 0.
        alpha: of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: lengths that do not agree, no example, a value out of range.
        InputTypeError: predictions or labels that are not integer tensors.

    >>> import torch
    >>> float(attack_success_rate(torch.tensor([0, 1, -1, 1]), torch.tensor([0, 0, 0, 0])))
    0.75
    """
    adversarial, labels = aligned_classes(adversarial=adversarial, labels=labels)
    return estimate_rate(int((adversarial != labels).sum()), len(labels), alpha)


def attack_success_rate_given_correct(clean: Tensor, adversarial: Tensor, labels: Tensor, alpha: float = 0.05) -> Rate:
    """Share of the examples right before the attack that are wrong after it.

    ``Σ 1[f(xᵢ) = yᵢ, f(x_advᵢ) ≠ yᵢ] / Σ 1[f(xᵢ) = yᵢ]``. Robust accuracy is clean accuracy times one minus this.

    Args:
        clean: [N], integers of at least -1, the predictions f(x).
        adversarial: [N], likewise, the predictions f(x_adv).
        labels: [N], integers of at least 0.
        alpha: of the confidence interval, in (0, 1).

    Returns:
        Rate, with n the number of examples that were right.

    Raises:
        InputError: no example was right; lengths that do not agree, no example, a value out of range.
        InputTypeError: predictions or labels that are not integer tensors.

    >>> import torch
    >>> clean, adversarial = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    >>> float(attack_success_rate_given_correct(clean, adversarial, torch.tensor([0, 0, 0])))
    0.5
    """
    clean, adversarial, labels = aligned_classes(clean=clean, adversarial=adversarial, labels=labels)
    right = clean == labels
    if not bool(right.any()):
        raise InputError(f"clean: expected an example that is classified right, got none of {len(labels)}")
    return estimate_rate(int((right & (adversarial != labels)).sum()), int(right.sum()), alpha)


def targeted_success_rate(adversarial: Tensor, targets: Tensor, alpha: float = 0.05) -> Rate:
    """Share of all N examples that reach their target, ``(1/N)·Σ 1[f(x_advᵢ) = tᵢ]``.

    Args:
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        targets: [N], integers of at least 0, the classes that the attack was to reach.
        alpha: of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: lengths that do not agree, no example, a value out of range.
        InputTypeError: predictions or targets that are not integer tensors.

    >>> import torch
    >>> float(targeted_success_rate(torch.tensor([3, 1]), torch.tensor([3, 2])))
    0.5
    """
    adversarial, targets = aligned_classes(adversarial=adversarial, targets=targets)
    return estimate_rate(int((adversarial == targets).sum()), len(targets), alpha)
