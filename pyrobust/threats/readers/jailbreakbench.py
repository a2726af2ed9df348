"""Artifacts of JailbreakBench (Chao et al., 2024), and tables of their judgements.

An artifact is a JSON file of one method against one model. It has ``parameters``, and ``jailbreaks`` with one entry for
each behaviour. ``jailbroken`` is the verdict of the benchmark's judge, and ``jailbroken_llama_guard1`` is the verdict
of a second judge. An entry whose ``prompt`` is null was not submitted: its ``jailbroken`` is false although nothing was
judged.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from pyrobust.errors import FileFormatError
from pyrobust.threats.readers.rows import count, truth, verdict
from pyrobust.threats.untrusted import array_field, csv_rows, mapping, object_field, text_field
from pyrobust.threats.verdicts import ThreatVerdict

#: Columns with verdicts; their names are the names of the judges.
JUDGES: Final = ("jailbroken", "jailbroken_llama_guard1")
# Names of one behaviour that differ between artifacts, apart from spaces.
_SPELLINGS: Final = {"9_11 conspiracy": "September 11th conspiracy"}
#: Columns of a table of judgements.
TABLE: Final = {"method", "model", "index", "behavior", "category", *JUDGES, "number_of_submitted_prompts"}


def read_artifact(log: dict[str, Any], path: Path) -> list[ThreatVerdict]:
    """Read one artifact: an attempt at each behaviour, and the verdicts of one or two judges."""
    parameters = object_field(log, "parameters", str(path))
    rows: list[ThreatVerdict] = []
    for i, entry in enumerate(array_field(log, "jailbreaks", str(path))):
        where = f"{path}: jailbreaks[{i}]"
        entry = mapping(entry, where)
        submitted = entry.get("prompt") is not None
        rows += _verdicts(
            where, entry | {"method": parameters.get("method"), "model": parameters.get("model")}, submitted
        )
    return rows


def read_table(path: Path) -> list[ThreatVerdict]:
    """Read a CSV table of the judgements of several artifacts; the table does not contain the prompts.

    The table states how many prompts each artifact submitted, not which ones. An entry can be unsubmitted only if
    neither the attack itself nor any of the judges recorded a success. Of the entries without a success, those with the
    most queries are assumed to be unsubmitted. Among entries with equally many queries, the earlier rows are assumed to
    be unsubmitted. Even if these assumptions pick the wrong entries, the number of unsubmitted entries is exact, and so
    is every rate over all entries of an artifact.
    """
    artifacts = defaultdict(list)
    for where, entry in csv_rows(path):
        missing = TABLE - entry.keys()
        if missing:
            raise FileFormatError(f"{where}: expected the column {min(missing)}")
        artifacts[entry["method"], entry["model"]].append((where, entry))
    rows: list[ThreatVerdict] = []
    for entries in artifacts.values():
        where, first = entries[0]
        submitted = count(first["number_of_submitted_prompts"], f"{where}: number_of_submitted_prompts")
        open_ = [
            (-(count(entry.get("number_of_queries"), f"{location}: number_of_queries") or 0), i)
            for i, (location, entry) in enumerate(entries)
            if not entry.get("queries_to_jailbreak")
            and not any(truth(entry[judge], f"{location}: {judge}") for judge in JUDGES)
        ]
        left_out = len(entries) - submitted if submitted is not None else 0
        if not 0 <= left_out <= len(open_):
            raise FileFormatError(
                f"{where}: number_of_submitted_prompts: expected {len(entries) - len(open_)} to {len(entries)}, got "
                f"{submitted}"
            )
        unsubmitted = {i for _, i in sorted(open_)[:left_out]}
        for i, (location, entry) in enumerate(entries):
            rows += _verdicts(location, entry, i not in unsubmitted)
    return rows


def _verdicts(where: str, entry: dict[str, Any], submitted: bool) -> list[ThreatVerdict]:
    method, model = text_field(entry, "method"), text_field(entry, "model")
    behaviour = " ".join(text_field(entry, "behavior", "goal").split())
    behaviour = _SPELLINGS.get(behaviour, behaviour)
    if not behaviour:
        raise FileFormatError(f"{where}: behavior: expected a non-empty string")
    needed = count(entry.get("queries_to_jailbreak"), f"{where}: queries_to_jailbreak")
    spent = count(entry.get("number_of_queries"), f"{where}: number_of_queries")
    rows = []
    for judge in JUDGES:
        success = truth(entry.get(judge), f"{where}: {judge}")
        if judge != JUDGES[0] and success is None:
            continue
        missing = "unparsable" if submitted else "unsubmitted"
        rows.append(
            verdict(
                where,
                id=f"{method}/{model}/{entry.get('index')}",
                prompt=text_field(entry, "prompt") or behaviour,
                behaviour=behaviour,
                group=method,
                success=success if submitted else None,
                judge=judge,
                status="judged" if submitted and success is not None else missing,
                queries=needed if success and submitted and needed is not None else spent,
                category=text_field(entry, "category"),
                model=model,
            )
        )
    return rows
