"""torchattacks: PGD, APGD for linf and l2, and minimum-norm attacks in l2."""

from __future__ import annotations

from torch import nn

from . import Attack, Build, BuildMinimum, Peer


def peer() -> Peer:
    import torchattacks

    def pgd(model: nn.Module, epsilon: float, steps: int) -> Attack:
        return torchattacks.PGD(model, eps=epsilon, alpha=epsilon / 4, steps=steps)

    def apgd(norm: str) -> Build:
        def build(model: nn.Module, epsilon: float, steps: int) -> Attack:
            return torchattacks.APGD(model, norm=norm, eps=epsilon, steps=steps)

        return build

    # Its CW has one constant, 1, for all images; its DeepFool attacks one image at a time.
    minimum: dict[tuple[str, str], BuildMinimum] = {
        ("deepfool", "l2"): lambda model, steps: torchattacks.DeepFool(model, steps=steps),
        ("cw", "l2"): lambda model, steps: torchattacks.CW(model, steps=steps),
    }
    attacks = {"pgd-linf": pgd, "apgd-linf": apgd("Linf"), "apgd-l2": apgd("L2")}
    return Peer("torchattacks", attacks=attacks, minimum=minimum)
