"""Check a run: every column that follows from stored votes or verdicts is recomputed and compared."""

from __future__ import annotations

from collections.abc import Iterator

from pyrobust.auditing.findings import AuditFinding, rows_fault
from pyrobust.errors import InputError
from pyrobust.runs.run import Run


def check_run(run: Run) -> Iterator[AuditFinding]:
    """Flag rows with derived columns that do not follow from the votes, confidence limits or verdicts of the run.

    The columns are recomputed by the functions that wrote them. Logits, bounds and distances to images are not checked,
    because the file does not contain the images. Combinations of columns that no run can have are refused when the
    table is read (`pyrobust.runs.kinds.kind.Kind.check_rows`).
    """
    try:
        differing = list(run.header.type.contradictions(run))
    except InputError as error:  # a value that the functions refuse, such as a probability of 1
        yield AuditFinding("derived", "fault", f"columns that cannot be computed again: {error}")
        return
    for kind, rows, problem in differing:
        if rows.any():
            yield rows_fault(kind, run.table["index"][rows], problem, "index")
