"""Empirical robustness of a data set under anybody's attack function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrobust.checks import non_negative
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.correctness import Judge
from pyrobust.evaluation.datasets import labelled_examples
from pyrobust.runner import Classifier, Runner


class AttackFunction(Protocol):
    """An attack on one example."""

    def __call__(self, model: Any, input: Tensor, true_label: Tensor, /, *, budget: float) -> Tensor:
        """The adversarial input [1, ...] for an input [1, ...] and its label, int64 [1]."""
        ...


def calculate_empirical_robustness(
    model: Classifier, dataset: Iterable[Any], attack_fn: AttackFunction, epsilon: float
) -> float:
    """Share of the rightly classified examples that an attack leaves so.

    ``Σ 1[f(xᵢ) = yᵢ = f(x_advᵢ)] / Σ 1[f(xᵢ) = yᵢ]``, with ``x_advᵢ = attack_fn(model, xᵢ, yᵢ, budget=epsilon)`` for
    the rightly classified i only. Whether the attack keeps to its budget is not checked: what the budget means is its
    own affair. Every example goes through the model alone, so that no result depends on its neighbours in a batch, and
    the model is in evaluation mode meanwhile.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        dataset: yields pairs (x, y): one example [...] and its class, an integer; or a batch [N, ...] and int64 [N]. A
            ``DataLoader``, a ``TensorDataset``, a list or one batch (x, y) will do. x is float, and goes to the model's
            device and dtype.
        attack_fn: called as ``attack_fn(model, input, true_label, budget=epsilon)`` with gradients enabled, the input
            [1, ...], a copy, and true_label int64 [1]; returns the adversarial input, of the input's shape.
        epsilon: the budget, at least 0.

    Returns:
        A share in [0, 1].

    Raises:
        InputError: no example at all, or none that is classified right; an x_adv of another shape, or with NaN or inf;
            a label or epsilon out of range.
        InputTypeError: items that are not such pairs, an attack_fn that is not callable or returns no float tensor.
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
    budget = non_negative("epsilon", epsilon)
    runner = Runner(model)
    judge = Judge(runner)
    total = right = held = 0
    for x, y in labelled_examples("dataset", dataset):
        x = x.detach().to(runner.device_for(x), runner.dtype).unsqueeze(0)
        total += 1
        if not bool(judge.right(x, y, "dataset")[0]):
            continue
        right += 1
        # A session for each: whatever an attack does to the model's mode, the next one finds it in evaluation mode. A
        # copy: an attack may write into its input, which may be the data set's own memory.
        with runner.session(gradients=True), torch.enable_grad():
            x_adv = attack_fn(model, x.clone(), y.to(x.device), budget=epsilon)
        held += int(judge.right(_checked_adversarial(x_adv, x, budget), y, "dataset")[0])
    if total == 0:
        raise InputError("dataset: expected at least one example, got none")
    if right == 0:
        raise InputError(f"dataset: expected an example that the model classifies right, got none of {total}")
    return held / right


def _checked_adversarial(x_adv: Tensor, x: Tensor, epsilon: float) -> Tensor:
    if not isinstance(x_adv, Tensor) or not x_adv.dtype.is_floating_point:
        got = x_adv.dtype if isinstance(x_adv, Tensor) else type(x_adv).__name__
        raise InputTypeError(f"attack_fn: expected it to return a float tensor, got {got}")
    if x_adv.shape != x.shape:
        raise InputError(
            f"attack_fn: expected it to return the input's shape {tuple(x.shape)}, got {tuple(x_adv.shape)}"
        )
    if not bool(torch.isfinite(x_adv).all()):
        raise InputError(f"attack_fn: expected finite values, got NaN or inf with budget {epsilon}")
    return x_adv
