"""Logs of TextAttack (Morris et al., 2020): the table of attacked texts, and the summary of their counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyrobust.errors import FileFormatError
from pyrobust.threats.readers.rows import count, number, numbered, verdict
from pyrobust.threats.untrusted import csv_rows, object_field
from pyrobust.threats.verdicts import ThreatVerdict

_MAX_COUNT: Final = 10**6
# A skipped text was misclassified before the attack. Maximized results have a score but no criterion of success.
RESULTS: Final = {
    "Successful": (True, "judged"),
    "Failed": (False, "judged"),
    "Skipped": (None, "unsubmitted"),
    "Maximized": (None, "unparsable"),
}
_COUNTS: Final = {"successful": "Successful", "failed": "Failed", "skipped": "Skipped"}


def read_table(path: Path) -> list[ThreatVerdict]:
    """Read the CSV log, one row for each attacked text; prompt and behaviour are this text without [[ ]] marks."""
    rows = []
    for i, (where, entry) in enumerate(csv_rows(path)):
        result = entry.get("result_type", "")
        if result not in RESULTS:
            raise FileFormatError(f"{where}: result_type: expected one of {', '.join(RESULTS)}, got {result[:40]!r}")
        success, status = RESULTS[result]
        text = entry.get("original_text", "").replace("[[", "").replace("]]", "")
        rows.append(
            verdict(
                where,
                id=str(i),
                prompt=text,
                behaviour=text,
                threat="misclassification",
                success=success,
                score=number(entry.get("perturbed_score"), f"{where}: perturbed_score"),
                judge="goal function",
                status=status,
                queries=count(entry.get("num_queries"), f"{where}: num_queries"),
                category=entry.get("ground_truth_output", ""),
            )
        )
    return numbered(rows)


def read_summary(log: dict[str, Any], path: Path) -> list[ThreatVerdict]:
    """Read the JSON summary, and return one row for each text that it counts.

    The content of the texts is unknown. The texts are assumed to differ.
    """
    counts = object_field(log, "Attack Results", str(path))
    rows = []
    for name, result in _COUNTS.items():
        key = f"Number of {name} attacks:"
        where = f"{path}: Attack Results: {key}"
        times = count(counts.get(key, counts.get(key[:-1])), where)
        if times is None or not 0 <= times <= _MAX_COUNT:
            raise FileFormatError(f"{where} expected a count of at most {_MAX_COUNT}, got {str(times)[:40]}")
        success, status = RESULTS[result]
        rows += [
            verdict(
                where,
                id=f"{name}-{i}",
                threat="misclassification",
                success=success,
                judge="goal function",
                status=status,
            )
            for i in range(times)
        ]
    return rows
