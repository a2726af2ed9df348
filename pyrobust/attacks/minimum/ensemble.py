"""An ensemble of minimum-norm attacks, which keeps the nearest point that any of them finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import (
    NORMS,
    AttackNormName,
    NormLike,
    Numbers,
    attack_norm_name,
    box_radii,
    choice,
    float_tensor,
    items,
)
from pyrobust.clip import OMITTED, ClipArgument, joined, need_range
from pyrobust.errors import InputError
from pyrobust.runner import Classifier, Progress, evaluation_mode

from ..engine.base import Ensemble
from ..engine.levels import GridLike
from ..engine.settings import Converted, setting
from ..engine.state import AttackState
from .boundary import leads, rivals
from .carlini_wagner import CarliniWagner
from .ddn import DDN
from .deepfool import DeepFool
from .ead import EAD
from .engine import MinimumNormAttack
from .fab import FAB
from .fmn import FMN
from .nearest import Nearest
from .result import MinimumNorm
from .sampling import Sampling
from .sigma_zero import SigmaZero

#: The attacks by name.
ATTACKS: dict[str, type[MinimumNormAttack]] = {
    "fab-t": FAB,
    "fmn": FMN,
    "ddn": DDN,
    "deepfool": DeepFool,
    "cw": CarliniWagner,
    "ead": EAD,
    "sigma-zero": SigmaZero,
    "sampling": Sampling,
}
#: The attacks that an ensemble runs by default, in order.
DEFAULTS: dict[AttackNormName, tuple[str, ...]] = {
    "linf": ("fmn", "fab-t", "sampling"),
    "l2": ("ddn", "fab-t", "fmn", "sampling"),
    "l1": ("fmn", "fab-t", "sampling"),
    "l0": ("sigma-zero", "fmn"),
}
# FMN and DDN come first: within 30 steps the median distance is near the final one. Then come long runs of FAB from x,
# and short runs of FMN from random points: if the gradients at x do not point to the nearest boundary, starts matter
# more than steps.
_BUDGETS: dict[str, dict[str, Any]] = {"fmn": {"steps": 30, "restarts": 10}, "ddn": {"steps": 30}}
# Largest number of coordinates for which the default attacks sample: with more, the ball would not be covered.
_SAMPLED = 8
# Number of classes whose hyperplanes give the first points in l0.
_RIVALS = 9


class MinimumNormEnsemble(Ensemble, MinimumNormAttack):
    """Runs minimum-norm attacks one after the other and keeps the nearest point of each example.

    In linf and l1, the default attacks are FMN with 30 steps from x, FAB toward nine classes, and FMN from nine random
    points. In l2, DDN with 30 steps runs before these. In l0, the default attacks are σ-zero and FMN. Before them, a
    search takes each linearized boundary in turn and moves coordinates to an end of the clip range, as few as needed.
    In the other norms, random points are also tried if inputs have at most eight coordinates, because 2096 points, with
    one forward pass each, cover such a small space. DeepFool, CW and EAD are slower or weaker than the default attacks
    and run only on request.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.
        attacks: names of attacks that support the norm, in the order in which they run: any of "fab-t", "fmn", "ddn",
            "deepfool", "cw", "ead", "sigma-zero" and "sampling". FMN's random starts come last. Default: the attacks
            named above.

    Attributes:
        attacks: dictionary from names to attacks, in the order in which they run; the attacks' settings may be changed.

    Raises:
        InputError: a value out of range; no attack; or an attack that is unknown, repeated, or does not support the
            norm.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> result = MinimumNormEnsemble(model, norm="l2").minimum(torch.tensor([[0.7, 0.5]]), torch.tensor([0]))
    >>> print(round(float(result.distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    _elementwise = NORMS

    attacks: Converted[dict[str, Any], Sequence[str] | None] = setting(default=None, stored=False)

    def _constructed(self) -> None:
        chosen: Any = self.attacks
        names = DEFAULTS[self.norm] if chosen is None else _checked(chosen, self.norm)
        if names[0] == "sampling":  # if it runs later, it samples around the other attacks' points
            need_range("sampling as the first attack", joined(self.clip_min, self.clip_max))
        budgets = _BUDGETS | ({"sampling": {"coordinates": _SAMPLED}} if chosen is None else {})
        options: dict[str, Any] = {
            "device": self._chosen_device,
            "clip": joined(self.clip_min, self.clip_max),
            "grid": self.grid,
            "seed": self.seed,
        }
        vars(self)["attacks"] = {
            name: ATTACKS[name](self.model, self.epsilon, self.norm, **budgets.get(name, {}), **options)
            for name in names
        }

    def _names(self) -> tuple[str, ...]:
        return tuple(self.attacks)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        if self.norm == "l0":
            for gradient in state.gradients(state.x, leads(state, rivals(state, _RIVALS)))[2]:
                nearest.saturate(state, gradient)
        stages = [(number, attack._stages()) for number, attack in enumerate(self.attacks.values())]
        for stage in range(max(len(blocks) for _, blocks in stages)):
            for number, blocks in stages:
                nearest.attack = number
                for search in blocks[stage : stage + 1]:
                    search(state, nearest)


def minimum_norm(
    model: Classifier,
    x: Numbers,
    y: Numbers,
    norm: NormLike = "linf",
    *,
    clip_min: float = 0.0,
    clip_max: float = 1.0,
    clip: ClipArgument = OMITTED,
    grid: GridLike = None,
    box: Numbers | None = None,
    attacks: Sequence[str] | None = None,
    targeted: bool = False,
    target_labels: Tensor | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    progress: bool | Progress = False,
) -> MinimumNorm:
    """Find the nearest adversarial example of each input with an ensemble of minimum-norm attacks.

    The distances are upper bounds on the distances to the decision boundary; the whole curve of robust accuracy over
    epsilon follows from them (``MinimumNorm.robust_accuracy``).

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        x: [N, ...], float, finite, in [clip_min, clip_max].
        y: [N], integers, the labels.
        norm: "linf", "l2", "l1" or "l0" (number of changed coordinates).
        clip_min: smallest valid input value.
        clip_max: largest valid input value.
        clip: (clip_min, clip_max), replacing the two arguments; None for no limit.
        grid: step of the values that an image file can hold, such as "1/255", see ``AdversarialAttack``.
        box: in linf, radii of features or other elements, in a shape that broadcasts to an example: finite, at least 0
            and not all zero. Distances are then measured in units of these radii, ``max |δᵢ| / boxᵢ``, and elements of
            radius 0 stay as they are.
        attacks: names of attacks, see ``MinimumNormEnsemble``.
        targeted: an adversarial example is one that the model assigns to the target label, rather than to any class
            other than y.
        target_labels: [N], integers, required with targeted=True.
        device: where to run; default: the device of the model's first parameter, else the CPU.
        seed: random seed, in [0, 2**64).
        batch_size: rows per forward pass; default: found so that it fits in memory.
        dtype: of the batches, see ``pyrobust.runner.Runner``.
        memory_format: of the batches, see ``pyrobust.runner.Runner``.
        progress: True for a progress bar on the terminal, or a function of (examples done, examples).

    Returns:
        The points, and their exact distances, rounded up to float64.

    Raises:
        InputError: mismatched shapes; values or labels out of range; or an unknown norm or attack.
        InputTypeError: images that are not float, or labels that are not integers.
        ModelError: a model that does not return logits, or logits without a gradient.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.75, 0.5], [0.5, 0.75]]), torch.tensor([0, 0])
    >>> result = minimum_norm(model, x, y)
    >>> [round(distance, 3) for distance in result.distance.tolist()], result.found_by[1]
    ([0.125, 0.0], 'clean')
    """
    elements = None
    if box is not None:
        if grid is not None:
            raise InputError("box", "none with a grid", "one", "its points are multiples of one step")
        elements = box_radii(box, attack_norm_name("norm", norm), float_tensor("x", x).shape[1:])
    with evaluation_mode(model):
        attack = MinimumNormEnsemble(
            model,
            epsilon=8 / 255 if elements is None else elements[None],  # not a limit: without a box it is not used
            norm=norm,
            clip_min=clip_min,
            clip_max=clip_max,
            clip=clip,
            grid=grid,
            device=device,
            attacks=attacks,
            seed=seed,
            batch_size=batch_size,
            dtype=dtype,
            memory_format=memory_format,
            progress=progress,
        )
        return attack.minimum(x, y, targeted, target_labels)


def _checked(names: Iterable[str], norm: AttackNormName) -> tuple[str, ...]:
    """Check the names of attacks: at least one, all known, all different, and all available in the norm."""
    chosen = (names,) if isinstance(names, str) else tuple(items("attacks", names, "names of attacks"))
    checked = tuple(choice("attacks", name, tuple(ATTACKS)) for name in chosen)
    if not checked or len(set(checked)) < len(checked):
        raise InputError("attacks", "one or more distinct attacks", ", ".join(checked) or "none")
    for name in checked:
        if norm not in ATTACKS[name].norms:
            usable = ", ".join(other for other, attack in ATTACKS.items() if norm in attack.norms)
            raise InputError("attacks", problem=f"expected attacks that know {norm}, {usable}; got {name!r}")
    return checked
