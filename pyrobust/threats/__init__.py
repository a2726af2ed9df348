"""Attacks on text classifiers and generative models: success rates, judges' verdicts, and readers of logs."""

from pyrobust.threats.adapters.inspect_ai import threat_scorer, threat_task
from pyrobust.threats.answers import ThreatAnswer
from pyrobust.threats.at_k import success_at_k
from pyrobust.threats.compare import ThreatComparison, ThreatComparisons, compare_attacks, compare_models
from pyrobust.threats.consistency import AnswerRate, answer_change_rate, factual_consistency, normalized_answer
from pyrobust.threats.evaluate import evaluate_threat, rejudge_threat
from pyrobust.threats.files import write_verdicts
from pyrobust.threats.from_words import word_attack_verdicts
from pyrobust.threats.judging import ModelJudge, rule_judge
from pyrobust.threats.prompts import Threat, ThreatPrompt
from pyrobust.threats.queries import QueriesToSuccess, queries_to_success
from pyrobust.threats.rates import (
    ThreatRate,
    ThreatRates,
    contradiction_rate,
    jailbreak_rate,
    prompt_injection_rate,
    refusal_rate,
    targeted_success_rate,
    threat_success_rate,
)
from pyrobust.threats.read import is_verdicts, read_answers, read_verdicts
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts, join_verdicts

__all__ = [
    "AnswerRate",
    "ModelJudge",
    "QueriesToSuccess",
    "Threat",
    "ThreatAnswer",
    "ThreatComparison",
    "ThreatComparisons",
    "ThreatPrompt",
    "ThreatRate",
    "ThreatRates",
    "ThreatVerdict",
    "ThreatVerdicts",
    "answer_change_rate",
    "compare_attacks",
    "compare_models",
    "contradiction_rate",
    "evaluate_threat",
    "factual_consistency",
    "is_verdicts",
    "jailbreak_rate",
    "join_verdicts",
    "normalized_answer",
    "prompt_injection_rate",
    "queries_to_success",
    "read_answers",
    "read_verdicts",
    "refusal_rate",
    "rejudge_threat",
    "rule_judge",
    "success_at_k",
    "targeted_success_rate",
    "threat_scorer",
    "threat_success_rate",
    "threat_task",
    "word_attack_verdicts",
    "write_verdicts",
]
