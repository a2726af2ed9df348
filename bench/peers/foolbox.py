"""Foolbox: the projection of its FMN attack, PGD, and minimum-norm attacks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from . import Attack, BuildMinimum, Peer


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

    def build(attack: str, **options: object) -> BuildMinimum:
        def of(model: nn.Module, steps: int) -> Callable[[Tensor, Tensor], Tensor]:
            method = getattr(foolbox.attacks, attack)(steps=steps, **options)

            def run(x: Tensor, y: Tensor) -> Tensor:
                # Asked for no epsilon, it returns the nearest points and judges them itself.
                x_adv: Tensor = method(
                    foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device), x, y, epsilons=None
                )[0]
                return x_adv

            return run

        return of

    minimum = {
        **{("fmn", norm.lower()): build(f"{norm}FMNAttack") for norm in ("L0", "L1", "L2")},
        ("fmn", "linf"): build("LInfFMNAttack"),
        ("deepfool", "l2"): build("L2DeepFoolAttack"),
        ("deepfool", "linf"): build("LinfDeepFoolAttack"),
        ("ddn", "l2"): build("DDNAttack"),
        ("cw", "l2"): build("L2CarliniWagnerAttack"),
        ("ead", "l1"): build("EADAttack", decision_rule="L1"),
    }
    return Peer("Foolbox", projections={"l1_ball": l1_ball}, attacks={"pgd-linf": pgd}, minimum=minimum)
