"""Lower bounds (certificates) and upper bounds (attacks) on the number of substitutions that change a text's class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.attacks.certified_first import other_arithmetic
from pyrobust.bounds.deployed_arithmetic import check_covered, other_convolutions
from pyrobust.checks import class_labels, integer, items, kind, summary
from pyrobust.errors import CrossingError, InputTypeError
from pyrobust.frames import Tabular
from pyrobust.metrics import RobustnessShares, robustness_shares
from pyrobust.runner import Runner
from pyrobust.text.attack import WordAttack
from pyrobust.text.bounds import Problem, certify_words
from pyrobust.text.classifier import WordClassifier
from pyrobust.text.result import WordAttackResult
from pyrobust.text.substitutions import split_words


@dataclasses.dataclass(frozen=True)
class WordCrossing:
    """A text with a certificate that is contradicted by an adversarial text.

    Attributes:
        index: index of the text.
        certified: number of substitutions that were proved to be harmless.
        substitutions: number of substitutions in the adversarial text; 0 where the text itself is misclassified.
        adversarial: the adversarial text.
        predicted: its predicted class.
    """

    index: int
    certified: int
    substitutions: int
    adversarial: str
    predicted: int


@dataclasses.dataclass(frozen=True, eq=False)
class WordSandwich(Tabular):
    """For N texts, the number of word substitutions proved harmless and the number with which an attack succeeded.

    Certificates and attacks use the same substitution sets.
    The smallest number of substitutions that changes a text's class is above ``certified`` and at most ``upper``.

    Attributes:
        attack: the attack's result, with texts, predictions and queries.
        certified: int64 [N], largest number of substitutions proved to be harmless; -1 where the text itself is not
            proved to be classified correctly.
        substitutions: int64 [N], number of positions that have a substitute; if ``certified`` equals it, all
            substitutions are harmless.
        method: method of the bounds.
        semantics: network that the certificates hold for; see ``BoundOptions``.
        rounded: indices of texts; empty unless the semantics are "real". For each of these texts, the forward pass
            misclassifies an adversarial text within the certificate, but it is not proved that exact arithmetic
            misclassifies this adversarial text too. Rounding in the forward pass may explain these errors, so they
            refute no certificate.
    """

    attack: WordAttackResult
    certified: Tensor
    substitutions: Tensor
    method: str
    semantics: str
    rounded: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.attack)

    def __repr__(self) -> str:
        counts = {name: self.status.count(name) for name in ("certified", "undecided", "attacked")}
        return summary(self, texts=len(self), **counts, crossings=len(self.crossings), **self._attributes())

    @property
    def upper(self) -> Tensor:
        """Number of substitutions in each adversarial text, float64 [N]; inf where no adversarial text is known.

        The number is 0 where the original text is misclassified.
        """
        return torch.tensor(self.attack.distance, dtype=torch.float64)

    @property
    def everything(self) -> Tensor:
        """Whether every combination of substitutions in a text is proved to be harmless, bool [N]."""
        return self.certified == self.substitutions

    @property
    def status(self) -> list[str]:
        """Status of each text under all substitutions: "certified", "attacked" or "undecided".

        A text that is misclassified without any substitution has the status "attacked".
        """
        rows = zip(self.everything.tolist(), self.upper.isfinite().tolist(), strict=True)
        return ["attacked" if attacked else "certified" if proved else "undecided" for proved, attacked in rows]

    @cached_property
    def crossings(self) -> tuple[WordCrossing, ...]:
        """Texts with a certificate that is refuted by an adversarial text, in the order of the texts."""
        upper = self.upper
        crossed = (upper <= self.certified) | (self.everything & upper.isfinite())
        return tuple(
            WordCrossing(i, int(self.certified[i]), int(upper[i]), self.attack.texts[i], self.attack.predictions[i])
            for i in crossed.nonzero().squeeze(1).tolist()
            if i not in self.rounded
        )

    def check(self) -> None:
        """Raise if a certificate is refuted.

        Raises:
            CrossingError: a certificate is refuted. The message names the first text with a refuted certificate.
        """
        if not self.crossings:
            return
        first = self.crossings[0]
        raise CrossingError(
            f"texts: {len(self.crossings)} crossings of {len(self)} texts, expected none: text {first.index} is "
            f"certified by {self.method} up to {first.certified} substitutions, and {first.substitutions} make it "
            f"class {first.predicted}: {first.adversarial!r}; a certificate is false, or the classifier that was "
            "attacked is not the one that was certified: report it with the model"
        )

    def shares(self, most: Sequence[int], alpha: float = 0.05) -> RobustnessShares:
        """Shares of texts certified, attacked and undecided, for each given limit on the number of replaced words.

        Args:
            most: limits on the number of replaced words, each at least 0.
            alpha: probability that a given interval misses the true value, in (0, 1).

        Returns:
            RobustnessShares, with ``most`` as ``radii``.

        Raises:
            InputError: no texts, or a value out of range.
            InputTypeError: numbers that are not integers.

        >>> import torch
        >>> result = WordAttackResult(*[("",) * 3] * 2, *[(0,) * 3] * 3, *[(True,) * 3] * 1, (False, False, True),
        ...     ((), (), (1, 2)), (4,) * 3, (0.0,) * 3, (1,) * 3)
        >>> both = WordSandwich(result, torch.tensor([4, 1, 1]), torch.tensor([4, 4, 4]), "crown", "real")
        >>> both.status, both.crossings
        (['certified', 'undecided', 'attacked'], ())
        >>> shares = both.shares([1, 2])
        >>> [(float(c), float(a)) for c, a in zip(shares.certified, shares.attacked)]
        [(1.0, 0.0), (0.3333333333333333, 0.3333333333333333)]
        """
        numbers = [integer("most", number, 0) for number in items("most", most)]
        # a text certified for 0 words counts as certified, so all numbers are counted from 1
        lower = (self.certified + 1).where(~self.everything, max(numbers, default=0) + 1).double()
        shares = robustness_shares(lower, self.upper + 1, [number + 1 for number in numbers], alpha)
        crossings = np.array([crossing.index for crossing in self.crossings], dtype=np.int64)
        return dataclasses.replace(shares, radii=tuple(map(float, numbers)), crossings=crossings)

    def _columns(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "certified": self.certified.numpy(),
            "upper": self.upper.numpy(),
            "substitutions": self.substitutions.numpy(),
            "text": list(self.attack.originals),
            "adversarial": list(self.attack.texts),
        }

    def _attributes(self) -> dict[str, Any]:
        return {"method": self.method, "semantics": self.semantics}

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values: the columns, and the crossings."""
        columns = {name: np.asarray(values).tolist() for name, values in self._columns().items()}
        return columns | self._attributes() | {"crossings": [vars(crossing) for crossing in self.crossings]}


def word_sandwich(
    attack: WordAttack,
    texts: Iterable[str],
    y: Any,
    *,
    method: str | None = None,
    semantics: str = "float32",
    memory_limit: int | None = None,
) -> WordSandwich:
    """Certify and attack texts over the same substitution sets, which the attack defines.

    Args:
        attack: an attack on a ``WordClassifier``; the same classifier is certified.
        texts: N strings.
        y: labels [N].
        method: method of the bounds, see ``certify_words``.
        semantics: "float32" for certificates of the deployed forward pass, or "real" for certificates of the network in
            exact arithmetic. The attack is always judged by the forward pass.
        memory_limit: bytes that the bounds may use.

    Returns:
        WordSandwich; its ``check`` raises where a certificate is refuted.

    Raises:
        InputError: a value is out of range, or "float32" certificates do not cover the forward pass under the current
            settings, such as TF32.
        InputTypeError: the attacked classifier is not a ``WordClassifier``, or an argument is of the wrong type.
        ModelError: the network cannot be bounded, or a part of the classifier fails.

    >>> from torch import nn
    >>> from pyrobust.text import WordSubstitution
    >>> model = nn.Sequential(nn.Embedding(3, 1), nn.Flatten(), nn.Linear(2, 2, bias=False)).eval()
    >>> _ = model[0].weight.data.copy_(torch.tensor([[0.0], [2.0], [-1.0]]))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    >>> classify = WordClassifier({"good": 1, "dull": 2}, model[0], model[1:], unknown=0, shortest=2)
    >>> attack = WordSubstitution(classify, {"good": ["dull"], "film": ["movie"]})
    >>> both = word_sandwich(attack, ["Good film", "good good"], [1, 1])
    >>> both.status, both.certified.tolist(), both.upper.tolist()
    (['attacked', 'attacked'], [0, 1], [1.0, 2.0])
    >>> both.check()
    """
    if not isinstance(attack, WordAttack):
        raise InputTypeError("attack", "one on words, such as WordSubstitution", kind(attack))
    classifier = attack.model
    if not isinstance(classifier, WordClassifier):
        raise InputTypeError("attack", "one of a WordClassifier, which can be certified", kind(classifier))
    every = items("texts", texts, "strings")
    labels = class_labels("y", y, len(every))
    runner = Runner(classifier.network)
    check_covered(semantics, other_arithmetic(runner, runner.dtype, "linf"))
    attacked = attack.attack(every, labels)
    sets = [attack.substitutions(text) for text in every]
    options: dict[str, Any] = {"method": method, "semantics": semantics, "memory_limit": memory_limit}
    problem = Problem(classifier, sets, labels, sound=True, **options)
    certified = problem.largest(hopeless=torch.tensor(attacked.distance) == 0)
    for bounded in problem.networks:
        check_covered(semantics, other_convolutions(bounded.output, runner.device))
    both = WordSandwich(attacked, certified, problem.positions, problem.method, semantics)
    if semantics == "real" and both.crossings:
        proved = _misclassified(classifier, attacked, both.crossings, options)
        both = dataclasses.replace(both, rounded=tuple(c.index for c in both.crossings if c.index not in proved))
    return both


def _misclassified(
    classifier: WordClassifier, attacked: WordAttackResult, crossings: Sequence[WordCrossing], options: dict[str, Any]
) -> set[int]:
    """Return the indices of texts whose adversarial text is proved to be misclassified in exact arithmetic."""
    judged = [crossing for crossing in crossings if crossing.predicted >= 0]
    sets = [[(word,) for word in split_words(crossing.adversarial).words] for crossing in judged]
    lower = certify_words(classifier, sets, [crossing.predicted for crossing in judged], **options).lower
    labels = [attacked.labels[crossing.index] for crossing in judged]
    return {
        crossing.index
        for crossing, label, row in zip(judged, labels, lower, strict=True)
        if row[label - (label > crossing.predicted)] >= 0
    }
