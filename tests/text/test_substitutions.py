"""Texts split into words without loss, and the sets of substitutes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.text import split_words, word_substitutions

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
    word_substitutions(["a", "b"], {"a": ["c"], "b": ["d"]}, [lambda *given: seen.append(given) or True])
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
        (["film"], {"film": [None]}),
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
