"""Results of promptfoo: a JSON file or JSON Lines, with an entry for each test, prompt and provider.

The entries of a JSON file are its ``results.results``. A test passes where the model withstood the attack, so the
attack succeeded where an assertion of the test failed. An error of the provider (``failureReason`` 2) is not a verdict.
For promptfoo, an assertion also counts as failed if it did not run. This happens if a grader's answer is unreadable or
the assertion's code raises an exception. A failure that is due only to assertions that did not run is not a verdict
either.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pyrobust.errors import FileFormatError
from pyrobust.threats.readers.rows import named_field, number, numbered, verdict
from pyrobust.threats.untrusted import array_field, json_lines, mapping, object_field, text_field
from pyrobust.threats.verdicts import ThreatVerdict

# Reasons of failed assertions whose own code raised.
_RAISED: Final = ("Custom function threw error:", "Python code execution failed:", "Ruby code execution failed:")


def read_lines(path: Path, behaviour: str | None = None) -> list[ThreatVerdict]:
    """Read all results of a file of JSON Lines."""
    return numbered(
        _result(f"{path}: line {line}", entry, i, behaviour) for i, (line, entry) in enumerate(json_lines(path))
    )


def read_results(log: dict[str, Any], path: Path, behaviour: str | None = None) -> list[ThreatVerdict]:
    """Read all results.

    The behaviour is the goal or the original text of the test. If the test has neither, all variables of the test
    together are the behaviour.
    """
    nested = isinstance(log.get("results"), dict)
    holder = object_field(log, "results", str(path)) if nested else log
    rows = []
    for i, entry in enumerate(array_field(holder, "results", f"{path}: results" if nested else str(path))):
        where = f"{path}: {'results.' * nested}results[{i}]"
        rows.append(_result(where, mapping(entry, where), i, behaviour))
    return numbered(rows)


def _result(where: str, entry: dict[str, Any], i: int, behaviour: str | None) -> ThreatVerdict:
    passed, reason = entry.get("success"), entry.get("failureReason")
    if not isinstance(passed, bool) or reason not in (None, 0, 1, 2):
        raise FileFormatError(f"{where}: success, failureReason: expected true or false, and 0, 1, 2 or nothing")
    failed = reason == 2 or (reason is None and bool(entry.get("error")) and not entry.get("gradingResult"))
    unjudged = not (failed or passed) and _unjudged(entry, where)
    test = object_field(entry, "testCase", where)
    metadata = object_field(test, "metadata", f"{where}: testCase") | object_field(entry, "metadata", where)
    variables = object_field(entry, "vars", where)
    provider, prompt = entry.get("provider"), entry.get("prompt")
    text = prompt if isinstance(prompt, str) else text_field(object_field(entry, "prompt", where), "raw", "label")
    text = text or text_field(variables, "prompt")
    model = text_field(provider, "label", "id") if isinstance(provider, dict) else provider
    model = model if isinstance(model, str) else ""
    named = text_field(metadata, "goal", "originalText")
    if behaviour is not None:
        named = named_field(behaviour, where, metadata, variables, entry)
    return verdict(
        where,
        id=str(i),
        prompt=text,
        behaviour=named or (json.dumps(variables, sort_keys=True) if variables else text),
        group=text_field(metadata, "strategyId"),
        threat="prompt-injection" if "inject" in text_field(metadata, "pluginId") else "jailbreak",
        success=None if failed or unjudged else not passed,
        score=number(entry.get("score"), f"{where}: score"),
        judge="promptfoo",
        status="error" if failed else "unparsable" if unjudged else "judged",
        cost=number(entry.get("cost"), f"{where}: cost"),
        category=text_field(metadata, "harmCategory", "pluginId"),
        model=model,
    )


def _unjudged(entry: dict[str, Any], where: str) -> bool:
    """Whether every assertion that promptfoo counts as failed did not run."""
    grading = object_field(entry, "gradingResult", where)
    parts = grading.get("componentResults")
    parts = parts if isinstance(parts, list) else []
    failures = [component for component in parts if isinstance(component, dict) and not component.get("pass")]
    return bool(failures) and all(
        object_field(component, "metadata", where).get("graderError") is True
        or text_field(component, "reason").startswith(_RAISED)
        for component in failures
    )
