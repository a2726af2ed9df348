"""Queries and successes of word substitution attacks beside TextAttack's search methods on the same substitutes.

The classifiers are those of text/sandwich, trained plainly. Both libraries get the same sets: substitutes of the
original word, function words kept, from all senses in WordNet (as Debian installs it) or from the first; TextAttack's
RepeatModification keeps its texts in them. ``queries`` are those that each library reports, at most 500 for each
attacked text, the original included; ``sent`` counts the texts that reached the classifier, less in TextAttack, which
caches answers and counts them all the same. ``outside`` counts adversarial texts with a word that its set lacks. Needs
PYROBUST_DATA.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from studies.text.sandwich import SIZE, ConvNet, MeanNet, sentences, train
from study import Results, Row
from torch import Tensor, nn

from pyrobust.text import (
    WordClassifier,
    WordNet,
    WordSubstitution,
    pad_choices,
    protect_words,
    split_words,
    word_substitutions,
)

_OURS: dict[str, dict[str, Any]] = {
    "WordSubstitution()": {},
    'WordSubstitution(ranking="substitute")': {"ranking": "substitute"},
    'WordSubstitution(ranking="best")': {"ranking": "best"},
    "WordSubstitution(beam_width=4, passes=3)": {"beam_width": 4, "passes": 3},
}

_QUERIES = 500  # of each text, at most
_LENGTH = 30  # words of a text, at most


class Counted:
    """A classifier that counts the texts sent to it."""

    def __init__(self, model: WordClassifier) -> None:
        self.model, self.sent = model, 0

    def __call__(self, texts: list[str]) -> Tensor:
        self.sent += len(texts)
        return self.model(texts)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--texts", type=int, default=100)


def measure(options: argparse.Namespace) -> Results:
    torch.set_num_threads(1)
    data = sentences(_LENGTH)
    fit, test = data[: 4 * len(data) // 5], data[4 * len(data) // 5 :][: options.texts]
    texts, labels = [text for text, _ in test], [label for _, label in test]
    for net in (MeanNet, ConvNet):
        for senses in (None, 1):
            synonyms = WordNet(senses=senses)
            model = Counted(_trained(net(), fit, synonyms, texts))
            for name, row in _measured(model, synonyms, texts, labels):
                yield {"net": net.__name__, "senses": senses or "all", "search": name, **row}
    return {"max_queries": _QUERIES}


def _trained(network: nn.Module, fit: list[tuple[str, int]], synonyms: WordNet, texts: list[str]) -> WordClassifier:
    """A classifier that knows the words of the training texts and the substitutes of all."""
    counts = Counter(word.lower() for text, _ in fit for word in split_words(text).words)
    words = set(counts) | {word.lower() for text in texts for allowed in _sets(text, synonyms) for word in allowed[1:]}
    vocabulary = {word: i + 2 for i, word in enumerate(sorted(words))}
    torch.manual_seed(0)
    embedding = nn.Embedding(len(vocabulary) + 2, SIZE, padding_idx=1)
    nn.init.normal_(embedding.weight, std=0.1)
    classifier = WordClassifier(vocabulary, embedding, network, unknown=0, padding=1, shortest=_LENGTH)
    indices = pad_choices([classifier.indices([(word,) for word in split_words(text).words]) for text, _ in fit])
    train(embedding, network, indices, torch.tensor([label for _, label in fit]), False)
    return classifier


def _sets(text: str, synonyms: WordNet) -> tuple[tuple[str, ...], ...]:
    return word_substitutions(split_words(text).words, synonyms, [protect_words()])


def _measured(model: Counted, synonyms: WordNet, texts: list[str], labels: list[int]) -> Iterator[tuple[str, Row]]:
    for name, keywords in _OURS.items():
        attack = WordSubstitution(model, synonyms, constraints=[protect_words()], max_queries=_QUERIES, **keywords)
        model.sent = 0
        result = attack.attack(texts, labels)
        rows = [
            (success, queries, len(changed), text)
            for success, queries, changed, text, attacked in zip(
                result.success, result.queries, result.changed, result.texts, result.attacked, strict=True
            )
            if attacked
        ]
        skipped = len(texts) - len(rows)
        yield name, _row(rows, model.sent - skipped)
    yield from _textattack(model, synonyms, texts, labels)


def _row(rows: list[tuple[bool, int, int, str]], sent: int, outside: int = 0) -> Row:
    fooled = [row for row in rows if row[0]]
    return {
        "attacked": len(rows),
        "fooled": len(fooled),
        "queries": sum(row[1] for row in rows) / len(rows),
        "queries_fooled": sum(row[1] for row in fooled) / max(len(fooled), 1),
        "sent": sent / len(rows),
        "changed": sum(row[2] for row in fooled) / max(len(fooled), 1),
        "outside": outside,
    }


def _textattack(model: Counted, synonyms: WordNet, texts: list[str], labels: list[int]) -> Iterator[tuple[str, Row]]:
    import textattack
    from textattack.attack_results import SkippedAttackResult, SuccessfulAttackResult
    from textattack.constraints.pre_transformation import RepeatModification
    from textattack.goal_functions import UntargetedClassification
    from textattack.models.wrappers import ModelWrapper
    from textattack.search_methods import (
        AlzantotGeneticAlgorithm,
        BeamSearch,
        GreedySearch,
        GreedyWordSwapWIR,
        ParticleSwarmOptimization,
    )
    from textattack.transformations import WordSwap

    logging.disable(logging.WARNING)  # of every model of a user's own

    class Wrapper(ModelWrapper):
        def __init__(self) -> None:
            self.model = model

        def __call__(self, batch: list[str]) -> Tensor:
            return model(list(batch))

    class Swap(WordSwap):
        def _get_replacement_words(self, word: str) -> list[str]:
            split = split_words(word).words
            return list(word_substitutions(split, synonyms, [protect_words()])[0][1:]) if split == (word,) else []

    searches = {
        "GreedyWordSwapWIR(unk)": GreedyWordSwapWIR("unk"),
        "GreedyWordSwapWIR(delete)": GreedyWordSwapWIR("delete"),
        "GreedyWordSwapWIR(weighted-saliency)": GreedyWordSwapWIR("weighted-saliency"),
        "GreedySearch": GreedySearch(),
        "BeamSearch(8)": BeamSearch(beam_width=8),
        "AlzantotGeneticAlgorithm": AlzantotGeneticAlgorithm(post_crossover_check=False),
        "ParticleSwarmOptimization": ParticleSwarmOptimization(),
    }
    for name, search in searches.items():
        textattack.shared.utils.set_seed(0)
        goal = UntargetedClassification(Wrapper(), query_budget=_QUERIES)
        attack = textattack.Attack(goal, [RepeatModification()], Swap(), search)
        rows, outside, skipped = [], 0, 0
        model.sent = 0
        try:
            for text, label in zip(texts, labels, strict=True):
                result = attack.attack(text, label)
                if isinstance(result, SkippedAttackResult):
                    skipped += 1
                    continue
                success = isinstance(result, SuccessfulAttackResult)
                words = split_words(result.perturbed_text()).words
                sets = _sets(text, synonyms)
                inside = len(words) == len(sets) and all(w in s for w, s in zip(words, sets, strict=True))
                outside += success and not inside
                changed = sum(w != s[0] for w, s in zip(words, sets, strict=False))
                rows.append((success, result.num_queries, changed, result.perturbed_text()))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        yield f"TextAttack {name}", _row(rows, model.sent - skipped, outside)
