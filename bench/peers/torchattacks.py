"""torchattacks: PGD, and APGD for linf and l2."""

from __future__ import annotations

from torch import nn

from . import Attack, Build, Peer


def peer() -> Peer:
    import torchattacks

    def pgd(model: nn.Module, epsilon: float, steps: int) -> Attack:
        return torchattacks.PGD(model, eps=epsilon, alpha=epsilon / 4, steps=steps)

    def apgd(norm: str) -> Build:
        def build(model: nn.Module, epsilon: float, steps: int) -> Attack:
            return torchattacks.APGD(model, norm=norm, eps=epsilon, steps=steps)

        return build

    return Peer("torchattacks", attacks={"pgd-linf": pgd, "apgd-linf": apgd("Linf"), "apgd-l2": apgd("L2")})
