"""Convert certification logs and runs to the subjects of a page, each about one classifier on one data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.audit import Audit, audit, audit_run
from pyrobust.auditing.certification_log import CertificationLog, log_of_run
from pyrobust.auditing.findings import AuditFinding
from pyrobust.auditing.votes import survival_of, votes_of
from pyrobust.checks import items, numbers
from pyrobust.errors import InputError, InputTypeError, MissingExtraError, PyrobustError
from pyrobust.evaluation import Run
from pyrobust.evaluation.sandwich import Sandwich
from pyrobust.metrics.survival import survival_curve
from pyrobust.report.page.pictures import Pictures
from pyrobust.report.page.provenance import source_of
from pyrobust.report.page.subject import PageColumn, PageSubject, with_common_radius
from pyrobust.report.subjects import distinct, method_of
from pyrobust.runs.kinds.common import P_A, P_LOWER
from pyrobust.runs.kinds.kind import Bound
from pyrobust.runs.kinds.values import frozen
from pyrobust.runs.kinds.words import norm_of
from pyrobust.runs.reader import Header
from pyrobust.zoo import LabelledImages, load_data

#: What a page is made of.
Result: TypeAlias = Run | CertificationLog

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_NO_PILLOW = 'pictures need Pillow; install it with pip install "pyrobust[report]"'
_SECONDS = "Time spent on the example."
# Data specs that name bundled data or files. Any other spec names code, which an untrusted file must not run.
_FILES = ("digits", "npz", "mnist", "folder", "parquet", "hf", "tar")
# Images read at once.
_PART = 256


def subjects_of(
    results: Result | Sequence[Result],
    *,
    data: LabelledImages | None = None,
    alpha: float = 0.05,
    radii: Sequence[float] = (),
) -> list[PageSubject]:
    """Convert results to the subjects of a page, each about one classifier on one data set.

    Verifications and attacks with the same network, data set, norm and clip range become one subject. The subject
    contains the examples that these runs share. A certification of a smoothed classifier is a subject of its own:
    attacks on the network give no bound for the smoothed classifier, and combining several certifications would need a
    union bound.

    Args:
        results: runs of any kind and certification logs, with at least one example each.
        data: the data set, for pictures. If None, the data set is loaded again from the files that a run names.
        alpha: probability that a given interval misses the true value, in (0, 1).
        radii: radii of the tables, at least 0. The first radius above 0 is the headline radius of all subjects, for
            which the top of the page gives rates. If there are no radii, a headline radius is chosen for each norm.

    Returns:
        At least one subject, with distinct names.

    Raises:
        InputError: there is no result, a result has no examples, or no result used the data.
        InputTypeError: an argument of the wrong type.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset, verify_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> model, digits = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    >>> proof = verify_dataset(model, digits, epsilons=[0.01], max_images=4)
    >>> [subject] = subjects_of([proof, attack_dataset(FGSM(model, 0.1), digits, max_images=4)])
    >>> subject.lower is not None, subject.upper is not None, subject.radii
    (True, True, [0.01, 0.1])
    """
    listed = [results] if isinstance(results, Result) else items("results", results, "runs or certification logs")
    if not listed:
        raise InputError("results", "at least one run or certification log", "none")
    alone: list[PageSubject] = []
    proofs: dict[tuple[Any, ...], list[_Part]] = {}
    attacks: list[_Part] = []
    for result in listed:
        if not isinstance(result, Result):
            raise InputTypeError("results", "runs or certification logs", type(result).__name__)
        if not len(result):
            raise InputError("results", "at least one example", repr(result), "resume it first")
        if isinstance(result, Run) and result.header.type.certified != "radius":
            kind = result.header.type
            if kind.smoothed or not (kind.certified or kind.attacked):
                alone.append(_of_single(result, alpha))
                continue
            evidence = _of_run(result)
            if not kind.certified:
                attacks.append(evidence)
                continue
        else:
            log = log_of_run(result) if isinstance(result, Run) else result
            if log.smoothed or log.header is None:
                alone.append(_certified(audit(log), alpha))
                continue
            evidence = _of_proof(audit(log), log.header)
        proofs.setdefault(evidence.network + evidence.arithmetic, []).append(evidence)
    groups = list(proofs.values())
    unpaired: dict[tuple[Any, ...], list[_Part]] = {}
    for attack in attacks:
        # An adversarial example outside a proof's clip range does not contradict the proof.
        partners = [
            group for group in groups if group[0].network == attack.network and group[0].clip in (None, attack.clip)
        ]
        for group in partners:
            group.append(attack)
        if not partners:
            unpaired.setdefault((*attack.network, attack.clip), []).append(attack)
    joined = [subject for group in (*groups, *unpaired.values()) for subject in _joined(group, alpha)]
    return with_common_radius(_finished([*alone, *joined], data), numbers("radii", radii) if len(radii) else ())


@dataclass(frozen=True, eq=False)
class _Part:
    """The bounds and facts of one run or log about the network itself, for a subject that may join several of them."""

    network: tuple[Any, ...]  # model, data and norm
    arithmetic: tuple[Any, ...]  # arithmetic for which a proof holds
    clip: Any
    header: Header
    findings: tuple[AuditFinding, ...]
    log: CertificationLog | None
    run: Run | None
    table: Mapping[str, npt.NDArray[Any]]
    lower: Bound | None
    upper: Bound | None
    found: npt.NDArray[np.bool_] | None  # whether the run has an adversarial example
    columns: tuple[PageColumn, ...]

    def at(self, index: _Ints) -> _Part:
        """Restrict the contribution to the examples with these data-set indices."""
        stored = self.table["index"]
        rows = np.flatnonzero(np.isin(stored, index))
        return replace(
            self,
            table={name: column[rows] for name, column in self.table.items()},
            lower=None if self.lower is None else _rows_of_bound(self.lower, rows),
            upper=None if self.upper is None else _rows_of_bound(self.upper, rows),
            found=None if self.found is None else self.found[rows],
            columns=tuple(replace(column, values=_rows(column.values, rows)) for column in self.columns),
        )


def _rows(values: Any, rows: _Ints) -> Any:
    return tuple(values[row] for row in rows.tolist()) if isinstance(values, tuple) else values[rows]


def _rows_of_bound(bound: Bound, rows: _Ints) -> Bound:
    return replace(bound, radius=bound.radius[rows], by=None if bound.by is None else _rows(bound.by, rows))


def _network(header: Header) -> tuple[Any, ...]:
    # Without a hash, only the name distinguishes models.
    return (header.model_sha256 or header.model, header.data_sha256, norm_of(header.parameters))


def _clip(header: Header) -> Any:
    return frozen(header.parameters["clip"])


def _of_run(run: Run) -> _Part:
    kind, parameters = run.header.type, run.parameters
    return _Part(
        network=_network(run.header),
        arithmetic=kind.arithmetic(parameters),
        clip=_clip(run.header),
        header=run.header,
        findings=_run_findings(run),
        log=None,
        run=run,
        table=run.table,
        lower=kind.lower_bound(run),
        upper=kind.upper_bound(run),
        found=kind.found(run) if parameters["examples"] else None,
        columns=_shown(run),
    )


def _of_proof(result: Audit, header: Header) -> _Part:
    log, parameters, kind = result.counted, header.parameters, header.type
    run = log.run
    proved = Bound(
        radius=np.where(log.is_correct, log.radius, 0.0),
        method=method_of(log) + kind.caveat(parameters),
        marks=tuple(kind.epsilons_of(parameters)),
    )
    table = {"index": log.index, "label": log.label, "prediction": log.prediction}
    return _Part(
        network=_network(header),
        arithmetic=kind.arithmetic(parameters),
        clip=_clip(header),
        header=header,
        findings=result.findings,
        log=log,
        run=run,
        table=table | ({} if log.seconds is None else {"seconds": log.seconds}),
        lower=proved if run is None else kind.lower_bound(run),
        upper=None if run is None else kind.upper_bound(run),
        found=kind.found(run) if run is not None and parameters["examples"] else None,
        columns=(),
    )


def _of_single(run: Run, alpha: float) -> PageSubject:
    """Return a subject for a run that is no certification and has a smoothed classifier or no bounds."""
    table, parameters, header, kind = run.table, run.parameters, run.header, run.header.type
    findings = list(_run_findings(run))
    if kind.attacked:
        findings[:0] = _crossings(Sandwich(run))
    votes, fooled = kind.class_votes(run), kind.found(run)
    return PageSubject(
        name=header.model,
        smoothed=kind.smoothed,
        model=header.model,
        data=header.data,
        data_sha256=header.data_sha256,
        norm=norm_of(parameters) if kind.certified else "",
        index=table["index"],
        label=table["label"],
        prediction=table["prediction"],
        counted=run.correct if kind.certified else np.zeros(len(run), dtype=bool),
        lower=kind.lower_bound(run),
        upper=kind.upper_bound(run),
        asked=_asked(run),
        columns=(*_shown(run), PageColumn("seconds", _SECONDS, table["seconds"])),
        survival=None if votes is None else survival_curve(votes, parameters["n"], run.correct),
        sources=(source_of(run, findings),),
        adversarial={}
        if fooled is None or not parameters["examples"]
        else dict.fromkeys(table["index"][fooled].tolist(), run),
        alpha=alpha,
    )


def _crossings(both: Sandwich) -> list[AuditFinding]:
    """Return the finding about adversarial examples within certified radii (crossings), if there are any."""
    if not both.crossings:
        return []
    faulty = len(both.crossings) > both.allowed_crossings
    indices = tuple(crossing.index for crossing in both.crossings)
    message = f"crossings of certificate and attack: {len(indices)}, chance explains at most {both.allowed_crossings}"
    return [AuditFinding("crossing", "fault" if faulty else "note", message, indices)]


def _asked(run: Run) -> tuple[float, ...]:
    """Return the radii at which a run with bounds from both sides ran AutoAttack; () for runs of other kinds."""
    return tuple(run.parameters.get("epsilons") or ()) if run.header.type.certified == "lower" else ()


def _shown(run: Run) -> tuple[PageColumn, ...]:
    return tuple(PageColumn(*column) for column in run.header.type.shown(run))


def _joined(group: Sequence[_Part], alpha: float) -> list[PageSubject]:
    """Return one subject with the examples that all parts share or, if they share none, one subject per part."""
    index = reduce(np.intersect1d, [member.table["index"] for member in group])
    if not len(index):
        return [subject for member in group for subject in _joined([member], alpha)]
    parts = [member.at(index) for member in group]
    first = parts[0]
    proofs = [member for member in parts if member.arithmetic == first.arithmetic]
    lower = _best([member.lower for member in proofs if member.lower is not None], largest=True)
    upper = _best([member.upper for member in parts if member.upper is not None], largest=False)
    label, prediction = first.table["label"], first.table["prediction"]
    correct = (prediction == label) & (prediction >= 0)
    counted = correct & (lower.radius > 0) if lower is not None else np.zeros(len(index), dtype=bool)
    crossings = ()
    if lower is not None and upper is not None:
        crossed = counted & (lower.radius >= upper.radius)
        for member in parts:
            # A sandwich judges its own crossings; the auditor reports them.
            if member.header.type.certified == "lower" and member.lower is not None and member.upper is not None:
                crossed &= (member.lower.radius < lower.radius) | (member.upper.radius > upper.radius)
        crossings = tuple(index[crossed].tolist())
    adversarial: dict[int, Run] = {}
    columns = [column for member in parts for column in member.columns]
    for member in parts:
        if member.found is None or member.run is None or member.upper is None or upper is None:
            continue
        nearest = member.found & (member.upper.radius == upper.radius)
        adversarial |= {row_index: member.run for row_index in index[nearest].tolist() if row_index not in adversarial}
    seconds = [member.table["seconds"] for member in parts if "seconds" in member.table]
    if seconds:
        columns.append(PageColumn("seconds", _SECONDS, np.sum(seconds, axis=0)))
    header = first.header
    return [
        PageSubject(
            name=header.model,
            smoothed=False,
            model=header.model,
            data=header.data,
            data_sha256=header.data_sha256,
            norm=norm_of(header.parameters),
            index=index,
            label=label,
            prediction=prediction,
            counted=counted,
            lower=lower,
            upper=upper,
            columns=_distinct_columns(columns),
            survival=None,
            sources=tuple(source_of(member.log or member.run, member.findings) for member in parts),
            crossings=crossings,
            adversarial=adversarial,
            asked=tuple(
                sorted({radius for member in parts if member.run is not None for radius in _asked(member.run)})
            ),
            alpha=alpha,
        )
    ]


def _best(bounds: Sequence[Bound], *, largest: bool) -> Bound | None:
    """Return the best of several bounds for each example."""
    if len(bounds) < 2:
        return bounds[0] if bounds else None
    radii = np.stack([bound.radius for bound in bounds])
    best = radii.argmax(axis=0) if largest else radii.argmin(axis=0)
    by = [bounds[k].method if bounds[k].by is None else bounds[k].by[i] for i, k in enumerate(best)]
    radius = radii[best, np.arange(len(best))]
    none = (radius == 0) if largest else np.isinf(radius)
    return Bound(
        radius=radius,
        method="; ".join(dict.fromkeys(bound.method for bound in bounds)),
        by=tuple("" if nothing else name for name, nothing in zip(by, none.tolist(), strict=True)),
        limit=max(bound.limit for bound in bounds),
        marks=tuple(sorted({mark for bound in bounds for mark in bound.marks})) if all(b.marks for b in bounds) else (),
    )


def _certified(result: Audit, alpha: float) -> PageSubject:
    """Return a subject for a smoothed classifier, or for proofs from a log that does not describe its run."""
    log = result.counted
    columns = []
    run = log.run
    votes = votes_of(log)
    if votes is not None and log.n is not None:
        share = np.where(log.prediction >= 0, votes[0] / log.n, np.nan)
        about = P_A + ("." if log.votes is not None else ", derived from the printed radius.")
        columns.append(PageColumn("p_A", about, share))
    if run is not None:
        columns.append(PageColumn("p lower", P_LOWER, run.table["p_lower"]))
        if "samples" in run.table:
            columns.append(PageColumn("samples", "Noisy samples drawn.", run.table["samples"]))
    if log.seconds is not None:
        columns.append(PageColumn("seconds", _SECONDS, log.seconds))
    marks = run.parameters.get("radii", ()) if run is not None else ()
    return PageSubject(
        name=log.name if log.header is None else log.header.model,
        smoothed=log.smoothed,
        model=log.name if log.header is None else log.header.model,
        data="" if log.header is None else log.header.data,
        data_sha256="" if log.header is None else log.header.data_sha256,
        norm=log.norm,
        index=log.index,
        label=log.label,
        prediction=log.prediction,
        counted=log.certified,
        lower=Bound(radius=log.radius, method=method_of(log), marks=tuple(mark for mark in marks if mark > 0)),
        upper=None,
        columns=tuple(columns),
        survival=survival_of(log, votes),
        sources=(source_of(log, result.findings),),
        alpha=alpha,
    )


def _run_findings(run: Run) -> tuple[AuditFinding, ...]:
    findings = audit_run(run)["findings"]
    return tuple(
        AuditFinding(each["kind"], each["severity"], each["message"], tuple(each["lines"])) for each in findings
    )


def _distinct_columns(columns: Sequence[PageColumn]) -> tuple[PageColumn, ...]:
    names = distinct([column.name for column in columns])
    return tuple(replace(column, name=name) for column, name in zip(columns, names, strict=True))


def _finished(subjects: list[PageSubject], data: LabelledImages | None) -> list[PageSubject]:
    """Give subjects distinct names, and pictures if the data can be loaded again."""
    names = distinct([subject.name for subject in subjects])
    loaded: dict[tuple[str, str], LabelledImages | str] = {}
    finished, fitting = [], False
    for subject, name in zip(subjects, names, strict=True):
        images: LabelledImages | str | None = None
        if data is not None:
            images = _fitting(subject, data)
            fitting |= isinstance(images, LabelledImages)
        if not isinstance(images, LabelledImages):
            key = (subject.data, subject.data_sha256)
            if key not in loaded:
                loaded[key] = _reloaded(subject)
            images = loaded[key]
        if isinstance(images, LabelledImages) and len(images.shape) != 3:
            images = f"the inputs are not images but {images.shape[0]:,} numbers each"
        pictures = Pictures(images, subject.adversarial) if isinstance(images, LabelledImages) else None
        reason = images if isinstance(images, str) else ""
        finished.append(replace(subject, name=name, pictures=pictures, no_pictures=reason))
    if data is not None and not fitting:
        reasons = {_fitting(subject, data) for subject in subjects}
        raise InputError("data", "the data set of the results", f"{data.name}: {'; '.join(map(str, reasons))}")
    return finished


def _fitting(subject: PageSubject, data: LabelledImages) -> LabelledImages | str:
    """Return the data set if it is the subject's, else the reason why it is not."""
    if find_spec("PIL") is None and len(data.shape) == 3:
        raise MissingExtraError(f"data: {_NO_PILLOW}")
    if subject.data_sha256 and subject.data_sha256 != data.sha256:
        return f"its hash is {data.sha256[:12]}, not {subject.data_sha256[:12]}"
    if int(subject.index.max()) >= len(data):
        return f"it has {len(data):,} examples, not one of index {int(subject.index.max()):,}"
    starts = range(0, len(subject.index), _PART)
    labels = [data.read(subject.index[start : start + _PART].tolist())[1].numpy() for start in starts]
    if not np.array_equal(np.concatenate(labels), subject.label):
        return "its labels are others"
    return data


def _reloaded(subject: PageSubject) -> LabelledImages | str:
    """Load a subject's data set from the files that its run names, or return the reason why this fails."""
    if find_spec("PIL") is None:
        return _NO_PILLOW
    if not subject.data_sha256:
        return "the log does not name its data; --data SPEC adds them"
    if subject.data.partition(":")[0] not in _FILES:
        return f"the data come from code ({subject.data}), which is not run for a report; --data SPEC adds them"
    try:
        fitting = _fitting(subject, load_data(subject.data))
    except PyrobustError:
        return f"the data ({subject.data}) are not found here; --data SPEC adds them"
    return (
        fitting
        if isinstance(fitting, LabelledImages)
        else f"the data ({subject.data}) have changed: {fitting}; --data SPEC adds them"
    )
