"""Accuracy and risk, clean and under attack.

Throughout, ``clean`` holds f(x), ``adversarial`` holds f(x_adv) and ``labels`` holds y, one class number per example.
The prediction -1, which ``predicted_classes`` returns for logits that predict no class, is never correct.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import Numbers, float_tensor, shape_text
from pyrobust.errors import InputError

from .arguments import aligned_classes
from .rate import Rate, estimate_rate


def predicted_classes(logits: Numbers) -> Tensor:
    """Predicted class of each row of logits, ``argmaxₖ logits[n, k]``; on a tie, the lowest index.

    If a row contains NaN or +inf, or only -inf, its class is -1, which is never correct.

    Args:
        logits: [N, K], float, K ≥ 1.

    Returns:
        [N], int64, on the logits' device.

    Raises:
        InputError: a wrong shape.
        InputTypeError: logits that are not a float tensor.

    >>> predicted_classes(torch.tensor([[0.1, 0.9], [2.0, 2.0], [float("nan"), 1.0]]))
    tensor([ 1,  0, -1])
    """
    logits = float_tensor("logits", logits)
    if logits.dim() != 2 or logits.shape[1] < 1:
        raise InputError("logits", "[N, K] with K >= 1", shape_text(logits.shape))
    logits = logits.detach()
    largest = logits.amax(dim=1, keepdim=True)  # NaN if the row contains NaN
    index = torch.arange(logits.shape[1], device=logits.device)
    winner = torch.where(logits == largest, index, logits.shape[1]).amin(dim=1)
    return torch.where(largest[:, 0].isfinite(), winner, -1)


def clean_accuracy(clean: Numbers, labels: Numbers, alpha: float = 0.05) -> Rate:
    """Share of correctly classified examples, ``(1/N)·Σ 1[f(xᵢ) = yᵢ]``.

    Args:
        clean: [N], integers of at least -1, the predictions f(x).
        labels: [N], integers of at least 0.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or labels that are not integers, or an empty list.

    >>> float(clean_accuracy(torch.tensor([0, 1, -1, 1]), torch.tensor([0, 1, 1, 0])))
    0.5
    """
    clean, labels = aligned_classes(clean=clean, labels=labels)
    return estimate_rate(int((clean == labels).sum()), len(labels), alpha)


def robust_accuracy(clean: Numbers, adversarial: Numbers, labels: Numbers, alpha: float = 0.05) -> Rate:
    """Share of examples classified correctly with and without the attack, ``(1/N)·Σ 1[f(xᵢ) = yᵢ = f(x_advᵢ)]``.

    The worst case over a ball includes its center (Madry et al., 2018), so an example misclassified without an attack
    is not robust, even if the attack corrects it. The package uses this definition everywhere. The share of all
    examples with a correct prediction at x_adv is a different number. It is larger if the attack corrects a
    misclassified example, and equal otherwise.

    Args:
        clean: [N], integers of at least -1, the predictions f(x).
        adversarial: [N], integers of at least -1, the predictions f(x_adv).
        labels: [N], integers of at least 0.
        alpha: error probability of the confidence interval, in (0, 1).

    Returns:
        Rate. Its value is not a certificate: it is an upper bound on the share of examples without an adversarial
        example.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: predictions or labels that are not integers, or an empty list.

    >>> clean, adversarial = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    >>> float(robust_accuracy(clean, adversarial, torch.tensor([0, 1, 1, 1])))
    0.5
    """
    clean, adversarial, labels = aligned_classes(clean=clean, adversarial=adversarial, labels=labels)
    return estimate_rate(int(robust_examples(clean, adversarial, labels).sum()), len(labels), alpha)


def standard_risk(clean: Numbers, labels: Numbers, alpha: float = 0.05) -> Rate:
    """Risk under the 0-1 loss, ``(1/N)·Σ 1[f(xᵢ) ≠ yᵢ]`` = 1 - clean accuracy.

    Takes the same arguments and raises the same errors as ``clean_accuracy``.

    Returns:
        Rate, whose successes are the misclassified examples.

    >>> standard_risk(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2])).successes
    1
    """
    return _complement(clean_accuracy(clean, labels, alpha))


def robust_risk(clean: Numbers, adversarial: Numbers, labels: Numbers, alpha: float = 0.05) -> Rate:
    """Adversarial risk under the 0-1 loss, ``(1/N)·Σ max(1[f(xᵢ) ≠ yᵢ], 1[f(x_advᵢ) ≠ yᵢ])`` = 1 - robust accuracy.

    Takes the same arguments and raises the same errors as ``robust_accuracy``.

    Returns:
        Rate, whose successes are the examples misclassified with or without the attack. Its value is a lower bound on
        the true adversarial risk.

    >>> robust_risk(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2])).successes
    2
    """
    return _complement(robust_accuracy(clean, adversarial, labels, alpha))


@overload
def robust_examples(clean: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor: ...
@overload
def robust_examples(
    clean: npt.NDArray[np.int64], adversarial: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]: ...
def robust_examples(clean: Any, adversarial: Any, labels: Any) -> Any:
    """Return which examples are robust, bool [N]: the predictions [N] at x and at x_adv both equal the labels [N].

    >>> robust_examples(torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]))
    tensor([False, False,  True])
    """
    return (clean == labels) & (adversarial == labels)


def _complement(rate: Rate) -> Rate:
    return estimate_rate(rate.n - rate.successes, rate.n, rate.alpha)
