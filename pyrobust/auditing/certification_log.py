"""Certification logs of any origin: this project's runs, and the text that certification scripts write."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.findings import Finding
from pyrobust.auditing.log_reader import read_text_columns
from pyrobust.auditing.saturation import USUAL_ALPHA, USUAL_N, find_saturation
from pyrobust.checks import count, number, summary
from pyrobust.errors import FileFormatError, InputError
from pyrobust.metrics.votes import significant_decimals
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

_SQLITE = b"SQLite format 3\0"
_SIGMA = r"{}[_=-]?(?:sd[_=-]?)?(\d+(?:\.\d+)?)"
# No noise on pixels in [0, 1] is larger; "sigma25" means something else.
_LARGEST_SIGMA = 10.0
_MOST_DECIMALS = 17


@dataclass(frozen=True, eq=False)
class CertificationLog:
    """The rows of a certification, as they were written: nothing is repaired.

    Attributes:
        path: the file.
        name: short, for tables.
        kind: "certify" for smoothed classifiers, "verify" for bound propagation.
        index: [N], int64, N ≥ 1, data-set indices in the order of the file.
        label: [N], int64.
        prediction: [N], int64, -1 where it abstained.
        radius: [N], float64; NaN, infinite or negative where it is written so.
        correct: [N], float64, the column as it is written. `right` says what is right.
        seconds: [N], float64, or None where there are none.
        decimals: [N], int64, to how many places each radius is printed, dropped zeros counted; None where radii are
            exact.
        n: samples an image, of a sequential run at most; None where unknown, or where the radii contradict what is
            usual.
        alpha: probability that a certificate is wrong; None likewise.
        sigma: standard deviation of the noise; None where unknown.
        norm: of the radii.
        noise: "gaussian", or what a run says; "" where there is none.
        votes: [N], int64, exact, 0 where it abstained; None where radii are all there is, or samples differ.
        lines: [N], int64, the line of each row; None for a run, which has no lines.
        origins: where sigma, n and alpha come from, by name.
        findings: what was wrong or left out while it was read.
        header: of a run; None for text.
    """

    path: Path
    name: str
    kind: str
    index: _Ints
    label: _Ints
    prediction: _Ints
    radius: _Floats
    correct: _Floats
    seconds: _Floats | None
    decimals: _Ints | None
    n: int | None
    alpha: float | None
    sigma: float | None
    norm: str = "l2"
    noise: str = "gaussian"
    votes: _Ints | None = None
    lines: _Ints | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    header: Header | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return summary(
            self,
            path=str(self.path),
            kind=self.kind,
            rows=len(self),
            right=int(self.right.sum()),
            noise=self.noise or None,
            sigma=self.sigma,
            norm=self.norm,
            n=self.n,
            alpha=self.alpha,
            findings=len(self.findings),
        )

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether each prediction is the label; an abstention is not."""
        right: npt.NDArray[np.bool_] = (self.prediction == self.label) & (self.prediction >= 0)
        return right

    @property
    def certified(self) -> npt.NDArray[np.bool_]:
        """Whether each is right with a certificate, be it of radius 0: what the certified metrics take as ``correct``.

        A verification with radius 0 has proved nothing, not even of the image itself.
        """
        return self.right & ((self.radius > 0) | (self.kind != "verify"))


def read_certification_log(
    path: str | os.PathLike[str], *, n: int | None = None, alpha: float | None = None, sigma: float | None = None
) -> CertificationLog:
    r"""Reads a run of pyrobust (of kind certify or verify), or a tab-separated log of this or another program.

    Text has the columns idx, label, predict, radius and correct in any order, and time where it has it: seconds,
    h:mm:ss or "1 day, h:mm:ss". Other columns are left out. A last line that was cut off is left out too, and is a
    finding; what else cannot be true is for `pyrobust.auditing.audit` to find.

    Args:
        path: the file; untrusted, at most 1 GiB.
        n: samples an image, of text. Default: the usual 100,000 where the radii do not contradict it.
        alpha: probability that a certificate is wrong, of text. Default: likewise, 0.001.
        sigma: standard deviation of the noise, of text. Default: what the file's name, or its folder's, says, as
            sigma0.25, sigma_0.25 or noise_0.25. A run knows all three itself; a note says where others were given.

    Returns:
        CertificationLog.

    Raises:
        FileFormatError: the file is missing, or is no such log; the message names the line.
        InputError: n, alpha or sigma out of range.
        InputTypeError: they are not numbers.
        StoreError: a run cannot be opened.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "net_sigma_0.25.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t0.48\t1\n")
    ...     log = read_certification_log(file)
    >>> log.sigma, log.origins["sigma"], log.decimals
    (0.25, 'the name of the file', array([3, 3]))
    """
    path = Path(path)
    given = _checked(n, alpha, sigma)
    if _is_store(path):
        return _from_run(Run(path), path, given)
    text = read_text_columns(path)
    radius, decimals = text.values["radius"], _printed_decimals(text.values["radius"], text.decimals)
    origins = dict.fromkeys(given, "given")
    if "sigma" not in given:
        value, origin = _sigma_of_name(path)
        if value is not None:
            given["sigma"], origins["sigma"] = value, origin
    _assume(given, origins, radius, decimals)
    return CertificationLog(
        path=path,
        name=path.stem,
        kind="certify",
        index=text.values["idx"],
        label=text.values["label"],
        prediction=text.values["predict"],
        radius=radius,
        correct=text.values["correct"],
        seconds=text.values.get("time"),
        decimals=decimals,
        n=given.get("n"),
        alpha=given.get("alpha"),
        sigma=given.get("sigma"),
        lines=np.arange(2, 2 + len(radius)),
        origins=origins,
        findings=text.findings,
    )


def _checked(n: Any, alpha: Any, sigma: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if n is not None:
        given["n"] = count("n", n, 10**9)
    limits = {"alpha": (alpha, 1e-30, 0.5), "sigma": (sigma, 1e-30, 1e30)}
    for name, (value, low, high) in limits.items():
        if value is None:
            continue
        given[name] = number(name, value)
        if not low <= given[name] <= high:
            raise InputError(f"{name}: expected a number from {low:g} to {high:g}, got {value}")
    return given


def _is_store(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # the reader of text says what is wrong


def _from_run(run: Run, path: Path, given: dict[str, Any]) -> CertificationLog:
    if run.kind not in ("certify", "verify"):
        raise FileFormatError(f"{path}: expected a run of kind certify or verify, got {run.kind}; it has no radii")
    smoothed = run.kind == "certify"
    parameters = run.parameters
    findings = tuple(
        Finding("given", "note", f"{name} {value:,} was given; the run's own counts: {parameters.get(name, 'none')}")
        for name, value in given.items()
        if value != parameters.get(name)
    )
    table = run.table
    if not len(run):
        raise FileFormatError(f"{path}: the run holds no image yet; go on with it first")
    return CertificationLog(
        path=path,
        name=path.stem,
        kind=run.kind,
        index=table["index"],
        label=table["label"],
        prediction=table["prediction"],
        radius=table["radius"],
        correct=run.right.astype(np.float64),
        seconds=table["seconds"],
        decimals=None,
        n=parameters["n"] if smoothed else None,
        alpha=parameters["alpha"] if smoothed else None,
        sigma=parameters["sigma"] if smoothed else None,
        norm=parameters["norm"],
        noise=parameters["noise"] if smoothed else "",
        votes=_votes(run) if run.header.layout == "certify" else None,
        origins=dict.fromkeys(("n", "alpha", "sigma"), "the run") if smoothed else {},
        findings=findings,
        header=run.header,
    )


def _votes(run: Run) -> _Ints:
    """The votes for the class that was selected."""
    top = run.histogram("counts0")[:, :-1].argmax(axis=1)
    votes: _Ints = run.histogram("counts")[np.arange(len(top)), top]
    return np.where(run.table["prediction"] < 0, 0, votes)


def _sigma_of_name(path: Path) -> tuple[float | None, str]:
    for name, origin in ((path.name, "the name of the file"), (path.absolute().parent.name, "the name of the folder")):
        for word in ("sigma", "noise"):
            found = {float(text) for text in re.findall(_SIGMA.format(word), name, re.IGNORECASE | re.ASCII)}
            if len(found) == 1 and 0 < max(found) < _LARGEST_SIGMA:
                return found.pop(), origin
    return None, ""


def _printed_decimals(radius: _Floats, written: _Ints) -> _Ints:
    """To how many places each radius is printed: all to as many behind the point, or with as many significant digits.

    Programs drop zeros at the end; nine of ten numbers have none there, which tells the two ways from one another. One
    that is written with more places than that has those.
    """
    certified = np.isfinite(radius) & (radius > 0)
    if not certified.any():
        return np.minimum(written, _MOST_DECIMALS)
    values, places = radius[certified], np.minimum(written[certified], _MOST_DECIMALS)
    # A unit in the place of the first digit is 10^exponent; printed to `places`, it has that many digits.
    digits = np.clip(places + 1 + np.floor(np.log10(values)).astype(np.int64), 0, _MOST_DECIMALS)
    fixed, significant = _most_common(places), _most_common(digits)
    if (digits == significant).sum() > (places == fixed).sum() and significant > 0:
        style = np.full(len(radius), significant, dtype=np.int64)
        style[certified] = significant_decimals(values, significant)
    else:
        style = np.full(len(radius), fixed, dtype=np.int64)
    return np.minimum(np.maximum(written, style), _MOST_DECIMALS)


def _most_common(counts: _Ints) -> int:
    """The most frequent number, the largest of equally frequent ones."""
    return int(_MOST_DECIMALS - np.bincount(counts, minlength=_MOST_DECIMALS + 1)[::-1].argmax())


def _assume(given: dict[str, Any], origins: dict[str, str], radius: _Floats, decimals: _Ints) -> None:
    """Adds the usual n and alpha where they are not given, unless saturated radii speak against them."""
    unknown = {name: usual for name, usual in (("n", USUAL_N), ("alpha", USUAL_ALPHA)) if name not in given}
    if not unknown or "sigma" not in given:
        return
    both = unknown | given
    pile = find_saturation(radius, decimals)
    if pile is not None and not pile.agrees(both["n"], both["alpha"], both["sigma"]):
        return
    given |= unknown
    how = "assumed, as usual; " + ("nothing confirms it" if pile is None else "saturated radii agree")
    origins |= dict.fromkeys(unknown, how)
