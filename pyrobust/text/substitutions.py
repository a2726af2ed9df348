"""Texts as words and gaps, and the words that a perturbation may put at each position."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from pyrobust.checks import items, shown
from pyrobust.errors import InputError, InputTypeError

Synonyms: TypeAlias = Mapping[str, Iterable[str]] | Callable[[str], Iterable[str]]
"""Substitutes of a word: a mapping, or a function that returns an empty sequence for unknown words."""

WordConstraint: TypeAlias = Callable[[Sequence[str], int, str], bool]
"""``constraint(words, position, substitute)``: whether the original words allow this substitute at this position."""

_WORD: Final = re.compile(r"w+(?:[-'’]w+)*")


@dataclass(frozen=True)
class SplitText:
    """A text as words and the gaps around them.

    Attributes:
        words: the words, as they stand in the text.
        gaps: the text before the first word, between neighbouring words and after the last word; there is one more gap
            than there are words.

    >>> split = SplitText(("a", "b"), ("", "-> ", "!"))
    >>> split.join(), split.join(["a", "c"])
    ('a-> b!', 'a-> c!')
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]

    def join(self, words: Sequence[str] | None = None) -> str:
        """The text with these words in place of its own words.

        Args:
            words: one word for each position. By default, they are the words of the text, which give exactly the
                original text.

        Raises:
            InputError: a wrong number of words.
        """
        words = self.words if words is None else words
        if len(words) != len(self.words):
            raise InputError("words", f"{len(self.words)}, one for each position", len(words))
        pieces = [self.gaps[0]]
        for word, gap in zip(words, self.gaps[1:], strict=True):
            pieces += (word, gap)
        return "".join(pieces)


def split_words(text: str) -> SplitText:
    r"""Split a text into words and gaps, without loss.

    A word is a run of letters, digits and combining marks, with single hyphens and apostrophes inside it. If words are
    replaced with other words, the position of every word stays the same. That is, for the result ``split`` and any
    words, ``split_words(split.join(words)).words == words``.

    Args:
        text: any string. In a script without spaces between words, each run of letters is one word.

    Raises:
        InputTypeError: not a string.

    >>> split_words("It isn't well-made -- avoid!").words
    ('It', "isn't", 'well-made', 'avoid')
    >>> split_words("«Ça va?»\n").gaps
    ('«', ' ', '?»\n')
    """
    if not isinstance(text, str):
        raise InputTypeError("text", "a string", shown(text))
    words, gaps, last = [], [], 0
    for match in _WORD.finditer("".join(map(_character_class, text))):
        words.append(text[match.start() : match.end()])
        gaps.append(text[last : match.start()])
        last = match.end()
    return SplitText(tuple(words), (*gaps, text[last:]))


def word_substitutions(
    words: Iterable[str], synonyms: Synonyms, constraints: Iterable[WordConstraint] = ()
) -> tuple[tuple[str, ...], ...]:
    r"""Return the words allowed at each position: the original word, followed by its substitutes, without repetition.

    The sets depend only on the original words, as in section 2 of "Certified robustness to adversarial word
    substitutions" (Jia et al., 2019). The perturbed texts form the product :math:`S(x,1) \times \dots \times S(x,L)`,
    where :math:`S(x,i)` is the set of words allowed at position i of the text x, and L is the number of words. These
    texts do not depend on the order in which an attack chooses the words. An attack and a certificate of one text
    therefore use the same sets.

    A word that is missing from the source of synonyms is looked up in lower case. Its substitutes are then written in
    the case of the word: "Good" and "GOOD" become "Great" and "GREAT".

    Args:
        words: the original words, such as ``split_words(text).words``.
        synonyms: a mapping from words to substitutes, or a function; see ``WordNet`` and ``read_synonyms``.
        constraints: functions (words, position, substitute) -> bool. A substitute is kept if all functions return True.

    Raises:
        InputTypeError: a word or a substitute that is not a string, or another argument of the wrong type.
        InputError: ``split_words`` does not split a substitute into exactly one word. Such a substitute is not left out
            silently, because the set would then have fewer words than the source of synonyms gives.

    >>> word_substitutions(["A", "Good", "film"], {"good": ["great", "fine", "great"], "film": ["movie", "film"]})
    (('A',), ('Good', 'Great', 'Fine'), ('film', 'movie'))
    >>> keep = lambda words, position, substitute: position > 0 and words[position - 1] == "a"
    >>> word_substitutions(["good", "a", "film"], {"good": ["great"], "film": ["movie"]}, [keep])
    (('good',), ('a',), ('film', 'movie'))
    """
    originals = tuple(items("words", words, "strings"))
    checks = tuple(items("constraints", constraints, "functions"))
    for word in originals:
        if not isinstance(word, str):
            raise InputTypeError("words", "strings", shown(word))
    if not isinstance(synonyms, Mapping) and not callable(synonyms):
        raise InputTypeError("synonyms", "a mapping or a function of a word", shown(synonyms))
    for check in checks:
        if not callable(check):
            raise InputTypeError("constraints", "functions", shown(check))
    cache: dict[str, tuple[str, ...]] = {}
    sets = []
    for position, word in enumerate(originals):
        if word not in cache:
            cache[word] = _substitutes(word, synonyms)
        kept = [s for s in cache[word] if all(check(originals, position, s) for check in checks)]
        sets.append((word, *kept))
    return tuple(sets)


def _substitutes(word: str, synonyms: Synonyms) -> tuple[str, ...]:
    """Return a word's substitutes, in its case if it was looked up in lower case, each once, without the word."""
    substitutes_of = _look_up(word, synonyms)
    if not substitutes_of and word != word.lower():
        substitutes_of = tuple(_in_case_of(word, substitute) for substitute in _look_up(word.lower(), synonyms))
    return tuple(dict.fromkeys(substitute for substitute in substitutes_of if substitute != word))


def _look_up(word: str, synonyms: Synonyms) -> tuple[str, ...]:
    substitutes_of = synonyms.get(word, ()) if isinstance(synonyms, Mapping) else synonyms(word)
    if isinstance(substitutes_of, str):
        raise InputTypeError(
            "synonyms", f"a sequence of words for {shown(word)}", f"the string {shown(substitutes_of)}"
        )
    substitutes = tuple(items("synonyms", substitutes_of, "words"))
    for substitute in substitutes:
        if not isinstance(substitute, str):
            raise InputTypeError("synonyms", f"strings for {shown(word)}", shown(substitute))
        if not is_word(substitute):
            raise InputError(
                "synonyms",
                f"single words for {shown(word)}",
                shown(substitute),
                "leave phrases out of the source, since they would move the positions after them",
            )
    return substitutes


@lru_cache(1 << 16)
def is_word(text: str) -> bool:
    """Whether ``split_words`` splits a text into exactly one word: the text itself.

    >>> is_word("well-made"), is_word("motion picture"), is_word("")
    (True, False, False)
    """
    return split_words(text).words == (text,)


def _in_case_of(word: str, substitute: str) -> str:
    """Return a substitute in the case of the word, or unchanged if the change would not leave exactly one word."""
    if len(word) > 1 and word.isupper():
        changed = substitute.upper()
    else:
        changed = substitute[0].upper() + substitute[1:] if word[0].isupper() else substitute
    return changed if is_word(changed) else substitute


@lru_cache(1 << 12)
def _character_class(character: str) -> str:
    """Return "w" for a character of a word, the same character for a hyphen or apostrophe, and a space otherwise."""
    if character.isalnum() or unicodedata.category(character)[0] == "M":
        return "w"
    return character if character in "-'’" else " "
