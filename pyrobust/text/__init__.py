"""Word substitutions on text classifiers: the substitutes at each position, shared by attacks and certificates."""

from pyrobust.text.bounds import WordBounds, certified_substitutions, certify_words
from pyrobust.text.classifier import WordClassifier
from pyrobust.text.substitutions import SplitText, split_words, word_substitutions

__all__ = [
    "SplitText",
    "WordBounds",
    "WordClassifier",
    "certified_substitutions",
    "certify_words",
    "split_words",
    "word_substitutions",
]
