"""Take a text model from labelled texts to a report page: synonyms, and perturbations of its word vectors.

A classifier of word vectors is trained on a few reviews, whose labels are words. Prints clean accuracy; the texts that
are certified, undecided and attacked when words are replaced by synonyms; how many an attack on the vectors breaks, and
how many bounds verify, in l2; and the name of the page.
"""

import torch
from torch import Tensor, nn

from pyrobust import PGD, attack_dataset, verify_dataset
from pyrobust.report.page import write_page
from pyrobust.text import WordClassifier, WordSubstitution, split_words, word_sandwich
from pyrobust.zoo import ImageSet

LENGTH, SIZE = 6, 8  # words of a text, including padding; entries of a word vector
CLASSES = ["bad", "good"]  # in the order of the model's outputs
REVIEWS = [
    ("A good film, a great story.", "good"),
    ("A great cast, a fine script.", "good"),
    ("A fine story, told well.", "good"),
    ("A bad film, a dull story.", "bad"),
    ("A bad cast, an awful script.", "bad"),
    ("Two hours of boredom.", "bad"),
]
SYNONYMS = {"good": ["fine", "decent"], "great": ["big"], "story": ["tale"], "dull": ["boring"], "bad": ["poor"]}


class Network(nn.Module):
    """From word vectors, flat [B, L * SIZE] or [B, L, SIZE], to logits [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.classes = nn.Linear(SIZE, 16), nn.Linear(16, 2)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.classes(torch.relu(self.words(vectors.view(-1, LENGTH, SIZE))).mean(1))
        return logits


torch.manual_seed(0)
texts = [text for text, _ in REVIEWS]
y = torch.tensor([CLASSES.index(label) for _, label in REVIEWS])  # turns string labels into numbers
words = {word.lower() for text in texts for word in split_words(text).words}.union(*SYNONYMS.values())
vocabulary = {word: index for index, word in enumerate(sorted(words), start=2)}  # 0: unknown words, 1: padding
embedding, network = nn.Embedding(len(vocabulary) + 2, SIZE), Network().eval()
classify = WordClassifier(vocabulary, embedding, network, unknown=0, padding=1, shortest=LENGTH)
indices = torch.tensor([classify.indices([[word] for word in split_words(text).words]) for text in texts])[:, :, 0]
optimizer = torch.optim.Adam([*embedding.parameters(), *network.parameters()], 0.02)
for _ in range(60):
    loss = nn.functional.cross_entropy(network(embedding(indices) + 0.3 * torch.randn(6, LENGTH, SIZE)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"clean accuracy: {(classify(texts).argmax(1) == y).double().mean():.0%} of {len(texts)} texts")

both = word_sandwich(WordSubstitution(classify, SYNONYMS), texts, y)
both.check()
counts = ", ".join(f"{both.status.count(name)} {name}" for name in ("certified", "undecided", "attacked"))
print(f"all words replaceable: {counts}")

# The page shows the vectors of the texts as rows of numbers, without a limit on their values.
data = ImageSet("reviews", embedding(indices).detach().flatten(1), y)
attacked = attack_dataset(PGD(network, 0.5, "l2", clip=None, steps=20), data, out="attacked.db")
verified = verify_dataset(network, data, epsilons=[0.5], norm="l2", clip=None, out="verified.db")
broken, share = int((~attacked.robust).sum()), verified.verified_accuracy(0.5).value
print(f"vectors, l2 epsilon 0.5: {broken} broken, {share:.0%} verified")

write_page("report.html", [attacked, verified], data=data)
print("report.html")
