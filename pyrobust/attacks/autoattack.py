"""AutoAttack: an ensemble of attacks, each on the examples that withstood those before."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import summary
from pyrobust.errors import InputError
from pyrobust.runner import Classifier, Progress, Runner, reporting

from .arguments import batch_on, image_indices, labels
from .autoattack_versions import VERSIONS, checked_names, published_attack
from .base import AdversarialAttack
from .engine import BatchAttack, Callback
from .queries import Queries

logger = logging.getLogger(__name__)

#: (attack or "clean", which examples [N] still withstand, x_adv [N, ...] so far): called after each attack.
AfterAttack: TypeAlias = Callable[[str, Tensor, Tensor], None]
# Examples on which the model is checked, how far logits may be apart that should be the same, relative to their length,
# and by how much the accuracy may fall in a score-based attack that comes after gradient-based ones.
_CHECKED = 64
_SAME = 1e-4
_SUSPECT = 0.002


@dataclass(frozen=True)
class AutoAttackResult:
    """What each attack did.

    Attributes:
        broken_by: [N], the attack that fooled the model on each example; "clean" where the model is wrong from the
            start, None where it withstood.
        accuracy: "clean" → accuracy on the examples; then, in their order, each attack → accuracy that is left after
            it.
        forwards: rows pushed through the model.
    """

    broken_by: tuple[str | None, ...]
    accuracy: dict[str, float]
    forwards: int

    @property
    def robust_accuracy(self) -> float:
        """The share of the examples that withstood all attacks."""
        return list(self.accuracy.values())[-1]

    def __repr__(self) -> str:
        return summary(self, examples=len(self.broken_by), accuracy=self.accuracy, forwards=self.forwards)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists.

        >>> AutoAttackResult(("clean", None), {"clean": 0.5, "square": 0.5}, 10).to_dict()["robust_accuracy"]
        0.5
        """
        return {
            "broken_by": list(self.broken_by),
            "accuracy": dict(self.accuracy),
            "robust_accuracy": self.robust_accuracy,
            "forwards": self.forwards,
        }


class AutoAttack(AdversarialAttack):
    """AutoAttack (Croce and Hein, 2020; for l1 Croce and Hein, 2021), with the published attacks and budgets.

    - "standard": APGD on the cross entropy (one run; l1: five); APGD on the targeted DLR loss, nine target classes (l1:
      five); FAB-T, nine target classes; Square, 5000 queries. All gradient-based attacks take 100 steps.
    - "plus": APGD on the cross entropy and on the DLR loss, five runs each; FAB on all classes, five runs; Square; APGD
      and FAB on nine target classes.
    - "rand", for randomised models: APGD on the cross entropy and on the DLR loss, averaged over 20 draws a step. A
      model that is an ``EOT`` keeps its number of draws.

    The DLR loss needs three classes and its targeted forms four. With three, "apgd-t" gives way to "apgd-dlr"; with two
    both are left out, for there the cross entropy's gradient has the direction of any margin's. Where targeted,
    "apgd-t" is "apgd-dlr" towards the target.

    Logged as warnings, for they make the result unreliable: an attack gives way; the model gives other logits the
    second time (use "rand"); its outputs are probabilities; Square breaks more than 0.2 % of the examples after
    gradient-based attacks.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        epsilon: radius of the ball, a number or a tensor [N].
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest.
        device: where to run.
        version: "standard", "plus" or "rand"; decides the attacks and their budgets.
        attacks_to_run: names of "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t" and "square", in place of the
            version's.
        progress: True for a bar on the terminal, or a function of (examples done, examples).
        callback: called with (row, success, x_adv) for each example when it is done.
        after_attack: called with ("clean", standing [N], x_adv) before the first attack and with
            (name, standing, x_adv) after each.
        options: as of ``BatchAttack``: seed, batch_size, dtype, memory_format.

    Attributes:
        attacks: name → attack, in their order; their settings may be changed, and entries removed.
        result: of the last ``generate``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus())
    >>> _ = model[0].load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> attack = AutoAttack(model, epsilon=0.25, attacks_to_run=["apgd-ce", "fab-t"])
    >>> x_adv = attack.generate(torch.tensor([[0.75, 0.5], [0.5, 0.75]]), torch.tensor([0, 0]))
    >>> attack.result.broken_by, attack.result.robust_accuracy
    (('apgd-ce', 'clean'), 0.0)
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: str = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        version: str = "standard",
        attacks_to_run: Sequence[str] | None = None,
        progress: bool | Progress = False,
        callback: Callback | None = None,
        after_attack: AfterAttack | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, epsilon, norm, clip_min, clip_max, device)
        if version not in VERSIONS:
            raise InputError(f"version: expected one of {', '.join(VERSIONS)}, got {version!r}")
        self.version = version
        self.progress = progress
        self.callback = callback
        self.after_attack = after_attack
        self.attacks: dict[str, BatchAttack] = {}
        running = {name: options.get(name) for name in ("batch_size", "dtype", "memory_format")}
        self.runner = Runner(model, device=device, **running)
        options |= {"clip_min": clip_min, "clip_max": clip_max, "device": device}
        for name in checked_names(VERSIONS[version] if attacks_to_run is None else attacks_to_run):
            self.attacks[name] = published_attack(name, model, self.epsilon, self.norm, version, options)
        self.result: AutoAttackResult | None = None

    def generate(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        epsilon: float | Tensor | None = None,
        indices: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """The adversarial examples; ``result`` tells which attack found which.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: success is that the model says the target label, rather than anything but y.
            target_labels: [N], integers, needed where targeted and used only there.
            epsilon: a number or [N], in this call; default: the attack's.
            indices: [N], the index of each example in its data set, which its random numbers depend on; default
                0 … N - 1.

        Returns:
            [N, ...], of x's dtype and device: x itself where the model was wrong from the start or withstood.

        Raises:
            InputError: shapes that do not agree, values, labels or indices out of range, no target labels, or
                a model with too few classes for every attack.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits, or logits without a gradient.
        """
        x = self._examples(x)
        y = labels("y", y, len(x))
        if targeted:
            if target_labels is None:
                raise InputError("target_labels: expected one for each example where targeted, got None")
            y = labels("target_labels", target_labels, len(x))
        if not len(x):
            self.result = None
            return x.clone()
        radius, index = self._epsilons(len(x), epsilon), image_indices(indices, len(x))
        queries = Queries(self.runner)
        attacks = self._able(self._check_model(queries, x), targeted)
        x_adv = x.clone()
        broken_by: list[str | None] = [None] * len(x)
        standing = self._right(queries, x, y, targeted=targeted)
        accuracy: dict[str, float] = {}
        forwards = 0

        def stage(name: str) -> None:
            accuracy[name] = _share(standing)
            if self.after_attack is not None:
                self.after_attack(name, standing.clone(), x_adv)

        def done(row: int, name: str | None) -> None:
            broken_by[row] = name
            if self.callback is not None:
                self.callback(row, name is not None, x_adv[row])

        with reporting(self.progress, len(x)) as report:
            for row in (~standing).nonzero()[:, 0].tolist():
                done(row, "clean")
            stage("clean")
            logger.info("clean accuracy %.2f %%", 100 * accuracy["clean"])
            for name, attack in attacks.items():
                rows = standing.nonzero()[:, 0]
                report(len(x) - len(rows))
                if not len(rows):
                    break
                fooled = _run(attack, x, y, rows, radius, index, targeted, x_adv)
                forwards += attack.forwards
                standing[fooled] = False
                for row in fooled.tolist():
                    done(row, name)
                stage(name)
                logger.info(
                    "%s: %d of %d broken, robust accuracy %.2f %%", name, len(fooled), len(rows), 100 * accuracy[name]
                )
            for row in standing.nonzero()[:, 0].tolist():
                done(row, None)
            report(len(x))
        self.result = AutoAttackResult(tuple(broken_by), accuracy, forwards + queries.forwards)
        _check_square(self.result)
        return x_adv

    def _able(self, classes: int, targeted: bool) -> dict[str, BatchAttack]:
        """The attacks that can run with so many classes."""
        dlr = 4 if targeted else 3
        able: dict[str, BatchAttack] = {}
        for name, attack in self.attacks.items():
            if name == "apgd-t" and (targeted or classes < 4):
                if classes >= dlr and "apgd-dlr" not in self.attacks:
                    gentler: Any = copy.copy(attack)
                    gentler.loss = "dlr"
                    able["apgd-dlr"] = gentler
                if not targeted:
                    logger.warning("apgd-t needs four classes: left out, or apgd-dlr in its place, with %d", classes)
            elif name == "apgd-dlr" and classes < dlr:
                logger.warning("apgd-dlr needs %d classes: left out with %d", dlr, classes)
            else:
                able[name] = attack
        if not able:
            raise InputError(
                f"attacks_to_run: expected an attack that can run with {classes} classes, such as apgd-ce, "
                f"got {', '.join(self.attacks) or 'none'}"
            )
        return able

    def _check_model(self, queries: Queries, x: Tensor) -> int:
        """The number of classes; warns of what makes the result unreliable."""
        batch = batch_on(x[:_CHECKED], self.runner.device_for(x), self.runner.memory_format)
        with self.runner.session(gradients=True):
            first, second = queries.logits(batch).double(), queries.logits(batch).double()
        length = first.norm(dim=1).clamp_(min=1e-10)
        if self.version != "rand" and bool(((first - second).norm(dim=1) > _SAME * length).any()):
            logger.warning('the model gives other logits the second time: it is randomised, use version="rand"')
        if bool((first >= 0).all()) and bool(((first.sum(1) - 1).abs() < 1e-5).all()):
            logger.warning("the model's outputs add up to 1: they are taken for probabilities; return logits instead")
        return first.shape[1]


def _run(
    attack: BatchAttack,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    radius: Tensor,
    index: Tensor,
    targeted: bool,
    x_adv: Tensor,
) -> Tensor:
    """Attacks these rows, writes the points that fool to x_adv, and returns the rows where that is so."""
    fooled: list[int] = []

    def note(row: int, success: bool, point: Tensor) -> None:
        if success:
            fooled.append(row)

    there = rows.to(x.device)
    run = copy.copy(attack)
    run.callback = note
    found = run.generate(x[there], y[rows], targeted, y[rows], epsilon=radius[rows], indices=index[rows])
    attack.forwards = run.forwards
    chosen = torch.tensor(fooled, dtype=torch.int64)
    x_adv[there[chosen.to(x.device)]] = found[chosen.to(x.device)]
    return rows[chosen]


def _check_square(result: AutoAttackResult) -> None:
    others = [rate for name, rate in result.accuracy.items() if name != "square"]
    if len(others) > 1 and result.accuracy.get("square", 1.0) < min(others) - _SUSPECT:
        logger.warning(
            "Square breaks %.2f %% more than the gradient-based attacks: their gradients may be of no use",
            100 * (min(others) - result.accuracy["square"]),
        )


def _share(standing: Tensor) -> float:
    return float(standing.double().mean())
