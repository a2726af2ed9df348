"""Certificates of text classifiers: what the sets are, and inputs made to break them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.text import WordClassifier, certified_substitutions, certify_words, pad_choices

WORDS = {"good": 1, "fine": 2, "dull": 3, "bore": 4}
METHODS = ("ibp", "crown-ibp", "crown")


class Net(nn.Module):
    """A convolution over two words, ReLU, dropout, the mean over the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 2)
        self.out = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(x.transpose(1, 2))).mean(2))


def classifier(seed: int = 0, network: nn.Module | None = None, **options: object) -> WordClassifier:
    torch.manual_seed(seed)
    return WordClassifier(WORDS, nn.Embedding(6, 2), network or Net(), unknown=0, padding=5, shortest=2, **options)


def margins(classify: WordClassifier, sets: list[tuple[str, ...]], label: int) -> tuple[Tensor, Tensor]:
    """The smallest margins of all texts, [K − 1], from logits."""
    logits = classify([" ".join(words) for words in itertools.product(*sets)]).double()
    others = [j for j in range(logits.shape[1]) if j != label]
    return (logits[:, [label]] - logits[:, others]).amin(0)


SETS: list[list[tuple[str, ...]]] = [
    [("good",), ("film",)],
    [("good", "fine", "dull")],  # shorter than the network's input
    [("good", "good", "Good"), ("fine", "fine")],
    [("good", "bore"), ("film", "movie", "dull")],  # two out of the vocabulary
    [("good", "bore"), ("good", "bore")],  # a repeated word
    [("film", "movie", "cinema"), ("one", "two")],
    [],
]


@pytest.mark.parametrize("method", [*METHODS, "cascade"])
def test_bounds_are_below_all_texts(method: str | None) -> None:
    classify = classifier()
    bounds = certify_words(classify, [sets for sets in SETS for _ in range(3)], [0, 1, 2] * len(SETS), method=method)
    for row, (sets, label) in enumerate(itertools.product(SETS, range(3))):
        least = margins(classify, sets, label)
        assert bool((bounds.lower[row] <= least + 1e-5).all())
        if int(bounds.substitutions[row]) == 0:
            torch.testing.assert_close(bounds.lower[row], least, rtol=0, atol=1e-5)
        assert not bounds.verified[row] or bool((least > 0).all())
    assert bool(bounds.verified.any())


def test_words_of_one_index_are_one_word() -> None:
    classify = classifier()
    sets = [("film", "movie", "cinema"), ("good", "GOOD")]
    assert classify.indices(sets) == [[0], [1]]
    assert certify_words(classify, [sets], [0]).substitutions.tolist() == [0]
    assert classifier(lower=False).indices(sets) == [[0], [1, 0]]


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_vectors_that_are_not_finite_prove_nothing(value: float) -> None:
    classify = classifier()
    texts = [[("good",), ("fine", "dull")], [("good",), ("fine",)]]
    before = certify_words(classify, texts, [0, 0]).lower
    classify.embedding.weight.data[3, 1] = value
    bounds = certify_words(classify, texts, [0, 0])
    assert bounds.lower[0].tolist() == [-torch.inf] * 2
    assert torch.equal(bounds.lower[1], before[1])
    assert not bounds.verified[0]
    assert certified_substitutions(classify, texts, [0, 0])[0] == -1


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("scale", [1e30, 3e38])
def test_huge_vectors(semantics: str, scale: float) -> None:
    classify = classifier()
    classify.embedding.weight.data[2:4] = scale * torch.tensor([[1.0, -1.0], [-1.0, 0.5]])
    sets = [("good",), ("fine", "dull"), ("good", "fine")]
    x = classify.vectors(pad_choices([classify.indices(sets)]).flatten().tolist()).double().view(2, 3, 2)
    network = Net().double().eval()
    network.load_state_dict(classify.network.state_dict())
    every = torch.stack([x[list(choice), range(3)] for choice in itertools.product(range(2), repeat=3)])
    logits = network(every).detach()
    bounds = certify_words(classify, [sets] * 3, [0, 1, 2], semantics=semantics)
    for label in range(3):
        least = (logits[:, [label]] - logits[:, [j for j in range(3) if j != label]]).amin(0)
        assert bool((bounds.lower[label] <= least + 1e-9 * scale).all())
        if bounds.verified[label] and semantics == "float32":
            assert bool((margins(classify, sets, label) > 0).all())


def test_exact_for_the_mean() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.mean(1))

    classify = classifier(network=Mean())
    sets = [("good", "bore"), ("fine", "dull", "good"), ("film",)]
    vectors = [
        [[Fraction(v) for v in row] for row in classify.vectors(words).tolist()] for words in classify.indices(sets)
    ]
    w, b = (
        [[Fraction(v) for v in row] for row in t.view(3, -1).tolist()]
        for t in (classify.network.out.weight, classify.network.out.bias)
    )
    for method in METHODS:
        lower = certify_words(classify, [sets], [1], method=method).lower[0].tolist()
        for bound, j in zip(lower, (0, 2), strict=True):
            exact = min(
                sum((w[1][d] - w[j][d]) * sum(word[d] for word in words) / 3 for d in range(2)) + b[1][0] - b[j][0]
                for words in itertools.product(*vectors)
            )
            assert 0 <= exact - Fraction(bound) <= 1e-12


def test_modes_are_restored_and_dropout_is_off() -> None:
    classify = classifier()
    classify.network.train()
    sets = [("good", "fine"), ("dull",)]
    first = certify_words(classify, [sets], [0])
    assert classify.network.training
    assert classify.network.out[0].training
    classify.network.eval()
    assert torch.equal(first.lower, certify_words(classify, [sets], [0]).lower)


def test_frames_name_the_method() -> None:
    pytest.importorskip("pandas", reason="the extra pandas")
    frame = certify_words(classifier(), [[("good", "fine"), ("dull",)]], [0], method="ibp").to_pandas()
    assert (len(frame), frame.attrs["method"], frame.attrs["max_substitutions"]) == (1, "ibp", None)


def test_parts_that_cannot_be_certified() -> None:
    sets = [[("good", "fine"), ("dull",)]]

    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * (x.abs().sum(2, keepdim=True) != 0))

    class Branch(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    for network in (Masked(), Branch(), nn.Embedding(6, 3), Net().double()):
        with pytest.raises((ModelError, InputError)):
            certify_words(classifier(network=network), sets, [0])

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.state = nn.Embedding(6, 2), nn.RNN(2, 2)

        def forward(self, indices: Tensor) -> Tensor:
            return self.state(self.words(indices))[0]

    for embedding, message in (
        (Recurrent(), "each index by itself"),
        (nn.Embedding(2, 2), "failed at indices"),
        (nn.EmbeddingBag(6, 2), "failed at indices"),
        (nn.Identity(), "expected float vectors"),
    ):
        classify = WordClassifier(WORDS, embedding, Net(), unknown=0, shortest=2)
        with pytest.raises(ModelError, match=f"embedding: .*{message}"):
            certify_words(classify, sets, [0])
    with pytest.raises(InputError, match="embedding: expected one without max_norm"):
        WordClassifier(WORDS, nn.Embedding(6, 2, max_norm=1.0), Net(), unknown=0)


@pytest.mark.parametrize(
    ("sets", "error", "message"),
    [
        ([[("good",), ()]], InputError, "at least the original word at position 1"),
        ([[("good", "motion picture")]], InputError, "single words"),
        ([[("good", 3)]], InputTypeError, "expected strings"),
        ([["good film"]], InputTypeError, "expected a sequence of words"),
        (["good film"], InputTypeError, "expected a sequence of positions"),
        ("good film", InputTypeError, "expected a sequence of texts"),
    ],
)
def test_wrong_sets(sets: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        certify_words(classifier(), sets, [0])


def test_wrong_arguments() -> None:
    sets = [[("good", "fine"), ("dull",)]]
    with pytest.raises(InputError, match="max_substitutions"):
        certify_words(classifier(), sets, [0], max_substitutions=-1)
    with pytest.raises(InputError, match="method: expected"):
        certify_words(classifier(), sets, [0], method="lipschitz")
    with pytest.raises(InputError, match="y: expected labels 0 to 2"):
        certify_words(classifier(), sets, [3])
    with pytest.raises(InputTypeError, match="classifier: expected a WordClassifier"):
        certify_words(Net(), sets, [0])
    with pytest.raises(InputError, match="vocabulary: expected one index for 'us'"):
        WordClassifier({"us": 1, "US": 2}, nn.Embedding(6, 2), Net(), unknown=0)
    with pytest.raises(InputError, match="texts: expected one length"):
        pad_choices([[[1]], [[1], [2]]])
    assert len(certify_words(classifier(), [], [])) == 0


def test_order_and_company_do_not_matter() -> None:
    classify = classifier()
    texts = [[("good", "fine"), ("dull",), ("good", "bore", "movie")], [("dull", "good")] * 4, [("bore", "fine")] * 3]
    y = [0, 1, 2]
    together = certify_words(classify, texts, y, method="crown").lower
    backwards = certify_words(classify, texts[::-1], y[::-1], method="crown").lower.flip(0)
    apart = certify_words(classify, texts[2:], y[2:], method="crown").lower
    torch.testing.assert_close(together, backwards, rtol=0, atol=1e-12)
    torch.testing.assert_close(together[2:], apart, rtol=0, atol=1e-12)
    proved = torch.stack([certify_words(classify, texts, y, max_substitutions=d).verified for d in range(5)])
    maxima = torch.tensor([2, 4, 3])
    expected = (proved.int().cumprod(0).sum(0) - 1).clamp(max=maxima)
    assert certified_substitutions(classify, texts, y).tolist() == expected.tolist()


def test_an_embedding_that_subtracts_the_mean_of_its_batch_is_refused():
    class Centred(nn.Embedding):
        def forward(self, indices):
            vectors = super().forward(indices)
            return vectors - vectors.mean(0)

    classify = WordClassifier({"a": 1, "b": 2}, Centred(3, 2), nn.Flatten(), unknown=0)
    with pytest.raises(ModelError, match="depend on their neighbours"):
        classify.vectors([1, 2])


@pytest.mark.parametrize(("vectors", "weights"), [(torch.float64, torch.float32), (torch.float16, torch.float64)])
def test_a_network_that_fails_is_named(vectors, weights):
    embedding, network = nn.Embedding(3, 2).to(vectors), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).to(weights)
    classify = WordClassifier({"good": 1, "film": 2}, embedding, network, unknown=0)
    with pytest.raises(ModelError, match=rf"network: failed on vectors \(1, 2, 2\) of {vectors}"):
        classify(["good film"])
