"""WordNet's files, files of substitutes, stop words; texts split without loss, and the sets of substitutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.text import WordNet, protect_words, read_synonyms, split_words, word_substitutions
from pyrobust.text.synonyms import STOP_WORDS

LICENCE = "  1 This software and database is being provided to you.  \n"
# Words of a synset with their lexical ids; the second noun synset is the more frequent sense of "film".
SYNSETS = {
    "noun": [["celluloid", "film", "motion_picture_film"], ["movie", "film", "motion_picture", "Film"], ["US", "U.S."]],
    "verb": [["make", "create"]],
    "adj": [["ready(p)", "prepared"]],
    "adv": [],
}
SENSES = {"noun": {"film": [1, 0], "movie": [1], "us": [2]}, "verb": {"make": [0]}, "adj": {"ready": [0]}, "adv": {}}


@pytest.fixture
def database(tmp_path):
    """Write a small database in the format of wndb(5WN)."""
    for category, synsets in SYNSETS.items():
        data, offsets = LICENCE, []
        for words in synsets:
            offsets.append(len(data))
            entries = " ".join(f"{word} 0" for word in words)
            data += f"{len(data):08d} 03 {category[0]} {len(words):02x} {entries} 001 @ 00000000 n 0000 | a gloss  \n"
        (tmp_path / f"data.{category}").write_text(data)
        index = LICENCE
        for word, senses in sorted(SENSES[category].items()):
            places = " ".join(f"{offsets[sense]:08d}" for sense in senses)
            index += f"{word} {category[0]} {len(senses)} 2 @ ~ {len(senses)} 1 {places}  \n"
        (tmp_path / f"index.{category}").write_text(index)
    (tmp_path / "verb.exc").write_text("made make\n")
    return tmp_path


def test_synonyms_share_a_synset(database):
    synonyms = WordNet(database)
    assert synonyms("film") == ("movie", "celluloid")
    assert synonyms("us") == ()
    assert synonyms("ready") == ("prepared",)
    assert synonyms("unknown") == synonyms("Film") == synonyms("films") == synonyms("made") == ()
    assert WordNet(database, senses=1)("film") == ("movie",)
    assert WordNet(database, parts_of_speech=["verb"])("film") == ()


def test_morphology(database):
    synonyms = WordNet(database, morphology=True)
    assert synonyms("films") == ("movie", "film", "celluloid")
    assert synonyms("made") == synonyms("making") == synonyms("makes") == ("make", "create")
    assert synonyms("ready") == ("prepared",)


def test_case_follows_the_text(database):
    assert word_substitutions(["Film", "FILM"], WordNet(database, senses=1)) == (("Film", "Movie"), ("FILM", "MOVIE"))


def test_damaged_databases(database):
    for stem in ("index", "data"):
        saved = (database / f"{stem}.noun").read_bytes()
        (database / f"{stem}.noun").unlink()
        with pytest.raises(FileFormatError, match="wordnet-base"):
            WordNet(database)
        (database / f"{stem}.noun").write_bytes(saved)
    index = (database / "index.noun").read_text()
    for line in ("film n", "film n two 1 @ 2 1 0", "film n 2 1 @ 2 1 0", "film n 0 0 0 0", "\x00\xff"):
        (database / "index.noun").write_text(index + line)
        with pytest.raises(FileFormatError, match=r"index\.noun, line 5: expected an entry"):
            WordNet(database)
    (database / "index.noun").write_text(index)
    data = (database / "data.noun").read_text()
    for changed in ("", data[9:], data.replace(" 03 celluloid", " ff celluloid"), data.replace("03 cell", "xx cell")):
        (database / "data.noun").write_text(changed)
        with pytest.raises(FileFormatError, match=r"data\.noun: expected a synset at byte"):
            WordNet(database)("film")


def test_no_database(monkeypatch, tmp_path):
    monkeypatch.setenv("WNHOME", str(tmp_path))
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    with pytest.raises(InputError, match="wordnet-base"):
        WordNet()


def test_the_database_of_the_environment(database, monkeypatch):
    monkeypatch.setenv("WNSEARCHDIR", str(database))
    assert WordNet().folder == database


@pytest.mark.skipif(not Path("/usr/share/wordnet/index.noun").is_file(), reason="Debian's wordnet-base not installed")
def test_the_real_database():
    synonyms = WordNet("/usr/share/wordnet", parts_of_speech=["noun", "adj"])
    assert synonyms("movie") == ("film", "picture", "pic", "flick")
    assert synonyms("galore") == ("abounding",)
    assert synonyms("movies") == ()
    assert "good" in WordNet("/usr/share/wordnet", parts_of_speech=["adj"], morphology=True)("better")


def test_files_of_substitutes(tmp_path):
    path = tmp_path / "synonyms.txt"
    path.write_text("# mine\n\nfilm\tmovie picture\ngood fine\nlonely\n", encoding="utf-8-sig")
    assert read_synonyms(path) == {"film": ("movie", "picture"), "good": ("fine",), "lonely": ()}
    path = tmp_path / "synonyms.json"
    path.write_text('{"film": ["movie", "picture"], "lonely": []}')
    assert read_synonyms(path) == {"film": ("movie", "picture"), "lonely": ()}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"film movie\nfilm picture\n", "line 2: expected one entry"),
        ("a.txt", b"film\tmotion,picture\n", "line 1: expected single words"),
        ("a.txt", b"\xff\xfe", "expected UTF-8"),
        ("a.json", b"[]", "expected a JSON object"),
        ("a.json", b'[["film", ["movie"]]]', "expected a JSON object"),
        ("a.json", b"{", "expected JSON"),
        ("a.json", b'{"film": "movie"}', "expected a JSON object"),
        ("a.json", b'{"film": [1]}', "expected single words"),
        ("a.json", b'{"film": ["motion picture"]}', "expected single words"),
        ("a.json", b'{"film": [], "film": ["movie"]}', "expected one entry"),
        ("a.json", b"[" * 100_000, "expected JSON"),
        ("missing.txt", None, "missing.txt: expected a file"),
    ],
)
def test_wrong_files(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_synonyms(path)


def test_protected_words():
    synonyms = {word: ["other"] for word in ("in", "don't", "film", "I")}
    words = split_words("In film I don’t DON'T don't").words
    sets = word_substitutions(words, lambda word: synonyms.get(word.replace("’", "'"), ()), [protect_words()])
    assert [len(allowed) for allowed in sets] == [1, 2, 1, 1, 1, 1]
    sets = word_substitutions(words, synonyms, [protect_words(["Film"])])
    assert [len(allowed) for allowed in sets] == [2, 1, 2, 1, 2, 2]
    assert all(split_words(word).words == (word,) for word in STOP_WORDS)


# --- words of texts, and their sets


WORDS = st.sampled_from(
    ["a", "don't", "well-made", "Éclair", "x1", "नमस्ते", "東京", "ﬁne", "e\u0301te\u0301", "O’Brien"]
)


@given(st.text())
def test_splitting_loses_nothing(text):
    split = split_words(text)
    assert split.join() == text
    assert len(split.gaps) == len(split.words) + 1
    assert all(split_words(word).words == (word,) for word in split.words)
    assert not any(split_words(gap).words for gap in split.gaps)


@given(st.text(), st.data())
def test_substituting_words_keeps_the_positions(text, data):
    split = split_words(text)
    words = tuple(data.draw(WORDS) for _ in split.words)
    assert split_words(split.join(words)).words == words


@given(st.lists(WORDS), st.dictionaries(WORDS, st.lists(WORDS, max_size=4)))
def test_sets_start_with_the_original_and_repeat_nothing(words, synonyms):
    sets = word_substitutions(words, synonyms)
    assert [allowed[0] for allowed in sets] == words
    for allowed, word in zip(sets, words, strict=True):
        assert len(set(allowed)) == len(allowed)
        if synonyms.get(word):
            assert set(allowed) == {word, *synonyms[word]}
    assert word_substitutions(words, lambda word: synonyms.get(word, ())) == sets


def test_case_of_the_original():
    synonyms = {"good": ["great", "B-movie"], "i": ["we"], "US": ["America"]}
    assert word_substitutions(["good", "Good", "GOOD", "I", "US"], synonyms) == (
        ("good", "great", "B-movie"),
        ("Good", "Great", "B-movie"),
        ("GOOD", "GREAT", "B-MOVIE"),
        ("I", "We"),
        ("US", "America"),
    )


def test_constraints_see_the_original_words():
    seen = []
    word_substitutions(["a", "b"], {"a": ["c"], "b": ["d"]}, [lambda *arguments: seen.append(arguments) or True])
    assert seen == [(("a", "b"), 0, "c"), (("a", "b"), 1, "d")]


@pytest.mark.parametrize("substitute", ["motion picture", "", "good!", " film", "film "])
def test_phrases_are_refused(substitute):
    with pytest.raises(InputError, match="expected single words for 'film'"):
        word_substitutions(["film"], {"film": [substitute]})


@pytest.mark.parametrize(
    "arguments",
    [
        ("a text", {}),
        ([1], {}),
        (["film"], {"film": "movie"}),
        (["film"], [("film", "movie")]),
        (["film"], {}, [None]),
        (["film"], lambda w: None),
    ],
)
def test_wrong_types(arguments):
    with pytest.raises(InputTypeError, match="expected"):
        word_substitutions(*arguments)


def test_wrong_number_of_words():
    with pytest.raises(InputError, match="expected 2"):
        split_words("a b").join(["a"])
    with pytest.raises(InputTypeError, match="expected a string"):
        split_words(b"a b")
