"""Word substitution attacks: inside the sets, exact in their queries, successes that repeat."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.text import ExhaustiveSubstitution, WordSubstitution, split_words

VOCABULARY = ["a", "b", "c", "d", "Über", "good", "don't", "e\u0301"]
TEXTS = st.lists(st.sampled_from([*VOCABULARY, ",", "-- ", "☃"]), max_size=7).map(" ".join)
SYNONYMS = st.dictionaries(st.sampled_from(VOCABULARY), st.lists(st.sampled_from(VOCABULARY), max_size=4))


class Counting:
    """Logits from the words, by random weights and interactions of neighbours; counts the texts it is sent."""

    def __init__(self, seed=0, classes=3, dtype=np.float64, nan=0.0):
        self.seed, self.classes, self.dtype, self.nan = seed, classes, dtype, nan
        self.texts = []

    def logits(self, text):
        words = split_words(text).words
        total = np.zeros(self.classes)
        for pair in zip(("", *words), words, strict=False):
            state = np.random.default_rng([self.seed, *map(ord, "\0".join(pair))])
            total += state.normal(size=self.classes)
            if state.random() < self.nan:
                total[0] = np.nan
        return total.astype(self.dtype)

    def __call__(self, texts):
        assert type(texts) is list
        assert all(type(text) is str for text in texts)
        self.texts += texts
        return np.stack([self.logits(text) for text in texts])


def finds_good(texts):
    return [[0.0, 1.0 if "good" in text else -1.0] for text in texts]


def attacks(model, synonyms, **common):
    yield WordSubstitution(model, synonyms, **common)
    yield WordSubstitution(model, synonyms, ranking="mask", at_once=3, passes=2, **common)
    yield WordSubstitution(model, synonyms, ranking="substitute", beam_width=2, **common)
    yield WordSubstitution(model, synonyms, ranking="best", at_once=2, **common)
    yield WordSubstitution(model, synonyms, ranking="none", similarity=lambda a, b: -len(b), **common)


def check(model, result, attack, y):
    """Check a result's claims on its own texts; return which texts were fooled."""
    assert sum(result.queries) == len(model.texts)
    for i, text in enumerate(result.texts):
        original, sets = split_words(result.originals[i]), attack.substitutions(result.originals[i])
        words = split_words(text).words
        assert len(words) == len(sets) == result.words[i]
        assert all(word in allowed for word, allowed in zip(words, sets, strict=True))
        assert original.join(words) == text
        assert result.changed[i] == tuple(p for p, allowed in enumerate(sets) if words[p] != allowed[0])
        logits = model.logits(text)
        predicted = int(np.argmax(logits)) if np.isfinite(logits).all() else -1
        assert result.predictions[i] == predicted
        fooled = predicted == y[i] if result.targeted else predicted not in (-1, y[i])
        assert result.success[i] == (fooled and result.attacked[i])
        if not math.isinf(result.margins[i]):
            others = np.delete(logits, y[i])
            gap = logits[y[i]] - others.max()
            assert result.margins[i] == (-gap if result.targeted else gap)
    return result.success


@settings(max_examples=25)
@given(st.lists(TEXTS, max_size=4), SYNONYMS, st.integers(0, 9), st.booleans(), st.sampled_from([0.0, 0.2]), st.data())
def test_results_hold(texts, synonyms, seed, targeted, nan, data):
    y = [data.draw(st.integers(0, 2)) for _ in texts]
    common = {
        "max_changed": data.draw(st.sampled_from([0.3, 1.0])),
        "batch_size": data.draw(st.sampled_from([1, 3, 256])),
        "max_queries": data.draw(st.sampled_from([None, 1, 5, 12])),
    }
    labels = ([0] * len(texts), True, y) if targeted else (y,)
    oracle = Counting(seed, nan=nan)
    exact = ExhaustiveSubstitution(oracle, synonyms, max_changed=common["max_changed"])
    shortest = exact.attack(texts, *labels)
    check(oracle, shortest, exact, y)
    for attack in attacks(model := Counting(seed, nan=nan), synonyms, **common):
        model.texts.clear()
        result = attack.attack(texts, *labels)
        check(model, result, attack, y)
        assert all(queries <= (common["max_queries"] or math.inf) for queries in result.queries)
        assert all(a >= b for a, b in zip(result.distance, shortest.distance, strict=True))
        assert all(
            d <= max(common["max_changed"] * n, 0) or math.isinf(d)
            for d, n in zip(result.distance, result.words, strict=True)
        )
        before = len(model.texts)
        assert attack.attack(texts, *labels) == result
        assert len(model.texts) == 2 * before
        alone = [
            attack.attack([text], *([[v[i]] if isinstance(v, list) else v for v in labels]))
            for i, text in enumerate(texts)
        ]
        assert [r.texts[0] for r in alone] == list(result.texts)
        assert [r.queries[0] for r in alone] == list(result.queries)


@given(TEXTS, SYNONYMS, st.integers(0, 9))
@settings(max_examples=25)
def test_enumeration(text, synonyms, seed):
    model = Counting(seed)
    attack = ExhaustiveSubstitution(model, synonyms, lowest_margin=True)
    result = attack.attack([text], [0])
    if result.attacked[0]:
        sets = attack.substitutions(text)
        assert result.queries[0] == math.prod(map(len, sets)) == len(set(model.texts))
        assert result.margins[0] == min(z[0] - z[1:].max() for z in map(model.logits, model.texts))
        assert bool(result.success[0]) == ExhaustiveSubstitution(model, synonyms).attack([text], [0]).success[0]


def test_a_linear_model_is_attacked_optimally():
    """Where every word adds to the logits on its own, one pass reaches the lowest margin of all texts."""
    weights = dict(zip("abcdefgh", np.random.default_rng(0).normal(size=8), strict=True))
    model = lambda texts: [[sum(weights[w] for w in text.split()), 0.0] for text in texts]
    synonyms = {"a": "bcd", "e": "fgh", "c": "de"}
    synonyms = {word: list(substitutes) for word, substitutes in synonyms.items()}
    texts = ["a e c a", "c c e", "a a a a e", "h b g"]
    y = [int(row[0] < 0) for row in model(texts)]
    greedy = WordSubstitution(model, synonyms).attack(texts, y)
    exact = ExhaustiveSubstitution(model, synonyms).attack(texts, y)
    lowest = ExhaustiveSubstitution(model, synonyms, lowest_margin=True).attack(texts, y)
    assert greedy.success == exact.success == lowest.success
    for i, success in enumerate(greedy.success):
        assert success or greedy.margins[i] == lowest.margins[i]


def test_hand_worked_queries():
    """The original, two deletions, then c and d in the second word's place; the first word's b is not reached."""
    sent = []

    def model(texts):
        sent.extend(texts)
        return torch.tensor([[0.0, {"e": 3.0, "c": 2.0, "d": -5.0}.get(t.split()[-1], 1.0)] for t in texts])

    result = WordSubstitution(model, {"a": ["b"], "e": ["c", "d"]}).attack(["a e"], [1])
    assert sent == ["a e", "e", "a", "a c", "a d"]
    assert (result.texts, result.queries, result.changed, result.margins) == (("a d",), (5,), ((1,),), (-5.0,))


def test_the_best_ranking_changes_the_fewest_words_of_a_linear_model():
    weights = dict(zip("abcdefgh", np.random.default_rng(1).normal(size=8), strict=True))
    model = lambda texts: [[sum(weights[w] for w in text.split()), 0.0] for text in texts]
    synonyms = {word: [other for other in "abcdefgh" if other != word] for word in "abcd"}
    texts = [" ".join(np.random.default_rng(seed).choice(list("abcdefgh"), 5)) for seed in range(30)]
    y = [int(row[0] < 0) for row in model(texts)]
    best = WordSubstitution(model, synonyms, ranking="best").attack(texts, y)
    exact = ExhaustiveSubstitution(model, synonyms).attack(texts, y)
    assert best.distance == exact.distance
    assert {1.0, 2.0} < set(best.distance)


def test_similarity_chooses_among_successes():
    synonyms = {"good": ["excellent", "fine", "bad"]}
    assert WordSubstitution(finds_good, synonyms).attack(["good"], [1]).texts == ("excellent",)
    nearest = WordSubstitution(finds_good, synonyms, similarity=lambda a, b: -abs(len(a) - len(b)))
    result = nearest.attack(["good"], [1])
    assert (result.texts, result.queries) == (("fine",), (4,))


def test_text_constraints_bound_the_attack():
    seen = []
    constraint = lambda original, text: seen.append((original, text)) or text != "fine"
    for ranking in ("delete", "substitute", "best"):
        synonyms = {"good": ["fine", "great"]}
        attack = WordSubstitution(finds_good, synonyms, text_constraints=[constraint], ranking=ranking)
        assert attack.attack(["good"], [1]).texts == ("great",)
    assert set(seen) == {("good", "fine"), ("good", "great")}


@pytest.mark.parametrize("text", ["", " \n", "word", "☃ !", "no synonyms here"])
def test_texts_without_substitutes(text):
    model = Counting()
    result = WordSubstitution(model, {"a": ["b"]}).attack([text], [int(np.argmax(model.logits(text)))])
    assert (result.texts, result.queries, result.success, result.distance) == ((text,), (1,), (False,), (math.inf,))


def test_ten_thousand_words():
    text = "good movie " * 5000
    model = lambda texts: [[0.0, t.count("good") - 4990.5] for t in texts]
    result = WordSubstitution(model, {"good": ["fine"]}, ranking="none").attack([text], [1])
    assert (result.distance, result.queries) == ((10.0,), (11,))
    result = WordSubstitution(model, {"good": ["fine"]}, max_queries=300).attack([text], [1])
    assert (result.success, result.queries) == ((False,), (300,))


def test_a_text_is_sent_once():
    sent = []
    model = lambda texts: sent.extend(texts) or [[9.0 - t.count("b") - 2 * t.count("c"), 0.0] for t in texts]
    attack = WordSubstitution(model, {"a": ["b", "c"], "b": ["a"]}, passes=5, beam_width=3, ranking="best")
    assert attack.attack(["a a b"], [0]).success == (False,)
    assert len(set(sent)) == len(sent)


def test_most_words_changed():
    model = lambda texts: [[3.5 - t.count("b"), 0.0] for t in texts]
    result = WordSubstitution(model, {"a": ["b"]}, max_changed=0.5).attack(["a a a a", "a a a"], [0, 0])
    assert [len(changed) for changed in result.changed] == [2, 1]


def test_nan_is_no_success():
    model = lambda texts: [[0.0, 1.0 if "good" in text else math.nan] for text in texts]
    result = WordSubstitution(model, {"good": ["fine"]}).attack(["good", "bad"], [1, 1])
    assert (result.attacked, result.success, result.texts) == ((True, False), (False, False), ("good", "bad"))
    assert result.clean_predictions == (1, -1)


def test_rounding_of_a_batch_makes_no_success():
    """A model that differs in batches by less than the tolerance is asked again alone, at the cost of a query."""
    alone = []

    def model(texts):
        alone.extend(texts if len(texts) == 1 else [])
        return torch.tensor([[1e3, 1e3 + (9 if t == "good" else 0.1 if len(texts) == 1 else -0.1)] for t in texts])

    result = WordSubstitution(model, {"good": ["fine", "great"]}, at_once=2).attack(["good"], [1])
    assert alone == ["good", "fine", "great"]
    assert (result.success, result.queries, result.predictions) == ((False,), (5,), (1,))
    result = WordSubstitution(model, {"good": ["fine", "great"]}, at_once=2, max_queries=3).attack(["good"], [1])
    assert (result.success, result.queries) == ((False,), (3,))


@pytest.mark.parametrize(
    "wrap", [torch.tensor, np.array, list, lambda rows: SimpleNamespace(logits=torch.tensor(rows))]
)
def test_outputs_of_models(wrap):
    attack = WordSubstitution(lambda texts: wrap(finds_good(texts)), {"good": ["fine"]})
    assert attack.attack(["good"], [1]).success == (True,)


def test_modules_run_in_evaluation_mode_without_gradients():
    class Net(torch.nn.Module):
        def forward(self, texts):
            assert not self.training
            assert not torch.is_grad_enabled()
            return torch.zeros(len(texts), 2)

    net = Net()
    WordSubstitution(net, {}).attack(["a"], [0])
    assert net.training


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda n: torch.zeros(n), "expected logits of shape"),
        (lambda n: torch.zeros(n + 1, 2), "expected logits of shape"),
        (lambda n: torch.zeros(n, 1), "K >= 2"),
        (lambda n: torch.zeros(n, 2, dtype=torch.int64), "floating-point"),
        (lambda n: [[0.0], [0.0, 1.0]], "rows of logits"),
        (lambda n: ["positive"] * n, "rows of logits"),
        (lambda n: "positive", "expected logits"),
        (lambda n: None, "expected logits"),
        (lambda n: (torch.zeros(n, 2), torch.zeros(n, 2)), "rows of logits|expected logits"),
    ],
)
def test_models_without_logits(output, message):
    with pytest.raises(ModelError, match=message):
        WordSubstitution(lambda texts: output(len(texts)), {}).attack(["a", "b", "c"], [0, 0, 0])


def test_other_numbers_of_classes():
    model = lambda texts: torch.zeros(len(texts), 2 if "a" in texts else 3)
    with pytest.raises(ModelError, match="of 2 classes"):
        WordSubstitution(model, {"a": ["b"]}).attack(["a"], [0])


def test_a_model_that_raises():
    def model(texts):
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        WordSubstitution(model, {}).attack(["a"], [0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], [0, 1]), "y: expected"),
        ((["a"], [2]), "y: expected labels 0 to 1"),
        ((["a"], [-1]), "y: expected"),
        ((["a"], [0], True), "target_labels: expected labels"),
        ((["a"], [0], False, [1]), "target_labels: expected labels"),
        ((["a"], [0], True, [5]), "target_labels: expected labels 0 to 1"),
        (("a text", [0]), "texts: expected"),
        (([b"a"], [0]), "texts: expected strings"),
    ],
)
def test_wrong_arguments_of_attacks(arguments, message):
    with pytest.raises((InputError, InputTypeError), match=message):
        WordSubstitution(lambda texts: torch.zeros(len(texts), 2), {}).attack(*arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ranking", "gradient"), ("max_changed", 0), ("max_changed", 1.5), ("passes", True), ("similarity", 1)),
        *((name, 0) for name in ("max_queries", "beam_width", "at_once", "batch_size")),
        *(("mask", None), ("model", "bert"), ("synonyms", ["movie"]), ("constraints", [1])),
        *(("text_constraints", ["grammar"]), ("text_constraints", 1)),
    ],
)
def test_wrong_arguments(name, value):
    with pytest.raises((InputError, InputTypeError), match=name):
        WordSubstitution(**{"model": Counting(), "synonyms": {}, name: value})


def test_too_many_combinations():
    model = Counting()
    attack = ExhaustiveSubstitution(model, {"a": ["b", "c"]}, most_texts=8)
    with pytest.raises(InputError, match="got 9 for 'a a'"):
        attack.attack(["a a"], [int(np.argmax(model.logits("a a")))])


def test_results_as_tables():
    model = lambda texts: [[0.0, text.count("good") - 0.5] for text in texts]
    result = WordSubstitution(model, {"good": ["fine"]}).attack(["good", "so good, good", "bad"], [1, 1, 1])
    assert result.success_rate == 1.0
    assert result.robust_accuracy == 0.0
    assert result.distance == (1.0, 2.0, 0.0)
    assert result.to_dict()["distance"] == [1.0, 2.0, 0.0]
    assert result.to_pandas().distance.tolist() == [1.0, 2.0, 0.0]
    assert "fooled=2" in repr(result)
    empty = WordSubstitution(model, {}).attack([], [])
    assert len(empty) == 0
    assert math.isnan(empty.success_rate)
    assert math.isnan(empty.robust_accuracy)
