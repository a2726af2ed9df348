"""Word substitutions in texts: attacks on text classifiers, and certificates for the same sets of substitutes."""

from pyrobust.text.bounds import WordBounds, certified_substitutions, certify_words
from pyrobust.text.classifier import WordClassifier, pad_choices
from pyrobust.text.exhaustive import ExhaustiveSubstitution
from pyrobust.text.greedy import WordSubstitution
from pyrobust.text.result import WordAttackResult
from pyrobust.text.sandwich import WordCrossing, WordSandwich, word_sandwich
from pyrobust.text.substitutions import SplitText, split_words, word_substitutions
from pyrobust.text.synonyms import WordNet, protect_words, read_synonyms

__all__ = [
    "ExhaustiveSubstitution",
    "SplitText",
    "WordAttackResult",
    "WordBounds",
    "WordClassifier",
    "WordCrossing",
    "WordNet",
    "WordSandwich",
    "WordSubstitution",
    "certified_substitutions",
    "certify_words",
    "pad_choices",
    "protect_words",
    "read_synonyms",
    "split_words",
    "word_sandwich",
    "word_substitutions",
]
