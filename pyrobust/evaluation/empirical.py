"""Empirical robustness of a data set under any attack function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrobust.attacks.queries import Queries
from pyrobust.checks import non_negative
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.attack_chunk import check_adversarial
from pyrobust.evaluation.datasets import labelled_examples
from pyrobust.runner import Classifier, Runner


class AttackFunction(Protocol):
    """An attack on one example."""

    def __call__(self, model: Any, input: Tensor, true_label: Tensor, /, *, budget: float) -> Tensor:
        """Return an adversarial input [1, ...] for an input [1, ...] and its label, int64 [1]."""
        ...


def calculate_empirical_robustness(
    model: Classifier, dataset: Iterable[Any], attack_fn: AttackFunction, epsilon: float
) -> float:
    """Compute the share of correctly classified examples that the model still classifies correctly under attack.

    ``Σ 1[f(xᵢ) = yᵢ = f(x_advᵢ)] / Σ 1[f(xᵢ) = yᵢ]``, with ``x_advᵢ = attack_fn(model, xᵢ, yᵢ, budget=epsilon)`` for
    correctly classified i only. The attack defines what its budget means, so its perturbations are not checked. Every
    example runs through the model in a batch of one, so that no result depends on other examples, and the model is in
    evaluation mode.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        dataset: an iterable of pairs (x, y), of one example [...] and its integer class, or of a batch [N, ...] and
            int64 [N]: a ``DataLoader``, a ``TensorDataset``, a list, or one batch (x, y). x is float, and is moved to
            the model's device and dtype.
        attack_fn: called as ``attack_fn(model, input, true_label, budget=epsilon)`` with gradients enabled, a copy of
            the input [1, ...], and true_label int64 [1]; returns an adversarial input of the same shape.
        epsilon: the budget, at least 0.

    Returns:
        A share in [0, 1].

    Raises:
        InputError: no example, or none classified correctly; an x_adv of another shape, or with NaN or inf; a label or
            epsilon out of range.
        InputTypeError: items that are not such pairs; an attack_fn that is not callable, or does not return a float
            tensor.
        ModelError: a model that does not return logits.

    >>> model = lambda x: torch.cat([-x, x], dim=1)  # class 1 where x > 0
    >>> data = [(torch.tensor([0.3]), 1), (torch.tensor([-0.1]), 0), (torch.tensor([0.2]), 0)]
    >>> def attack(model, input, true_label, *, budget):
    ...     return input - budget * input.sign()
    >>> calculate_empirical_robustness(model, data, attack, 0.2)
    0.5
    """
    if not callable(attack_fn):
        raise InputTypeError(f"attack_fn: expected a callable, got {type(attack_fn).__name__}")
    non_negative("epsilon", epsilon)
    runner = Runner(model)
    judge = Queries(runner).judge
    total = right = robust = 0
    for x, y in labelled_examples("dataset", dataset):
        runner.follow(x)
        x = x.detach().to(runner.device_for(x), runner.dtype).unsqueeze(0)
        total += 1
        if not bool(judge.right(x, y, "dataset")[0]):
            continue
        right += 1
        # A session for each example restores evaluation mode if an attack changes it. The copy protects the data set's
        # memory from attacks that write into their input.
        with runner.session(gradients=True), torch.enable_grad():
            x_adv = attack_fn(model, x.clone(), y.to(x.device), budget=epsilon)
        robust += int(judge.right(check_adversarial("attack_fn", "the function", x_adv, x), y, "dataset")[0])
    if total == 0:
        raise InputError("dataset: expected at least one example, got none")
    if right == 0:
        raise InputError(f"dataset: expected an example that the model classifies correctly, got none of {total}")
    return robust / right
