"""Attacks of different kinds on the same examples, and comparisons of the examples that they fool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.metrics import PairedComparison, paired_test
from pyrobust.ops.logits import LogitLoss, logit_loss
from pyrobust.runner import Classifier
from pyrobust.stats import holm

from ..apgd import APGD
from ..black_box.square import Square
from ..engine.batches import BatchAttack
from ..engine.queries import NoGradientError
from ..engine.state import AttackState
from ..engine.tracking import Best
from ..fgsm import FGSM
from ..pgd import PGD
from ..transfer import TransferAttack
from .finding import ALPHA
from .notes import Notes
from .subject import ExaminedModel
from .surrogate import train_surrogate

# Budgets: that of a careful evaluation of one model, and several times that for whether a larger budget gains.
_STEPS, _MORE_STEPS, _MORE_RESTARTS, _QUERIES, _TRANSFER_STEPS = 40, 100, 4, 1000, 20
# Share of the examples that a larger budget has to gain, since a small gain is usual.
_GAIN = 0.05
# Names of attacks with which others are compared.
_WHITE_BOX, _MORE = "gradients (PGD or APGD)", "gradients, more steps and restarts"
_PLAIN = "PGD with torch's cross-entropy"
# Share of PGD's successes that an attack on a saturated loss has to reach for the saturation to be harmless.
_UNAFFECTED = 0.5


class Trials:
    """Runs attacks on examples that the model classifies correctly, and records which examples each attack fooled.

    Args:
        subject: the model and these examples.
        notes: collects the findings.
        done: called after each attack.
    """

    def __init__(self, subject: ExaminedModel, notes: Notes, done: Callable[[], None]) -> None:
        self.subject, self.notes = subject, notes
        self._done = done
        #: Attack → fooled, bool [N] on the CPU.
        self.fooled: dict[str, Tensor] = {}
        self._comparisons: list[tuple[str, str, str, PairedComparison]] = []

    def run(self, *, differentiable: bool, classes: int, surrogate: Classifier | Sequence[Classifier] | None) -> None:
        """Run all attacks, and compare them."""
        if differentiable:
            try:
                self._follow_gradients(classes)
            except NoGradientError:
                differentiable = False
                text = "at points that attacks reach, the logits have no gradient by the input"
                self.notes.add("no-gradient", "masked", text, {}, "replaced")
        if not differentiable:
            self.fooled = {_WHITE_BOX: torch.zeros(len(self.subject), dtype=torch.bool)}
        self._attack("queries (Square)", Square, n_queries=_QUERIES)
        transferred = self._transfer(surrogate)
        if differentiable:
            self._compare("one-step", "one step (FGSM)", "PGD")
            self._compare("more-steps", _MORE, _WHITE_BOX)
            if "saturated-loss" in self.notes:
                self._compare("saturated-attack", "PGD", _PLAIN)
        # At an equal budget, Square beats gradients on some sound networks, above all in l2.
        gradients = _MORE if differentiable else _WHITE_BOX
        self._compare("black-box", "queries (Square)", gradients)
        if transferred:
            self._compare("transfer", "transfer", gradients)
        self._judge()

    def _follow_gradients(self, classes: int) -> None:
        """Run the attacks that use gradients."""
        self._attack("one step (FGSM)", FGSM)
        adversarial = self._attack("PGD", PGD, steps=_STEPS)
        self._check_loss(adversarial)
        self._attack("APGD", _QuietAPGD, loss="dlr" if classes > 2 else "ce", steps=_STEPS)
        self.fooled[_WHITE_BOX] = self.fooled["PGD"] | self.fooled["APGD"]
        self._attack_rest(_MORE, PGD, steps=_MORE_STEPS, restarts=_MORE_RESTARTS)
        self._unbounded()
        if "saturated-loss" in self.notes:
            self._attack(_PLAIN, _PlainPGD, steps=_STEPS)
            fooled = {name: int(self.fooled[name].sum()) for name in ("PGD", _PLAIN)}
            if fooled["PGD"] and fooled[_PLAIN] >= _UNAFFECTED * fooled["PGD"]:
                # The weights are merely large: the loss saturates at the images, but attacks escape that region.
                self.notes.reduce_to_note("saturated-loss", {"fooled": list(fooled.values()), "attacks": list(fooled)})

    def _attack(
        self, name: str, attack: Callable[..., BatchAttack], rows: Tensor | None = None, **settings: Any
    ) -> Tensor:
        """Attack all examples, or only the given rows; return x_adv for all (x itself for examples not attacked)."""
        subject = self.subject
        examples = subject if rows is None else subject.rows(rows)
        settings = {"epsilon": subject.epsilon, "norm": subject.norm.name, **settings}
        attacker = attack(subject.model, clip=(subject.lower, subject.upper), **settings, **subject.options)
        points = subject.x.clone()
        x_adv = attacker.generate(examples.x, examples.y)
        index = torch.arange(len(subject)) if rows is None else rows
        points[index.to(points.device)] = x_adv
        # Judge again, so that all attacks are judged alike.
        self.fooled[name] = ~subject.queries.judge.correct(points, subject.y)
        self._done()
        return points

    def _attack_rest(self, name: str, attack: Callable[..., BatchAttack], **settings: Any) -> None:
        """Attack the examples that withstood the white-box attacks; count all other examples as fooled."""
        before = self.fooled[_WHITE_BOX]
        rows = (~before).nonzero()[:, 0]
        self.fooled[name] = before
        if len(rows):
            self._attack(name, attack, rows, **settings)
            self.fooled[name] |= before

    def _check_loss(self, adversarial: Tensor) -> None:
        """Add a finding if PGD does not raise the loss above that of the clean images."""
        if "saturated-loss" in self.notes:
            return  # the loss is zero in all digits
        subject = self.subject
        y = subject.y
        before, after = (subject.logits(x).cpu() for x in (subject.x, adversarial))
        rose = torch.zeros(len(y), dtype=torch.bool)
        for loss in ("cross_entropy", "margin"):
            rose |= logit_loss(after, y, y, loss).value > logit_loss(before, y, y, loss).value
        flat = int((~rose & ~self.fooled["PGD"]).sum())
        text = f"PGD does not raise the loss of {flat} of {len(y)} examples"
        self.notes.share("flat-loss", flat, len(y), text, {"attack": "PGD", "steps": _STEPS})

    def _unbounded(self) -> None:
        """Attack in a ball that covers the whole clip range."""
        subject = self.subject
        name, width = "unbounded (PGD)", subject.upper - subject.lower
        self._attack(name, PGD, epsilon=width, norm="linf", loss="margin", steps=_STEPS)
        withstood = int((~self.fooled[name]).sum())
        text = f"PGD over the whole clip range leaves {withstood} of {len(subject)} examples classified correctly"
        self.notes.share(
            "unbounded", withstood, len(subject), text, {"attack": "PGD", "steps": _STEPS, "epsilon": width}
        )

    def _transfer(self, surrogate: Classifier | Sequence[Classifier] | None) -> bool:
        """Attack through a surrogate; return whether there is one."""
        model = train_surrogate(self.subject) if surrogate is None else surrogate
        if model is None:
            self.notes.undecided["transfer"] = "the model predicts one class near all examples: nothing to imitate"
            self._done()
            return False
        self._attack("transfer", TransferAttack, surrogate=model, steps=_TRANSFER_STEPS)
        return True

    def _compare(self, sign: str, first: str, second: str) -> None:
        """Test whether the first attack fools more examples than the second."""
        comparison = paired_test(self.fooled[first], self.fooled[second], "greater")
        self._comparisons.append((sign, first, second, comparison))

    def _judge(self) -> None:
        """Add a finding for each comparison that remains significant after Holm's correction."""
        n = len(self.subject)
        adjusted = holm([comparison.p_value for *_, comparison in self._comparisons])
        for (sign, first, second, comparison), p_value in zip(self._comparisons, adjusted, strict=True):
            if p_value > ALPHA or (sign == "more-steps" and comparison.difference < _GAIN):
                continue
            text = (
                f"{first} fools {comparison.both + comparison.only_first} of {n} examples, {second} "
                f"{comparison.both + comparison.only_second}: {comparison.only_first} fooled by the former alone, "
                f"{comparison.only_second} by the latter (exact paired test, Holm-adjusted p = {p_value:.2g})"
            )
            evidence = {
                "first": first,
                "second": second,
                "only_first": comparison.only_first,
                "only_second": comparison.only_second,
                "both": comparison.both,
                "examples": n,
                "p_value": comparison.p_value,
                "adjusted_p_value": p_value,
            }
            self.notes.add(sign, "suspicious" if sign == "more-steps" else "masked", text, evidence)
        # The smallest p-value possible with n examples is 2^-n, times the number of tests.
        least = next(m for m in range(1, 64) if len(self._comparisons) * 0.5**m <= ALPHA)
        if n < least:
            reason = f"comparing attacks takes at least {least} examples classified correctly, got {n}"
            self.notes.undecided |= {sign: reason for sign, *_ in self._comparisons}


class _QuietAPGD(APGD):
    """APGD without its warning about zero gradients; the diagnosis reports these itself."""

    def _flag_zero_gradient(self, count: int) -> None:
        pass


class _PlainPGD(PGD):
    """PGD that differentiates the cross-entropy as torch does, in the logits' dtype, without pyrobust's own loss."""

    def _run(self, state: AttackState) -> None:
        best = Best(state)
        self._ascend(state, best, _plain_cross_entropy, self._first(state, 0))
        state.finish(best.x)


def _plain_cross_entropy(logits: Tensor, y: Tensor, target: Tensor) -> LogitLoss:
    value = torch.nn.functional.cross_entropy(logits, y, reduction="none").double()
    slope = logits.softmax(1) - torch.nn.functional.one_hot(y, logits.shape[1])
    return LogitLoss(value, slope.to(logits.dtype), torch.ones_like(value))
