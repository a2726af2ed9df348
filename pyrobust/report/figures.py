"""Plots of one or several certification logs in a figure; they need the extra ``plot``."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.votes import survival_of
from pyrobust.errors import InputError
from pyrobust.evaluation import Run, minimum_norm_curve
from pyrobust.metrics.certified import certified_accuracy
from pyrobust.report.axes import Frame, LineStyles, figure_format
from pyrobust.report.caption import describe_run
from pyrobust.report.curve import draw_steps
from pyrobust.report.formats import plain_text
from pyrobust.report.robustness_table import by_classifier, checked_robustness_runs, rates_of
from pyrobust.report.subjects import (
    checked_logs,
    checked_norm,
    distinct_names,
    distinct_run_names,
    facts_of,
    why_no_votes,
)
from pyrobust.runs.kinds import KINDS, Kind, named
from pyrobust.runs.kinds.words import POINTWISE, norm_of, unit_of

_Logs = CertificationLog | Sequence[CertificationLog]
# More steps cannot be distinguished, and would make files of megabytes.
_STEPS, _BAND = 4000, 120


@dataclass(frozen=True)
class _Steps:
    caption: str
    norm: str
    classifier: Hashable
    radius: npt.NDArray[np.float64]
    certified: npt.NDArray[np.bool_]


def plot_certified_accuracy(logs: Run | _Logs, path: str | os.PathLike[str], alpha: float = 0.05) -> None:
    """Plot certified accuracy over the radius as step curves, as a PNG, PDF or SVG.

    The value at radius r is the share of images whose prediction is correct and certified with a radius R >= r. Just
    beyond the certified radius of each such image, the curve falls by one image's share. The steps are exact for up to
    4000 distinct radii; for more, a curve has 4000 evenly spaced steps, which are nowhere above the exact curve. The
    images are a sample of a distribution. At each radius, the band shows the confidence interval for the share in this
    distribution (Clopper and Pearson, 1934). The intervals do not hold jointly.

    Args:
        logs: a run or certification logs, all of one norm and with at least one image.
        path: path of the file. Its ending (.png, .pdf or .svg) sets the format. The file is written whole or not at
            all, and an existing file is overwritten. Equal logs give files with equal bytes.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Raises:
        InputError: there is no log, the logs have several norms, a radius is invalid, the run is of another kind than
            certify or verify or has no images, or the file name has none of the three endings.
        InputTypeError: an argument that is not a log.
        MissingExtraError: matplotlib is not installed.
        StoreError: the file cannot be written.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_certified_accuracy(run, os.path.join(folder, "curve.png"))
    ...     os.listdir(folder)
    ['curve.png']
    """
    figure_format(path)
    certified_accuracy_frame(logs, alpha).write(path)


def plot_survival(logs: _Logs, path: str | os.PathLike[str], alpha: float = 0.05) -> None:
    r"""Plot the survival curves of p_A as a PNG, PDF or SVG.

    The value at t is the share of all images that are classified correctly with p_A >= t. Abstentions and errors count
    as p_A = 0 (Sun, Mao, Müller and Vechev, 2025). The images are a sample of a distribution. At each t, the band shows
    the confidence interval for the share in this distribution (`SurvivalCurve.band`). For a log without votes, the band
    allows for all numbers of votes that are consistent with the log's printed radii.

    Args:
        logs: logs of one norm. Each log has votes, or radii from which the votes can be computed.
        path: path of the file. Its ending (.png, .pdf or .svg) sets the format. The file is written whole or not at
            all, and an existing file is overwritten. Equal logs give files with equal bytes.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Raises:
        InputError: a log has no votes, or one of the errors of `plot_certified_accuracy` occurs.
        InputTypeError: an argument that is not a log.
        MissingExtraError: matplotlib is not installed.
        StoreError: the file cannot be written.

    >>> import tempfile
    >>> from pyrobust.auditing.certification_log import read_certification_log
    >>> rows = "idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t0.48\t1\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(os.path.join(folder, "net_sigma0.25.tsv"), "w") as file:
    ...         _ = file.write(rows)
    ...     plot_survival(read_certification_log(file.name), os.path.join(folder, "survival.svg"))
    ...     sorted(os.listdir(folder))
    ['net_sigma0.25.tsv', 'survival.svg']
    """
    figure_format(path)
    survival_frame(logs, alpha=alpha).write(path)


def certified_accuracy_frame(logs: Run | _Logs, alpha: float = 0.05, styles: LineStyles | None = None) -> Frame:
    """Return the figure of `plot_certified_accuracy`, drawn but not yet written in any format.

    A classifier has the same line style in all figures that share ``styles``.
    """
    steps = [_of_run(logs)] if isinstance(logs, Run) else _of_logs(checked_logs(logs))
    norm = checked_norm({each.norm for each in steps})
    largest = max(float(each.radius[each.certified].max(initial=0.0)) for each in steps)
    limit = 1.05 * largest or 1.0
    frame = Frame(
        f"Certified accuracy, with intervals of {100 * (1 - alpha):g} % for each radius",
        f"{norm} radius, {unit_of(norm)}",
        "certified accuracy (%)",
        [each.caption for each in steps],
    )
    lines = []
    shown = (styles or LineStyles()).of([each.classifier for each in steps])
    for style, each in zip(shown, steps, strict=True):
        radii = np.linspace(0.0, limit, _BAND)
        rates = certified_accuracy(each.radius, each.certified, radii.tolist(), alpha)
        band = ([100 * rate.lower for rate in rates], [100 * rate.upper for rate in rates])
        frame.axes.fill_between(radii, *band, color=style["color"], alpha=0.12, lw=0)
        x, share = _steps(each, limit)
        # An image with radius R still counts at r = R: each step ends at its radius.
        lines += frame.axes.plot(x, 100 * share, drawstyle="steps-pre", **style)
    frame.axes.set_xlim(0, limit)
    frame.label(lines)
    return frame


def survival_frame(logs: _Logs, alpha: float = 0.05, styles: LineStyles | None = None) -> Frame:
    """Return the figure of `plot_survival`, drawn but not yet written in any format.

    ``styles`` is as in `certified_accuracy_frame`.
    """
    logs = checked_logs(logs)
    curves = [survival_of(log) for log in logs]
    for log, curve in zip(logs, curves, strict=True):
        if curve is None:
            raise InputError("logs", "logs that tell votes", f"{log.path}: {why_no_votes(log)}")
    frame = Frame(
        f"How sure the smoothed classifier is of the correct class, {100 * (1 - alpha):g} % intervals",
        "t, a share of the noisy samples",
        r"images that are correct with $p_A \geq t$ (%)",
        _captions(logs),
    )
    lines = []
    shown = (styles or LineStyles()).of([_classifier(log) for log in logs])
    for style, curve in zip(shown, curves, strict=True):
        assert curve is not None
        lower, upper = curve.band(alpha)
        frame.axes.fill_between(curve.thresholds, 100 * lower, 100 * upper, color=style["color"], alpha=0.12, lw=0)
        lines += frame.axes.plot(curve.thresholds, 100 * curve.share, **style)
    frame.axes.set_xlim(0.5, 1.0)
    frame.label(lines)
    return frame


def robust_accuracy_frame(runs: Run | Sequence[Run], alpha: float = 0.05, styles: LineStyles | None = None) -> Frame:
    """Draw bounds on robust accuracy over epsilon in one norm: upper bounds from attacks, lower ones from verification.

    Args:
        runs: runs of kind attack, or of kind verify at given epsilons. Runs of one classifier and kind are joined into
            one line. Minimum-norm runs must have the same images, and each such run is drawn as a separate step
            function.
        alpha: probability that a given interval misses the true value, in (0, 1).
        styles: styles as in `certified_accuracy_frame`.

    Raises:
        InputError: there is no run, the runs have several norms, a run does not bound robust accuracy, or minimum-norm
            runs have different images.
        InputTypeError: an argument that is not a run.
    """
    checked = checked_robustness_runs(runs)
    norm = checked_norm({norm_of(run.parameters) for run in checked})
    groups: dict[tuple[tuple[Any, ...], Kind], list[Run]] = {}
    names = dict(zip(map(id, checked), distinct_run_names(checked), strict=True))
    for (model, sha256, _), group in by_classifier(checked).items():
        for run in sorted(group, key=lambda run: run.kind):
            kind = run.header.type
            key: tuple[tuple[Any, ...], Kind] = ((model, sha256, None, ""), kind)
            if key in groups and kind.stepwise:  # a second curve of one classifier
                key = ((model, sha256, None, names[id(run)]), kind)
            groups.setdefault(key, []).append(run)
    captions = [
        f"{plain_text(key[0])}, {kind.side}: {plain_text(', '.join(names[id(run)] for run in runs_of))}"
        for (key, kind), runs_of in groups.items()
    ]
    curves = {key: minimum_norm_curve(run, alpha=alpha) for (key, kind), [run, *_] in groups.items() if kind.stepwise}
    captions += [POINTWISE] if curves else []
    frame = Frame(
        f"Robust accuracy, with intervals of {100 * (1 - alpha):g} % at each epsilon",
        f"{norm} epsilon, {unit_of(norm)}",
        "robust accuracy (%)",
        captions,
    )
    styles = styles or LineStyles()
    lines, largest = [], max((float(curve.epsilons[-1]) for curve in curves.values()), default=0.0)
    largest = max(largest, *(point[1] for run in checked for point in rates_of(run, alpha)), 0.0)
    limit = 1.05 * largest or 1.0
    for (key, kind), runs_of in groups.items():
        if kind.stepwise:
            lines.append(draw_steps(frame, curves[key], limit, styles.of([key])[0]))
            continue
        points = [(point[1], rate) for run in runs_of for point, rate in rates_of(run, alpha).items()]
        points = [(0.0, runs_of[0].clean_accuracy(alpha)), *sorted(points, key=lambda point: point[0])]
        x = [epsilon for epsilon, _ in points]
        value, lower, upper = (
            100 * np.array([getattr(rate, name) for _, rate in points]) for name in ("value", "lower", "upper")
        )
        [style] = styles.of([key])
        frame.axes.errorbar(x, value, [value - lower, upper - value], fmt="none", ecolor=style["color"], alpha=0.4)
        marker = "v" if kind.attacked else "^"
        lines += frame.axes.plot(x, value, marker=marker, markersize=5, **style)
    frame.axes.set_xlim(0, limit)
    frame.label(lines)
    return frame


def _of_run(run: Run) -> _Steps:
    kind = run.header.type
    if kind.certified != "radius" or not len(run):
        expected = named(other for other in KINDS.values() if other.certified == "radius")
        raise InputError("run", f"a run of kind {expected} with images", f"{run.kind} with {len(run)}")
    radius = run.table["radius"]
    certified = run.correct & kind.counted(radius)
    return _Steps("\n".join(describe_run(run)), norm_of(run.parameters), run.header.model_sha256, radius, certified)


def _of_logs(logs: Sequence[CertificationLog]) -> list[_Steps]:
    return [
        _Steps(caption, log.norm, _classifier(log), log.radius, log.certified)
        for caption, log in zip(_captions(logs), logs, strict=True)
    ]


def _classifier(log: CertificationLog) -> Hashable:
    """Identify a classifier by its network and noise; if a log does not state the network, by the file."""
    if log.header is None or not log.header.model_sha256:
        return str(log.path)
    return (log.header.model, log.header.model_sha256, log.sigma, log.noise)


def _captions(logs: Sequence[CertificationLog]) -> list[str]:
    return [
        f"{plain_text(name)}: {', '.join(facts_of(log))}" for name, log in zip(distinct_names(logs), logs, strict=True)
    ]


def _steps(steps: _Steps, limit: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the ends of the steps up to ``limit``, and the height of the curve before each end."""
    radii = np.sort(steps.radius[steps.certified])
    corners = np.unique(radii)
    if len(corners) > _STEPS:
        corners = np.linspace(0.0, radii[-1], _STEPS)
    x = np.concatenate([[0.0], corners, [limit]])
    return x, (len(radii) - np.searchsorted(radii, x, side="left")) / len(steps.radius)
