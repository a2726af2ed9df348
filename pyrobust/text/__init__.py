"""Word substitutions on text classifiers: the substitutes at each position, shared by attacks and certificates."""

from pyrobust.text.substitutions import SplitText, split_words, word_substitutions

__all__ = ["SplitText", "split_words", "word_substitutions"]
