"""Charts of a page: certified and robust accuracy with the undecided share between, survival of p_A, histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pyrobust.checks import number_text
from pyrobust.metrics import Rate
from pyrobust.report.formats import Column, Quantity, ReportTable, Row
from pyrobust.report.page.chart import (
    Chart,
    Line,
    Shape,
    Tick,
    between,
    histogram,
    line_path,
    percent_ticks,
    step_path,
    ticks,
)
from pyrobust.report.page.subject import PageSubject
from pyrobust.runs.kinds.kind import Bound
from pyrobust.runs.kinds.words import unit_of

# Number of positions of a curve: more cannot be distinguished.
_POSITIONS = 240
#: Styles of the curves of several subjects, in turn.
STYLES = 6
_NAMES = {"linf": "l∞", "l2": "l2", "l1": "l1", "l0": "l0"}


def norm_name(norm: str) -> str:
    """Return the name of a norm as it is written in text.

    >>> norm_name("linf")
    'l∞'
    """
    return _NAMES.get(norm, norm)


def accuracy_chart(subject: PageSubject, name: str) -> Chart | None:
    """Draw certified and attacked accuracy over the radius; None if there are no radii."""
    if (subject.lower is None and subject.upper is None) or not subject.reach > 0:
        return None
    x_max = 1.04 * subject.reach
    x = _positions(subject, x_max)
    shapes: list[Shape] = []
    lines: list[Line] = []
    clean = subject.clean
    last = x
    if subject.upper is not None:
        # An attack says nothing beyond its limit.
        last = [radius for radius in x if radius <= subject.upper.limit]
    withstood = [subject.rate(int((~subject.broken(radius)).sum())) for radius in last]
    upper_path = step_path(last, [rate.value for rate in withstood], 0.0, x_max, before=False)
    if subject.upper is None:
        upper_path = line_path([0.0, x_max], [clean.value] * 2, 0.0, x_max)
    if subject.lower is not None:
        certified = [subject.rate(int(subject.certified(radius).sum())) for radius in x]
        values = [rate.value for rate in certified]
        lower_path = step_path(x, values, 0.0, x_max, before=True)
        within = step_path(last, values[: len(last)], 0.0, x_max, before=True)
        shapes += [
            Shape("undecided", between(upper_path, within)),
            Shape("proved", between(lower_path, line_path([0.0, x_max], [0.0, 0.0], 0.0, x_max))),
            Shape("band certified", _band(x, certified, x_max, before=True, upper=subject.upper is None)),
            Shape("line certified", lower_path),
        ]
        lines.append(_line("certified", "certified", certified))
    if subject.upper is not None:
        shapes += [
            Shape("band attacked", _band(last, withstood, x_max, before=False, lower=subject.lower is None)),
            Shape("line attacked", upper_path),
        ]
        missing = len(x) - len(last)
        line = _line("attacked", "not broken", withstood)
        lines.append(
            Line(
                line.style, line.name, *(values + (-1.0,) * missing for values in (line.values, line.lower, line.upper))
            )
        )
    else:
        shapes.append(Shape("line clean", upper_path))
        lines.append(Line("clean", f"correct without a change, {100 * clean.value:.1f} %"))
    headline = subject.headline
    return Chart(
        name=name,
        title=_title(subject),
        about=_about(subject),
        x_label=f"{norm_name(subject.norm)} radius, {unit_of(subject.norm)}",
        y_label="share of all examples",
        x_ticks=ticks(0.0, x_max),
        y_ticks=percent_ticks(),
        shapes=tuple(shapes),
        marker=_marker(headline, x_max),
        lines=tuple(lines),
        positions=tuple(x),
        start=x.index(headline),
        end=x_max,
        table=shares_table(subject),
    )


def _marker(headline: float, x_max: float) -> Tick | None:
    return Tick(round(100 * headline / x_max, 3), number_text(headline)) if headline > 0 else None


def _title(subject: PageSubject) -> str:
    if subject.lower is None:
        return "Accuracy under attack"
    return "Certified accuracy" if subject.upper is None else "Certified and attacked accuracy"


def _about(subject: PageSubject) -> str:
    text = []
    if subject.lower is not None:
        text.append("Below the lower curve: examples that are correct and certified at the radius.")
    if subject.upper is not None:
        text.append(
            "Above the upper curve: examples that are misclassified, or for which an adversarial example within the "
            "radius is known."
        )
    if subject.lower is not None:
        text.append("Between the curves nothing is decided.")
    if subject.lower is not None and subject.upper is not None:
        text.append("Each band is the outer side of its interval.")
    text.append(
        f"Bands: exact binomial intervals of {100 * (1 - subject.alpha):g} % at each radius (Clopper and Pearson), for "
        "other examples of the same kind."
    )
    return " ".join(text)


def _positions(subject: PageSubject, x_max: float) -> list[float]:
    exact = [radius for radius in (*subject.radii, subject.headline) if radius <= x_max]
    for bound in (subject.lower, subject.upper):
        if bound is not None:
            exact += [radius for radius in (*bound.marks, bound.limit) if radius <= x_max]
    return sorted({*np.linspace(0.0, x_max, _POSITIONS).tolist(), *exact})


def _line(style: str, name: str, rates: Sequence[Rate]) -> Line:
    return Line(
        style,
        name,
        tuple(rate.value for rate in rates),
        tuple(rate.lower for rate in rates),
        tuple(rate.upper for rate in rates),
    )


def _band(
    x: Sequence[float], rates: Sequence[Rate], x_max: float, *, before: bool, lower: bool = True, upper: bool = True
) -> str:
    """Return the area of the intervals; without ``lower`` or ``upper``, only its part above or below the curve."""
    top = step_path(x, [rate.upper if upper else rate.value for rate in rates], 0.0, x_max, before=before)
    return between(
        top, step_path(x, [rate.lower if lower else rate.value for rate in rates], 0.0, x_max, before=before)
    )


def common_radii(subjects: Sequence[PageSubject]) -> list[float]:
    """Return the radii for tables of several subjects.

    They are the radii of the subject with the most radii, together with the headline radius.
    """
    return sorted({*max((subject.radii for subject in subjects), key=len), subjects[0].headline})


def shares_table(subject: PageSubject) -> ReportTable:
    """Return a table of the certified, undecided and broken shares at the radii of a subject."""
    names = ["certified"] if subject.lower is not None else []
    names += ["not broken", "broken or misclassified"] if subject.upper is not None else []
    if subject.lower is not None:
        names.append("undecided")
    rows: list[Row] = []
    for radius in sorted({*subject.radii, subject.headline}):
        informative = subject.upper is None or subject.attacked_within(radius)
        certified, broken = subject.certified(radius), subject.broken(radius)
        shares = {
            "certified": certified,
            "not broken": ~broken,
            "broken or misclassified": broken,
            "undecided": ~certified & ~broken,
        }
        cells = [
            share(subject.rate(int(shares[name].sum())))
            if (subject.proofs_tried(radius) if name == "certified" else informative)
            else None
            for name in names
        ]
        rows.append((number_text(radius), *cells))
    columns = (Column(f"{norm_name(subject.norm)} radius", "left"), *map(Column, names))
    return ReportTable(f"Shares of the {len(subject):,} examples", columns, (tuple(rows),))


def share(rate: Rate) -> Quantity:
    """Return a share in percent with its interval."""
    return Quantity(rate.value, rate.lower, rate.upper, 1, percent=True)


def survival_chart(subject: PageSubject, name: str) -> Chart | None:
    """Draw the share of all examples that are correct with p_A of at least t; None if there are no votes."""
    curve = subject.survival
    if curve is None:
        return None
    x, value = curve.thresholds.tolist(), curve.share.tolist()
    exact = np.array_equal(curve.lower, curve.upper)
    lower, upper = (limits.tolist() for limits in curve.band(subject.alpha))
    band = between(line_path(x, upper, 0.5, 1.0), line_path(x, lower, 0.5, 1.0))
    shapes = [Shape("band certified", band), Shape("line certified", line_path(x, value, 0.5, 1.0))]
    rows: list[Row] = [
        (f"{t:g}", Quantity(value[i], lower[i], upper[i], 1, percent=True)) for i, t in enumerate(x) if i % 50 == 0
    ]
    return Chart(
        name=name,
        title="How sure the smoothed classifier is",
        about="Share of all examples that are correct with p_A of at least t, where p_A is the share of the noisy "
        "samples that vote for the correct class; 0 for errors and abstentions. Band: exact binomial intervals of "
        f"{100 * (1 - subject.alpha):g} % at each t (Clopper and Pearson), for other examples of the same kind"
        + ("." if exact else ", for all votes that the printed radii leave open."),
        x_label="t, a share of the noisy samples",
        y_label="share of all examples",
        x_ticks=ticks(0.5, 1.0, 6),
        y_ticks=percent_ticks(),
        shapes=tuple(shapes),
        lines=(Line("certified", "correct with p_A ≥ t", tuple(value), tuple(lower), tuple(upper)),),
        positions=tuple(x),
        begin=0.5,
        end=1.0,
        table=ReportTable("Survival of p_A", (Column("t", "left"), Column("correct with p_A ≥ t")), (tuple(rows),)),
    )


def radius_charts(subject: PageSubject, name: str) -> list[Chart]:
    """Draw histograms of certified radii and of distances of adversarial examples, over the correct examples."""
    charts: list[Chart] = []
    for kind, bound in (("certified radii", subject.lower), ("distances of adversarial examples", subject.upper)):
        if bound is not None:
            chart = _histogram(subject, bound, kind, f"{name}-{len(charts)}")
            charts += [] if chart is None else [chart]
    return charts


def _histogram(subject: PageSubject, bound: Bound, kind: str, name: str) -> Chart | None:
    correct = subject.counted if bound is subject.lower else subject.correct
    radius = bound.radius[correct]
    shown = radius[(radius > 0) & np.isfinite(radius)]
    if not len(shown):
        return None
    wrong = len(subject) - int(subject.correct.sum())
    notes = [f"{len(shown):,} of {len(subject):,} examples"]
    if wrong:
        notes.append(f"{wrong:,} misclassified or without a class are left out")
    if bound is subject.lower:
        nothing = int(subject.correct.sum()) - len(shown)
        notes += [f"{nothing:,} are correct with radius 0"] if nothing else []
    elif int(np.isinf(radius).sum()):
        beyond = "" if math.isinf(bound.limit) else f" within {number_text(bound.limit)}"
        notes.append(f"for {int(np.isinf(radius).sum()):,} none was found{beyond}")
    distinct = np.unique(shown)
    rows: list[Row]
    if len(distinct) <= 12:
        counts = [int((shown == value).sum()) for value in distinct.tolist()]
        rows = [(number_text(value), count) for value, count in zip(distinct.tolist(), counts, strict=True)]
    else:
        quantiles = np.quantile(shown, [0.0, 0.25, 0.5, 0.75, 1.0], method="inverted_cdf").tolist()
        names = ("smallest", "lower quartile", "median", "upper quartile", "largest")
        rows = [(text, Quantity(value)) for text, value in zip(names, quantiles, strict=True)]
    bars, x_ticks, y_ticks, x_max = histogram(shown)
    return Chart(
        name=name,
        title=f"Histogram of the {kind}",
        about=f"{'; '.join(notes)}.".capitalize() if notes[0][:1].isalpha() else f"{'; '.join(notes)}.",
        x_label=f"{norm_name(subject.norm)} {'radius' if bound is subject.lower else 'distance'}",
        y_label="examples",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        bars=tuple(bars),
        style="" if bound is subject.lower else "distance",
        end=x_max,
        table=ReportTable(
            f"{kind.capitalize()}",
            (Column("value", "left"), Column("examples"))
            if len(distinct) <= 12
            else (Column("quantile", "left"), Column("value")),
            (tuple(rows),),
        ),
    )


def overlay_chart(subjects: Sequence[PageSubject], name: str) -> Chart:
    """Draw the curves of several subjects with radii in one norm."""
    norm = subjects[0].norm
    x_max = 1.04 * max(subject.reach for subject in subjects)
    x = sorted(
        {
            *np.linspace(0.0, x_max, _POSITIONS).tolist(),
            *(r for s in subjects for r in (*s.radii, s.headline) if r <= x_max),
        }
    )
    shapes, lines = [], []
    for number, subject in enumerate(subjects):
        for bound, word in ((subject.lower, "certified"), (subject.upper, "not broken")):
            if bound is None:
                continue
            lower = bound is subject.lower
            shown_radii = [radius for radius in x if lower or radius <= bound.limit]
            counts = [int((subject.certified(r) if lower else ~subject.broken(r)).sum()) for r in shown_radii]
            values = [count / len(subject) for count in counts]
            style = f"series-{number % STYLES}{'' if lower else ' upper'}"
            shapes.append(Shape(f"line {style}", step_path(shown_radii, values, 0.0, x_max, before=lower)))
            missing = (-1.0,) * (len(x) - len(shown_radii))
            lines.append(Line(style, f"{subject.name}: {word}", (*values, *missing)))
    rows: list[Row] = []
    columns: list[Column] = [Column(f"{norm_name(norm)} radius", "left")]
    sides = [
        (subject, lower)
        for subject in subjects
        for lower in (True, False)
        if (subject.lower if lower else subject.upper)
    ]
    columns += [Column(f"{subject.name}: {'certified' if lower else 'not broken'}") for subject, lower in sides]
    headline = subjects[0].headline
    for radius in common_radii(subjects):
        cells = [
            share(subject.rate(int((subject.certified(radius) if lower else ~subject.broken(radius)).sum())))
            if (subject.proofs_tried(radius) if lower else subject.attacked_within(radius))
            else None
            for subject, lower in sides
        ]
        rows.append((number_text(radius), *cells))
    return Chart(
        name=name,
        title=f"All curves over the {norm_name(norm)} radius",
        about="Solid: certified accuracy. Dashed: accuracy under attack, an upper bound.",
        x_label=f"{norm_name(norm)} radius, {unit_of(norm)}",
        y_label="share of all examples",
        x_ticks=ticks(0.0, x_max),
        y_ticks=percent_ticks(),
        shapes=tuple(shapes),
        marker=_marker(headline, x_max),
        lines=tuple(lines),
        positions=tuple(x),
        start=x.index(headline),
        end=x_max,
        table=ReportTable("Shares with their intervals", tuple(columns), (tuple(rows),)),
    )
