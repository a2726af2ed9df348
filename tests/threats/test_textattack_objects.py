r"""TextAttack's own attacks on pyrobust's classifiers, and its result objects as verdicts.

TextAttack 0.3.11 needs transformers below 5 (flair does) and so an environment of its own, and not all of what it
requires. What importing it takes:

    pip install --no-deps textattack==0.3.11 flair==0.15.1 OpenHowNet bert-score transformer-smaller-training-vocab
    pip install "transformers<5" "datasets<4" nltk pandas scikit-learn matplotlib requests boto3 lru-dict jieba \
        langdetect more-itertools pinyin word2number num2words lemminflect editdistance terminaltables \
        language_tool_python Levenshtein anytree bioc conllu deprecated ftfy gdown intervaltree lxml \
        mpld3 pptree pytorch-revgrad segtok sentencepiece sqlitedict tabulate wikipedia-api
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.threats import read_verdicts, threat_success_rate
from pyrobust.threats.adapters import (
    attack_with_textattack,
    textattack_model,
    verdicts_from_textattack,
    words_perturbed,
)

nltk = pytest.importorskip("nltk", reason="TextAttack is not installed: see the head of this file")


def find_stop_words():
    """Importing TextAttack reads NLTK's English stop words; without NLTK's data, a few of them do."""
    try:
        nltk.data.find("corpora/stopwords")
    except LookupError:
        folder = Path(tempfile.mkdtemp())
        (folder / "corpora" / "stopwords").mkdir(parents=True)
        (folder / "corpora" / "stopwords" / "english").write_text("a\nan\nand\nof\nthe\n")
        nltk.data.path.append(str(folder))


find_stop_words()
textattack = pytest.importorskip("textattack", reason="TextAttack is not installed: see the head of this file")

from textattack import Attack
from textattack.constraints.pre_transformation import RepeatModification
from textattack.goal_functions import UntargetedClassification
from textattack.loggers import CSVLogger
from textattack.search_methods import BeamSearch, GreedySearch, GreedyWordSwapWIR
from textattack.transformations import WordSwap

SYNONYMS = {"good": ["fine", "decent"], "bad": ["poor", "weak"], "film": ["movie"]}
WEIGHTS = {"good": 2.0, "fine": 0.5, "decent": -1.0, "bad": -2.0, "poor": -0.5, "weak": 1.0, "movie": -0.1}
TEXTS = ["a good film", "a bad film", "a good good film", "the end", "a bad bad bad film"]
LABELS = [1, 0, 1, 0, 1]


class Swap(WordSwap):
    def _get_replacement_words(self, word):
        return SYNONYMS.get(word, [])


def classifier(texts):
    scores = [0.25 + sum(WEIGHTS.get(word, 0.0) for word in text.split()) for text in texts]
    return torch.tensor([[0.0, score] for score in scores])


def attack_by(search, model=classifier):
    goal = UntargetedClassification(textattack_model(model))
    return Attack(goal, [RepeatModification()], Swap(), search)


@pytest.mark.parametrize(
    "search", [GreedySearch(), GreedyWordSwapWIR("delete"), BeamSearch(2)], ids=lambda s: type(s).__name__
)
def test_searches_of_textattack_run_on_a_classifier(search):
    queries = []

    def counted(texts):
        queries.extend(texts)
        return classifier(texts)

    verdicts = attack_with_textattack(attack_by(search, counted), TEXTS, LABELS, model="sum of words")
    assert [(row.success, row.status) for row in verdicts] == [
        (True, "judged"),
        (True, "judged"),
        (True, "judged"),
        (None, "unsubmitted"),
        (None, "unsubmitted"),
    ]
    assert {row.group for row in verdicts} == {type(search).__name__}
    assert verdicts.column("prompt") == TEXTS
    assert verdicts.column("category") == ["1", "0", "1", "0", "1"]
    assert sum(verdicts.column("queries")) >= len(queries) > len(TEXTS)
    rate = threat_success_rate(verdicts, missing="exclude")
    assert float(rate) == 1.0


def test_results_are_what_the_csv_log_of_textattack_says(tmp_path):
    attack = attack_by(GreedySearch())
    results = [attack.attack(text, label) for text, label in zip(TEXTS, LABELS, strict=True)]
    log = CSVLogger(filename=str(tmp_path / "log.csv"), color_method="file")
    for result in results:
        log.log_attack_result(result)
    log.flush()
    logged, direct = read_verdicts(tmp_path / "log.csv"), verdicts_from_textattack(results)
    names = ("id", "prompt", "behaviour", "attempt", "success", "status", "queries", "judge", "threat")
    for name in names:
        assert direct.column(name) == logged.column(name), name
    assert direct.column("score") == pytest.approx(logged.column("score"))
    assert [float(name) for name in direct.column("category")] == [float(name) for name in logged.column("category")]
    assert [words_perturbed(result) for result in results] == [1, 1, 2, 0, 0]


def test_an_attack_that_raises_is_a_missing_verdict():
    def broken(texts):
        if any("decent" in text for text in texts):
            return torch.full((len(texts), 2), float("nan"))
        return classifier(texts)

    verdicts = attack_with_textattack(attack_by(GreedySearch(), broken), TEXTS, LABELS)
    assert [row.status for row in verdicts] == ["error", "judged", "error", "unsubmitted", "unsubmitted"]
    assert [row.success for row in verdicts] == [None, True, None, None, None]


NAN, INFINITE = torch.tensor([[float("nan"), 0.0]]), torch.tensor([[float("inf"), 0.0]])


@pytest.mark.parametrize(
    "output", [torch.zeros(2), torch.zeros(1, 1), torch.zeros(3, 2), NAN, INFINITE, None, ["x"]], ids=str
)
def test_outputs_that_are_no_logits_are_refused(output):
    with pytest.raises(ModelError, match="expected"):
        textattack_model(lambda texts: output)(["a"])


def test_arrays_and_lists_of_rows_are_logits():
    for output in (np.array([[0.0, 1.0]], np.float32), [[0.0, 1.0]], torch.tensor([[0.0, 1.0]], requires_grad=True)):
        assert textattack_model(lambda texts, output=output: output)(["a"]).tolist() == [[0.0, 1.0]]


def test_wrong_arguments_are_named():
    attack = attack_by(GreedySearch())
    with pytest.raises(InputTypeError, match="classifier"):
        textattack_model(3)
    with pytest.raises(InputTypeError, match="attack"):
        attack_with_textattack(3, ["a"], [0])
    with pytest.raises(InputError, match="labels: expected 1"):
        attack_with_textattack(attack, ["a"], [])
    with pytest.raises(InputError, match=r"labels\[0\]"):
        attack_with_textattack(attack, ["a"], [-1])
    with pytest.raises(InputTypeError, match=r"texts\[0\]"):
        attack_with_textattack(attack, [b"a"], [0])
    with pytest.raises(InputTypeError, match=r"results\[0\]"):
        verdicts_from_textattack([{}])
    with pytest.raises(InputTypeError, match="result: expected"):
        words_perturbed(None)
