"""Adapters that run TextAttack's attacks on any text classifier and convert its results to verdicts.

Tasks and scorers of inspect-ai are in ``pyrobust.threats``.
"""

from pyrobust.threats.adapters.textattack import (
    attack_with_textattack,
    textattack_model,
    verdicts_from_textattack,
    words_perturbed,
)

__all__ = [
    "attack_with_textattack",
    "textattack_model",
    "verdicts_from_textattack",
    "words_perturbed",
]
