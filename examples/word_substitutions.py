"""A text classifier: attack it by replacing words with synonyms, and certify it over the same substitutions.

Trains a tiny classifier of word vectors twice, as usual and with bounds over all substitutions in the loss. Prints for
each the texts that are certified, undecided and attacked, and every text that the attack broke.
"""

import torch
from torch import Tensor, nn

from pyrobust.bounds import DifferentiableBounds
from pyrobust.text import WordClassifier, WordSubstitution, pad_choices, split_words, word_sandwich
from pyrobust.training import choices_ibp_loss, ramp

LENGTH, SIZE = 8, 16  # words of a text, padding included; entries of a word vector
POSITIVE = ["A good film with a great story.", "A great cast and a fine script.", "A fine story, told well."]
NEGATIVE = ["A bad film with a dull story.", "A bad cast and an awful script.", "Two hours of boredom."]
# A mapping of your own, a file (read_synonyms) or WordNet. Some substitutes are poor, as in any thesaurus.
SYNONYMS = {
    "good": ["fine", "decent"],
    "great": ["big", "large"],
    "fine": ["good", "thin"],
    "story": ["tale", "lie"],
    "bad": ["poor", "big"],
    "dull": ["boring", "thick"],
    "awful": ["terrible", "awesome"],
    "boredom": ["tedium"],
}


class Network(nn.Module):
    """From word vectors [B, L, SIZE] to logits [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.classes = nn.Linear(SIZE, 16), nn.Linear(16, 2)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.classes(torch.relu(self.words(vectors)).mean(1))
        return logits


texts, y = NEGATIVE + POSITIVE, torch.tensor([0, 0, 0, 1, 1, 1])
words = {word.lower() for text in texts for word in split_words(text).words}.union(*SYNONYMS.values())
vocabulary = {word: index for index, word in enumerate(sorted(words), start=2)}  # 0: unknown words, 1: padding
for training in ("usual", "bounds"):
    torch.manual_seed(0)
    embedding, network = nn.Embedding(len(vocabulary) + 2, SIZE), Network().eval()
    classify = WordClassifier(vocabulary, embedding, network, unknown=0, padding=1, shortest=LENGTH)
    attack = WordSubstitution(classify, SYNONYMS)  # attacks any function from texts to logits
    indices = pad_choices([classify.indices(attack.substitutions(text)) for text in texts])  # [N, K, LENGTH]
    bounds = DifferentiableBounds(network, torch.zeros(1, LENGTH, SIZE))
    optimizer = torch.optim.Adam([*embedding.parameters(), *network.parameters()], 0.01)
    for step in range(60):
        # The sets grow from the texts alone to all substitutions; for "usual" they stay at the texts.
        scale = 0.0 if training == "usual" else ramp(step, 10, 40, 0.0, 1.0)
        loss = choices_ibp_loss(bounds, embedding(indices), y, scale, kappa=0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    both = word_sandwich(attack, texts, y)
    both.check()  # raises for an adversarial text within its certificate, which would be a bug
    shares = both.shares([LENGTH])  # if all words may be replaced
    print(f"{training}: ", end="")
    print(
        *(f"{name} {getattr(shares, name)[0].value:.0%}" for name in ("certified", "undecided", "attacked")), sep=", "
    )
    result = attack.attack(texts, y)
    for text, changed, success in zip(texts, result.texts, result.success, strict=True):
        if success:
            print(f"  {text} -> {changed}")
