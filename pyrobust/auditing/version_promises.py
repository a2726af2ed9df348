"""Notes on the guarantee of a run, which depends on the version that made it."""

from __future__ import annotations

from collections.abc import Iterator

from pyrobust.auditing.findings import AuditFinding
from pyrobust.runs.reader import Header
from pyrobust.runs.schema import VERSION


def version_notes(header: Header) -> Iterator[AuditFinding]:
    """Yield notes on the guarantee of a run, and on the checks that its version of pyrobust lacked.

    >>> from pyrobust.evaluation import predict_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = predict_dataset(smoother, load_data("digits"), n=100, max_images=1)
    >>> [note.message for note in version_notes(run.header)]
    ['guarantee grid; rows of the model were probed by content, place and size of the batch, in a sample of batches']
    """
    stated = f"guarantee {header.guarantee}"
    if header.schema_version == VERSION:
        probed = "rows of the model were probed by content, place and size of the batch, in a sample of batches"
        yield AuditFinding("guarantee", "note", f"{stated}; {probed}")
        return
    lacks = (
        "its version did not probe whether a row's logits depend on its place, the size of the batch or kept answers"
    )
    if header.type.smoothed:  # smoothing counts the rows of full batches
        yield AuditFinding(
            "guarantee",
            "note",
            f"{stated}; {lacks}: void for a model that does; run a few images again in a new run, which refuses one",
        )
    else:
        yield AuditFinding(
            "guarantee", "note", f"{stated}; {lacks}; its predictions and adversarial examples ran alone"
        )
