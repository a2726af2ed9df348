"""Certified and attacked word substitutions of two text classifiers, each trained plainly and with IBP.

Data: $PYROBUST_DATA/text/sentences.tsv (UCI Sentiment Labelled Sentences), sentences of at most 20 words, four fifths
to train on. Synonyms: WordNet as Debian installs it. The same substitution sets for training, attack and certificate.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from typing import Any

import nets
import torch
from study import Results
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.text import (
    WordClassifier,
    WordNet,
    WordSubstitution,
    certify_words,
    pad_choices,
    protect_words,
    split_words,
    word_sandwich,
    word_substitutions,
)
from pyrobust.training import choices_ibp_loss, ramp

LENGTH, SIZE, HIDDEN, TESTED = 20, 50, 50, 100


class MeanNet(nn.Module):
    """A linear layer on the mean of the vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(SIZE, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.mean(1))


class ConvNet(nn.Module):
    """A convolution over words, ReLU, the maximum over the positions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(SIZE, HIDDEN, 3, padding=1)
        self.out = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(x.transpose(1, 2))).amax(2))


def sentences(length: int = LENGTH) -> list[tuple[str, int]]:
    path = nets.folder() / "text" / "sentences.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    kept = [(row["text"], int(row["label"])) for row in rows if 1 <= len(split_words(row["text"]).words) <= length]
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0)).tolist()
    return [kept[i] for i in order]


def train(embedding: nn.Embedding, network: nn.Module, indices: Tensor, y: Tensor, robust: bool) -> None:
    bounds = DifferentiableBounds(network.eval(), torch.zeros(1, indices.shape[2], SIZE))
    optimizer = torch.optim.Adam([*embedding.parameters(), *network.parameters()], 0.01)
    epochs, size = 8, 64
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(size):
            done = (epoch + 1) / epochs
            if robust:
                scale, kappa = ramp(done, 0.1, 0.7, 0.0, 1.0), ramp(done, 0.1, 0.7, 1.0, 0.3)
                loss = choices_ibp_loss(bounds, embedding(indices[rows]), y[rows], scale, kappa=kappa)
            else:
                loss = nn.functional.cross_entropy(network(embedding(indices[rows, 0])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1)


def measure(options: argparse.Namespace) -> Results:
    data = sentences()
    fit, test = data[: 4 * len(data) // 5], data[4 * len(data) // 5 :][:TESTED]
    counts = Counter(word.lower() for text, _ in fit for word in split_words(text).words)
    vocabulary = {word: i + 2 for i, word in enumerate(sorted(counts))}
    synonyms = WordNet(senses=2)
    constraints = [protect_words(), lambda words, position, word: word.lower() in vocabulary]

    def sets(text: str) -> tuple[tuple[str, ...], ...]:
        return word_substitutions(split_words(text).words, synonyms, constraints)

    texts, labels = [text for text, _ in test], torch.tensor([label for _, label in test])
    y = torch.tensor([label for _, label in fit])
    for net in (MeanNet, ConvNet):
        for robust in (False, True):
            torch.manual_seed(0)
            embedding, network = nn.Embedding(len(vocabulary) + 2, SIZE, padding_idx=1), net()
            nn.init.normal_(embedding.weight, std=0.1)
            classify = WordClassifier(vocabulary, embedding, network, unknown=0, padding=1, shortest=LENGTH)
            start = time.perf_counter()
            indices = pad_choices([classify.indices(sets(text)) for text, _ in fit])
            train(embedding, network, indices, y, robust)
            trained = time.perf_counter() - start
            start = time.perf_counter()
            both = word_sandwich(WordSubstitution(classify, synonyms, constraints=constraints), texts, labels)
            whole = time.perf_counter() - start
            both.check()
            yield {
                "net": net.__name__,
                "ibp_training": robust,
                "texts": len(texts),
                "accuracy": float((classify(texts).argmax(1) == labels).double().mean()),
                "status": dict(Counter(both.status)),
                "crossings": len(both.crossings),
                "queries": sum(both.attack.queries),
                "seconds": {"training": trained, "sandwich": whole},
                "methods": methods(classify, [sets(text) for text in texts], labels),
            }


def methods(classify: WordClassifier, sets: list[tuple[tuple[str, ...], ...]], y: Tensor) -> dict[str, Any]:
    """Share certified and seconds of each method, over the words and over their boxes."""
    results: dict[str, Any] = {}
    for method in ("ibp", "crown-ibp", "crown"):
        start = time.perf_counter()
        verified = certify_words(classify, sets, y, method=method).verified
        results[method] = {"certified": float(verified.double().mean()), "seconds": time.perf_counter() - start}
    points = classify.vectors(pad_choices([classify.indices(text) for text in sets]).flatten().tolist())
    points = points.view(len(sets), -1, LENGTH, SIZE)
    lower, upper = points.amin(1), points.amax(1)
    model = BoundedModel(classify.network, lower[:1])
    for method in ("ibp", "crown-ibp", "crown"):
        start = time.perf_counter()
        verified = model.certify(None, y, None, x_lower=lower, x_upper=upper, method=method)
        results[f"{method} on boxes"] = {
            "certified": float(verified.double().mean()),
            "seconds": time.perf_counter() - start,
        }
    return results
