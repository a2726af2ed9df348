"""Empirical robustness of a data set under any attack function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from pyrobust.attacks import AdversarialAttack
from pyrobust.checks import as_tensor, non_negative
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.single_examples import SingleModel, check_adversarial_input, single_examples

# Names that the budget may have as a parameter of an attack function.
_BUDGETS = ("budget", "epsilon", "eps")


class AttackFunction(Protocol):
    """An attack on one example."""

    def __call__(self, model: Any, input: Any, true_label: Any, /, *, budget: float) -> Any:
        """Return an adversarial input for an input and its label, in the same form as the input."""
        ...


#: What ``calculate_empirical_robustness`` takes as an attack.
Attack: TypeAlias = AttackFunction | AdversarialAttack | type[AdversarialAttack]


def calculate_empirical_robustness(model: Any, dataset: Iterable[Any], attack_fn: Attack, epsilon: float) -> float:
    """Compute the share of correctly classified examples that the model still classifies correctly under attack.

    The share is ``Σ 1[f(xᵢ) = yᵢ = f(x_advᵢ)] / Σ 1[f(xᵢ) = yᵢ]``, with ``x_advᵢ = attack_fn(model, xᵢ, yᵢ,
    budget=epsilon)`` for correctly classified i only. The attack defines what its budget means, such as a norm of
    images or a number of words, so its perturbations are not checked. Every example runs through the model by itself,
    so that no result depends on other examples. A module runs in evaluation mode.

    An example from a batch, and a tensor input of a model that is called, is passed in a batch of one, [1, ...]. Any
    other input, such as a tensor of a pair (x, y) for ``predict``, is passed alone, as the data set yields it. If the
    model fails on the first example in that form, or returns no batch for a batch of one, the other form is tried. The
    form that works for the first example is used for all examples. The attack gets the input and the label in the form
    that the model takes. If the input is a tensor in a batch of one, an integer label becomes int64 [1].

    Args:
        model: a callable, a module, or an object with ``predict``. It returns logits or a label. Logits are a float
            tensor or array [1, K] or [K], an object with ``.logits``, or a dict with "logits". A label is any Python
            value, or a tensor or array of one element, 0-d or 1-d. The predicted label is compared with the true label
            by ``==``. The result of ``predict`` is always a label. If the input contains tensors, a module is called
            directly, even if it has ``predict``.
        dataset: an iterable of pairs (x, y) of an example and its label, of any types; an iterable of batches; or one
            batch (x, y) of tensors or arrays. A pair counts as a batch if it comes from a ``DataLoader`` with a batch
            size, or if y is a tensor or array [N], or a list of labels for a tensor or array x. If the model itself is
            called, a tensor, and tensors in a dict or tuple, are moved to its device; a float tensor that is itself the
            input is also converted to the model's dtype. If the model returns logits, labels are class numbers.
        attack_fn: called as ``attack_fn(model, input, true_label, budget=epsilon)`` on a copy of the input, with
            gradients enabled. If the parameter's name is epsilon or eps, ``epsilon=`` or ``eps=`` replaces ``budget=``.
            The function returns an adversarial input, which must be a tensor of the same shape if the input is a
            tensor. A subclass of ``AdversarialAttack`` is also allowed, and is instantiated as ``attack_fn(model,
            epsilon=epsilon)``. An instance of such a class must have been made with this epsilon.
        epsilon: the budget, at least 0.

    Returns:
        A share in [0, 1].

    Raises:
        InputError: no example, or none classified correctly; an x_adv with NaN or inf, or with another shape than the
            input; a label or epsilon out of range; an attack made with a different epsilon.
        InputTypeError: items of the data set that are not pairs (x, y); a label that is not an integer although the
            model returns logits; an attack_fn that is not callable, takes no budget, or returns the wrong type.
        ModelError: a model that returns neither logits nor a label for an example.

    >>> model = lambda x: torch.cat([-x, x], dim=1)  # class 1 where x > 0
    >>> data = [(torch.tensor([0.3]), 1), (torch.tensor([-0.1]), 0), (torch.tensor([0.2]), 0)]
    >>> def attack(model, input, true_label, *, budget):
    ...     return input - budget * input.sign()
    >>> calculate_empirical_robustness(model, data, attack, 0.2)
    0.5
    >>> class Sentiment:
    ...     def predict(self, text):
    ...         return "positive" if "good" in text else "negative"
    >>> reviews = [("a good film", "positive"), ("good, so good", "positive"), ("dull", "negative")]
    >>> swap = lambda model, text, label, budget: text.replace("good", "fine", budget)
    >>> round(calculate_empirical_robustness(Sentiment(), reviews, swap, 1), 3)
    0.667
    """
    if not callable(attack_fn):
        raise InputTypeError("attack_fn", "a callable", type(attack_fn).__name__)
    non_negative("epsilon", epsilon)
    subject = SingleModel(model)
    attack = _attack(attack_fn, model, epsilon)
    total = correct = robust = 0
    for example in single_examples("dataset", dataset):
        total += 1
        if not subject.correct(example):
            continue
        correct += 1
        x, y = example.form(bool(subject.batched))
        x = subject.device_input(x)
        if isinstance(x, torch.Tensor) and isinstance(y, np.ndarray | np.generic):  # tensor labels, array inputs
            number = as_tensor(y)
            y = y if number is None else number
        y = y.to(x.device) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else y
        # A session for each example restores evaluation mode if an attack changes it.
        with subject.session(), torch.enable_grad():
            x_adv = attack(x, y)
        robust += subject.correct_at(check_adversarial_input(x_adv, x), example.label)
    if total == 0:
        raise InputError("dataset", "at least one example", "none")
    if correct == 0:
        raise InputError("dataset", "an example that the model classifies correctly", f"none of {total}")
    return robust / correct


def _attack(attack_fn: Any, model: Any, epsilon: float) -> Callable[[Any, Any], Any]:
    """Return the attack as a function of an input and its label."""
    if isinstance(attack_fn, type) and issubclass(attack_fn, AdversarialAttack):
        return attack_fn(model, epsilon=epsilon)
    if isinstance(attack_fn, AdversarialAttack):
        if not isinstance(attack_fn.epsilon, float) or attack_fn.epsilon != float(epsilon):
            raise InputError(
                "attack_fn",
                f"an attack made with epsilon {epsilon}",
                f"one of {attack_fn.epsilon}",
                "pass the class, or the attack's own epsilon",
            )
        return attack_fn
    name = _budget_name(attack_fn)
    return lambda x, y: attack_fn(model, x, y, **{name: epsilon})


def _budget_name(attack_fn: Callable[..., Any]) -> str:
    """Return the keyword by which a function takes its budget."""
    try:
        parameters = inspect.signature(attack_fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return _BUDGETS[0]
    name = next((name for name in _BUDGETS if name in parameters), None)
    if name is None and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return _BUDGETS[0]
    if name is None:
        raise InputTypeError(
            "attack_fn",
            "a function that takes (model, input, true_label, budget=)",
            f"one of ({', '.join(parameters)})",
        )
    return name
