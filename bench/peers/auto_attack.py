"""AutoAttack, the original (Croce and Hein 2020; for l1 "Mind the box", 2021): import name ``autoattack``."""

from __future__ import annotations

from torch import Tensor, nn

from . import Attack, Build, Peer


def peer() -> Peer:
    from autoattack.autopgd_base import APGDAttack, L1_projection

    def l1_ball_box(delta: Tensor, x: Tensor, radius: float) -> Tensor:
        # The original returns an increment of delta.
        return delta + L1_projection(x, delta, radius)

    def apgd(norm: str) -> Build:
        def build(model: nn.Module, epsilon: float, steps: int) -> Attack:
            def attack(x: Tensor, y: Tensor) -> object:
                method = APGDAttack(model, n_iter=steps, norm=norm, eps=epsilon, device=x.device)
                return method.perturb(x, y)

            return attack

        return build

    return Peer(
        "AutoAttack",
        projections={"l1_ball_box": l1_ball_box},
        attacks={"apgd-linf": apgd("Linf"), "apgd-l2": apgd("L2"), "apgd-l1": apgd("L1")},
    )
