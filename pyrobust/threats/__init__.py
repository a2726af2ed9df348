"""Attacks on text classifiers and generative models: runs, verdicts of judges, readers of logs, success rates."""

from pyrobust.threats.at_k import success_at_k
from pyrobust.threats.compare import ModelComparison, ModelComparisons, compare_models
from pyrobust.threats.files import write_verdicts
from pyrobust.threats.from_words import word_attack_verdicts
from pyrobust.threats.queries import QueriesToSuccess, queries_to_success
from pyrobust.threats.rates import (
    ThreatRate,
    ThreatRates,
    factual_consistency_rate,
    injection_success_rate,
    refusal_rate,
    targeted_success_rate,
    threat_success_rate,
)
from pyrobust.threats.read import is_verdicts, read_verdicts
from pyrobust.threats.running import (
    CallLimits,
    ModelJudge,
    Threat,
    ThreatPrompt,
    ThreatRun,
    evaluate_threat,
    read_threat_run,
    rejudge_threat,
    rule_judge,
)
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts, join_verdicts

__all__ = [
    "CallLimits",
    "ModelComparison",
    "ModelComparisons",
    "ModelJudge",
    "QueriesToSuccess",
    "Threat",
    "ThreatPrompt",
    "ThreatRate",
    "ThreatRates",
    "ThreatRun",
    "ThreatVerdict",
    "ThreatVerdicts",
    "compare_models",
    "evaluate_threat",
    "factual_consistency_rate",
    "injection_success_rate",
    "is_verdicts",
    "join_verdicts",
    "queries_to_success",
    "read_threat_run",
    "read_verdicts",
    "refusal_rate",
    "rejudge_threat",
    "rule_judge",
    "success_at_k",
    "targeted_success_rate",
    "threat_success_rate",
    "word_attack_verdicts",
    "write_verdicts",
]
