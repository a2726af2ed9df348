"""AutoAttack: an ensemble of attacks, each run on the examples that are still robust."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from pyrobust.arithmetic import GUARANTEE
from pyrobust.checks import NORMS, NormLike, flag, image_indices, summary
from pyrobust.clip import OMITTED, ClipArgument, joined, stored_clip
from pyrobust.errors import InputError, InputTypeError, ModelError, PyrobustError
from pyrobust.frames import Tabular
from pyrobust.runner import Classifier, Progress, reporting

from .apgd import APGD
from .autoattack_versions import Version, attack_names, least_rows, published_attack
from .certified_first import Prover, radius_of_levels
from .engine.base import Ensemble
from .engine.batches import BatchAttack, Callback
from .engine.levels import GridLike
from .engine.queries import Queries
from .engine.settings import setting, state
from .model_checks import CHECKED_EXAMPLES, are_probabilities, differing_rows, watch_for_gradients

logger = logging.getLogger(__name__)

#: (attack or "clean", examples still robust [N], x_adv [N, ...] so far): called after each attack.
AfterAttack: TypeAlias = Callable[[str, Tensor, Tensor], None]
# Drop of accuracy that is suspicious when a score-based attack runs after gradient-based ones.
_SUSPICIOUS_DROP = 0.002


@dataclass(frozen=True)
class Flag:
    """A reason to doubt the result of AutoAttack.

    Attributes:
        name: "randomized", "probabilities", "dynamic", "classes", "zero-gradient" or "square".
        message: the observation, and what to do.
        value: for "classes" the number of classes, for "zero-gradient" the number of examples with a zero gradient, for
            "square" the share of examples that Square broke; else None.
    """

    name: str
    message: str
    value: float | None = None


@dataclass(frozen=True)
class CertifiedFirst:
    """The examples that were proved robust and therefore not attacked.

    Attributes:
        proved: [N], whether each example is proved robust. Proved examples are not attacked, so none can be both proved
            and broken.
        seconds: time that the proofs took.
        rows_each: least number of rows on which the model would have been run to attack one proved example.
        reason: why no proof was tried and every example was attacked; None if proofs were tried.
        guarantee: what the proofs guarantee.
    """

    proved: tuple[bool, ...]
    seconds: float
    rows_each: int
    reason: str | None = None
    guarantee: str = GUARANTEE

    @property
    def rows_saved(self) -> int:
        """Least number of rows on which the model would have been run to attack the proved examples."""
        return self.rows_each * sum(self.proved)

    def __repr__(self) -> str:
        return summary(
            self,
            proved=f"{sum(self.proved)} of {len(self.proved)}",
            seconds=round(self.seconds, 3),
            rows_saved=self.rows_saved,
            guarantee=self.guarantee,
            reason=self.reason,
        )


@dataclass(frozen=True)
class AutoAttackResult(Tabular):
    """The outcome of each attack.

    Attributes:
        broken_by: [N], the attack that fooled the model on each example; "clean" where the model already misclassifies
            x, None where no attack fooled it.
        accuracy: under the key "clean", the clean accuracy; then, under the name of each attack that was run, in order,
            the accuracy after this attack. Once no example is robust, no further attack is run.
        forwards: number of rows that the model was run on.
        flags: reasons to doubt the result, at most one for each name.
        certified_first: the examples that were not attacked because they were proved robust; None without
            ``certify_first``.
    """

    broken_by: tuple[str | None, ...]
    accuracy: dict[str, float]
    forwards: int
    flags: tuple[Flag, ...] = ()
    certified_first: CertifiedFirst | None = None

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each example."""
        columns: dict[str, Any] = {"broken_by": [name or "" for name in self.broken_by]}
        return columns if self.certified_first is None else columns | {"proved": list(self.certified_first.proved)}

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_dict().items() if name != "broken_by"}

    @property
    def robust_accuracy(self) -> float:
        """Share of the examples that are robust to all attacks."""
        return list(self.accuracy.values())[-1]

    def __repr__(self) -> str:
        flags = {"flags": tuple(flag.name for flag in self.flags)} if self.flags else {}
        proofs = {"certified_first": self.certified_first}
        facts = {"examples": len(self.broken_by), "accuracy": self.accuracy, "forwards": self.forwards}
        return summary(self, **facts, **flags, **proofs)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers, strings and lists.

        >>> AutoAttackResult(("clean", None), {"clean": 0.5, "square": 0.5}, 10).to_dict()["robust_accuracy"]
        0.5
        """
        return {
            "broken_by": list(self.broken_by),
            "accuracy": dict(self.accuracy),
            "robust_accuracy": self.robust_accuracy,
            "forwards": self.forwards,
            "flags": {flag.name: flag.message for flag in self.flags},
            **({} if self.certified_first is None else {"certified_first": asdict(self.certified_first)}),
        }


class AutoAttack(Ensemble):
    """AutoAttack (Croce and Hein, 2020; for l1, Croce and Hein, 2021), with the published attacks and budgets.

    - "standard": APGD on the cross entropy (one run; in l1 five); APGD on the targeted DLR loss (nine target classes;
      in l1 five); FAB-T (nine target classes); and Square (5000 queries). All gradient-based attacks take 100 steps.
    - "plus": APGD on the cross entropy and on the DLR loss, five runs each; FAB on all classes, five runs; Square; APGD
      and FAB on nine target classes.
    - "rand", for randomized models: APGD on the cross entropy and on the DLR loss, averaged over 20 draws per step. A
      model that is already an ``EOT`` keeps its number of draws.
    - "custom": the attacks of ``attacks_to_run``, in that order, with the budgets of "plus"; change their settings in
      ``attacks``, as in ``attack.attacks["apgd-ce"].restarts = 1``.

    The DLR loss needs three classes, and its targeted forms need four. With three classes, "apgd-t" is replaced by
    "apgd-dlr", or skipped if that attack runs anyway. With two classes, "apgd-t" and "apgd-dlr" are both skipped,
    because the gradient of the cross entropy then has the same direction as the gradient of any margin. In a targeted
    attack, "apgd-t" is not run, and no flag says so. With at least four classes, "apgd-dlr" toward the target replaces
    it, unless that attack runs anyway. For each example, every attack, including FAB, stops at the first point that
    fools the model; use ``FAB`` to find nearest points.

    Flags are logged as warnings and kept in ``result.flags``. Each flag is a reason why the result may be unreliable.
    Three flags are about the attacks: an attack is replaced or skipped, APGD starts at points where the DLR loss has a
    zero gradient, or Square breaks more than 0.2 % of the examples after gradient-based attacks. The others are about
    the model: it returns different logits for the same input (use "rand"), its outputs are probabilities, or it
    computes gradients in its forward pass, like defenses that optimize their input.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format: see
            ``BatchAttack``.
        version: "standard", "plus", "rand" or "custom"; determines the attacks and their budgets.
        certify_first: try to prove by bounds on the model's forward pass that examples are robust at epsilon,
            and do not attack those that are proved (see ``pyrobust.attacks.certified_first``). The outcome is the same
            as without this option: the other examples are attacked with the same random numbers, and results and flags
            count all examples. ``result.certified_first`` reports the proofs. If the attack is targeted, or uses
            arithmetic that no proof covers (under autocast, in bfloat16, with TF32 allowed, averaged over draws, ...),
            every example is attacked, and a warning says why. The model must be a module that ``BoundedModel``
            supports.
        attacks_to_run: names of the attacks to run instead of the version's, among "apgd-ce", "apgd-dlr", "apgd-t",
            "fab", "fab-t" and "square"; required with "custom".
        progress: True for a progress bar on the terminal, or a function of (examples done, examples).
        callback: called with (row, success, x_adv) for each example when it is done.
        after_attack: called with ("clean", robust [N], x_adv) before the first attack and with (name, robust, x_adv)
            after each attack that is run.

    Attributes:
        attacks: name → attack, in order; the attacks' settings may be changed, and entries removed.
        result: result of the last ``generate``; None before the first, or if it had no examples.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus())
    >>> _ = model[0].load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> attack = AutoAttack(model, epsilon=0.25, attacks_to_run=["apgd-ce", "fab-t"])
    >>> x_adv = attack.generate(torch.tensor([[0.75, 0.5], [0.5, 0.75]]), torch.tensor([0, 0]))
    >>> attack.result.broken_by, attack.result.robust_accuracy
    (('apgd-ce', 'clean'), 0.0)
    """

    norms = NORMS
    #: Whether proved examples are left out; an instance attribute only if set, since stored runs' parameters hold it
    #: then.
    certify_first = False

    version: Version = setting(default="standard", option="version")
    result: AutoAttackResult | None = state(None)
    progress: bool | Progress = state(False)
    callback: Callback | None = state(None)
    after_attack: AfterAttack | None = state(None)
    _prover: Prover = state(None)  # type: ignore[assignment] # set by the constructor
    _flags: dict[str, Flag] = state({})  # replaced by each call
    _warned: set[str] = state(set())  # shared by the copies that sweeps make for each chunk

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        version: Version = "standard",
        attacks_to_run: Sequence[str] | None = None,
        certify_first: bool = False,
        progress: bool | Progress = False,
        callback: Callback | None = None,
        after_attack: AfterAttack | None = None,
        clip: ClipArgument = OMITTED,
        grid: GridLike = None,
        seed: int = 0,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> None:
        running: dict[str, Any] = {"batch_size": batch_size, "dtype": dtype, "memory_format": memory_format}
        self._runner_settings = running
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, clip=clip, grid=grid)
        names = attack_names(version, attacks_to_run)
        self.version = version
        self.progress = progress
        self.callback = callback
        self.after_attack = after_attack
        self.attacks = {}
        options = {
            "clip": joined(self.clip_min, self.clip_max),
            "device": device,
            "seed": seed,
            "grid": grid,
            **running,
        }
        for name in names:
            self.attacks[name] = published_attack(name, model, self.epsilon, self.norm, version, options)
        self.result = None
        if flag("certify_first", certify_first):
            self.certify_first = True
        self._prover = Prover(self.runner)
        self._flags, self._warned = {}, set()

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
        """Generate adversarial examples; ``result`` reports which attack found each example.

        Takes the same arguments as ``BatchAttack.generate``.

        Returns:
            [N, ...], in x's dtype (float32 if float64 x was cast for the model) and on its device: x itself where the
            model already misclassifies x, or where no attack fooled it.

        Raises:
            InputError: shapes do not match, values, labels or indices are out of range, target labels are missing, or
                no attack can run with the model's number of classes.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits, or logits without a gradient; with ``certify_first``, also
                a model that cannot be bounded, or that a random start fools in spite of a proof.
        """
        x = self._examples(x)
        y = self._success_labels(y, targeted, target_labels, len(x))
        if not len(x):
            self.result = None
            return x.clone()
        index = torch.tensor(image_indices(indices, len(x)), dtype=torch.int64)
        epsilon = self._given_radii(x, epsilon)
        self._flags = {}
        queries = Queries(self.runner)
        classes = self._check_model(queries, x)
        attacks = self._runnable(classes, targeted)
        x_adv = x.clone()
        broken_by: list[str | None] = [None] * len(x)
        robust = self._correct(queries, x, y, targeted=targeted)
        proved, proofs = torch.zeros_like(robust), None
        if self.certify_first:
            proved, proofs = self._prove(attacks, x, y, robust, epsilon=epsilon, targeted=targeted, classes=classes)
        accuracy: dict[str, float] = {}
        forwards = 0

        def stage(name: str) -> None:
            accuracy[name] = _share(robust)
            if self.after_attack is not None:
                self.after_attack(name, robust.clone(), x_adv)

        def done(row: int, name: str | None) -> None:
            broken_by[row] = name
            if self.callback is not None:
                self.callback(row, name is not None, x_adv[row])

        with reporting(self.progress, len(x)) as report:
            for row in (~robust).nonzero()[:, 0].tolist():
                done(row, "clean")
            stage("clean")
            logger.info("clean accuracy %.2f %%", 100 * accuracy["clean"])
            for name, attack in attacks.items():
                rows = (robust & ~proved).nonzero()[:, 0]
                report(len(x) - len(rows))
                if not bool(robust.any()):
                    break
                radius = self._attack_epsilons(attack, len(x), epsilon)
                fooled = rows
                if len(rows):
                    fooled = self._run(
                        name, attack, x, y, rows=rows, radius=radius, index=index, targeted=targeted, x_adv=x_adv
                    )
                    forwards += attack.forwards
                if _checks_gradients(attack) and bool(proved.any()):
                    forwards += self._check_starts(
                        name, attack, x, y, proved=proved, radius=radius, index=index, x_adv=x_adv
                    )
                robust[fooled] = False
                for row in fooled.tolist():
                    done(row, name)
                stage(name)
                logger.info(
                    "%s: %d of %d broken, robust accuracy %.2f %%", name, len(fooled), len(rows), 100 * accuracy[name]
                )
            for row in robust.nonzero()[:, 0].tolist():
                done(row, None)
            report(len(x))
        self._check_square(accuracy)
        flags = tuple(self._flags.values())
        self.result = AutoAttackResult(tuple(broken_by), accuracy, forwards + queries.forwards, flags, proofs)
        return x_adv

    def _prove(
        self,
        attacks: dict[str, BatchAttack],
        x: Tensor,
        y: Tensor,
        robust: Tensor,
        epsilon: float | Tensor | None,
        targeted: bool,
        classes: int,
    ) -> tuple[Tensor, CertifiedFirst]:
        """Try to prove that unbroken examples are robust; return which ones are proved, bool [N], and the report."""
        proved, seconds = torch.zeros_like(robust), 0.0
        reason = "the attack is targeted, and proofs are about all other classes" if targeted else None
        for name, attack in attacks.items():
            specific, common = (
                (a.norm, stored_clip(joined(a.clip_min, a.clip_max)), a.grid, a.runner.dtype) for a in (attack, self)
            )
            if attack.model is not self.model or specific != common:
                reason = reason or f"{name} attacks another model, ball, clip range, grid or dtype"
        rows = robust.nonzero()[:, 0]
        if reason is None and len(rows):
            # The largest ball of an example contains the balls of all attacks.
            balls = [self._attack_epsilons(attack, len(x), epsilon) for attack in attacks.values()]
            radius = torch.stack(balls).amax(0)
            if self._levels is not None and self.norm != "l0":
                radius = radius_of_levels(self.norm, radius, self._levels, x[:1].numel())
            clip = joined(self.clip_min, self.clip_max)
            hint = "leave out certify_first to attack every example"
            if self._prover.runner is not self.runner:  # the model or the device has changed
                self._prover = Prover(self.runner)
            try:
                proof = self._prover.prove(x[rows.to(x.device)], y[rows], radius[rows], self.norm, clip)
            except (InputError, InputTypeError) as error:
                error.hint = f"{error.hint}; {hint}" if error.hint else hint
                raise
            except PyrobustError as error:
                raise type(error)(f"{error}; {hint}") from error
            proved[rows], seconds, reason = proof
        if reason is not None and "certify-first" not in self._warned:
            self._warned.add("certify-first")
            logger.warning("certify_first proves nothing, and every example is attacked: %s", reason)
        rows_each = sum(least_rows(attack, classes) for attack in attacks.values())
        logger.info("%d of %d examples proved robust in %.2f s", int(proved.sum()), len(x), seconds)
        return proved, CertifiedFirst(tuple(proved.tolist()), seconds, rows_each, reason)

    def _check_starts(
        self,
        name: str,
        attack: APGD,
        x: Tensor,
        y: Tensor,
        proved: Tensor,
        radius: Tensor,
        index: Tensor,
        x_adv: Tensor,
    ) -> int:
        """Check an attack's starting points on proved examples for zero gradients; return the number of rows run."""
        starts = copy.copy(attack)
        vars(starts)["steps"] = 0  # set directly, since the declaration refuses 0
        fooled = self._run(
            name, starts, x, y, rows=proved.nonzero()[:, 0], radius=radius, index=index, targeted=False, x_adv=x_adv
        )
        if len(fooled):
            raise ModelError(
                f"crossing: example {int(fooled[0])} is proved robust ({GUARANTEE}), and a random start of {name} "
                "fools the model; either a bound is wrong, which is a bug to report with the model, or the model now "
                "computes something else than when it was captured"
            )
        return starts.forwards

    def _flag(self, flag: Flag) -> None:
        """Store a flag; log it only if no flag of this name was logged since construction."""
        if flag.name not in self._warned:
            self._warned.add(flag.name)
            logger.warning("%s", flag.message)
        self._flags.setdefault(flag.name, flag)

    def _ended(self, name: str, position: int, examples: int, success: bool) -> None:
        """Handle the end of the named attack on one of its ``examples``; do nothing unless a subclass overrides it."""

    def _attack_epsilons(self, attack: BatchAttack, examples: int, epsilon: float | Tensor | None) -> Tensor:
        """Return the radius that the given attack uses for each example, float64 [N] on the CPU."""
        return self._epsilons(examples, epsilon)

    def _run(
        self,
        name: str,
        attack: BatchAttack,
        x: Tensor,
        y: Tensor,
        rows: Tensor,
        radius: Tensor,
        index: Tensor,
        targeted: bool,
        x_adv: Tensor,
    ) -> Tensor:
        """Attack the given rows, copy points that fool the model into x_adv, and return the rows of these points."""
        fooled: list[int] = []

        def note(row: int, success: bool, point: Tensor) -> None:
            if success:
                fooled.append(row)
            self._ended(name, row, len(rows), success)

        on_device = rows.to(x.device)
        run = copy.copy(attack)
        run.callback = note
        run._levels = self._levels  # levels of all examples, in case the grid is found in them
        if isinstance(run, APGD):
            # in this copy only, so that the flag reaches the whole evaluation; mypy forbids replacing any method
            run._flag_zero_gradient = self._flag_zero_gradient  # type: ignore[method-assign]  # mypy forbids replacing any method
        goal = y[rows] if targeted else None
        points = run.generate(x[on_device], y[rows], targeted, goal, epsilon=radius[rows], indices=index[rows])
        attack.forwards = run.forwards
        positions = torch.tensor(fooled, dtype=torch.int64)
        x_adv[on_device[positions.to(x.device)]] = points[positions.to(x.device)]
        return rows[positions]

    def _flag_zero_gradient(self, count: int) -> None:
        message = (
            f"the DLR loss has a gradient of zero at {count} examples: gradient-based attacks cannot move there, and "
            "robust accuracy may be overestimated"
        )
        self._flag(Flag("zero-gradient", message, count))

    def _check_square(self, accuracy: dict[str, float]) -> None:
        """Add a flag if Square finds adversarial examples that the gradient-based attacks missed."""
        others = [rate for name, rate in accuracy.items() if name != "square"]
        drop = min(others) - accuracy.get("square", 1.0)
        if len(others) > 1 and drop > _SUSPICIOUS_DROP:
            message = (
                f"Square breaks {drop:.2%} of the examples after the gradient-based attacks: gradients may be masked"
            )
            self._flag(Flag("square", message, drop))

    def _runnable(self, classes: int, targeted: bool) -> dict[str, BatchAttack]:
        """Return the attacks that can run with this number of classes."""
        dlr_classes = 4 if targeted else 3
        runnable: dict[str, BatchAttack] = {}
        for name, attack in self.attacks.items():
            if name == "apgd-t" and (targeted or classes < 4):
                if classes >= dlr_classes and "apgd-dlr" not in self.attacks:
                    replacement: Any = copy.copy(attack)
                    replacement.loss = "dlr"
                    runnable["apgd-dlr"] = replacement
                if not targeted:
                    message = (
                        f"apgd-t needs four classes: replaced by apgd-dlr or skipped, because the model has {classes}"
                    )
                    self._flag(Flag("classes", message, classes))
            elif name == "apgd-dlr" and classes < dlr_classes:
                what = f"apgd-dlr needs {dlr_classes} classes: skipped"
                self._flag(Flag("classes", f"{what}, because the model has {classes}", classes))
            else:
                runnable[name] = attack
        if not runnable:
            raise InputError(
                "attacks_to_run",
                f"an attack that can run with {classes} classes, such as apgd-ce",
                ", ".join(self.attacks) or "none",
            )
        return runnable

    def _check_model(self, queries: Queries, x: Tensor) -> int:
        """Return the number of classes; warn about models for which the result would be unreliable."""
        batch = self.runner.batch(x[:CHECKED_EXAMPLES])
        with self.runner.session(gradients=True):
            first = queries.logits(batch)
            with watch_for_gradients() as gradients:
                second = queries.logits(batch)
        if self.version != "rand" and bool(differing_rows(first, second).any()):
            message = 'the model is randomized: it returned other logits the second time; use version="rand"'
            self._flag(Flag("randomized", message))
        if are_probabilities(first):
            message = (
                "the model's outputs look like probabilities: they are non-negative and sum to 1; return logits instead"
            )
            self._flag(Flag("probabilities", message))
        if gradients:
            message = (
                "the model computes gradients in its forward pass: it may adapt to its input, and needs an attack made "
                "for it"
            )
            self._flag(Flag("dynamic", message))
        return first.shape[1]


def _checks_gradients(attack: BatchAttack) -> TypeGuard[APGD]:
    return isinstance(attack, APGD) and attack.loss.startswith("dlr")


def _share(robust: Tensor) -> float:
    return float(robust.double().mean())
