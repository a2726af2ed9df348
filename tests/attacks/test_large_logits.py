"""Attacks on logits so large that the softmax rounds to 1 and 0."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust import PGD
from pyrobust.zoo import load_data, load_model


def test_large_logits_do_not_stop_pgd() -> None:
    """The textbook gradient is 0 on all but one image; PGD breaks as many images as without the factor."""
    net, digits = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    x, y = digits.x[:100], digits.y[:100]

    def scaled(x: Tensor) -> Tensor:
        return 1e8 * net(x)

    leaf = x.clone().requires_grad_()
    torch.nn.functional.cross_entropy(scaled(leaf), y).backward()
    assert leaf.grad is not None
    assert int(leaf.grad.flatten(1).any(1).sum()) == 1  # that of the image that the net misclassifies
    rates = []
    for classifier in (net, scaled):
        attack = PGD(classifier, epsilon=0.1, steps=20)
        rates.append(attack.evaluate(x, y, attack(x, y))["robust_accuracy"])
    assert abs(rates[0] - 0.83) < 0.011  # rounding may decide an image
    assert abs(rates[1] - rates[0]) < 0.021
