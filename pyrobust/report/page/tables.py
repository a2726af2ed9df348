"""Tables of a subject: its classes, and its examples (stored by column for the page's script)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import number_text
from pyrobust.metrics import confidence_bins, estimate_rate, paired_test, robustness_shares_by_group
from pyrobust.metrics.paired import PairedComparison
from pyrobust.report.formats import Column, Quantity, ReportTable, Row
from pyrobust.report.page.figures import common_radii, norm_name, share
from pyrobust.report.page.pictures import Picture
from pyrobust.report.page.subject import PageSubject
from pyrobust.stats import holm

# With more classes, a table of classes says little.
_MOST_CLASSES = 200
# With fewer examples, bins of confidence say little.
_CONFIDENT = 20
# Number of radii at which two subjects are compared.
_COMPARED = 8
# Number of examples on each side of the gallery, and number of misclassified ones among the worst.
_GALLERY, _WRONG = 50, 25


@dataclass(frozen=True)
class Classes:
    """A table of classes with a bar for each row; a bar's parts have a style, a left edge and a width in percent."""

    table: ReportTable
    bars: tuple[tuple[tuple[str, float, float], ...], ...]


def class_table(subject: PageSubject) -> Classes | None:
    """Return the correct, certified and unbroken shares of each class; None for a single class or too many classes."""
    labels = np.unique(subject.label).tolist()
    if not 1 < len(labels) <= min(_MOST_CLASSES, len(subject) // 2):
        return None
    radius = subject.headline
    certified, broken = subject.certified(radius), subject.broken(radius)
    names = ["class", "examples", "correct"]
    at = f"{norm_name(subject.norm)} {number_text(radius)}"
    lower = subject.proofs_tried(radius) and radius > 0
    upper = subject.attacked_within(radius) and radius > 0
    names += [f"certified at {at}"] if lower else []
    names += [f"not broken within {at}"] if upper else []
    names += ["median certified radius"] if lower else []
    names += ["median distance"] if upper else []
    rows: list[Row] = []
    bars = []
    for label in labels:
        members = subject.label == label
        count = int(members.sum())

        def rate(flags: npt.NDArray[np.bool_], members: Any = members, count: int = count) -> Quantity:
            return share(estimate_rate(int((flags & members).sum()), count, subject.alpha))

        row: list[Any] = [label, count, rate(subject.correct)]
        row += [rate(certified)] if lower else []
        row += [rate(~broken)] if upper else []
        if lower and subject.lower is not None:
            row.append(_median(np.where(subject.counted, subject.lower.radius, 0.0)[members]))
        if upper and subject.upper is not None:
            row.append(_median(subject.upper.radius[members]))
        rows.append(tuple(row))
        sure = 100 * float((certified & members).sum()) / count
        open_ = 100 * float((~certified & ~broken & members).sum()) / count
        bars.append((("proved", 0.0, sure), ("undecided", sure, open_), ("lost", sure + open_, 100 - sure - open_)))
    columns = tuple(Column(name, "left" if name == "class" else "right", name != "class") for name in names)
    return Classes(ReportTable("Classes", columns, (tuple(rows),)), tuple(bars))


def confidence_table(subject: PageSubject) -> Classes | None:
    """Return outcome shares by confidence, at the headline radius; None if it is 0, or data are missing or too few."""
    column = next((column for column in subject.columns if column.name in ("confidence", "p_A")), None)
    lower, upper, radius = subject.lower, subject.upper, subject.headline
    if column is None or lower is None or upper is None or not radius > 0 or len(subject) < _CONFIDENT:
        return None
    values = np.nan_to_num(np.asarray(column.values, dtype=np.float64), nan=0.0)  # abstained
    bins, edges = confidence_bins(values)
    certified = np.where(subject.counted, lower.radius, 0.0)
    groups = robustness_shares_by_group(certified, upper.radius, [radius], bins, subject.alpha)
    rows: list[Row] = []
    bars = []
    for group, shares in zip(groups.groups.tolist(), groups.shares, strict=True):
        low = f"above {edges[group - 1]:.6g}, " if group else ""
        rates = (shares.certified[0], shares.undecided[0], shares.attacked[0])
        rows.append((f"{low}up to {edges[group]:.6g}", shares.n, *map(share, rates)))
        sure, open_, lost = (100 * rate.value for rate in rates)
        bars.append((("proved", 0.0, sure), ("undecided", sure, open_), ("lost", sure + open_, lost)))
    names = (column.name, "examples", "certified", "undecided", "misclassified or broken")
    columns = tuple(Column(name, "left" if number == 0 else "right") for number, name in enumerate(names))
    return Classes(ReportTable("Confidence", columns, (tuple(rows),)), tuple(bars))


def paired_table(subjects: Sequence[PageSubject]) -> ReportTable | None:
    """Compare each pair of subjects on the same examples by McNemar's exact test; None if there is no such pair.

    The p-values are adjusted for all rows (Holm's method).
    """
    rows: list[tuple[str, str, str, PairedComparison]] = []
    for first, second in combinations(subjects, 2):
        if not np.array_equal(first.index, second.index) or not np.array_equal(first.label, second.label):
            continue
        for radius in [radius for radius in common_radii((first, second)) if radius > 0][:_COMPARED]:
            names = (f"{first.name} and {second.name}", f"{norm_name(first.norm)} {number_text(radius)}")
            if first.proofs_tried(radius) and second.proofs_tried(radius):
                flags = first.certified(radius), second.certified(radius)
                rows.append((*names, "certified", paired_test(*flags)))
            if first.attacked_within(radius) and second.attacked_within(radius):
                flags = ~first.broken(radius), ~second.broken(radius)
                rows.append((*names, "not broken", paired_test(*flags)))
    if not rows:
        return None
    adjusted = holm([test.p_value for *_, test in rows])
    cells = tuple(
        (name, radius, outcome, test.only_first, test.only_second, Quantity(p, text=f"{p:.2g}"))
        for (name, radius, outcome, test), p in zip(rows, adjusted, strict=True)
    )
    heads = ("subjects", "radius", "outcome", "only the first", "only the second", "adjusted p")
    columns = tuple(Column(name, "left" if number < 3 else "right") for number, name in enumerate(heads))
    return ReportTable("Examples on which two subjects differ", columns, (cells,))


def _median(values: npt.NDArray[np.float64]) -> Quantity | str:
    middle = float(np.sort(values)[(len(values) - 1) // 2])
    return "∞" if np.isinf(middle) else Quantity(middle, text=f"{middle:.3g}")


def example_columns(subject: PageSubject) -> list[dict[str, Any]]:
    """Return the table of all examples by columns: name, description, kind and values (None if missing).

    Infinite values are the string "inf".
    """
    radius = subject.headline
    at = f" at {norm_name(subject.norm)} {number_text(radius)}" if radius > 0 else ""
    columns = [
        _column("example", "Index in the data set.", subject.index),
        _column("label", "True class.", subject.label),
        _column("prediction", "Predicted class.", np.where(subject.prediction < 0, np.nan, subject.prediction)),
        _column("outcome", f"What is known of the example{at}.", subject.outcome(radius)),
    ]
    for bound, name, about in (
        (subject.lower, "certified radius", "Certified, or proved, radius of the predicted class."),
        (subject.upper, "distance", "Distance of the nearest adversarial example that was found."),
    ):
        if bound is not None:
            columns.append(_column(name, about, bound.radius))
            if bound.by is not None and len(set(bound.by)) > 1:
                what = "proved by" if bound is subject.lower else "broken by"
                columns.append(_column(what, f"What gave the {name}.", bound.by))
    columns += [_column(column.name, column.about, column.values) for column in subject.columns]
    return columns


def _column(name: str, about: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, np.ndarray):
        # There are few distinct texts: each is stored once.
        texts = list(dict.fromkeys(values))
        numbers = {text: number for number, text in enumerate(texts)}
        return {"name": name, "about": about, "kind": "text", "texts": texts, "values": [numbers[v] for v in values]}
    whole = bool(np.all(np.isnan(values) | (values == np.floor(values)))) if values.dtype == np.float64 else True
    if whole and not np.isinf(values).any():
        plain = [None if value != value else int(value) for value in values.tolist()]
        return {"name": name, "about": about, "kind": "integer", "values": plain}
    return {"name": name, "about": about, "kind": "number", "values": [_number(value) for value in values.tolist()]}


def _number(value: float) -> float | str | None:
    if value != value:
        return None
    return "inf" if np.isinf(value) else float(f"{value:.6g}")


@dataclass(frozen=True)
class Shown:
    """An example of the gallery: its row in the table of all examples, its pictures, and its numbers in short lines."""

    row: int
    index: int
    picture: Picture | None
    caption: tuple[str, ...]


def gallery(subject: PageSubject) -> dict[str, list[Shown]]:
    """Return the worst and the best examples.

    The worst examples begin with the misclassified ones. Half of the worst examples are misclassified, unless there are
    too few misclassified or too few correctly classified examples.
    """
    order = subject.order.tolist()
    wrong = int((~subject.correct).sum())
    lost, correct = order[:wrong], order[wrong:]
    first = lost[: max(_WRONG, _GALLERY - len(correct))]
    worst = [*first, *correct[: _GALLERY - len(first)]]
    best = [row for row in reversed(correct) if row not in worst][:_GALLERY]
    outcomes = subject.outcome(subject.headline)
    indices = subject.index[[*worst, *best]].tolist()
    pictures = {} if subject.pictures is None else subject.pictures.of(indices)
    return {
        side: [_shown(subject, row, outcomes[row], pictures) for row in rows]
        for side, rows in (("worst", worst), ("best", best))
    }


def _shown(subject: PageSubject, row: int, outcome: str, pictures: Mapping[int, Picture]) -> Shown:
    index, label, prediction = (int(column[row]) for column in (subject.index, subject.label, subject.prediction))
    caption = [f"class {label}" if prediction == label else f"class {label}, predicted {prediction}"]
    if prediction < 0:
        caption = [f"class {label}, no class predicted"]
    if subject.lower is not None:
        radius = subject.lower.radius[row]
        caption.append(
            f"certified {radius:.3g}" if prediction == label else f"wrong class certified {radius:.3g}" * bool(radius)
        )
    if subject.upper is not None:
        distance = subject.upper.radius[row]
        caption.append("none found" if np.isinf(distance) else f"distance {distance:.3g}" if distance else "")
    if subject.lower is None and subject.upper is None:
        caption.append(outcome)
    return Shown(row, index, pictures.get(index), tuple(filter(None, caption)))
