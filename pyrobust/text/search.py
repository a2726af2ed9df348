"""Searches over substitutions.

The searches share batches. They count and cache their queries of the text classifier.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import shape_text
from pyrobust.errors import InputError, ModelError
from pyrobust.metrics import predicted_classes
from pyrobust.runner import evaluation_mode, logits_of

from .substitutions import SplitText

TextClassifier: TypeAlias = Callable[[list[str]], Any]
"""Maps B texts to logits [B, K]: a tensor, an array, rows of numbers, or an object with ``.logits``."""

Changes: TypeAlias = Mapping[int, str]
"""Maps positions to substitutes; all other positions keep the original word."""


class Request(NamedTuple):
    """Texts whose logits a search requests, in a batch shared with other searches or in a separate batch."""

    texts: Sequence[str]
    alone: bool = False


class TextLogits(NamedTuple):
    """Logits [B, K] in float64, and the machine epsilon of the dtype that the model returned."""

    logits: Tensor
    eps: float


class TextMargin(NamedTuple):
    """Margin and predicted class of a text; ``close`` says whether rounding in a batch may have decided the class.

    The margin is the label's logit minus the largest other logit. For a target, it is the largest other logit minus the
    target's logit. The margin is infinite where no class is predicted.
    """

    margin: float
    predicted: int
    close: bool


Result = TypeVar("Result")
Query: TypeAlias = Generator[Request, TextLogits, Result]
"""A computation that yields requests, is sent answers, and returns a result."""


class TextQueries:
    """Runs a text classifier and counts the texts sent to it.

    >>> queries = TextQueries(lambda texts: [[float(len(text)), 3.0] for text in texts])
    >>> queries(["a", "abcd"]).logits.tolist(), queries.sent
    ([[1.0, 3.0], [4.0, 3.0]], 2)
    """

    def __init__(self, model: TextClassifier) -> None:
        self.model = model
        self.sent = 0
        #: Number of classes, known after the first query.
        self.classes: int | None = None

    def __call__(self, texts: Sequence[str]) -> TextLogits:
        """Return the logits of texts, after a check of the model's output."""
        self.sent += len(texts)
        with torch.no_grad(), evaluation_mode(self.model):
            output = self.model(list(texts))
        if isinstance(output, np.ndarray | list | tuple):
            try:
                output = torch.as_tensor(np.asarray(output))
            except (TypeError, ValueError) as error:  # rows of different lengths, objects
                raise ModelError(f"model: expected rows of logits, got a {type(output).__name__}: {error}") from None
        logits = logits_of(output).detach().cpu()
        if logits.dim() != 2 or len(logits) != len(texts) or logits.shape[1] < 2:
            expected = f"({len(texts)}, K), a row for each text, K >= 2"
            raise ModelError(f"model: expected logits of shape {expected}, got {shape_text(logits.shape)}")
        if not logits.dtype.is_floating_point:
            raise ModelError(f"model: expected floating-point logits, got {logits.dtype}")
        if self.classes not in (None, logits.shape[1]):
            raise ModelError(f"model: expected logits of {self.classes} classes, as before, got {logits.shape[1]}")
        self.classes = logits.shape[1]
        return TextLogits(logits.double(), torch.finfo(logits.dtype).eps)

    def run(self, searches: Iterable[Query[Result]], batch_size: int) -> list[Result]:
        """Advance searches together, with shared batches, and return their results in the order of the searches."""
        results: dict[int, Result] = {}
        active: list[tuple[int, Query[Result], Request]] = []
        unstarted = enumerate(searches)

        def advance(i: int, search: Query[Result], answer: Any) -> None:
            try:
                active.append((i, search, search.send(answer)))
            except StopIteration as stop:
                results[i] = stop.value

        while True:
            # Requests hold long texts, so requests beyond a batch are not built yet.
            while sum(len(request.texts) for _, _, request in active) < batch_size:
                started = next(unstarted, None)
                if started is None:
                    break
                advance(*started, None)
            if not active:
                return [results[i] for i in range(len(results))]
            current, active = active, []
            answers = self._answers([request for _, _, request in current], batch_size)
            for (i, search, _), answer in zip(current, answers, strict=True):
                advance(i, search, answer)

    def _answers(self, requests: Sequence[Request], batch_size: int) -> list[TextLogits]:
        shared = [text for request in requests if not request.alone for text in request.texts]
        batches = [self(shared[begin : begin + batch_size]) for begin in range(0, len(shared), batch_size)]
        rows = iter(torch.cat([batch.logits for batch in batches]) if batches else ())
        return [
            self(request.texts)
            if request.alone
            else TextLogits(torch.stack([next(rows) for _ in request.texts]), batches[0].eps)
            for request in requests
        ]


class TextSearch:
    """One text under attack: its candidates, their judgements, and the queries spent on it.

    Args:
        split: the original text.
        sets: the words allowed at each position.
        label: the label, or the target.
        targeted: whether ``label`` is the target.
        max_queries: largest number of queries for this text, or None.
    """

    def __init__(
        self, split: SplitText, sets: Sequence[Sequence[str]], label: int, targeted: bool, max_queries: int | None
    ) -> None:
        self.sets = sets
        self.label = label
        self.targeted = targeted
        self.queries = 0
        self._budget = math.inf if max_queries is None else max_queries
        self._pieces = [split.gaps[0]]
        for word, gap in zip(split.words, split.gaps[1:], strict=True):
            self._pieces += (word, gap)
        self.original = self.text({})
        # Keyed by a digest, because a long text has many long candidates.
        self._judged: dict[bytes, TextMargin] = {}

    def text(self, changes: Changes) -> str:
        """Return the text with the substitutes ``changes``."""
        pieces = self._pieces.copy()
        for position, word in changes.items():
            pieces[2 * position + 1] = word
        return "".join(pieces)

    def without(self, position: int) -> str:
        """Return the text without one word and the gap before this word (for the first word, the gap after it)."""
        pieces = self._pieces.copy()
        pieces[2 * position + 1] = pieces[2 * position if position else 2] = ""
        return "".join(pieces)

    def judge(self, texts: Sequence[str]) -> Query[list[TextMargin]]:
        """Judge texts; send each text only once.

        If too few queries remain for all texts, only the first texts are judged.
        """
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        unknown = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._judged}
        sent = list(unknown)[: int(min(len(unknown), self._budget - self.queries))]
        if sent:
            self.queries += len(sent)
            answer = yield Request([unknown[key] for key in sent])
            self._judged.update(zip(sent, self._judgements(answer), strict=True))
        cached = [self._judged.get(key) for key in keys]
        return [judgement for judgement in cached[: cached.index(None) if None in cached else None] if judgement]

    def confirm(self, text: str, judgement: TextMargin) -> Query[TextMargin | None]:
        """Return the confirmed judgement of a text; None if confirming it needs a query but none is left.

        If rounding in a batch may have decided the judgement (``close``), the text is run again, alone, which gives a
        reliable judgement.
        """
        if not judgement.close:
            return judgement
        if self.queries >= self._budget:
            return None
        self.queries += 1
        answer = yield Request([text], alone=True)
        return self._judgements(answer)[0]

    def fooled(self, judgement: TextMargin) -> bool:
        """Whether the classifier predicts a wrong class, or the target."""
        return judgement.predicted == self.label if self.targeted else judgement.predicted not in (-1, self.label)

    def _judgements(self, answer: TextLogits) -> list[TextMargin]:
        logits = answer.logits
        if not 0 <= self.label < logits.shape[1]:
            name = "target_labels" if self.targeted else "y"
            expected = f"labels 0 to {logits.shape[1] - 1}, the model's classes"
            raise InputError(name, expected, self.label)
        predicted = predicted_classes(logits)
        others = logits.clone()
        others[:, self.label] = -math.inf
        margin = logits[:, self.label] - others.amax(1)
        # The rule of pyrobust.correctness for rows that count only if they repeat in a batch of one.
        close = ~(margin.abs() > answer.eps**0.5 * logits.abs().amax(1)) | ~margin.isfinite()
        margin = torch.where(predicted < 0, math.inf, -margin if self.targeted else margin)
        return [*map(TextMargin, margin.tolist(), predicted.tolist(), close.tolist())]
