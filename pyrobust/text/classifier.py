"""Text classifiers that map each word to a vector and apply a network to the vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pyrobust.checks import count, first_values, flag, integer, items, kind, shape_text, shown, summary
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.runner import Runner, evaluation_mode, model_name
from pyrobust.text.substitutions import is_word, split_words


class WordClassifier:
    """A text classifier: it splits texts into words, maps words to vectors by their indices, and applies a network.

    Attacks call the classifier with texts, and it returns their logits. Certificates need the embedding and the
    network. A model that takes indices is passed in two parts. For an ``nn.Sequential``, they are ``embedding=model[0],
    network=model[1:]``. For any other model, they are modules that call the two halves of its forward pass.

    Words out of the vocabulary have the index ``unknown``, so the classifier cannot tell them apart. Texts of different
    lengths are classified and bounded separately, so no mask is needed. Only texts shorter than ``shortest`` are
    padded, and no substitution changes the padding. Embedding and network run in evaluation mode, and return to their
    previous mode afterwards.

    Args:
        vocabulary: index of each word.
        embedding: module that maps indices [N], int64, to vectors [N, ...], each independently of the others, such as
            an ``nn.Embedding``.
        network: module that maps vectors [B, L, ...] to logits [B, K], for every length L of a text.
        unknown: index of words out of the vocabulary.
        padding: index of padded positions; default: ``unknown``.
        shortest: least number of words in the network's input, at least 1; for a convolution, its kernel size.
        lower: whether words are looked up in lower case.

    Attributes:
        embedding, network, shortest: as given.

    Raises:
        InputError: a value is out of range, or the embedding has a ``max_norm``, which changes the weights when the
            embedding is used.
        InputTypeError: an argument of the wrong type.

    >>> model = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(4, 2)).eval()
    >>> classify = WordClassifier({"good": 1, "film": 2}, model[0], model[1:], unknown=0)
    >>> logits = classify(["Good film!", "film: good", "good movie"])
    >>> logits.shape, bool((logits == model(torch.tensor([[1, 2], [2, 1], [1, 0]]))).all())
    (torch.Size([3, 2]), True)
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        embedding: nn.Module,
        network: nn.Module,
        *,
        unknown: int,
        padding: int | None = None,
        shortest: int = 1,
        lower: bool = True,
    ) -> None:
        if not isinstance(vocabulary, Mapping):
            raise InputTypeError("vocabulary", "a mapping from words to indices", kind(vocabulary))
        for name, module in (("embedding", embedding), ("network", network)):
            if not isinstance(module, nn.Module):
                raise InputTypeError(name, "a torch.nn.Module", kind(module))
        if getattr(embedding, "max_norm", None) is not None:
            raise InputError("embedding", "one without max_norm, which changes the weights that are looked up")
        self.embedding = embedding
        self.network = network
        self.shortest = count("shortest", shortest)
        self._unknown = integer("unknown", unknown, 0)
        self._padding = self._unknown if padding is None else integer("padding", padding, 0)
        self._lower = flag("lower", lower)
        self._index: dict[str, int] = {}
        for word, index in vocabulary.items():
            number = integer(f"vocabulary[{shown(word)}]", index, 0)
            if self._index.setdefault(self._key(word), number) != number:
                raise InputError("vocabulary", f"one index for {shown(self._key(word))}", "two", "pass lower=False")

    def __repr__(self) -> str:
        return summary(self, words=len(self._index), network=model_name(self.network), shortest=self.shortest)

    def _key(self, word: str) -> str:
        return word.lower() if self._lower else word

    def index(self, word: str) -> int:
        """The index of a word, ``unknown`` if it is out of the vocabulary."""
        return self._index.get(self._key(word), self._unknown)

    def indices(self, substitutions: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return a text's distinct word indices at each position of the network's input, the original word's first.

        Args:
            substitutions: the words at each position, with the original word first, as returned by
                ``word_substitutions``.

        Raises:
            InputError: a position has no words, or ``split_words`` does not split an entry into exactly one word. Such
                an entry would shift the positions in the input of the network.
            InputTypeError: words that are not strings.

        >>> parts = nn.Embedding(4, 2), nn.Flatten()
        >>> classify = WordClassifier({"good": 1, "fine": 2}, *parts, unknown=0, padding=3, shortest=3)
        >>> classify.indices([("Good", "fine"), ("film", "movie")])
        [[1, 2], [0], [3]]
        """
        sets = []
        for position, allowed in enumerate(items("substitutions", substitutions, "positions")):
            words = items("substitutions", allowed, "words")
            if not words:
                raise InputError("substitutions", f"at least the original word at position {position}", "none")
            for word in words:
                if not isinstance(word, str):
                    raise InputTypeError("substitutions", "strings", f"{shown(word)} at position {position}")
                if not is_word(word):
                    raise InputError(
                        "substitutions", "single words by split_words", f"{shown(word)} at position {position}"
                    )
            sets.append(list(dict.fromkeys(self.index(word) for word in words)))
        return sets + [[self._padding]] * (self.shortest - len(sets))

    def vectors(self, indices: Sequence[int]) -> Tensor:
        """The vectors of these indices, [N, ...].

        Raises:
            ModelError: the embedding fails, does not return one vector for each index, or returns a vector that depends
                on the other indices.
        """
        device = next((t.device for t in (*self.embedding.parameters(), *self.embedding.buffers())), None)
        asked = torch.tensor(indices, dtype=torch.int64, device=device)
        try:
            with torch.no_grad(), evaluation_mode(self.embedding):
                vectors, again = self.embedding(asked), self.embedding(torch.cat((asked.flip(0), asked[:1])))
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            largest = max(indices, default=0)
            raise ModelError(f"embedding: failed at indices of up to {largest}: {error}") from error
        if not isinstance(vectors, Tensor) or not vectors.is_floating_point() or len(vectors) != len(indices):
            got = shape_text(vectors.shape) if isinstance(vectors, Tensor) else kind(vectors)
            raise ModelError(f"embedding: expected float vectors [{len(indices)}, ...], got {got}")
        if not torch.equal(vectors.nan_to_num(), again[: len(asked)].flip(0).nan_to_num()):
            raise ModelError(
                "embedding: expected one that maps each index by itself, got vectors that depend on their neighbours; "
                "move all but the look-up into the network"
            )
        return vectors

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Logits [N, K] of texts, on the CPU.

        Raises:
            InputError: no texts.
            InputTypeError: texts that are not strings.
            ModelError: a part of the classifier failed.
        """
        split = [split_words(text).words for text in items("texts", texts, "strings")]
        if not split:
            raise InputError("texts", "at least one text", "none")
        runner = Runner(self.network)
        rows: list[Tensor] = [torch.empty(0)] * len(split)
        for length, members in by_length(split).items():
            fill = [self._padding] * (self.shortest - length)
            indices = [index for i in members for index in (*map(self.index, split[i]), *fill)]
            flat = self.vectors(indices)
            vectors = flat.view(len(members), -1, *flat.shape[1:])
            try:
                with runner.session():
                    logits = runner.logits(runner.batch(vectors)).cpu()
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                raise ModelError(
                    f"network: failed on vectors {shape_text(vectors.shape)} of {vectors.dtype}: {error}"
                ) from error
            for i, row in zip(members, logits.clone(), strict=True):
                rows[i] = row
        return torch.stack(rows)


def pad_choices(texts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return the indices of texts of equal length, [N, K, L]; a position with fewer than K words repeats its first.

    Args:
        texts: for each text, the indices at each position; see ``WordClassifier.indices``.

    Raises:
        InputError: texts of different lengths.

    >>> pad_choices([[[1, 2], [0]], [[5], [4]]]).tolist()
    [[[1, 0], [2, 0]], [[5, 4], [5, 4]]]
    """
    lengths = {len(text) for text in texts}
    if len(lengths) != 1:
        raise InputError("texts", "one length", first_values(sorted(lengths)), "group them by length")
    widest = max((len(words) for text in texts for words in text), default=1)
    rows = [[[*words, *[words[0]] * (widest - len(words))] for words in text] for text in texts]
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), -1, widest).transpose(1, 2)


def by_length(texts: Sequence[Sequence[object]]) -> dict[int, list[int]]:
    """Return the indices of the texts, grouped by the number of words; each group keeps the order of the texts.

    >>> by_length([["a", "film"], ["good"], ["a", "bore"]])
    {2: [0, 2], 1: [1]}
    """
    groups: dict[int, list[int]] = {}
    for position, text in enumerate(texts):
        groups.setdefault(len(text), []).append(position)
    return groups
