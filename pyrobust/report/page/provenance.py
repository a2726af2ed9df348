"""Where a result comes from: its guarantees in words, its parameters, and the command that made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.findings import AuditFinding
from pyrobust.checks import number_text
from pyrobust.evaluation import Run
from pyrobust.report.caption import describe_chunks
from pyrobust.report.page.subject import PageSource
from pyrobust.report.subjects import facts_of
from pyrobust.runs.kinds.words import box_text, range_text
from pyrobust.runs.reader import Header


def source_of(result: Run | CertificationLog | None, findings: Sequence[AuditFinding] | None) -> PageSource:
    """Describe the file of a run or a log.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=100, max_images=2, model_name="zoo:digits-smooth-0.25")
    >>> source_of(run, ()).guarantees[-1]
    'The noise lies on the grid of 1/16, so the guarantee covers floating-point arithmetic, in batches of 512 on cpu.'
    """
    assert result is not None
    header = result.header
    name = "(in memory)" if result.path is None else result.path.name
    if header is None:
        assert isinstance(result, CertificationLog)
        return PageSource(name, tuple(_promised_by_text(result)), tuple(_text_facts(result)), "", tuple(findings or ()))
    return PageSource(
        name,
        (
            *header.type.promises(header),
            *(describe_chunks(result.machines, result.set_aside) if isinstance(result, Run) else ()),
        ),
        tuple(_facts(header, len(result))),
        header.command,
        None if findings is None else tuple(findings),
    )


def _promised_by_text(log: CertificationLog) -> Iterator[str]:
    yield (
        f"A log of text: {', '.join(facts_of(log))}. Its author claims that no change of {log.norm} norm below the "
        "radius changes the prediction of the smoothed classifier, except with probability alpha for each image."
    )
    for origin in dict.fromkeys(log.origins.values()):
        names = [name for name, value in log.origins.items() if value == origin]
        yield f"{', '.join(names)}: {origin}."
    yield "Model and data are not stated, and the certificates cannot be checked without them."


def _text_facts(log: CertificationLog) -> Iterator[tuple[str, str]]:
    for name in ("n", "alpha", "sigma"):
        value = getattr(log, name)
        yield name, "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"
    yield "norm", log.norm
    yield "noise", log.noise
    yield "rows", f"{len(log):,}"


def _facts(header: Header, used: int) -> Iterator[tuple[str, str]]:
    yield "kind", header.kind
    yield "model", header.model
    yield "model sha256", header.model_sha256 or "unknown"
    yield "data", header.data
    yield "data sha256", header.data_sha256
    yield "images used", f"{used:,}"
    yield "guarantee", header.guarantee
    for name, value in header.parameters.items():
        entries = value.items() if isinstance(value, dict) else [(None, value)]
        for entry, item in entries:
            shown = range_text(item) if name == "clip" and np.ndim(item) > 1 else _value(item)
            yield name if entry is None else f"{name}: {entry}", box_text(item) if name == "box" else shown
    if header.identity is not None:
        yield "machine", header.identity.machine
        if header.identity.code:
            yield "code of the model, sha256", ", ".join(header.identity.code)
    for name, version in header.versions.items():
        yield f"version of {name}", version


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value)
