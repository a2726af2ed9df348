"""Reports of garak (Derczynski et al., 2024): JSON Lines with an entry for each attempt.

An attempt has one prompt, several outputs, and a score from each detector for each output. The attack succeeded if the
score is at least the run's ``eval_threshold``. Each detector is a judge. The category of a verdict is the intent of the
attempt if the report has one, and the probe otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyrobust.errors import FileFormatError
from pyrobust.threats.readers.rows import named_field, number, verdict
from pyrobust.threats.untrusted import array_field, json_lines, object_field, text_field
from pyrobust.threats.verdicts import ThreatVerdict


def read_report(path: Path, threshold: float | None, behaviour: str | None = None) -> list[ThreatVerdict]:
    """Return all attempts of a report; an attempt whose detectors have not run has no verdict.

    If ``behaviour`` is given, it names the field of the attempt that holds the behaviour. Otherwise, the behaviour
    consists of the name of the probe and the number of the prompt within the probe. Rewritten forms of a prompt have
    the same number, and thus the same behaviour.
    """
    model, rows = "", []
    completed: set[str] = set()
    started: dict[str, tuple[str, dict[str, Any]]] = {}
    for line, entry in json_lines(path):
        where = f"{path}: line {line}"
        if entry.get("entry_type") == "start_run setup":
            threshold = threshold if threshold is not None else number(entry.get("run.eval_threshold"), where)
            model = text_field(entry, "plugins.target_name", "plugins.model_name", "plugins.target_type") or model
        if entry.get("entry_type") != "attempt":
            continue
        # Aggregated reports give all attempts of a run one uuid.
        name = f"{text_field(entry, 'uuid') or line}/{text_field(entry, 'probe_classname')}/{entry.get('seq')}"
        if entry.get("status") != 2:
            started[name] = where, entry
        elif name in completed:
            raise FileFormatError(f"{where}: uuid: expected one completed attempt of each, got {name[:80]!r} again")
        else:
            completed.add(name)
            rows += list(_attempt(where, entry, name, 0.5 if threshold is None else threshold, model, behaviour))
    for name, (where, entry) in started.items():
        if name not in completed:
            rows.append(verdict(where, id=f"{name}/0", status="error", **_names(where, entry, model, behaviour)))
    return rows


def _attempt(
    where: str, entry: dict[str, Any], name: str, threshold: float, model: str, behaviour: str | None
) -> Iterator[ThreatVerdict]:
    outputs = array_field(entry, "outputs", where)
    detectors = object_field(entry, "detector_results", where)
    names = _names(where, entry, model, behaviour)
    for detector in detectors:
        scores = array_field(detectors, detector, f"{where}: detector_results")
        for i in range(max(len(outputs), len(scores), 1)):
            score = number(scores[i], f"{where}: detector_results: {detector}[{i}]") if i < len(scores) else None
            answered = i < len(outputs) and outputs[i] is not None
            missing = "unparsable" if answered else "error"
            yield verdict(
                where,
                id=f"{name}/{i}",
                attempt=i,
                success=None if score is None else score >= threshold,
                score=score,
                judge=detector,
                status=missing if score is None else "judged",
                **names,
            )
    if not detectors:
        yield verdict(where, id=f"{name}/0", status="error", **names)


def _names(where: str, entry: dict[str, Any], model: str, behaviour: str | None) -> dict[str, str]:
    probe = text_field(entry, "probe_classname")
    prompt = _text(entry.get("prompt"))
    sequence = entry.get("seq")
    name = f"{probe}/{sequence}" if type(sequence) is int and sequence >= 0 else f"{probe}/{prompt}"
    if behaviour is not None:
        name = named_field(behaviour, where, entry)
    threat = "prompt-injection" if "inject" in probe.lower() else "jailbreak"
    category = text_field(entry, "intent") or probe
    return {"prompt": prompt, "behaviour": name, "group": probe, "threat": threat, "category": category, "model": model}


def _text(prompt: Any) -> str:
    """Return the text of a prompt: of a string (older reports), a message, or a conversation's last message."""
    if isinstance(prompt, dict) and isinstance(prompt.get("turns"), list) and prompt["turns"]:
        prompt = prompt["turns"][-1]
    if isinstance(prompt, dict) and "content" in prompt:
        prompt = prompt["content"]
    return prompt if isinstance(prompt, str) else text_field(prompt, "text") if isinstance(prompt, dict) else ""
