"""Adapters to other programs: tasks and scorers of inspect-ai, models and results of TextAttack."""

from pyrobust.threats.adapters.inspect_ai import threat_scorer, threat_task
from pyrobust.threats.adapters.textattack import (
    attack_with_textattack,
    textattack_model,
    verdicts_from_textattack,
    words_perturbed,
)

__all__ = [
    "attack_with_textattack",
    "textattack_model",
    "threat_scorer",
    "threat_task",
    "verdicts_from_textattack",
    "words_perturbed",
]
