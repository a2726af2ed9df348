"""Certification logs as subjects of tables and figures: checks, distinct names and captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.checks import items
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation import Run


def checked_logs(logs: CertificationLog | Sequence[CertificationLog]) -> list[CertificationLog]:
    """Return logs that can be compared: at least one, of one norm, with finite radii of at least 0.

    Raises:
        InputError: there is no log, the logs have several norms, or a radius is invalid.
        InputTypeError: an argument that is not a log.
    """
    logs = [logs] if isinstance(logs, CertificationLog) else items("logs", logs, "certification logs")
    for log in logs:
        if not isinstance(log, CertificationLog):
            raise InputTypeError("logs", "CertificationLog, one or several", type(log).__name__)
        wrong = ~(log.radius >= 0) | np.isinf(log.radius)
        if wrong.any():
            raise InputError(
                "logs",
                "radii that are finite and at least 0",
                f"{log.radius[wrong][0]} in {log.path}",
                "pyrobust audit says where",
            )
    if not logs:
        raise InputError("logs", "at least one", "none")
    checked_norm({log.norm for log in logs})
    return logs


def checked_norm(norms: set[str]) -> str:
    """Return the one norm of all radii.

    >>> checked_norm({"l2"})
    'l2'
    """
    if len(norms) > 1:
        raise InputError("logs", "radii of one norm", ", ".join(sorted(norms)), "they do not compare")
    return next(iter(norms))


def distinct_names(logs: Sequence[CertificationLog]) -> list[str]:
    """Return a name per log: its own; equal names are preceded by the folder and, if still equal, numbered."""
    return _distinct([log.name for log in logs], [Path(log.path) for log in logs])


def distinct_run_names(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: that of its file or, if the run is in memory, that of its model.

    Equal names are made distinct as in `distinct_names`.
    """
    paths = [run.path for run in runs]
    names = [run.header.model if path is None else path.stem for run, path in zip(runs, paths, strict=True)]
    return _distinct(names, [Path() if path is None else path for path in paths])


def _distinct(names: list[str], paths: Sequence[Path]) -> list[str]:
    if len(set(names)) < len(names):
        where = [path.absolute().parent.name for path in paths]
        names = [f"{where[i]}/{name}" if names.count(name) > 1 else name for i, name in enumerate(names)]
    return distinct(names)


def distinct(names: Sequence[str]) -> list[str]:
    """Append numbers to names that occur more than once.

    >>> distinct(["net", "net"])
    ['net', 'net (2)']
    """
    unique: list[str] = []
    for name in names:
        number = next(i for i in range(1, len(names) + 2) if (f"{name} ({i})" if i > 1 else name) not in unique)
        unique.append(f"{name} ({number})" if number > 1 else name)
    return unique


def facts_of(log: CertificationLog) -> list[str]:
    """List what the rates of a log depend on: method, norm, noise, number of samples, alpha and number of images."""
    facts = [method_of(log), log.norm]
    if log.smoothed:
        facts += [f"sigma {number(log.sigma)}", f"n {number(log.n)}", f"alpha {number(log.alpha)}"]
    return [*facts, f"{len(log):,} images" if len(log) > 1 else "one image"]


def method_of(log: CertificationLog) -> str:
    """Name the method that certified the radii of a log."""
    return f"{log.noise} smoothing" if log.header is None else log.header.type.method_of(log.header.parameters)


def number(value: float | None) -> str:
    """Format a parameter of a log as text.

    >>> number(100_000), number(0.001), number(None)
    ('100,000', '0.001', 'unknown')
    """
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def why_no_votes(log: CertificationLog) -> str:
    """Say why `survival_of` returns None for a log."""
    if not log.smoothed:
        return "its radii come from bound propagation, without samples"
    if log.sampled_by_votes:
        return "its images have different numbers of samples, each stopped by its votes"
    if log.votes is None and log.noise != "gaussian":
        return f"its radii are of {log.noise} noise, and its votes are not kept"
    unknown = [name for name in ("n", "alpha", "sigma") if getattr(log, name) is None]
    return f"its {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} unknown; give {', '.join(unknown)}"
