"""A model's answers to the prompts of an attack, one for each attempt, and a judge's verdicts on the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyrobust.threats.judging import Judge, Judgement, judge_answers
from pyrobust.threats.prompts import ThreatPrompt, verdict_on
from pyrobust.threats.verdicts import ThreatVerdict


@dataclass(frozen=True)
class ThreatAnswer:
    """A model's answer to one attempt.

    Attributes:
        id: identifier of the attempt, the same as in the attempt's verdicts.
        prompt: the prompt that was sent.
        attempt: number of the attempt.
        model: name of the model.
        text: the answer; None if no answer came.
        submitted: whether the model was asked.
        cost: tokens spent; None if not counted.
    """

    id: str
    prompt: ThreatPrompt
    attempt: int
    model: str
    text: str | None
    submitted: bool = True
    cost: float | None = None


def judge_threat(answers: Sequence[ThreatAnswer], judge: Judge) -> list[ThreatVerdict]:
    """Return a judge's verdict on each attempt, including attempts without an answer."""
    judgements = iter(judge_answers(judge, [(a.prompt, a.text) for a in answers if a.text is not None]))
    rows = []
    for answer in answers:
        nothing = Judgement("error" if answer.submitted else "unsubmitted")
        judged = nothing if answer.text is None else next(judgements)
        rows.append(
            verdict_on(
                answer.prompt,
                answer.id,
                answer.attempt,
                answer.model,
                judge=judge.name,
                success=judged.success,
                score=judged.score,
                status=judged.status,
                queries=None if answer.text is None else 1,
                cost=answer.cost,
            )
        )
    return rows
