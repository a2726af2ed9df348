"""Enumeration of all word substitutions in a text, to find the fewest that fool the classifier or the lowest margin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from pyrobust.checks import count, flag
from pyrobust.errors import InputError

from .attack import Candidate, TextConstraint, WordAttack
from .search import Changes, Query, TextClassifier, TextMargin, TextSearch
from .substitutions import Synonyms, WordConstraint


class ExhaustiveSubstitution(WordAttack):
    """Try every combination of substitutes, those with the fewest changed words first.

    Without ``lowest_margin``, the distances in the result are exact: a success changes the smallest possible number of
    words. A failure shows that no combination that ``max_changed`` and the constraints allow succeeds, by the rule of
    ``attack`` for logits that are close. The enumeration suits short texts, and serves to check other attacks and
    certificates.

    Args:
        model: maps a list of B strings to logits [B, K], K ≥ 2; see ``WordSubstitution``.
        synonyms: substitutes of a word: a mapping, or a function such as ``WordNet()``.
        constraints: as for ``word_substitutions``: functions (words, position, substitute) -> bool.
        text_constraints: functions (original, candidate) -> bool on whole texts.
        max_changed: largest share of the words that may be substituted, in (0, 1]; the resulting number of words is
            rounded down.
        most_texts: largest number of combinations of a text; a text with more is refused.
        lowest_margin: return the combination with the lowest margin of all, not the first success.
        batch_size: largest number of texts in one call of the model.

    Raises:
        InputError: an argument is out of range, or an attacked text has more combinations than ``most_texts``.
        InputTypeError: an argument of the wrong type.

    >>> def model(texts):  # class 1 if at least one of the words is in the text
    ...     return [[0.0, text.count("good") + text.count("film") - 0.5] for text in texts]
    >>> result = ExhaustiveSubstitution(model, {"good": ["fine"], "film": ["movie"]}).attack(["A good film."], [1])
    >>> result.texts, result.distance, result.queries
    (('A fine movie.',), (2.0,), (4,))
    """

    def __init__(
        self,
        model: TextClassifier,
        synonyms: Synonyms,
        *,
        constraints: Iterable[WordConstraint] = (),
        text_constraints: Iterable[TextConstraint] = (),
        max_changed: float = 1.0,
        most_texts: int = 100_000,
        lowest_margin: bool = False,
        batch_size: int = 256,
    ) -> None:
        super().__init__(
            model,
            synonyms,
            constraints=constraints,
            text_constraints=text_constraints,
            max_changed=max_changed,
            batch_size=batch_size,
        )
        self.most_texts = count("most_texts", most_texts)
        self.lowest_margin = flag("lowest_margin", lowest_margin)

    def _search(self, search: TextSearch, clean: TextMargin, max_changes: int) -> Query[Candidate]:
        combinations = number_of_texts(search.sets, max_changes)
        if combinations > self.most_texts:
            raise InputError(
                "texts",
                f"at most most_texts={self.most_texts:,} combinations of substitutes",
                f"{combinations:,} for {search.original!r:.80}",
                "attack it with WordSubstitution",
            )
        best = Candidate({}, clean)
        options = _all_changes(search.sets, max_changes)
        while batch := list(itertools.islice(options, self.batch_size)):
            candidates, _ = yield from self._judged(search, batch)
            for candidate in candidates:
                if search.fooled(candidate.judgement) and not self.lowest_margin:
                    return candidate
                if candidate.judgement.margin < best.judgement.margin:
                    best = candidate
        return best


def number_of_texts(sets: Sequence[Sequence[str]], max_changes: int | None = None) -> int:
    """Count the texts with at most ``max_changes`` substituted words, including the original.

    >>> sets = [("a",), ("good", "fine"), ("film", "movie", "picture")]
    >>> number_of_texts(sets), number_of_texts(sets, 1)
    (6, 4)
    """
    if max_changes is None or max_changes >= len(sets):
        return math.prod(map(len, sets))
    by_changes = [1] + [0] * max_changes
    for allowed in sets:
        for changes in range(max_changes, 0, -1):
            by_changes[changes] += (len(allowed) - 1) * by_changes[changes - 1]
    return sum(by_changes)


def _all_changes(sets: Sequence[Sequence[str]], max_changes: int) -> Iterator[Changes]:
    """Yield all combinations of 1 to ``max_changes`` changes, those with fewer changes first."""
    positions = [position for position, allowed in enumerate(sets) if len(allowed) > 1]
    for size in range(1, min(max_changes, len(positions)) + 1):
        for chosen in itertools.combinations(positions, size):
            for words in itertools.product(*(sets[position][1:] for position in chosen)):
                yield dict(zip(chosen, words, strict=True))
