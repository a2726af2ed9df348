"""Shared parts of all word substitution attacks: arguments, the texts allowed, and the run over a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from pyrobust.checks import class_labels, count, flag, items, share, shown
from pyrobust.errors import InputError, InputTypeError

from .result import COLUMNS, WordAttackResult
from .search import Changes, Query, TextClassifier, TextMargin, TextQueries, TextSearch
from .substitutions import SplitText, Synonyms, WordConstraint, split_words, word_substitutions

TextConstraint: TypeAlias = Callable[[str, str], bool]
"""``constraint(original, candidate)``: whether the attack may use a candidate text."""

_MOST_QUERIES: Final = 1 << 62


class Candidate(NamedTuple):
    """A candidate text, given by its substitutes, with the model's margin and prediction for it."""

    changes: Changes
    judgement: TextMargin


class WordAttack(ABC):
    """Base class of attacks that substitute words of a text; subclasses implement ``_search``.

    Args:
        model: maps a list of B strings to logits [B, K], K ≥ 2, as a tensor, an array or rows of numbers. The model
            runs without gradients; a ``torch.nn.Module`` runs in evaluation mode.
        synonyms: substitutes of a word: a mapping, or a function such as ``WordNet()``.
        constraints: functions (words, position, substitute) -> bool, as for ``word_substitutions``. These functions
            define the substitution sets, so a certificate for these sets must use the same constraints.
        text_constraints: functions (original, candidate) -> bool on whole texts, such as a grammar check. These
            functions restrict only the attack.
        max_changed: largest share of the words that may be substituted, in (0, 1]; the resulting number of words is
            rounded down.
        max_queries: largest number of queries for each attacked text. It includes the query of the original text, and
            is never exceeded.
        batch_size: largest number of texts in one call of the model.

    Raises:
        InputError: an argument out of range.
        InputTypeError: an argument of the wrong type.
    """

    def __init__(
        self,
        model: TextClassifier,
        synonyms: Synonyms,
        *,
        constraints: Iterable[WordConstraint] = (),
        text_constraints: Iterable[TextConstraint] = (),
        max_changed: float = 1.0,
        max_queries: int | None = None,
        batch_size: int = 256,
    ) -> None:
        if not callable(model):
            raise InputTypeError("model", "a function of a list of strings", shown(model))
        self.model = model
        self.synonyms = synonyms
        self.constraints = tuple(items("constraints", constraints, "functions"))
        word_substitutions((), synonyms, self.constraints)  # checks synonyms and constraints
        self.text_constraints = tuple(items("text_constraints", text_constraints, "functions"))
        for constraint in self.text_constraints:
            if not callable(constraint):
                raise InputTypeError("text_constraints", "functions", shown(constraint))
        self.max_changed = share("max_changed", max_changed)
        if not self.max_changed:
            raise InputError("max_changed", "a share above 0", "0.0")
        self.max_queries = None if max_queries is None else count("max_queries", max_queries, _MOST_QUERIES)
        self.batch_size = count("batch_size", batch_size)

    def attack(
        self, texts: Iterable[str], y: Any, targeted: bool = False, target_labels: Any = None
    ) -> WordAttackResult:
        """Attack each text that is classified correctly; if targeted, each text that is not predicted as its target.

        The texts do not influence each other, although those under attack share batches. No text succeeds only because
        of rounding in its batch, if the dtype of the returned logits is the one in which the model computes (lists
        count as float64): if a text seems to succeed, but the label's logit and the largest other logit are so close
        that rounding may have decided between them, the text is run again alone, and only the second result counts.
        This repetition counts as a query, and takes place again if the search meets the same text again. Apart from
        such repetitions, the attack on one text never sends the same text to the model twice. The same arguments give
        the same result.

        Args:
            texts: N strings.
            y: labels [N], integers.
            targeted: whether to search for texts that are predicted as ``target_labels``.
            target_labels: [N], integers, for a targeted attack.

        Raises:
            InputError: the number of labels is wrong, or a label (a target, if targeted) is not a class of the model.
            InputTypeError: texts or labels of the wrong type.
            ModelError: the model does not return a row of logits for each text. An exception raised by the model
                reaches the caller unchanged.
        """
        texts = items("texts", texts, "strings")
        for text in texts:
            if not isinstance(text, str):
                raise InputTypeError("texts", "strings", shown(text))
        labels = class_labels("y", y, len(texts)).tolist()
        if flag("targeted", targeted) != (target_labels is not None):
            raise InputError("target_labels", "labels with targeted=True, and only then")
        aims = class_labels("target_labels", target_labels, len(texts)).tolist() if targeted else labels
        searches = (self._attacked(text, aim, targeted) for text, aim in zip(texts, aims, strict=True))
        rows = TextQueries(self.model).run(searches, self.batch_size)
        columns = {name: tuple(row[name] for row in rows) for name in COLUMNS}
        return WordAttackResult(**columns, targeted=targeted)

    def substitutions(self, text: str) -> tuple[tuple[str, ...], ...]:
        """Return the words that the attack allows at each position of a text, in the form that ``certify_words`` takes.

        >>> from pyrobust.text import WordSubstitution
        >>> WordSubstitution(lambda texts: [[0.0, 1.0]], {"film": ["movie"]}).substitutions("A film.")
        (('A',), ('film', 'movie'))
        """
        return self._sets(split_words(text))

    def _sets(self, split: SplitText) -> tuple[tuple[str, ...], ...]:
        return word_substitutions(split.words, self.synonyms, self.constraints)

    def _attacked(self, text: str, label: int, targeted: bool) -> Query[dict[str, Any]]:
        """Attack one text; return its row of the ``WordAttackResult`` as a dictionary."""
        split = split_words(text)
        search = TextSearch(split, self._sets(split), label, targeted, self.max_queries)
        (clean,) = yield from search.judge([text])
        candidate = Candidate({}, clean)
        attacked = not search.fooled(clean) and (targeted or clean.predicted >= 0)
        if attacked:
            candidate = yield from self._search(search, clean, int(self.max_changed * len(split.words) + 1e-9))
        return {
            "originals": text,
            "texts": search.text(candidate.changes),
            "labels": label,
            "clean_predictions": clean.predicted,
            "predictions": candidate.judgement.predicted,
            "attacked": attacked,
            "success": attacked and search.fooled(candidate.judgement),
            "changed": tuple(sorted(candidate.changes)),
            "words": len(split.words),
            "margins": candidate.judgement.margin,
            "queries": search.queries,
        }

    @abstractmethod
    def _search(self, search: TextSearch, clean: TextMargin, max_changes: int) -> Query[Candidate]:
        """Find a candidate with at most ``max_changes`` changes that fools the model, else one of lowest margin."""

    def _judged(self, search: TextSearch, options: Iterable[Changes]) -> Query[tuple[list[Candidate], bool]]:
        """Judge the options that the text constraints allow; return those judged, and whether the queries sufficed."""
        texts = [(changes, search.text(changes)) for changes in options]
        kept = [(c, t) for c, t in texts if all(allow(search.original, t) for allow in self.text_constraints)]
        judgements = yield from search.judge([text for _, text in kept])
        candidates = []
        for (changes, text), judgement in zip(kept, judgements, strict=False):
            sure = (yield from search.confirm(text, judgement)) if search.fooled(judgement) else judgement
            if sure is not None:
                candidates.append(Candidate(changes, sure))
        return candidates, len(candidates) == len(kept)
