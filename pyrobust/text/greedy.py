"""Greedy word substitution in the order of the words' importance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeVar

from pyrobust.checks import choice, count, shown
from pyrobust.errors import InputTypeError

from .attack import Candidate, TextConstraint, WordAttack
from .search import Changes, Query, TextClassifier, TextMargin, TextSearch
from .substitutions import Synonyms, WordConstraint

RANKINGS: Final = ("delete", "mask", "substitute", "best", "none")

Item = TypeVar("Item")


class WordSubstitution(WordAttack):
    r"""Greedy word substitution with importance ranking, the scheme of TextFooler.

    Jin, Jin, Zhou and Szolovits (2020), "Is BERT really robust?", algorithm 1: words are ranked by how much the margin
    :math:`z_y - \max_{j \ne y} z_j` decreases when the word is deleted. The words are then visited in this order. At
    each word, the substitute with the lowest margin is kept if it lowers the margin. The search stops at the first text
    that is misclassified. For two classes, this order of the words equals TextFooler's, which uses the probability of
    the label.

    The attack differs from TextFooler in its number of queries. It ranks only words that have substitutes, and does not
    rank if only one word has substitutes. Without a ``similarity``, it tries the substitutes of a word in the order of
    ``synonyms``, and stops at the first success.

    Args:
        model: maps a list of B strings to logits [B, K], K ≥ 2, as a tensor, an array or rows of numbers. The model
            runs without gradients; a ``torch.nn.Module`` runs in evaluation mode.
        synonyms: substitutes of a word: a mapping, or a function such as ``WordNet()``.
        constraints: as for ``word_substitutions``: functions (words, position, substitute) -> bool. These functions
            define the substitution sets, so a certificate for these sets must use the same constraints.
        text_constraints: functions (original, candidate) -> bool on whole texts, such as a grammar check. These
            functions restrict only the attack.
        similarity: function (original, candidate) -> float. If it is given, all substitutes of a word are tried, and
            the most similar of the successful texts is returned.
        ranking: the change of a word that measures its importance. The word is deleted ("delete") or replaced with
            ``mask`` ("mask"), with its first substitute ("substitute") or with its best substitute ("best").
            "substitute" takes the fewest queries, because each text that it measures is also a candidate and may
            succeed at once. "best" tries all substitutes and changes the fewest words. "none" takes the words in the
            order of the text.
        mask: string that replaces a word in the ranking "mask".
        beam_width: number of texts with the lowest margins that are kept from word to word.
        passes: number of times that all words are visited; the visits end earlier if a pass changes nothing.
        max_changed: largest share of the words that may be substituted, in (0, 1]; the resulting number of words is
            rounded down.
        max_queries: largest number of queries for each attacked text, counting the original text; never exceeded.
        at_once: number of substitutes that the search on a text sends to the model together; with a ``similarity``, all
        substitutes of a word are sent together when the word is visited. The queries of different texts always share
        batches. If few texts are attacked, a larger ``at_once`` gives larger batches, but it may also spend queries on
        substitutes after the first one that succeeds.
        batch_size: largest number of texts in one call of the model.

    Raises:
        InputError: an argument out of range.
        InputTypeError: an argument of the wrong type.

    >>> def model(texts):  # class 1 if the text has "good" in it
    ...     return [[0.0, 2.0 * text.count("good") - 1] for text in texts]
    >>> attack = WordSubstitution(model, {"good": ["fine", "great"], "film": ["movie"]})
    >>> result = attack.attack(["A good film.", "A film."], [1, 0])
    >>> result
    WordAttackResult(texts=2, attacked=2, fooled=1, queries=6)
    >>> result.texts, result.success, result.distance
    (('A fine film.', 'A film.'), (True, False), (1.0, inf))
    """

    def __init__(
        self,
        model: TextClassifier,
        synonyms: Synonyms,
        *,
        constraints: Iterable[WordConstraint] = (),
        text_constraints: Iterable[TextConstraint] = (),
        similarity: Callable[[str, str], float] | None = None,
        ranking: Literal["delete", "mask", "substitute", "best", "none"] = "delete",
        mask: str = "[UNK]",
        beam_width: int = 1,
        passes: int = 1,
        max_changed: float = 1.0,
        max_queries: int | None = None,
        at_once: int = 1,
        batch_size: int = 256,
    ) -> None:
        super().__init__(
            model,
            synonyms,
            constraints=constraints,
            text_constraints=text_constraints,
            max_changed=max_changed,
            max_queries=max_queries,
            batch_size=batch_size,
        )
        if similarity is not None and not callable(similarity):
            raise InputTypeError("similarity", "a function of two strings", shown(similarity))
        if not isinstance(mask, str):
            raise InputTypeError("mask", "a string", shown(mask))
        self.similarity = similarity
        self.ranking = choice("ranking", ranking, RANKINGS)
        self.mask = mask
        self.beam_width = count("beam_width", beam_width)
        self.passes = count("passes", passes)
        self.at_once = count("at_once", at_once)

    def _search(self, search: TextSearch, clean: TextMargin, max_changes: int) -> Query[Candidate]:
        positions = [position for position, allowed in enumerate(search.sets) if len(allowed) > 1]
        ranked, success = yield from self._ranked(search, positions if max_changes else [])
        if success is not None:
            return success
        beam = [Candidate({}, clean)]
        for _ in range(self.passes):
            before = beam
            for position in ranked:
                options = self._options(beam, position, search.sets[position], max_changes)
                for batch in _slices(options, len(options) if self.similarity else self.at_once):
                    candidates, complete = yield from self._judged(search, batch)
                    success = self._best_success(search, candidates)
                    if success is not None:
                        return success
                    beam = [*beam, *candidates]
                    if not complete:
                        return min(beam, key=_margin)
                beam = sorted(beam, key=_margin)[: self.beam_width]
            if beam == before:
                break
        return beam[0]

    def _ranked(self, search: TextSearch, positions: list[int]) -> Query[tuple[list[int], Candidate | None]]:
        """Return the positions by decreasing importance, and a success if one was found while ranking."""
        if self.ranking == "none" or len(positions) < 2:
            return positions, None
        margins = dict.fromkeys(positions, math.inf)
        if self.ranking in ("substitute", "best"):
            stop = 2 if self.ranking == "substitute" else None
            alone = [{position: word} for position in positions for word in search.sets[position][1:stop]]
            for options in _slices(alone, self.at_once):
                candidates, complete = yield from self._judged(search, options)
                success = self._best_success(search, candidates)
                if success is not None or not complete:
                    return positions, success
                for (position,), (margin, *_) in candidates:
                    margins[position] = min(margin, margins[position])
        else:
            for batch in _slices(positions, self.batch_size):
                texts = [search.without(p) if self.ranking == "delete" else search.text({p: self.mask}) for p in batch]
                judgements = yield from search.judge(texts)
                margins.update(zip(batch, (judgement.margin for judgement in judgements), strict=False))
                if len(judgements) < len(texts):
                    break
        return sorted(positions, key=margins.__getitem__), None

    def _best_success(self, search: TextSearch, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the success most similar to the original; without a similarity, the first success."""
        fooled = [candidate for candidate in candidates if search.fooled(candidate.judgement)]
        similarity = self.similarity
        if not fooled or similarity is None:
            return fooled[0] if fooled else None
        return max(fooled, key=lambda candidate: similarity(search.original, search.text(candidate.changes)))

    @staticmethod
    def _options(beam: Sequence[Candidate], position: int, allowed: Sequence[str], max_changes: int) -> list[Changes]:
        """Return the beam's texts with other words at this position, each text once."""
        options: dict[frozenset[tuple[int, str]], Changes] = {}
        for changes, _ in beam:
            reduced = {p: word for p, word in changes.items() if p != position}
            for new in (reduced, *({**reduced, position: word} for word in allowed[1:])):
                if len(new) <= max_changes:
                    options.setdefault(frozenset(new.items()), new)
        for changes, _ in beam:
            options.pop(frozenset(changes.items()), None)
        return list(options.values())


def _margin(candidate: Candidate) -> float:
    return candidate.judgement.margin


def _slices(values: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (values[begin : begin + size] for begin in range(0, len(values), max(size, 1)))
