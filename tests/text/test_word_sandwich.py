"""Certificates and attacks of classifiers trained on real sentences: no crossing, and enumeration agrees."""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import math
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pyrobust.bounds import DifferentiableBounds
from pyrobust.errors import CrossingError, InputError, InputTypeError
from pyrobust.text import (
    WordClassifier,
    WordNet,
    WordSubstitution,
    certified_substitutions,
    certify_words,
    pad_choices,
    protect_words,
    split_words,
    word_sandwich,
)
from pyrobust.training import choices_ibp_loss, ramp

LENGTH, SIZE = 10, 12
WORDNET = Path("/usr/share/wordnet")
Sentences = list[tuple[str, int]]


class MeanNet(nn.Module):
    """A linear layer on the mean of the vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(SIZE, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.mean(1))


class ConvNet(nn.Module):
    """A convolution over words, ReLU, the maximum over the positions, dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(SIZE, 16, 3, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(torch.relu(self.conv(x.transpose(1, 2))).amax(2)))


@functools.cache
def sentences() -> tuple[Sentences, Sentences]:
    """Sentences of at most LENGTH words with their labels, to train on and to test on."""
    if "PYROBUST_DATA" not in os.environ:
        pytest.skip("PYROBUST_DATA is not set")
    if not (WORDNET / "index.noun").exists():
        pytest.skip(f"no WordNet in {WORDNET}")
    path = Path(os.environ["PYROBUST_DATA"]) / "text" / "sentences.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    kept = [(row["text"], int(row["label"])) for row in rows if 3 <= len(split_words(row["text"]).words) <= LENGTH]
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0)).tolist()
    return [kept[i] for i in order[60:]], [kept[i] for i in order[:60]]


@functools.cache
def trained(net: type[nn.Module], robust: bool) -> WordSubstitution:
    """An attack on a trained classifier; it knows the classifier and the substitution sets."""
    fit, _ = sentences()
    counts = Counter(word.lower() for text, _ in fit for word in split_words(text).words)
    vocabulary = {word: i + 2 for i, word in enumerate(sorted(counts))}
    torch.manual_seed(0)
    embedding, network = nn.Embedding(len(vocabulary) + 2, SIZE, padding_idx=1), net().eval()
    nn.init.normal_(embedding.weight, std=0.1)
    classify = WordClassifier(vocabulary, embedding, network, unknown=0, padding=1, shortest=LENGTH)
    constraints = [protect_words(), lambda words, position, word: word.lower() in vocabulary]
    attack = WordSubstitution(classify, wordnet(), constraints=constraints)
    indices = pad_choices([classify.indices(attack.substitutions(text)) for text, _ in fit])
    y = torch.tensor([label for _, label in fit])
    bounds = DifferentiableBounds(network, torch.zeros(1, LENGTH, SIZE))
    network.train()  # and left in training mode: certificates and attacks are of evaluation mode
    optimizer = torch.optim.Adam([*embedding.parameters(), *network.parameters()], 0.03)
    epochs = 8
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(128):
            if robust:
                scale, kappa = ramp(epoch, 0, 5, 0.0, 1.0), ramp(epoch, 0, 5, 1.0, 0.3)
                loss = choices_ibp_loss(bounds, embedding(indices[rows]), y[rows], scale, kappa=kappa)
            else:
                loss = nn.functional.cross_entropy(network(embedding(indices[rows, 0])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return attack


@functools.cache
def wordnet() -> WordNet:
    return WordNet(WORDNET, senses=2)


@pytest.mark.parametrize("net", [MeanNet, ConvNet])
def test_attack_and_certificate_never_cross(net: type[nn.Module]) -> None:
    _, test = sentences()
    texts, y = [text for text, _ in test], [label for _, label in test]
    certified = {}
    for robust in (False, True):
        both = word_sandwich(trained(net, robust), texts, y)
        both.check()
        assert both.crossings == ()
        assert all(
            upper > certified or not math.isfinite(upper)
            for upper, certified in zip(both.upper.tolist(), both.certified.tolist(), strict=True)
        )
        statuses = Counter(both.status)
        assert statuses["attacked"] > 0
        certified[robust] = statuses["certified"]
        rows = list(zip(both.certified.tolist(), both.substitutions.tolist(), strict=True))
        expected = [sum(proved >= min(d, every) for proved, every in rows) / len(rows) for d in (0, 1, LENGTH)]
        assert [float(rate) for rate in both.shares([0, 1, LENGTH]).certified] == pytest.approx(expected)
    assert certified[True] > certified[False]
    assert certified[True] > len(texts) / 2


@pytest.mark.parametrize("net", [MeanNet, ConvNet])
@pytest.mark.parametrize("robust", [False, True])
def test_enumeration_never_contradicts(net: type[nn.Module], robust: bool) -> None:
    attack = trained(net, robust)
    classify, (_, test) = attack.model, sentences()
    short = [(text, y, attack.substitutions(text)) for text, y in test]
    short = [row for row in short if 1 < math.prod(map(len, row[2])) <= 200][:12]
    assert len(short) == 12
    sets, y = [row[2] for row in short], [row[1] for row in short]
    real, deployed = (certify_words(classify, sets, y, semantics=semantics) for semantics in ("real", "float32"))
    proved = certified_substitutions(classify, sets, y)
    for i, (text, label, allowed) in enumerate(short):
        split = split_words(text)
        choices = list(itertools.product(*allowed))
        logits = classify([split.join(words) for words in choices]).double()
        margins = logits[:, label] - logits[:, 1 - label]
        least = margins.min().item()
        assert real.lower[i].item() <= least + 1e-5
        assert deployed.lower[i].item() <= least
        if deployed.verified[i]:
            assert least > 0
        changed = torch.tensor([sum(a != b for a, b in zip(words, split.words, strict=True)) for words in choices])
        fooled = changed[margins <= 0]
        smallest = fooled.min().item() if len(fooled) else math.inf
        assert proved[i] < smallest
        if net is MeanNet:  # exact
            assert real.lower[i].item() == pytest.approx(least, abs=1e-5)
            assert proved[i] == (real.substitutions[i] if math.isinf(smallest) else smallest - 1)


def test_contradicted_certificates_are_errors() -> None:
    _, test = sentences()
    attack = trained(MeanNet, False)
    both = word_sandwich(attack, [text for text, _ in test], [label for _, label in test], semantics="real")
    both.check()
    false = dataclasses.replace(both, certified=both.substitutions.clone())
    assert len(false.crossings) == both.status.count("attacked")
    with pytest.raises(CrossingError, match=r"texts: \d+ crossings of 60 texts, .* text \d+ is certified by crown"):
        false.check()
    rounded = dataclasses.replace(false, rounded=tuple(crossing.index for crossing in false.crossings))
    rounded.check()
    assert len(both.to_pandas()) == len(both.to_dict()["status"]) == 60


def test_sandwich_of_another_classifier() -> None:
    attack = WordSubstitution(lambda texts: [[0.0, 1.0]] * len(texts), {"good": ["fine"]})
    with pytest.raises(InputTypeError, match="attack: expected one of a WordClassifier"):
        word_sandwich(attack, ["good"], [1])
    with pytest.raises(InputTypeError, match="attack: expected one on words"):
        word_sandwich(attack.model, ["good"], [1])


def test_certificates_of_other_arithmetic_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(2, 1), nn.Flatten(), nn.Linear(1, 2))
    attack = WordSubstitution(WordClassifier({"good": 1}, model[0], model[1:], unknown=0), {"good": ["fine"]})
    with torch.backends.mkldnn.flags(enabled=False):
        with pytest.raises(InputError, match=r'semantics: expected "real".*oneDNN is off'):
            word_sandwich(attack, ["good"], [1])
        assert len(word_sandwich(attack, ["good"], [1], semantics="real")) == 1
