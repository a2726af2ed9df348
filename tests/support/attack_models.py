"""Every attack with a few steps, small models whose attacks can be computed by hand, and feasibility in exact terms."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pyrobust.attacks import (
    APGD,
    BIM,
    DDN,
    EAD,
    FAB,
    FGSM,
    FMN,
    PGD,
    SPSA,
    AdversarialAttack,
    BatchAttack,
    CarliniWagner,
    DeepFool,
    HopSkipJump,
    SigmaZero,
    Square,
    SuperDeepFool,
    TransferAttack,
)

Attack = TypeVar("Attack", bound=AdversarialAttack)
NORMS = ["linf", "l2", "l1"]
#: Every attack with a few steps: its class, settings, and the norms that it knows.
ATTACKS: list[tuple[type[BatchAttack], dict[str, Any], tuple[str, ...]]] = [
    (FGSM, {}, ("linf", "l2", "l1")),
    (BIM, {"steps": 4}, ("linf", "l2", "l1", "l0")),
    (PGD, {"steps": 4, "restarts": 2}, ("linf", "l2", "l1", "l0")),
    (PGD, {"steps": 4, "momentum": 0.9, "loss": "dlr"}, ("linf", "l2", "l1")),
    (APGD, {"steps": 6}, ("linf", "l2", "l1")),
    (APGD, {"steps": 5, "loss": "dlr-targeted", "targets": 2}, ("linf", "l2", "l1")),
    (APGD, {"steps": 6, "multi_epsilon": True}, ("l1",)),
    (FAB, {"steps": 2, "targets": 2}, ("linf", "l2", "l1")),
    (FAB, {"steps": 3, "targets": None, "restarts": 2, "nearest": False}, ("linf", "l2", "l1")),
    (Square, {"n_queries": 20}, ("linf", "l2", "l1")),
    (SPSA, {"steps": 3, "samples": 4, "step_size": 0.05}, ("linf", "l2", "l1")),
    (TransferAttack, {"steps": 3, "diversity": 0.7, "resize": 0.6, "kernel": 5}, ("linf", "l2", "l1")),
    (HopSkipJump, {"steps": 2, "samples": 6}, ("linf", "l2")),
    (DeepFool, {"steps": 4}, ("linf", "l2")),
    (SuperDeepFool, {"steps": 4, "rounds": 2}, ("l2",)),
    (CarliniWagner, {"steps": 6, "searches": 2, "constant": 1.0, "learning_rate": 0.1}, ("l2",)),
    (DDN, {"steps": 6}, ("l2",)),
    (FMN, {"steps": 9}, ("linf", "l2", "l1", "l0")),
    (EAD, {"steps": 10, "searches": 3, "constant": 1.0, "learning_rate": 0.1}, ("l1",)),
    (SigmaZero, {"steps": 12}, ("l0",)),
]
CASES = [(attack, options, norm) for attack, options, norms in ATTACKS for norm in norms]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on [0, 1)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def halfspace(weight: Tensor, bias: float) -> nn.Linear:
    """Class 0 where weight·x + bias ≥ 0, else class 1."""
    model = nn.Linear(len(weight), 2).to(weight.dtype)
    with torch.no_grad():
        model.weight.copy_(torch.stack([weight, torch.zeros_like(weight)]))
        model.bias.copy_(torch.tensor([bias, 0.0]))
    return model


def small_net(dtype: torch.dtype = torch.float64, classes: int = 5) -> nn.Sequential:
    """A convolutional net of images [1, 6, 6], random and not robust."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 24), nn.ReLU(), nn.Linear(24, classes)
    )
    return net.to(dtype)


def images(count: int, dtype: torch.dtype = torch.float64, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Images that ``small_net`` classifies correctly, except for every eighth."""
    x, y = _images(count, dtype, classes)
    return x.clone(), y.clone()


@functools.cache
def _images(count: int, dtype: torch.dtype, classes: int) -> tuple[Tensor, Tensor]:
    x = random(count, 1, 6, 6, seed=1, dtype=dtype)
    x[::3] = (x[::3] > 0.5).to(dtype)  # every third image at the ends of the clip range
    with torch.no_grad():
        y = small_net(dtype, classes)(x).argmax(1)
    y[::8] = (y[::8] + 1) % classes
    return x, y


class Recording(nn.Module):
    """Records the batches that a model sees, or only those that are run with gradients."""

    def __init__(self, model: nn.Module, *, gradients: bool = False) -> None:
        super().__init__()
        self.model = model
        self.gradients = gradients
        self.seen: list[Tensor] = []

    @property
    def batches(self) -> list[int]:
        return [len(batch) for batch in self.seen]

    @property
    def rows(self) -> int:
        return sum(self.batches)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.gradients:
            self.seen.append(x.detach().clone())
        output: Tensor = self.model(x)
        return output


def made(
    attack: type[BatchAttack], model: nn.Module, epsilon: float | Tensor, norm: str, **options: Any
) -> BatchAttack:
    """The attack on a model, which is its own surrogate where the attack needs one."""
    if attack is TransferAttack:
        options["surrogate"] = model.model if isinstance(model, Recording) else model
    return attack(model, epsilon, norm, **options)


def shortened(attack: Attack, steps: int) -> Attack:
    """The attack, or all the attacks that it runs, with a few steps or queries."""
    for member in (attack, *getattr(attack, "attacks", {}).values()):
        for name in {"steps", "n_queries"} & vars(member).keys():
            setattr(member, name, steps)
    return attack


def inside(
    x_adv: Tensor, x: Tensor, norm: str, epsilon: float | list[float], low: float = 0.0, high: float = 1.0
) -> bool:
    """Whether every example lies in its ball and the clip range, in exact arithmetic."""
    radii = epsilon if isinstance(epsilon, list) else [epsilon] * len(x)
    for moved, clean, radius in zip(x_adv.flatten(1).tolist(), x.flatten(1).tolist(), radii, strict=True):
        if not all(low <= value <= high for value in moved):
            return False
        sizes = [abs(Fraction(a) - Fraction(b)) for a, b in zip(moved, clean, strict=True) if a != b]
        limit = Fraction(radius)
        if norm == "l2":
            length, limit = sum((size * size for size in sizes), Fraction(0)), limit * limit
        elif norm == "l0":
            length = Fraction(len(sizes))
        else:
            length = max(sizes, default=Fraction(0)) if norm == "linf" else sum(sizes, Fraction(0))
        if length > limit:
            return False
    return True


def fooled_alone(model: nn.Module, x_adv: Tensor, y: Tensor) -> list[bool]:
    """Whether the model misclassifies each example in a batch of its own."""
    with torch.no_grad():
        return [bool(model(x_adv[i : i + 1]).argmax(1) != y[i]) for i in range(len(y))]
