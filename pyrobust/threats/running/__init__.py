"""Running threats against models: prompts, judges, calls within a budget, and the run that keeps them."""

from pyrobust.threats.running.calls import CallLimits
from pyrobust.threats.running.evaluate import (
    ThreatCost,
    ThreatProgress,
    evaluate_threat,
    rejudge_threat,
    threat_cost,
)
from pyrobust.threats.running.judges import ModelJudge, RuleJudge, rule_judge
from pyrobust.threats.running.prompts import Threat, ThreatPrompt
from pyrobust.threats.running.read import ThreatRun, read_threat_run

__all__ = [
    "CallLimits",
    "ModelJudge",
    "RuleJudge",
    "Threat",
    "ThreatCost",
    "ThreatProgress",
    "ThreatPrompt",
    "ThreatRun",
    "evaluate_threat",
    "read_threat_run",
    "rejudge_threat",
    "rule_judge",
    "threat_cost",
]
