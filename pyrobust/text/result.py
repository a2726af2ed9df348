"""Outcomes of word substitution attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from pyrobust.checks import summary
from pyrobust.frames import Tabular


@dataclass(frozen=True)
class WordAttackResult(Tabular):
    """Outcomes of an attack on N texts; each attribute except ``targeted`` has one item for each text.

    Attributes:
        originals: the texts.
        texts: the adversarial texts; where the attack failed, the text with the lowest margin that the attack found.
        labels: the labels, or the targets of a targeted attack.
        clean_predictions: predicted classes of the originals; -1 for logits with NaN or +inf, which predict no class.
        predictions: predicted classes of ``texts``.
        attacked: whether the text was attacked; False where the original is already misclassified or, without targets,
            no class is predicted for it. With targets, it is False where the original is already predicted as the
            target.
        success: whether an attacked text was turned into one that is misclassified (or predicted as the target). A text
            for which no class is predicted does not count as a success.
        changed: positions of the substituted words among the words of ``split_words``, ascending.
        words: number of words.
        margins: margins of ``texts``: the label's logit minus the largest other logit; if targeted, the largest other
            logit minus the target's logit. They are inf where no class is predicted.
        queries: number of texts sent to the classifier, the original included.
        targeted: whether the attack was targeted.
    """

    originals: tuple[str, ...]
    texts: tuple[str, ...]
    labels: tuple[int, ...]
    clean_predictions: tuple[int, ...]
    predictions: tuple[int, ...]
    attacked: tuple[bool, ...]
    success: tuple[bool, ...]
    changed: tuple[tuple[int, ...], ...]
    words: tuple[int, ...]
    margins: tuple[float, ...]
    queries: tuple[int, ...]
    targeted: bool = False

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return summary(
            self, texts=len(self), attacked=sum(self.attacked), fooled=sum(self.success), queries=sum(self.queries)
        )

    @property
    def distance(self) -> tuple[float, ...]:
        """Number of words that the attack substituted: 0 for texts that were not attacked, inf where it failed."""
        rows = zip(self.attacked, self.success, self.changed, strict=True)
        return tuple(
            float(len(changed)) if success else math.inf if attacked else 0.0 for attacked, success, changed in rows
        )

    @property
    def success_rate(self) -> float:
        """Share of the attacked texts whose attack succeeded; NaN if none was attacked."""
        return sum(self.success) / sum(self.attacked) if any(self.attacked) else math.nan

    @property
    def robust_accuracy(self) -> float:
        """Number of texts attacked without success, divided by the number of all texts; NaN if there are no texts.

        Without targets, this is the share of texts that are classified correctly both before and after the attack.
        """
        return (sum(self.attacked) - sum(self.success)) / len(self) if len(self) else math.nan

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS} | {"distance": self.distance}

    def _attributes(self) -> dict[str, Any]:
        return {"targeted": self.targeted}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, a list for each column."""
        return self._attributes() | {name: list(column) for name, column in self._columns().items()}


COLUMNS: Final = tuple(field.name for field in fields(WordAttackResult) if field.name != "targeted")
