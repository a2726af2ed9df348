"""False alarms and misses of ``pyrobust audit`` on simulated logs.

A clean log is what the certification script of Cohen, Rosenfeld and Kolter (2019) prints. Each image has a probability
p_A; n0 samples select a class, and n more are votes from a binomial distribution; the radius is sigma times the normal
quantile of the lower Clopper-Pearson bound, and images whose bound is below 1/2 abstain. Nothing of this uses the
auditor's code. Logs cycle through all combinations of sigma, n, alpha, digits and style of printing, with random
length, stride, number of classes and distribution of p_A. A third of the logs are read with their sigma given in the
file name and nothing else; a third with n, alpha and sigma given; a third with nothing.

A planted log is a clean one with one fault. It counts as found if a finding of the expected kind, fault or note, is
reported, and, where the fault has a cause, if this is among the first three explanations listed. A fault of the radii
that leaves none, as printed, that the stated parameters do not give is counted apart as hidden; abstentions with small
radii only if, besides, right predictions are not commoner up to the largest radius planted than above it, at a level of
10⁻⁶ (Fisher's exact test).

The results of each part are added to --out, from which a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from study import Results

from pyrobust.auditing import audit, read_certification_log

SIGMAS = (0.12, 0.25, 0.5, 1.0)
COUNTS = (100, 1000, 10_000, 100_000, 2500)
ALPHAS = (0.01, 0.001, 1e-4, 0.05)
DIGITS = (2, 3, 4, 5, 6, 17)
USUAL = (100_000, 0.001)


def _fixed(radius: float, digits: int) -> str:
    return f"{radius:.{digits}f}"


def _significant(radius: float, digits: int) -> str:
    return f"{radius:.{digits}}"


def _rounded(radius: float, digits: int) -> str:
    return repr(round(float(radius), digits))


def _down(radius: float, digits: int) -> str:
    return f"{np.floor(radius * 10**digits) / 10**digits:.{digits}f}" if digits < 17 else repr(float(radius))


STYLES: dict[str, Callable[[float, int], str]] = {
    "fixed": _fixed,
    "significant": _significant,
    "zeros dropped": _rounded,
    "rounded down": _down,
}
COMBINATIONS = list(itertools.product(SIGMAS, COUNTS, ALPHAS, DIGITS, STYLES))


@dataclass
class Log:
    """A log as rows of text fields, and how it was made.

    Attributes:
        rows: idx, label, predict, radius, correct, time of each row.
        arguments: those of the reader.
        named: whether the name of the file states sigma.
        text: the file, where it is not the rows.
        largest: largest radius planted in rows that are all right.
    """

    sigma: float
    n: int
    alpha: float
    digits: int
    style: str
    classes: int
    rows: list[list[str]]
    arguments: dict[str, Any] = field(default_factory=dict)
    named: bool = True
    text: str | None = None
    largest: float | None = None

    def content(self) -> str:
        """Return the text of the file."""
        if self.text is not None:
            return self.text
        lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime", *map("\t".join, self.rows)]
        return "".join(line + "\n" for line in lines)

    def show(self, radius: float) -> str:
        """Print a radius in the style of the log."""
        return STYLES[self.style](radius, self.digits)


@lru_cache(maxsize=64)
def _unit_radii(n: int, alpha: float) -> npt.NDArray[np.float64]:
    """Radius at sigma 1 of every number of votes; NaN where the lower bound is below 1/2."""
    votes = np.arange(1, n + 1)
    lower = np.append(0.0, stats.beta.ppf(alpha, votes, n - votes + 1))
    return np.where(lower >= 0.5, stats.norm.ppf(lower), np.nan)


def probabilities(random: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
    """Draw p_A of each image from a random kind of classifier."""
    kind = random.integers(6)
    if kind == 0:
        p = random.beta(4.0, 0.5, rows)  # Gaussian augmentation
    elif kind == 1:
        p = random.beta(8.0, 3.0, rows)  # hardly any saturated image
    elif kind == 2:
        p = np.where(random.random(rows) < random.random(), 1.0, random.beta(3.0, 1.0, rows))  # many saturated ones
    elif kind == 3:
        p = random.random(rows)
    elif kind == 4:
        p = 1 - 10 ** -random.uniform(0.3, 6.0, rows)  # many near the maximum, on a logarithmic scale
    else:
        p = np.full(rows, 1 - 10 ** -random.uniform(0.5, 5.5))  # all images alike
    return p


def _indices(random: np.random.Generator, whole: bool = False) -> npt.NDArray[np.int64]:
    kind = 0 if whole else random.integers(5)
    if kind == 0:  # a whole test set, or every 20th or 100th image of it
        size, stride = ((10_000, 1), (10_000, 20), (50_000, 100), (10_000, 5))[random.integers(4)]
        return np.arange(0, size, stride)
    if kind == 1:
        return np.arange(random.choice([100, 200, 500, 1000, 2000]))  # --max
    if kind == 2:
        return np.arange(random.choice([1, 2, 5, 10, 20, 50]))
    if kind == 3:
        return np.arange(random.choice([100, 500])) * int(random.choice([2, 10, 20]))
    return np.sort(random.choice(10_000, int(random.choice([30, 100, 300, 1000])), replace=False))


def simulate(random: np.random.Generator, combination: tuple[Any, ...], **options: Any) -> Log:
    """Simulate a clean log; options replace what is random: index, p, classes, accuracy."""
    sigma, n, alpha, digits, style = combination
    index = options.get("index")
    index = _indices(random) if index is None else index
    rows = len(index)
    p = options.get("p")
    p = probabilities(random, rows) if p is None else p
    classes = options.get("classes") or int(random.choice([2, 10, 10, 100, 1000]))
    radius, selected = certified(random, p, n, alpha)
    label = random.integers(0, classes, rows)
    if random.random() < 0.3:  # as in folders of classes
        label = np.sort(label)
    # The most probable class is the label for most images; another class, rarely selected, never gets many votes.
    best = np.where(
        random.random(rows) < options.get("accuracy", random.uniform(0.3, 1.0)),
        label,
        random.integers(0, classes, rows),
    )
    predict = np.where(selected, best, (best + 1) % classes)
    log = Log(sigma, n, alpha, digits, style, classes, [])
    second = datetime.timedelta(seconds=random.uniform(0.1, 40.0))
    for i in range(rows):
        abstained = np.isnan(radius[i])
        shown = "0.0" if abstained else log.show(sigma * radius[i])
        answer = -1 if abstained else int(predict[i])
        right = int(answer == label[i])
        log.rows.append([str(index[i]), str(label[i]), str(answer), shown, str(right), str(second * random.random())])
    reading = random.integers(3)
    log.named = bool(reading == 0)
    if reading == 1:
        log.arguments = {"n": n, "alpha": alpha, "sigma": sigma}
    return log


def certified(
    random: np.random.Generator, p: npt.NDArray[np.float64], n: int, alpha: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Radius at sigma 1 of each image, NaN for an abstention, and whether selection chose the class of p."""
    selected = random.binomial(100, p) >= 50
    votes = random.binomial(n, np.where(selected, p, 1 - p))
    return _unit_radii(n, alpha)[votes], selected


def _certified_rows(log: Log, least: float = 0.0) -> list[int]:
    return [i for i, row in enumerate(log.rows) if row[2] != "-1" and float(row[3]) > least]


def _plantable(random: np.random.Generator, **choice: Any) -> Log:
    """A log long and confident enough for any fault to show, named after its sigma."""
    n, alpha = choice.pop("n", None) or int(random.choice([10_000, 100_000])), choice.pop("alpha", 0.001)
    digits = choice.pop("digits", None) or int(random.choice([3, 4, 5, 6]))
    sigma, style = choice.pop("sigma", None) or float(random.choice(SIGMAS)), str(random.choice(list(STYLES)))
    size, stride = ((10_000, 1), (10_000, 5), (10_000, 20), (50_000, 100))[random.integers(4)]
    if choice.pop("long", False):
        size, stride = 10_000, int(random.choice([1, 5]))
    index = np.arange(0, size, stride)
    # A tenth saturated, the rest from images that are certain to images that abstain.
    p = np.where(random.random(len(index)) < random.uniform(0.1, 0.4), 1.0, random.beta(4.0, 0.6, len(index)))
    if choice.pop("hard", False):  # as many abstentions and wrong predictions as of CIFAR-10 at sigma 1
        p = random.beta(1.5, 0.8, len(index))
        choice["accuracy"] = 0.7
    log = simulate(random, (sigma, n, alpha, digits, style), index=index, p=p, **choice)
    log.named, log.arguments = True, {"n": n, "alpha": alpha} if n != USUAL[0] or random.random() < 0.5 else {}
    return log


def _set(column: int, value: str, least: float = 0.05) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        rows = _certified_rows(log, least * log.sigma)
        log.rows[int(random.choice(rows))][column] = value

    return plant


def _cut(log: Log, random: np.random.Generator) -> None:
    content = log.content()
    line = content[:-1].rfind("\n") + 1
    # Inside any field but the time, whose shorter form is complete too.
    log.text = content[: line + int(random.integers(1, content.rfind("\t") - line))]


def _few_fields(log: Log, random: np.random.Generator) -> None:
    log.rows[-1] = log.rows[-1][: int(random.integers(1, 5))]


def _without_end(log: Log, random: np.random.Generator) -> None:
    del log.rows[-int(random.integers(1, max(2, min(90, len(log.rows) // 20)))) :]


def _duplicate(log: Log, random: np.random.Generator) -> None:
    row = int(random.integers(len(log.rows)))
    log.rows.insert(row, list(log.rows[row]))


def _resumed_twice(log: Log, random: np.random.Generator) -> None:
    row = int(random.integers(60, len(log.rows)))
    log.rows[row:row] = [list(fields) for fields in log.rows[row - 50 : row]]


def _missing(size: int) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        row = int(random.integers(1, len(log.rows) - size - 1))
        del log.rows[row : row + size]

    return plant


def _shuffled(log: Log, random: np.random.Generator) -> None:
    log.rows = [log.rows[i] for i in random.permutation(len(log.rows))]


def _swapped(log: Log, random: np.random.Generator) -> None:
    row = int(random.integers(len(log.rows) - 1))
    log.rows[row], log.rows[row + 1] = log.rows[row + 1], log.rows[row]


def _flipped(log: Log, random: np.random.Generator) -> None:
    row = log.rows[int(random.choice(_certified_rows(log)))]
    row[4] = str(1 - int(row[4]))


def _cumulative(show: Callable[[int, int], str]) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        count = 0
        for seen, row in enumerate(log.rows, start=1):
            count += int(row[4])
            row[4] = show(count, seen)

    return plant


def _half(log: Log, random: np.random.Generator) -> None:
    log.rows[int(random.integers(len(log.rows)))][4] = "0.5"


def _abstained(correct: str, radius: str) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        row = log.rows[int(random.integers(len(log.rows)))]
        row[2], row[3], row[4] = "-1", radius, correct

    return plant


def _too_large(log: Log, random: np.random.Generator) -> None:
    largest = log.sigma * _unit_radii(log.n, log.alpha)[-1]
    excess = largest * random.uniform(1.05, 3.0) + 3 * 10.0 ** (1 - log.digits)
    log.rows[int(random.choice(_certified_rows(log)))][3] = log.show(float(excess))


def _five_without_sigma(log: Log, random: np.random.Generator) -> None:
    log.rows[int(random.choice(_certified_rows(log)))][3] = log.show(5.0)
    log.named = False


def _between_the_largest(log: Log, random: np.random.Generator) -> None:
    below, largest = log.sigma * _unit_radii(log.n, log.alpha)[-2:]
    log.rows[int(random.choice(_certified_rows(log)))][3] = f"{0.5 * (below + largest):.4f}"


def _edited(log: Log, random: np.random.Generator) -> None:
    for row in random.choice(_certified_rows(log, 0.3 * log.sigma), 20, replace=False):
        log.rows[row][3] = log.show(float(log.rows[row][3]) * random.uniform(0.5, 1.0))


def _other_sigma(factor: float) -> Callable[[Log, np.random.Generator], None]:
    """500 rows in place of those that the same images have at sigma times a factor."""

    def plant(log: Log, random: np.random.Generator) -> None:
        start = int(random.integers(len(log.rows) - 500))
        rows = log.rows[start : start + 500]
        if random.random() < 0.5:
            rows = [log.rows[i] for i in random.choice(len(log.rows), 500, replace=False)]
        _recertify(rows, log, log.sigma * factor, log.n, log.alpha, random)

    return plant


def _recertify(
    rows: list[list[str]], log: Log, sigma: float, n: int, alpha: float, random: np.random.Generator
) -> None:
    p = np.where(random.random(len(rows)) < 0.2, 1.0, random.beta(4.0, 0.6, len(rows)))
    radius, _ = certified(random, p, n, alpha)
    for row, unit in zip(rows, radius.tolist(), strict=True):
        row[2], row[3] = ("-1", "0.0") if np.isnan(unit) else (row[1], log.show(sigma * unit))
        row[4] = str(int(row[1] == row[2]))


def _second_half(n: int) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        _recertify(log.rows[len(log.rows) // 2 :], log, log.sigma, n, log.alpha, random)

    return plant


def _as_probability(log: Log, random: np.random.Generator) -> None:
    for row in log.rows:
        if row[2] != "-1":
            row[3] = log.show(float(stats.norm.cdf(float(row[3]) / log.sigma)) * 4 * log.sigma)


def _wrong_name(log: Log, random: np.random.Generator) -> None:
    log.sigma = float(random.choice([sigma for sigma in SIGMAS if sigma != log.sigma]))


def _with_arguments(**values: Any) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        log.arguments = values

    return plant


def _nothing(log: Log, random: np.random.Generator) -> None:
    log.arguments = {}


def _remade(
    radii: Callable[[npt.NDArray[np.int64], Log, np.random.Generator], npt.NDArray[np.float64]],
    share: slice = slice(None),
    show: Callable[[Log, float], str] = Log.show,
) -> Callable[[Log, np.random.Generator], None]:
    """Make the radii of a part of the rows again by another function of votes out of 10**6, NaN for an abstention."""

    def plant(log: Log, random: np.random.Generator) -> None:
        length = len(log.rows)
        rows = log.rows[share.start and length // share.start : share.stop and length // share.stop]
        p = np.where(random.random(len(rows)) < 0.25, 1.0, random.beta(4.0, 0.6, len(rows)))
        for row, radius in zip(rows, radii(p, log, random).tolist(), strict=True):
            abstained = np.isnan(radius) or radius < 0
            row[2], row[3] = ("-1", "0.0") if abstained else (row[1], show(log, radius))
            row[4] = str(int(row[1] == row[2]))

    return plant


def _bound(
    bound: Callable[[npt.NDArray[np.int64], int, float], Any], n: int = 0, alpha: float = 0.0, scale: Any = None
) -> Callable[..., npt.NDArray[np.float64]]:
    """Radii of another bound, n, alpha or factor; n, alpha and scale of the log where these are 0."""

    def radii(p: npt.NDArray[np.float64], log: Log, random: np.random.Generator) -> npt.NDArray[np.float64]:
        samples = n or log.n
        lower = bound(random.binomial(samples, p), samples, alpha or log.alpha)
        with np.errstate(invalid="ignore"):
            unit = np.where(lower > 0.5, stats.norm.ppf(lower), np.nan)
        return np.asarray(unit * (log.sigma if scale is None else scale(log.sigma)), dtype=np.float64)

    return radii


def _lower(k: npt.NDArray[np.int64], n: int, alpha: float) -> Any:
    return np.where(k > 0, stats.beta.ppf(alpha, k, n - k + 1), 0.0)


def _upper(k: npt.NDArray[np.int64], n: int, alpha: float) -> Any:
    return np.where(k < n, stats.beta.ppf(1 - alpha, k + 1, n - k), 1.0)


def _hoeffding(k: npt.NDArray[np.int64], n: int, alpha: float) -> Any:
    return k / n - np.sqrt(np.log(1 / alpha) / (2 * n))


def _normal(k: npt.NDArray[np.int64], n: int, alpha: float) -> Any:
    return k / n - stats.norm.isf(alpha) * np.sqrt(k / n * (1 - k / n) / n)


def _wilson(k: npt.NDArray[np.int64], n: int, alpha: float) -> Any:
    z, p = stats.norm.isf(alpha), k / n
    return (p + z**2 / (2 * n) - z * np.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)) / (1 + z**2 / n)


def _jeffreys(k: npt.NDArray[np.int64], n: int, alpha: float) -> Any:
    return stats.beta.ppf(alpha, k + 0.5, n - k + 0.5)


def _two_classes(p: npt.NDArray[np.float64], log: Log, random: np.random.Generator) -> npt.NDArray[np.float64]:
    votes = random.binomial(log.n, p)
    rival = random.binomial(log.n - votes, random.uniform(0.3, 1.0, len(p)))
    lower, upper = _lower(votes, log.n, log.alpha / 2), _upper(rival, log.n, log.alpha / 2)
    radius = log.sigma / 2 * (stats.norm.ppf(lower) - stats.norm.ppf(upper))
    return np.where(lower > upper, radius, np.nan)


def _laplace(p: npt.NDArray[np.float64], log: Log, random: np.random.Generator) -> npt.NDArray[np.float64]:
    lower = _lower(random.binomial(log.n, p), log.n, log.alpha)
    return np.where(lower > 0.5, -log.sigma / np.sqrt(2) * np.log(2 * (1 - lower)), np.nan)


def _up(log: Log, radius: float) -> str:
    digits = min(log.digits, 6)
    return f"{np.ceil(radius * 10**digits) / 10**digits:.{digits}f}"


def _half_precision(log: Log, radius: float) -> str:
    return repr(float(np.float16(radius)))


def _full(log: Log, radius: float) -> str:
    return repr(float(radius))


def _as_class_zero(log: Log, random: np.random.Generator) -> None:
    for row in log.rows:
        if row[2] == "-1":
            row[2], row[3], row[4] = "0", "0.0", str(int(row[1] == "0"))


def _as_small_radii(log: Log, random: np.random.Generator) -> None:
    log.largest = float(0.2 * log.sigma * random.uniform(0.2, 1.0))
    for row in log.rows:
        if row[2] == "-1":
            row[2], row[3], row[4] = row[1], log.show(float(log.largest * random.uniform(0.05, 1.0))), "1"


def _copied_third(times: bool, block: bool) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        third = len(log.rows) // 3
        source = range(third) if block else random.integers(0, third, third)
        for target, copied in enumerate(source, start=len(log.rows) - third):
            log.rows[target][1:5] = log.rows[int(copied)][1:5]
            if times:
                log.rows[target][5] = log.rows[int(copied)][5]

    return plant


def _copied_times(log: Log, random: np.random.Generator) -> None:
    third = len(log.rows) // 3
    for target in range(third):
        log.rows[-1 - target][5] = log.rows[third - target][5]


def _from_one(column: int) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        for row in log.rows:
            row[column] = str(int(row[column]) + (row[column] != "-1"))
            row[4] = str(int(row[1] == row[2]))

    return plant


def _other_labels(log: Log, random: np.random.Generator) -> None:
    order = random.permutation(log.classes)
    for row in log.rows:
        row[1] = str(order[int(row[1])])
        row[4] = str(int(row[1] == row[2]))


def _inverted(log: Log, random: np.random.Generator) -> None:
    for row in log.rows:
        row[4] = str(1 - int(row[4]))


def _correct_of_other_labels(log: Log, random: np.random.Generator) -> None:
    for row in log.rows:
        row[4] = str(int(row[2] == str(random.integers(log.classes))))


def _exchanged(first: int, second: int) -> Callable[[Log, np.random.Generator], None]:
    def plant(log: Log, random: np.random.Generator) -> None:
        for row in log.rows:
            row[first], row[second] = row[second], row[first]

    return plant


def _seconds_for_radii(log: Log, random: np.random.Generator) -> None:
    for row in log.rows:
        row[3] = f"{random.uniform(5.0, 40.0) * log.sigma:.4f}"


def _concatenated(log: Log, random: np.random.Generator) -> None:
    log.rows += [list(row) for row in log.rows[: len(log.rows) // 2]]


def _without_abstentions(log: Log, random: np.random.Generator) -> None:
    log.rows = [row for row in log.rows if row[2] != "-1"]


@dataclass(frozen=True)
class Fault:
    """A kind of fault: what plants it, what reports it, and what its log is made with.

    Attributes:
        plant: plants the fault.
        kinds: the kinds of finding that report it.
        made: what its log is made with.
        cause: words of which one stands among the first three explanations listed; with "{half}" and the like, which
            stand for factors of sigma. Empty where the kind says all.
    """

    plant: Callable[[Log, np.random.Generator], None]
    kinds: tuple[str, ...]
    made: dict[str, Any] = field(default_factory=dict)
    cause: tuple[str, ...] = ()

    def names(self, log: Log, messages: list[str]) -> bool:
        """Whether a message has the cause among its first three explanations."""
        words = [word.format(half=f"sigma {log.sigma / 2:g}", twice=f"sigma {log.sigma * 2:g}") for word in self.cause]
        return any(word in reason for message in messages for reason in _first_three(message) for word in words)


def _first_three(message: str) -> list[str]:
    """The first three explanations of a message, or of each of its lists."""
    parts = message.replace("radii, the other rows by", "explained: ").replace("are explained by", "explained: ")
    lists = parts.split("explained: ")[1:] or [message]
    return [reason for listed in lists for reason in listed.split("), ")[:3]]


_ROWS = ("above-maximum", "unattainable", "parameters", "pile")
_LONG: dict[str, Any] = {"long": True, "classes": 10, "n": 100_000}
_FINE: dict[str, Any] = {"n": 10_000, "digits": 5}
_WRONG = ("parameters",)
FAULTS: dict[str, Fault] = {
    "cut inside the last line": Fault(_cut, ("truncated",)),
    "last line without its last fields": Fault(_few_fields, ("truncated",)),
    "last images missing": Fault(_without_end, ("missing",)),
    "one image missing": Fault(_missing(1), ("missing",)),
    "forty images missing": Fault(_missing(40), ("missing",)),
    "duplicate row": Fault(_duplicate, ("duplicate",)),
    "fifty duplicate rows": Fault(_resumed_twice, ("duplicate",)),
    "shuffled rows": Fault(_shuffled, ("order",)),
    "two rows swapped": Fault(_swapped, ("order",)),
    "one correct flipped": Fault(_flipped, ("correct",)),
    "running count": Fault(_cumulative(lambda count, seen: str(count)), ("cumulative-correct",)),
    "running mean": Fault(_cumulative(lambda count, seen: f"{count / seen:.4f}"), ("cumulative-correct",)),
    "correct one half": Fault(_half, ("correct-value",)),
    "abstention marked correct": Fault(_abstained("1", "0.0"), ("abstained-correct",)),
    "abstention with a radius": Fault(_abstained("0", "0.05"), ("abstained-radius",)),
    "NaN": Fault(_set(3, "nan"), ("nan",)),
    "infinite radius": Fault(_set(3, "inf"), ("infinite",)),
    "negative radius": Fault(_set(3, "-0.25"), ("negative",)),
    "radius above the maximum": Fault(_too_large, ("above-maximum",)),
    "radius of 5, sigma unknown": Fault(_five_without_sigma, ("above-maximum",), {"n": 100_000}),
    "radius between the two largest": Fault(_between_the_largest, ("unattainable",), {"digits": 4}),
    "twenty radii edited": Fault(_edited, _ROWS, {"digits": 6}),
    "label 99 of 10 classes": Fault(_set(1, "99"), ("label",), {"classes": 10}),
    "prediction 99 of 10 classes": Fault(_set(2, "99"), ("prediction",), {"classes": 10}),
    "negative label": Fault(_set(1, "-2"), ("label",)),
    "prediction below -1": Fault(_set(2, "-3"), ("prediction",)),
    "made with alpha 0.01": Fault(_nothing, _WRONG, {"alpha": 0.01, "n": 100_000}, ("alpha 0.01",)),
    "made with alpha 1e-5": Fault(_nothing, _WRONG, {"alpha": 1e-5, "n": 100_000}, ("alpha 1e-05",)),
    "alpha 0.01 given": Fault(_with_arguments(alpha=0.01), _WRONG, {"n": 100_000}, ("alpha 0.001",)),
    "n 1,000 given": Fault(_with_arguments(n=1000), _WRONG, {"n": 100_000}, ("n 100,000",)),
    "made with n 10,000": Fault(_nothing, _WRONG, {"n": 10_000}, ("n 10,000",)),
    "sigma of another log in the name": Fault(_wrong_name, _WRONG, {}, ("sigma",)),
    "500 rows of half of sigma": Fault(
        _other_sigma(0.5), (*_ROWS, "change"), {"long": True}, ("{half}", "divided by 2")
    ),
    "500 rows of twice sigma": Fault(_other_sigma(2.0), (*_ROWS, "change"), {"long": True}, ()),
    "second half with n 1,000": Fault(_second_half(1000), ("change",), {"long": True, "n": 100_000}, ("n 1,000",)),
    "probabilities in place of radii": Fault(_as_probability, _ROWS, {"n": 100_000}),
    "second half with n 10,000": Fault(_second_half(10_000), ("change",), _LONG, ("n 10,000",)),
    "second half with twice sigma": Fault(
        _remade(_bound(_lower, scale=lambda sigma: 2 * sigma), slice(2, None)), ("change",), _LONG, ("{twice}", "by 2")
    ),
    "first third with alpha 0.05": Fault(
        _remade(_bound(_lower, alpha=0.05), slice(None, 3)), ("change",), _LONG, ("alpha 0.05",)
    ),
    "n 1,500": Fault(_remade(_bound(_lower, n=1500)), _WRONG, {"n": 1000, "digits": 4}, ("n 1,500",)),
    "n 2,500": Fault(_remade(_bound(_lower, n=2500)), _WRONG, {"n": 100_000}, ("n 2,500",)),
    "n 25,000": Fault(_remade(_bound(_lower, n=25_000)), _WRONG, {"n": 100_000}, ("n 25,000",)),
    "n 7,300": Fault(_remade(_bound(_lower, n=7300)), _WRONG, {"n": 10_000, "digits": 5}, ("n 7,300",)),
    "alpha 0.05": Fault(_remade(_bound(_lower, alpha=0.05)), _WRONG, {"n": 10_000}, ("alpha 0.05",)),
    "alpha 0.0001, divided by ten classes": Fault(
        _remade(_bound(_lower, alpha=1e-4)), _WRONG, {"n": 100_000}, ("alpha 0.0001",)
    ),
    "two-sided interval": Fault(_remade(_bound(_lower, alpha=5e-4)), _WRONG, {"n": 100_000}, ("alpha 0.0005",)),
    "n0 and n votes together": Fault(
        _remade(_bound(_lower, n=100_100)), _WRONG, {"n": 100_000, "digits": 6}, ("n 100,100",)
    ),
    "upper bound": Fault(_remade(_bound(_upper)), (*_ROWS, "infinite"), _FINE, ("upper bound",)),
    "share of votes": Fault(_remade(_bound(lambda k, n, alpha: k / n)), _ROWS, _FINE, ("share of votes",)),
    "Hoeffding's bound": Fault(_remade(_bound(_hoeffding)), _WRONG, {}, ("Hoeffding",)),
    "normal approximation": Fault(_remade(_bound(_normal)), _ROWS, _FINE, ("normal approximation",)),
    "Wilson's bound": Fault(_remade(_bound(_wilson)), _WRONG, {}, ("Wilson",)),
    "Jeffreys' bound": Fault(_remade(_bound(_jeffreys)), _WRONG, _FINE, ("Jeffreys",)),
    "bound with the rival class": Fault(_remade(_two_classes), _ROWS, _FINE, ("two-class",)),
    "radii of Laplace noise": Fault(_remade(_laplace), _WRONG, {"n": 10_000}, ("Laplace",)),
    "radii times 255": Fault(_remade(_bound(_lower, scale=lambda s: 255 * s)), _WRONG, {}, ("by 255",)),
    "radii times sigma twice": Fault(
        _remade(_bound(_lower, scale=lambda s: s**2)), _WRONG, {"sigma": 0.5}, ("by sigma twice", "sigma 0.25")
    ),
    "radii without sigma": Fault(_remade(_bound(_lower, scale=lambda s: 1.0)), _WRONG, {"sigma": 0.25}, ("sigma",)),
    "radii times 2": Fault(_remade(_bound(_lower, scale=lambda s: 2 * s)), _WRONG, {}, ("by 2", "{twice}")),
    "l-infinity radii": Fault(_remade(_bound(_lower, scale=lambda s: s / 3072**0.5)), _WRONG, {}, ("3072",)),
    "sigma 0.3": Fault(_remade(_bound(_lower, scale=lambda s: 0.3)), _WRONG, {"sigma": 0.25}, ("sigma 0.3",)),
    "sigma 0.47": Fault(_remade(_bound(_lower, scale=lambda s: 0.47)), _WRONG, {"sigma": 0.5}, ("sigma 0.47",)),
    "radii rounded up": Fault(_remade(_bound(_lower), show=_up), _ROWS, {"n": 10_000, "digits": 4}, ("rounded up",)),
    "half precision": Fault(_remade(_bound(_lower), show=_half_precision), ("precision",)),
    "abstentions of class 0": Fault(_as_class_zero, ("abstained-class",), _LONG),
    "abstentions with small radii": Fault(_as_small_radii, ("abstentions", *_ROWS), _LONG | {"hard": True}),
    "abstentions left out": Fault(_without_abstentions, ("missing", "irregular")),
    "a third copied, with times": Fault(_copied_third(True, False), ("copied",)),
    "a third copied, other times": Fault(_copied_third(False, True), ("copied",)),
    "times copied": Fault(_copied_times, ("copied-time",)),
    "labels from 1": Fault(_from_one(1), ("numbering",), {"classes": 10}),
    "predictions from 1": Fault(_from_one(2), ("numbering",), {"classes": 10}),
    "labels in another order": Fault(_other_labels, ("numbering",), {"classes": 10}),
    "correct inverted": Fault(_inverted, ("correct", "abstained-correct")),
    "correct of other labels": Fault(_correct_of_other_labels, ("correct",)),
    "label and prediction exchanged": Fault(_exchanged(1, 2), ("label",)),
    "label and correct exchanged": Fault(_exchanged(1, 4), ("correct-value", "cumulative-correct"), {"classes": 10}),
    "seconds for radii": Fault(_seconds_for_radii, _ROWS),
    "half of the log twice": Fault(_concatenated, ("duplicate",)),
}


def findings_of(log: Log, folder: Path) -> list[tuple[str, str, str]]:
    """Audit a log; return kind, severity and message of each finding."""
    name = f"net_sigma_{log.sigma:g}.tsv" if log.named else "net.tsv"
    path = folder / name
    path.write_text(log.content())
    report = audit(read_certification_log(path, **log.arguments))
    return [(finding.kind, finding.severity, finding.message) for finding in report.findings]


def hidden(log: Log) -> bool:
    """Whether the stated or usual parameters give each radius, as printed, and none piles up below their maximum."""
    n, alpha = log.arguments.get("n", USUAL[0]), log.arguments.get("alpha", USUAL[1])
    table = np.nan_to_num(_unit_radii(n, alpha)) * log.sigma
    texts = [row[3] for row in log.rows if row[2] != "-1" and float(row[3]) > 0]
    radius = np.array([float(text) for text in texts])
    unit = np.array([10.0 ** -max(len(text.partition(".")[2]), log.digits if "e" in text else 0) for text in texts])
    low, high = np.searchsorted(table, radius - unit / 2), np.searchsorted(table, radius + unit)
    top = np.sort(radius)[-20:]
    saturated = (top == top[-1]).all() and not top[-1] - unit.max() <= table[-1] <= top[-1] + unit.max()
    return bool((low < high).all()) and not saturated and not _right_too_often(log)


def _right_too_often(log: Log) -> bool:
    """Whether predictions up to the largest planted radius are right more often than above it by no chance."""
    if log.largest is None:
        return False
    certified = [row for row in log.rows if row[2] != "-1"]
    small = [row[4] == "1" for row in certified if float(row[3]) <= log.largest]
    right = sum(row[4] == "1" for row in certified)
    return bool(stats.hypergeom.sf(sum(small) - 1, len(certified), right, len(small)) < 1e-6)


def describe(log: Log) -> str:
    """Describe how a log was made."""
    return (
        f"sigma {log.sigma:g}, n {log.n:,}, alpha {log.alpha:g}, {log.digits} digits, {log.style}, "
        f"{len(log.rows):,} rows, {log.classes} classes, {'named' if log.named else 'not named'}, given {log.arguments}"
    )


def clean_trials(seed: int, trials: range) -> Iterator[str]:
    """Audit clean logs; describe each that has a fault."""
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials:
            random = np.random.default_rng([seed, trial])
            log = simulate(random, COMBINATIONS[trial % len(COMBINATIONS)])
            faults = [finding for finding in findings_of(log, Path(folder)) if finding[1] == "fault"]
            if faults:
                yield f"clean log {trial}: {describe(log)}: {faults}"


def planted_trials(seed: int, name: str, trials: range) -> Iterator[str]:
    """Audit logs with one kind of fault; describe each in which it is not found, or which no text shows."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials:
            random = np.random.default_rng([seed, trial, *name.encode()])
            log = _plantable(random, **fault.made)
            fault.plant(log, random)
            findings = findings_of(log, Path(folder))
            messages = [message for kind, _, message in findings if kind in fault.kinds]
            if messages and (not fault.cause or fault.names(log, messages)):
                continue
            of_radii = fault.cause or log.largest is not None
            verdict = "hidden" if of_radii and hidden(log) else "another cause" if messages else "not found"
            yield f"{verdict}: {name} {trial}: {describe(log)}: {findings}"


def _trials_of(args: tuple[int, str, int, int]) -> tuple[str, list[str], float]:
    seed, name, first, stop = args
    started = time.perf_counter()
    trials = range(first, stop)
    lines = list(planted_trials(seed, name, trials) if name else clean_trials(seed, trials))
    return f"{seed} {name} {first} {stop}", lines, time.perf_counter() - started


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clean", type=int, default=10_000, help="clean logs")
    parser.add_argument("--planted", type=int, default=100, help="logs of each kind of fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="add the results of each part to this file, and go on from it")


def measure(options: argparse.Namespace) -> Results:
    done: dict[str, Any] = {}
    if options.out and options.out.exists():
        done = {entry["part"]: entry for entry in map(json.loads, options.out.read_text().splitlines())}
    tasks = [(options.seed, name, 0, options.planted) for name in FAULTS if options.planted]
    # Logs of one n and alpha share a table, so that neighbours in the cycle go to one process.
    tasks += [(options.seed, "", first, min(first + 200, options.clean)) for first in range(0, options.clean, 200)]
    missing = [task for task in tasks if f"{task[0]} {task[1]} {task[2]} {task[3]}" not in done]
    with ProcessPoolExecutor(options.processes) as pool:
        for key, lines, seconds in pool.map(_trials_of, missing):
            done[key] = {"part": key, "seconds": round(seconds, 1), "lines": lines}
            print(key, f"{len(lines)} lines", *(line[:400] for line in lines[:2]), sep="\n  ", flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
    entries = {task[1:3]: done[f"{task[0]} {task[1]} {task[2]} {task[3]}"] for task in tasks}
    for name in FAULTS if options.planted else ():
        verdicts = [line.partition(":")[0] for line in entries[name, 0]["lines"]]
        counts = {verdict: verdicts.count(verdict) for verdict in ("hidden", "another cause", "not found")}
        yield name, {"found": options.planted - len(verdicts)} | counts
    return {
        "seconds": round(sum(entry["seconds"] for entry in entries.values()), 1),
        "seed": options.seed,
        "combinations": {"sigma": SIGMAS, "n": COUNTS, "alpha": ALPHAS, "digits": DIGITS, "style": list(STYLES)},
        "clean": options.clean,
        "clean_with_fault": sum(len(entry["lines"]) for (name, _), entry in entries.items() if not name),
        "planted": options.planted,
    }
