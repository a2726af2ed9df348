"""Adversarial Robustness Toolbox: PGD in torch, APGD in numpy.

Its l1 and l2 APGD project by rescaling, so an l1 step there does less work than the exact projection. The exact l1
projection it also has takes a Python loop of D turns over the whole batch and is left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from . import Attack, Build, Peer


def peer() -> Peer:
    from art.attacks.evasion import AutoProjectedGradientDescent, ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    def classifier(model: nn.Module, x: Tensor) -> object:
        with torch.no_grad():
            classes = model(x[:1]).shape[1]
        return PyTorchClassifier(
            model,
            nn.CrossEntropyLoss(),
            tuple(x.shape[1:]),
            classes,
            clip_values=(0.0, 1.0),
            device_type="gpu" if x.is_cuda else "cpu",
        )

    def pgd(model: nn.Module, epsilon: float, steps: int) -> Attack:
        def attack(x: Tensor, y: Tensor) -> object:
            method = ProjectedGradientDescentPyTorch(
                classifier(model, x),
                norm=math.inf,
                eps=epsilon,
                eps_step=epsilon / 4,
                max_iter=steps,
                num_random_init=1,
                batch_size=len(x),
                verbose=False,
            )
            return method.generate(x.cpu().numpy(), y.cpu().numpy())

        return attack

    def apgd(norm: float) -> Build:
        def build(model: nn.Module, epsilon: float, steps: int) -> Attack:
            def attack(x: Tensor, y: Tensor) -> object:
                method = AutoProjectedGradientDescent(
                    classifier(model, x),
                    norm=norm,
                    eps=epsilon,
                    eps_step=2 * epsilon,
                    max_iter=steps,
                    nb_random_init=1,
                    batch_size=len(x),
                    verbose=False,
                )
                return method.generate(x.cpu().numpy(), y.cpu().numpy())

            return attack

        return build

    return Peer(
        "ART",
        attacks={"pgd-linf": pgd, "apgd-linf": apgd(math.inf), "apgd-l2": apgd(2), "apgd-l1": apgd(1)},
    )
