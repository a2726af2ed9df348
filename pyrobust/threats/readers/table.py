"""Plain CSV tables of verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyrobust.errors import FileFormatError
from pyrobust.threats.readers.rows import count, named_field, number, truth, verdict
from pyrobust.threats.untrusted import csv_rows
from pyrobust.threats.verdicts import COLUMNS, TEXTS, ThreatVerdict


def read_csv(path: Path, behaviour: str | None = None) -> list[ThreatVerdict]:
    """Read a CSV table with the columns of ``ThreatVerdict``.

    The column ``success`` is required. The other columns have defaults.

    All further columns are ``extras``.

    The values of ``success`` and ``human_label`` are true, false, 1, 0, yes, no or empty. If there is no column ``id``,
    rows are numbered. If there is no column ``status``, a row with an empty ``success`` has the status "error".
    """
    rows = []
    for i, (where, entry) in enumerate(csv_rows(path)):
        if "success" not in entry:
            raise FileFormatError(f"{where}: expected a column success; known columns are {', '.join(COLUMNS)}")
        values: dict[str, Any] = {name: entry[name] for name in TEXTS if name in entry}
        values.setdefault("id", str(i))
        if behaviour is not None:
            values["behaviour"] = named_field(behaviour, where, entry)
        values["extras"] = tuple((name, entry[name] or "") for name in entry if name and name not in COLUMNS)
        for name, parse in (("success", truth), ("human_label", truth), ("score", number), ("cost", number)):
            if name in entry:
                values[name] = parse(entry[name], f"{where}: {name}")
        values["queries"] = count(entry.get("queries"), f"{where}: queries")
        values["attempt"] = count(entry.get("attempt"), f"{where}: attempt") or 0
        values["status"] = entry.get("status") or ("error" if values["success"] is None else "judged")
        if not values.get("threat"):
            values.pop("threat", None)
        rows.append(verdict(where, **values))
    return rows
