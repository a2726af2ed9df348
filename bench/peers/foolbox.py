"""Foolbox: the projection of its FMN attack, and PGD."""

from __future__ import annotations

from torch import Tensor, nn

from . import Attack, Peer


def peer() -> Peer:
    import eagerpy
    import foolbox
    from foolbox.attacks.fast_minimum_norm import project_onto_l1_ball

    def l1_ball(v: Tensor, radius: float) -> Tensor:
        return project_onto_l1_ball(eagerpy.astensor(v), eagerpy.astensor(v.new_full((len(v),), radius))).raw

    def pgd(model: nn.Module, epsilon: float, steps: int) -> Attack:
        def attack(x: Tensor, y: Tensor) -> object:
            method = foolbox.attacks.LinfPGD(abs_stepsize=epsilon / 4, steps=steps)
            return method(foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device), x, y, epsilons=epsilon)

        return attack

    return Peer("Foolbox", projections={"l1_ball": l1_ball}, attacks={"pgd-linf": pgd})
