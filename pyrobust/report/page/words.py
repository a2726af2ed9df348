"""Text that a page shows first about a classifier on a data set: one sentence, and a few numbers with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import numpy.typing as npt
from scipy import stats

from pyrobust.checks import number_text
from pyrobust.metrics import Rate
from pyrobust.report.formats import Interval, Quantity
from pyrobust.report.page.figures import norm_name
from pyrobust.report.page.subject import PageSubject


@dataclass(frozen=True)
class KeyNumber:
    """One of the few numbers that a page shows first.

    Attributes:
        title: name of the quantity.
        value: the number.
        interval: interval of the number, in words; "" if there is none.
        style: CSS class of its colour; "" for none.
    """

    title: str
    value: str
    interval: str = ""
    style: str = ""


def verdict(subject: PageSubject) -> str:
    """Summarize the bounds of a subject in one sentence."""
    examples = f"{len(subject):,} examples" if len(subject) > 1 else "one example"
    radius = subject.headline
    correct = f"{'The smoothed classifier' if subject.smoothed else 'The network'} is correct on "
    correct += f"{_percent(subject.clean)} of {examples}"
    if subject.lower is None and subject.upper is None:
        return f"{correct}; nothing was certified or attacked."
    if not radius > 0:
        some = subject.lower is not None and bool((subject.lower.radius > 0).any())
        return f"{correct}." if some else f"{correct}; no radius above 0 was certified."
    within = f"{norm_name(subject.norm)} radius {number_text(radius)}"
    certified = subject.rate(int(subject.certified(radius).sum()))
    withstood = subject.rate(int((~subject.broken(radius)).sum()))
    proofs = "" if subject.proofs_tried(radius) else f" Nothing was proved at {within}."
    if subject.attacked_within(radius) and proofs:
        return (
            f"Within {within}, {_percent(withstood)} of {examples} withstand the attack: an upper bound of robust "
            f"accuracy.{proofs}"
        )
    proved = "certified" if subject.smoothed else "proved robust"
    if not subject.attacked_within(radius):
        # Examples broken within a smaller radius are broken at this one, too.
        attacks = "No attack was run" if subject.upper is None else "Attacks were run at smaller radii only"
        condition = "correct without a change" if subject.upper is None else "not broken there"
        share = (
            f"At {within}, {_percent(certified)} of {examples} are correct and {proved}." if not proofs else proofs[1:]
        )
        return f"{share} {attacks}: robust accuracy is at most the {_percent(withstood)} that are {condition}."
    gap = 100 * (withstood.value - certified.value)
    return (
        f"Within {within}, at least {_percent(certified)} of {examples} are {proved} and at most {_percent(withstood)} "
        f"withstand the attacks; {gap:.1f} % are undecided."
    )


def key_numbers(subject: PageSubject) -> list[KeyNumber]:
    """Return a few numbers with their intervals."""
    radius = subject.headline
    at = f"{norm_name(subject.norm)} {number_text(radius)}"
    numbers = [_rate("Correct without a change", subject.clean)]
    if subject.survival is not None:
        area = subject.survival.area_estimate(subject.alpha)
        numbers.append(
            KeyNumber(
                "Area under the survival curve of p_A",
                str(Quantity(area.value, digits=3)),
                str(Interval(area.lower, area.upper, percent=False)),
            )
        )
    proved, attacked = subject.proofs_tried(radius), subject.attacked_within(radius)
    if proved and radius > 0:
        certified = subject.rate(int(subject.certified(radius).sum()))
        numbers.append(_rate(f"Certified at {at}", certified, "certified"))
    if attacked and radius > 0:
        withstood = subject.rate(int((~subject.broken(radius)).sum()))
        numbers.append(_rate(f"Not broken within {at}", withstood, "attacked"))
    if proved and attacked and radius > 0:
        open_ = subject.rate(int((~subject.broken(radius) & ~subject.certified(radius)).sum()))
        numbers.append(_rate("Undecided there", open_, "undecided"))
    elif subject.lower is not None and not subject.lower.marks:
        values = np.where(subject.counted, subject.lower.radius, 0.0)
        numbers.append(_median("Median certified radius", values, subject.alpha))
    elif subject.upper is not None and not subject.upper.marks:
        numbers.append(_median("Median distance", subject.upper.radius, subject.alpha))
    return numbers


def _rate(title: str, rate: Rate, style: str = "") -> KeyNumber:
    return KeyNumber(title, _percent(rate), str(Interval(rate.lower, rate.upper)), style)


def _percent(rate: Rate) -> str:
    return f"{100 * rate.value:.1f} %"


def _median(title: str, values: npt.NDArray[np.float64], alpha: float) -> KeyNumber:
    """Return the median with its exact interval, whose ends are two order statistics."""
    ordered = np.sort(values)
    n = len(ordered)
    # P(fewer than `rank` values lie below the median) <= alpha / 2.
    rank = int(stats.binom.ppf(alpha / 2, n, 0.5))
    interval = (ordered[rank - 1], ordered[n - rank]) if rank else (-math.inf, math.inf)
    low, high = (0.0 if rank == 0 else float(interval[0])), float(interval[1])
    return KeyNumber(title, _text(float(ordered[(n - 1) // 2])), f"{_text(low)} to {_text(high)}")


def _text(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"


def _short(data: str) -> str:
    """Return the name of a data set without its folder.

    >>> _short("npz:/data/cifar.npz"), _short("mnist:images:train"), _short("digits")
    ('cifar', 'images:train', 'digits')
    """
    form, _, location = data.partition(":")
    if form not in ("npz", "folder", "mnist") or not location:
        return data
    return PurePath(location).name.removesuffix(".npz").replace(".npz:", ":")


def title_of(subjects: Sequence[PageSubject]) -> str:
    """Return the title of a page."""
    models = list(dict.fromkeys(subject.model for subject in subjects))
    data = list(dict.fromkeys(_short(subject.data) for subject in subjects if subject.data))
    models = [model.replace(", weights ", ", ") for model in models]
    what = models[0] if len(models) == 1 else f"{len(models)} models"
    where = data[0] if len(data) == 1 else f"{len(data)} data sets" if data else ""
    return f"Robustness of {what}" + (f" on {where}" if where else "")
