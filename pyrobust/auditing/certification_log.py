"""Certification logs of any origin: runs of this project, and text logs of certification scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.findings import AuditFinding
from pyrobust.auditing.formulas import Parameters
from pyrobust.auditing.judgement import ParameterJudgement, judge
from pyrobust.auditing.log_reader import LogReader, read_text_columns
from pyrobust.auditing.printed_radii import PrintedRadii
from pyrobust.auditing.saturation import USUAL_ALPHA, USUAL_N
from pyrobust.checks import count, file_path, number, summary
from pyrobust.errors import FileFormatError, InputError
from pyrobust.frames import Tabular
from pyrobust.metrics.votes import significant_decimals
from pyrobust.runs.kinds import KINDS, named
from pyrobust.runs.kinds.certify import Certify
from pyrobust.runs.kinds.words import norm_of
from pyrobust.runs.log_header import header_path, read_log_header
from pyrobust.runs.merge import merge_shards
from pyrobust.runs.reader import Header, is_run
from pyrobust.runs.run import Run

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

_SIGMA = r"{}[_=-]?(?:sd[_=-]?)?(\d+(?:\.\d+)?)"
# _MAX_SIGMA is larger than any noise on pixels in [0, 1]: "sigma25" means something else.
_ENDINGS = {".csv", ".db", ".log", ".sqlite", ".tsv", ".txt"}
_MAX_SIGMA = 10.0
_MAX_DECIMALS = 17
# Larger radii count as infinite; sums and third powers of smaller ones do not overflow.
MAX_RADIUS = 1e90
# Shares of distinct radii that use the last digit of a printing style, from which the style is clear, or plausible.
_CLEAR_STYLE, _PLAUSIBLE_STYLE = 0.7, 0.45


@dataclass(frozen=True, eq=False)
class CertificationLog(Tabular):
    """The rows of a certification exactly as written; nothing is repaired.

    Attributes:
        path: the file.
        name: short name for tables.
        kind: "certify" for smoothed classifiers, "verify" for bound propagation.
        index: [N], int64, N ≥ 1, data-set indices in file order.
        label: [N], int64.
        prediction: [N], int64, -1 for an abstention.
        radius: [N], float64, as written: possibly NaN, infinite or negative.
        correct: [N], float64, the column as written; `is_correct` is computed from predictions and labels instead.
        seconds: [N], float64; None if there are no times.
        decimals: [N], int64, number of decimals of each printed radius, including dropped zeros; None for exact radii.
        n: samples for each image (for a sequential run, the maximum); None if it is unknown, or if the radii contradict
            the usual value.
        alpha: probability that a certificate is wrong; None in the same cases as n.
        sigma: standard deviation of the noise; None if unknown.
        norm: norm of the radii.
        noise: noise of a run; "gaussian" for text logs, "" for no noise.
        votes: [N], int64, exact votes n_A, 0 for an abstention; None for text logs, verifications and sequential runs.
        lines: [N], int64, line number of each row; None for a run.
        origins: for each known one of "sigma", "n" and "alpha", where its value comes from.
        findings: faults and notes from reading the file.
        header: header of a run or of a log exported by `pyrobust.evaluation.write_log`; else None.
        run: the run itself; None for a text log.
        judgement: what the radii of a text log say about n, alpha and sigma; None if sigma is unknown.
    """

    path: Path
    name: str
    kind: str
    index: _Ints
    label: _Ints
    prediction: _Ints
    radius: _Floats
    correct: _Floats
    seconds: _Floats | None = None
    decimals: _Ints | None = None
    n: int | None = None
    alpha: float | None = None
    sigma: float | None = None
    norm: str = "l2"
    noise: str = "gaussian"
    votes: _Ints | None = None
    lines: _Ints | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[AuditFinding, ...] = ()
    header: Header | None = None
    run: Run | None = None
    judgement: ParameterJudgement | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return summary(
            self,
            path=str(self.path),
            kind=self.kind,
            rows=len(self),
            correct=int(self.is_correct.sum()),
            noise=self.noise or None,
            sigma=self.sigma,
            norm=self.norm,
            n=self.n,
            alpha=self.alpha,
            findings=len(self.findings),
        )

    def _columns(self) -> dict[str, Any]:
        """All arrays that have one entry for each row of the log."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def _attributes(self) -> dict[str, Any]:
        names = ("name", "kind", "n", "alpha", "sigma", "norm", "noise")
        return {"path": str(self.path), **{name: getattr(self, name) for name in names}}

    @property
    def is_correct(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction equals the label; false for abstentions."""
        correct: npt.NDArray[np.bool_] = (self.prediction == self.label) & (self.prediction >= 0)
        return correct

    @property
    def certified(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction is correct and counts as certified in the metrics of the log.

        A smoothed certificate of radius 0 counts. A verification with radius 0 does not count, since it proves nothing,
        not even that the model is correct at the image itself.
        """
        return self.is_correct & KINDS[self.kind].counted(self.radius)

    @property
    def smoothed(self) -> bool:
        """Whether the radii are those of a smoothed classifier."""
        return KINDS[self.kind].smoothed

    @property
    def sampled_by_votes(self) -> bool:
        """Whether the log comes from a run in which each image's votes decided when to stop sampling."""
        return self.header is not None and self.header.type.sampled_by_votes


def read_certification_log(
    path: str | os.PathLike[str],
    *,
    n: int | None = None,
    alpha: float | None = None,
    sigma: float | None = None,
    reader: LogReader | None = None,
) -> CertificationLog:
    r"""Read a run of pyrobust, of kind certify or verify, or a tab-separated log of this or another program.

    A text log has the columns idx, label, predict, radius and correct in any order, and optionally time, given as
    seconds, h:mm:ss or "1 day, h:mm:ss". Other columns are ignored. A last line that looks incomplete is dropped and
    reported as a finding. `pyrobust.auditing.audit` checks whether the rows can be true.

    A run stores its own n, alpha and sigma. So does the header that ``pyrobust log`` writes beside a log. If an
    argument differs from a stored value, the argument is ignored, with a note.

    Args:
        path: the file; untrusted. A text log may have at most 1 GiB.
        n: samples for each image of a text log. Default: the usual 100,000, unless the radii contradict it.
        alpha: probability that a certificate of a text log is wrong. Default: 0.001, unless the radii contradict it.
        sigma: standard deviation of the noise of a text log. Default: taken from the name of the file or its folder,
            such as sigma0.25, sigma_0.25 or noise_0.25.
        reader: function for a log of another format. It takes the path and returns one mapping per row, from column
            names to the text of the fields. The text must be exactly as written, since the number of digits of a radius
            matters. A ValueError from the reader becomes an error about the file. The reader is not used for runs.

    Returns:
        CertificationLog.

    Raises:
        FileFormatError: the file is missing or not such a log; if a line is at fault, the message usually names it.
        InputError: n, alpha or sigma out of range.
        InputTypeError: n, alpha or sigma is not a number, or a reader returns values that are not text.
        StoreError: a run cannot be opened.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "net_sigma_0.25.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t0.48\t1\n")
    ...     log = read_certification_log(file)
    >>> log.sigma, log.origins["sigma"], log.decimals
    (0.25, 'the name of the file', array([3, 2]))
    """
    path = file_path("path", path)
    values = _check_given(n, alpha, sigma)
    if is_run(path):
        return log_of_run(Run(path), values)
    text = read_text_columns(path, reader)
    header, findings = None, list(text.findings)
    try:
        header = read_log_header(path)
    except ValueError as error:
        findings.append(AuditFinding("header", "fault", f"{header_path(path).name} is not used: {error}"))
    radius, decimals = text.arrays["radius"], _printed_decimals(text.arrays["radius"], text.arrays["decimals"])
    log = CertificationLog(
        path=path,
        name=_short_name(path),
        kind=Certify.name,
        lines=np.arange(2, 2 + len(radius)),
        findings=tuple(findings),
        **text.arrays | {"decimals": decimals},
    )
    if header is not None and header.type.certified == "radius":
        log = replace(log, **_stored(header, header_path(path).name, values), header=header)
        log = replace(log, findings=(*findings, *log.findings))
        if log.sampled_by_votes or log.noise != "gaussian":
            return log
        values = {name: getattr(log, name) for name in ("n", "alpha", "sigma")}
    origins = dict(log.origins) or dict.fromkeys(values, "given")
    if "sigma" not in values:
        value, origin = _sigma_from_name(path)
        if value is not None:
            values["sigma"], origins["sigma"] = value, origin
    usable = (radius > 0) & (radius <= MAX_RADIUS) & (log.prediction >= 0)
    judgement = _judge(values, origins, PrintedRadii(radius[usable], decimals[usable]))
    return replace(log, **values, origins=origins, judgement=judgement)


def read_shards(
    paths: Sequence[Path],
    *,
    n: int | None = None,
    alpha: float | None = None,
    sigma: float | None = None,
    reader: LogReader | None = None,
) -> CertificationLog:
    """Read one log, or the shards of one sweep as `pyrobust.runs.merge.group_shards` returns them."""
    if len(paths) == 1:
        return read_certification_log(paths[0], n=n, alpha=alpha, sigma=sigma, reader=reader)
    log = log_of_run(merge_shards(paths), _check_given(n, alpha, sigma), paths[0])
    first, last = min(path.stem for path in paths), max(path.stem for path in paths)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return replace(log, name=first[:same].rstrip("-_. ") or log.name)


def _check_given(n: Any, alpha: Any, sigma: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if n is not None:
        values["n"] = count("n", n, 10**9)
    limits = {"alpha": (alpha, 1e-30, 0.5), "sigma": (sigma, 1e-30, 1e30)}
    for name, (value, low, high) in limits.items():
        if value is None:
            continue
        values[name] = number(name, value)
        if not low <= values[name] <= high:
            raise InputError(name, f"a number from {low:g} to {high:g}", value)
    return values


def log_of_run(
    run: Run, arguments: Mapping[str, Any] = MappingProxyType({}), path: Path | None = None
) -> CertificationLog:
    """Read a certify or verify run, in a file or in memory; notes name the ``arguments`` that the run contradicts."""
    path = path or run.path or Path("(in memory)")
    if run.header.type.certified != "radius":
        expected = named(kind for kind in KINDS.values() if kind.certified == "radius")
        raise FileFormatError(f"{path}: expected a run of kind {expected}, got {run.kind}, which has no radii")
    table = run.table
    if not len(run):
        raise FileFormatError(f"{path}: run is empty; resume it first")
    return CertificationLog(
        path=path,
        name=_short_name(path),
        index=table["index"],
        label=table["label"],
        prediction=table["prediction"],
        radius=table["radius"],
        correct=run.correct.astype(np.float64),
        seconds=table["seconds"],
        decimals=None,
        votes=run.header.type.class_votes(run),
        header=run.header,
        run=run,
        **_stored(run.header, "the run", arguments),
    )


def _stored(header: Header, origin: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read a log's fields from the header of its run; note arguments that differ from them."""
    smoothed, parameters = header.type.smoothed, header.parameters
    names = ("n", "alpha", "sigma")
    return {
        "kind": header.kind,
        **{name: parameters[name] if smoothed else None for name in names},
        "norm": norm_of(parameters),
        "noise": parameters["noise"] if smoothed else "",
        "origins": dict.fromkeys(names, origin) if smoothed else {},
        "findings": tuple(
            AuditFinding("given", "note", f"{name} {value:,} ignored; {name} of {origin} is {stored}")
            for name, value in arguments.items()
            if value != (stored := parameters.get(name, "undefined"))
        ),
    }


def _short_name(path: Path) -> str:
    """Return the file's name without the suffix of a log; "sigma_0.25" has no suffix."""
    return path.stem if path.suffix.lower() in _ENDINGS else path.name


def _sigma_from_name(path: Path) -> tuple[float | None, str]:
    for name, origin in ((path.name, "the name of the file"), (path.absolute().parent.name, "the name of the folder")):
        for word in ("sigma", "noise"):
            sigmas = {float(text) for text in re.findall(_SIGMA.format(word), name, re.IGNORECASE | re.ASCII)}
            if len(sigmas) == 1 and 0 < max(sigmas) < _MAX_SIGMA:
                return sigmas.pop(), origin
    return None, ""


def _printed_decimals(radius: _Floats, written: _Ints) -> _Ints:
    """Infer the number of decimals that each printed radius had before trailing zeros were dropped.

    Radii are taken to be printed in one of two styles: with a fixed number of decimals, or with a fixed number of
    significant digits. Nine in ten numbers do not end in zero, so most radii still have this number after zeros were
    dropped. The style is therefore the one that more of the distinct radii fit. A radius written with more decimals
    keeps them. If no style is clear, all radii keep their decimals. This is safe, since fewer decimals stand for a
    wider range of votes.
    """
    written = np.minimum(written, _MAX_DECIMALS)
    certified = np.isfinite(radius) & (radius > 0)
    if not certified.any():
        return written
    values, first = np.unique(radius[certified], return_index=True)
    places = written[certified][first]
    # The first digit stands at 10^floor(log10(value)), the last at 10^-places.
    digits = np.clip(places + 1 + np.floor(np.log10(values)).astype(np.int64), 0, _MAX_DECIMALS)
    fixed, significant = _most_common(places), _most_common(digits)
    by_places, by_digits = int((places == fixed).sum()), int((digits == significant).sum())
    if max(by_places, by_digits) < _CLEAR_STYLE * len(values):
        return written
    style = np.full(len(radius), _MAX_DECIMALS, dtype=np.int64)
    # Where both styles are plausible, as in short logs, the fewer decimals are safe.
    if by_places >= _PLAUSIBLE_STYLE * len(values):
        style[:] = fixed
    if by_digits >= _PLAUSIBLE_STYLE * len(values) and significant > 0:
        style[certified] = np.minimum(style[certified], significant_decimals(radius[certified], significant))
        style[~certified] = np.minimum(style[~certified], significant)
    return np.minimum(np.maximum(written, style), _MAX_DECIMALS)


def _most_common(counts: _Ints) -> int:
    """Return the most frequent number, the largest of them in a tie."""
    return int(_MAX_DECIMALS - np.bincount(counts, minlength=_MAX_DECIMALS + 1)[::-1].argmax())


def _judge(values: dict[str, Any], origins: dict[str, str], printed: PrintedRadii) -> ParameterJudgement | None:
    """Judge printed radii, with the usual n and alpha where they are not given; return None if sigma is unknown.

    The usual values are added to ``values`` if they hold, as far as the radii show (`ParameterJudgement.holds`).
    """
    if "sigma" not in values:
        return None
    unknown = {name: usual for name, usual in (("n", USUAL_N), ("alpha", USUAL_ALPHA)) if name not in values}
    judgement = judge(printed, Parameters(**unknown | values), free=unknown)
    if judgement.holds:
        values |= unknown
        pile, maximum = judgement.saturation, judgement.assumed.parameters.maximum
        confirmed = "saturated radii agree" if pile is not None and pile.agrees(maximum) else "nothing confirms it"
        origins |= dict.fromkeys(unknown, f"assumed, as usual; {confirmed}")
    return judgement
