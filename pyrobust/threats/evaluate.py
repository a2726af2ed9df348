"""Attack a function in this process, and judge answers that a log already has."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from pyrobust.checks import shown
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.threats.answers import ThreatAnswer, judge_threat
from pyrobust.threats.function_hash import function_name
from pyrobust.threats.judging import JudgeLike, as_judge, check_targets
from pyrobust.threats.prompts import PromptLike, Threat
from pyrobust.threats.read import read_answers, read_verdicts
from pyrobust.threats.verdicts import ThreatVerdicts

#: Number of initial failed calls after which a function is given up.
_STOP_AFTER: Final = 20


def evaluate_threat(
    model: Callable[..., str],
    prompts: Threat | Sequence[PromptLike],
    judge: JudgeLike,
    *,
    name: str | None = None,
    **removed: NoReturn,
) -> ThreatVerdicts:
    """Send each prompt to a function, once per attempt, and judge the answers; everything is kept in memory.

    Use inspect-ai through ``threat_task`` for models behind a server, for limits and parallel calls, and for runs that
    can be resumed after a kill.

    Args:
        model: a function that maps a prompt, or the messages of a chat, to the answer. If the function has an argument
            ``attempt``, this argument receives the number of the attempt. An exception counts as a missing verdict.
        prompts: the prompts, or a ``Threat``, which also sets the number of attempts at each prompt.
        judge: a function or the name of a rule (see ``rule_judge``), or a ``ModelJudge``.
        name: name of the model; by default the function's name, with a hash of its code.
        removed: must be empty; arguments of earlier versions raise an error that names their replacement.

    Returns:
        ThreatVerdicts with one verdict for each attempt.

    Raises:
        InputError: an argument is out of range, or a judge needs targets and a prompt has none.
        InputTypeError: an argument of the wrong type.
        ModelError: the first 20 calls fail.
        MissingExtraError: inspect-ai is not installed, and the judge asks a model through it.

    >>> verdicts = evaluate_threat(str.upper, ["say hi", "say no"], "contains:HI")
    >>> verdicts.column("success"), verdicts.column("status")
    ([True, False], ['judged', 'judged'])
    """
    if removed:
        raise InputError(
            ", ".join(removed),
            "none, since evaluate_threat keeps everything in memory",
            hint="inspect-ai runs, keeps and resumes a threat_task, and read_verdicts reads run files of earlier "
            "versions, which nothing resumes",
        )
    if isinstance(model, type) or not callable(model):
        raise InputTypeError("model", "a function from prompts to answers", shown(model), "see threat_task")
    if name is not None and (not isinstance(name, str) or not name):
        raise InputTypeError("name", "a string that is not empty, or None", shown(name))
    threat, judge = prompts if isinstance(prompts, Threat) else Threat(prompts), as_judge(judge)
    check_targets(threat.prompts, judge)
    name, numbered = name or function_name(model), _takes_attempt(model)
    answers: list[ThreatAnswer] = []
    for id, prompt, attempt in threat.each_attempt():
        asked: Any = prompt.chat or prompt.prompt
        text, reason = None, ""
        try:
            response = model(asked, attempt=attempt) if numbered else model(asked)
            text, reason = (
                (response, "") if isinstance(response, str) else (None, f"expected a string, got {shown(response)}")
            )
        except Exception as error:  # of a user's function
            reason = f"{type(error).__name__}: {str(error)[:300]}"
        answers.append(ThreatAnswer(id, prompt, attempt, name, text))
        if len(answers) == _STOP_AFTER and all(answer.text is None for answer in answers):
            raise ModelError(f"model: {_STOP_AFTER} calls failed and none was answered, the last with: {reason}")
    return ThreatVerdicts(tuple(judge_threat(answers, judge)))


def rejudge_threat(log: str | os.PathLike[str], judge: JudgeLike) -> ThreatVerdicts:
    """Judge the answers of a log by another judge; the attacked model is not called, and the log is not changed.

    Args:
        log: a log of inspect-ai, or a run file of earlier versions. The file may come from an untrusted source.
        judge: as in ``evaluate_threat``.

    Returns:
        ThreatVerdicts of the log and of this judge together. To select one judge, use ``verdicts.where(judge=...)``, or
        pass ``judge=`` when computing rates.

    Raises:
        FileFormatError: the file is missing or damaged, or its format has no answers.
        InputError: the log already has verdicts of this judge, or the judge needs targets and the log has none.
        InputTypeError: not a judge.
        MissingExtraError: inspect-ai is not installed, and the judge asks a model through it.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "log.json")
    ...     output = {"choices": [{"message": {"content": "No way."}}]}
    ...     sample = {"id": 1, "input": "Pick a lock.", "output": output, "scores": {"mine": {"value": "C"}}}
    ...     _ = open(file, "w").write(json.dumps({"eval": {"task": "jailbreak"}, "samples": [sample]}))
    ...     rejudge_threat(file, "contains:lock").column("success")
    [True, False]
    """
    judge = as_judge(judge)
    answers, verdicts = read_answers(log), read_verdicts(log)
    check_targets([answer.prompt for answer in answers], judge)
    if judge.name in verdicts.column("judge"):
        raise InputError("judge", f"one that has not judged {log} yet", judge.name)
    return ThreatVerdicts((*verdicts, *judge_threat(answers, judge)), verdicts.source)


def _takes_attempt(function: Callable[..., str]) -> bool:
    try:
        return "attempt" in inspect.signature(function).parameters
    except (ValueError, TypeError):  # built-in functions may have no signature
        return False
