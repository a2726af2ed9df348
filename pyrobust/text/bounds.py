"""Certificates of text classifiers over all word substitutions at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds import BoundedModel, BoundOptions, Choices
from pyrobust.checks import class_labels, integer, items, kind, summary
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import Tabular, plain_fields
from pyrobust.runner import evaluation_mode
from pyrobust.text.classifier import WordClassifier, by_length, pad_choices

# Largest number of bytes of the vectors of texts that are bounded together.
_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True, eq=False)
class WordBounds(Tabular):
    """Lower bounds of margins over all allowed word substitutions of each text.

    Attributes:
        lower: float64 [N, K − 1], bounds of the margins f_y − f_j of the logits f, for j ≠ y in ascending order; -inf
            where nothing could be proved.
        substitutions: int64 [N], number of positions that have a substitute.
        max_substitutions: largest number of words replaced at once; None for no limit.
        method: "ibp", "crown-ibp" or "crown"; "cascade" for the best bound among the methods that were run on a text.
        sound: True for proved bounds, False for plain floating-point bounds.
        semantics: network that the bounds hold for: "real" (exact arithmetic on the given parameters) or "float32" (its
            deployed forward pass, with sums in any order).
    """

    lower: Tensor
    substitutions: Tensor
    max_substitutions: int | None
    method: str
    sound: bool
    semantics: str

    def __len__(self) -> int:
        return len(self.lower)

    def __repr__(self) -> str:
        return summary(self, texts=len(self), verified=int(self.verified.sum()), **self._attributes())

    @property
    def verified(self) -> Tensor:
        """Whether every margin is proved to be above zero, bool [N]; False for NaN."""
        return (self.lower > 0).all(1)

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each text, with the text's smallest margin."""
        smallest = self.lower.amin(1) if self.lower.shape[1] else torch.full((len(self),), torch.inf)
        return {
            "verified": self.verified.numpy(),
            "margin": smallest.numpy(),
            "substitutions": self.substitutions.numpy(),
        }

    def _attributes(self) -> dict[str, Any]:
        names = ("max_substitutions", "method", "sound", "semantics")
        return {name: getattr(self, name) for name in names}

    to_dict = plain_fields


def certify_words(
    classifier: WordClassifier,
    substitutions: Iterable[Sequence[Sequence[str]]],
    y: Any,
    *,
    max_substitutions: int | None = None,
    method: str | None = None,
    sound: bool = True,
    semantics: str = "real",
    memory_limit: int | None = None,
) -> WordBounds:
    r"""Bound a text classifier's margins over all word substitutions at once.

    The texts form the product :math:`S_1 \times \dots \times S_L`, where :math:`S_i` is the set of words allowed at
    position i, as in Jia et al., "Certified robustness to adversarial word substitutions", and Huang et al., "Achieving
    verified robustness to symbol substitutions via interval bound propagation" (both 2019). The number of texts is
    exponential in L, but all texts are bounded in one pass. Jia et al. put a box around the vectors of the words at
    each position, and propagate this box. Here, linear functions of the word vectors x are bounded over the vectors of
    the allowed words themselves. Bounds are computed in this way before the first nonlinear layer and, with "crown" and
    "crown-ibp", also at the output. The minimum of a linear bound A·x + b is

    .. math:: b + \sum_i \min_{w \in S_i} A_i \cdot E(w),

    where E(w) is the vector of word w. This minimum is exact for a network that is linear in the vectors. If at most d
    words are replaced at once, only d positions contribute the minimum over their words. Every other position i
    contributes A_i · E(w) of its original word w. The d positions are those where these two values differ most.

    Args:
        classifier: embedding and network.
        substitutions: for each text the words at each position, the original first; see ``word_substitutions``.
        y: labels, [N].
        max_substitutions: largest number of words replaced at once, at least 0; None for no limit.
        method: "ibp", "crown-ibp" or "crown" (see ``BoundedModel``), or "cascade" for these methods in turn. "cascade"
            runs each method on the texts that are still undecided, and each margin keeps its best bound. By default,
            the method is "crown". On word substitutions, both "crown" and "ibp" bound the first layer over the allowed
            words themselves, and "crown" costs little more than "ibp".
        sound: see ``BoundOptions``, also for the next two arguments.
        semantics: "real" or "float32".
        memory_limit: largest number of bytes that the bounds may use.

    Returns:
        WordBounds. Bounds are -inf (nothing is proved) where a vector of an allowed word is not finite. Words with the
        same index, such as all out-of-vocabulary words, count as one word.

    Raises:
        InputError: a value is out of range, or a position has no words.
        InputTypeError: an argument of the wrong type.
        ModelError: the network cannot be bounded, see ``BoundedModel``, or the embedding fails.

    >>> import torch
    >>> from torch import nn
    >>> from pyrobust.text import WordClassifier, word_substitutions
    >>> model = nn.Sequential(nn.Embedding(3, 1), nn.Flatten(), nn.Linear(2, 2, bias=False)).eval()
    >>> _ = model[0].weight.data.copy_(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    >>> classify = WordClassifier({"fine": 1, "good": 2}, model[0], model[1:], unknown=0)
    >>> sets = word_substitutions(["good", "film"], {"good": ["fine"]})
    >>> bounds = certify_words(classify, [sets], [1])
    >>> round(bounds.lower.item(), 9), bounds.verified.item()
    (1.0, True)
    """
    problem = Problem(classifier, substitutions, y, method, sound=sound, semantics=semantics, memory_limit=memory_limit)
    if max_substitutions is not None:
        max_substitutions = integer("max_substitutions", max_substitutions, 0)
    every = torch.arange(len(problem.sets))
    limits = problem.positions if max_substitutions is None else problem.positions.clamp(max=max_substitutions)
    lower = problem.bounds(every, limits)
    return WordBounds(lower, problem.positions, max_substitutions, problem.method, sound, semantics)


def certified_substitutions(
    classifier: WordClassifier,
    substitutions: Iterable[Sequence[Sequence[str]]],
    y: Any,
    *,
    method: str | None = None,
    sound: bool = True,
    semantics: str = "real",
    memory_limit: int | None = None,
) -> Tensor:
    """Search for the largest number of replaced words that provably keeps the class, for each text.

    Each number returned was itself proved, and a proof for the next larger number was tried and failed.

    Args:
        classifier: embedding and network.
        substitutions: see ``certify_words``, also for the other arguments.
        y: labels, [N].
        method: method of the bounds.
        sound: True for proved bounds.
        semantics: "real" or "float32".
        memory_limit: largest number of bytes that the bounds may use.

    Returns:
        int64 [N]: the largest proved number of replaced words, or -1 where the text itself is not proved to have its
        class. If all substitutions are certified, this is the number of positions that have a substitute.

    Raises:
        InputError, InputTypeError, ModelError: as for ``certify_words``.

    >>> from torch import nn
    >>> from pyrobust.text import WordClassifier
    >>> model = nn.Sequential(nn.Embedding(3, 1), nn.Flatten(), nn.Linear(2, 2, bias=False)).eval()
    >>> _ = model[0].weight.data.copy_(torch.tensor([[0.0], [1.0], [-2.0]]))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    >>> classify = WordClassifier({"good": 1, "dull": 2}, model[0], model[1:], unknown=0)
    >>> either = ("good", "film"), ("good", "dull"), ("good",), ("film", "dull")
    >>> texts = [(either[0], either[2]), (either[0], either[0]), (either[1], either[0]), (either[3], either[3])]
    >>> certified_substitutions(classify, texts, [1, 1, 1, 1]).tolist()
    [1, 1, 0, -1]
    """
    problem = Problem(classifier, substitutions, y, method, sound=sound, semantics=semantics, memory_limit=memory_limit)
    return problem.largest()


class Problem:
    """Texts, labels and options of a call, and a bounded network for each length of a text."""

    def __init__(
        self,
        classifier: WordClassifier,
        substitutions: Iterable[Sequence[Sequence[str]]],
        y: Any,
        method: str | None,
        sound: bool,
        semantics: str,
        memory_limit: int | None,
    ) -> None:
        if not isinstance(classifier, WordClassifier):
            raise InputTypeError("classifier", "a WordClassifier", kind(classifier))
        self.options = BoundOptions(
            method=method or "crown", sound=sound, semantics=semantics, memory_limit=memory_limit
        )
        self.method = str(self.options.method)
        if self.method == "lipschitz":
            raise InputError("method", '"ibp", "crown-ibp", "crown" or "cascade"', '"lipschitz"')
        #: For each text and position, the indices of the words, the original first and each once.
        self.sets = [classifier.indices(text) for text in items("substitutions", substitutions, "texts")]
        self.positions = torch.tensor([sum(len(words) > 1 for words in text) for text in self.sets], dtype=torch.int64)
        self._y = class_labels("y", y, len(self.sets))
        flat = sorted({index for text in self.sets for words in text for index in words})
        self._vectors = classifier.vectors(flat) if flat else torch.empty(0, 1)
        self._row = {index: row for row, index in enumerate(flat)}
        self._finite = self._vectors.flatten(1).isfinite().all(1)
        self._network = classifier.network
        self._bounded: dict[int, BoundedModel] = {}

    @property
    def networks(self) -> list[BoundedModel]:
        """The bounded networks made so far, one for each length of a text."""
        return list(self._bounded.values())

    def bounds(self, chosen: Tensor, changes: Tensor) -> Tensor:
        """Return lower bounds [n, K − 1] of margins of chosen texts; ``changes`` limits the changes of each text."""
        with evaluation_mode(self._network):
            return self._in_parts(chosen, changes)

    def _in_parts(self, chosen: Tensor, changes: Tensor) -> Tensor:
        lower: list[Tensor] = [torch.empty(0)] * len(chosen)
        for length, members in by_length([self.sets[i] for i in chosen.tolist()]).items():
            # groups texts that have many words at a position
            members.sort(key=lambda i: max(map(len, self.sets[int(chosen[i])])))
            while members:
                widest = max(map(len, self.sets[int(chosen[members[-1]])]))
                size = widest * length * self._vectors[0].numel() * self._vectors.element_size()
                batch = [members.pop() for _ in range(min(len(members), max(1, _BYTES // size)))]
                rows = self._margins(length, chosen[batch].tolist(), changes[batch])
                for i, row in zip(batch, rows, strict=True):
                    lower[i] = row
        return torch.stack(lower) if lower else torch.empty(0, 0, dtype=torch.float64)

    def largest(self, hopeless: Tensor | None = None) -> Tensor:
        """Bisect for each text's largest proved number of changes; a proof for d changes holds for fewer, too."""
        every = torch.arange(len(self.sets))
        proved, failed = torch.full_like(self.positions, -1), self.positions + 1
        tried = self.positions.clone()  # all changes at once are most often decided
        if hopeless is not None:
            tried[hopeless] = 0
        while len(every):
            positive = (self.bounds(every, tried[every]) > 0).all(1)
            proved[every[positive]] = tried[every[positive]]
            failed[every[~positive]] = tried[every[~positive]]
            tried = (proved + failed) // 2
            every = (failed - proved > 1).nonzero().squeeze(1)
        return proved

    def _margins(self, length: int, texts: list[int], changes: Tensor) -> Tensor:
        """Compute lower bounds [n, K − 1] for texts of one length."""
        points, finite = self._points(texts)
        if length not in self._bounded:
            self._bounded[length] = BoundedModel(self._network, points[:1, 0])
        bounded = self._bounded[length]
        lower = torch.full((len(texts), bounded.outputs - 1), -torch.inf, dtype=torch.float64)
        y = class_labels("y", self._y[texts], len(texts), bounded.outputs)
        undecided = finite.cpu()
        for method in self.options.methods():
            rows = undecided.nonzero().squeeze(1)
            if not len(rows):
                break
            options = dataclasses.replace(self.options, method=method)
            choices = Choices(points[rows.to(points.device)], changes[rows])
            proved = bounded.margins(y=y[rows], choices=choices, options=options).lower
            lower[rows] = torch.fmax(lower[rows], proved)
            undecided[rows] = ~(lower[rows] > 0).all(1)
        return lower

    def _points(self, texts: list[int]) -> tuple[Tensor, Tensor]:
        """Return word vectors [n, K, L, ...] and which texts have only finite ones; the other texts get zeros."""
        chosen = pad_choices([[[self._row[index] for index in words] for words in self.sets[i]] for i in texts])
        chosen = chosen.to(self._vectors.device)
        finite = self._finite[chosen].flatten(1).all(1)
        return self._vectors[chosen].where(finite.view(-1, *[1] * (2 + self._vectors.dim() - 1)), 0), finite
